"""Target assignment of a consumer group: the assignor's result for every member, when it is computed, its records.

The assignor runs in a heartbeat, at most once per assignment interval. There is no timer: the first heartbeat after the
interval computes the target, and a member can act on a target only in its own heartbeat.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from uuid import UUID

from headrace.coordinator.assignors.partition_assignors import ConsumerGroupSpec, MemberSubscription
from headrace.coordinator.consumer import records
from headrace.coordinator.consumer.group import ConsumerGroup, Subscriptions
from headrace.coordinator.consumer.group_context import GroupContext
from headrace.coordinator.consumer.member import NO_PARTITIONS, ConsumerGroupMember, Partitions
from headrace.coordinator.metadata_image import MetadataImage
from headrace.coordinator.result import CoordinatorRecord

__all__ = ["TargetAssignment", "stored_target", "target_assignment"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetAssignment:
    """The target of one member, and the records that make a computed one the group's."""

    epoch: int
    partitions: Partitions
    records: tuple[CoordinatorRecord, ...] = ()


def target_assignment(
    group: ConsumerGroup,
    member: ConsumerGroupMember,
    subscriptions: Subscriptions,
    group_epoch: int,
    group_context: GroupContext,
) -> TargetAssignment:
    """The stored one, a new one, or the stored one while the assignment interval lasts. `member` as its heartbeat makes
    it, `subscriptions` with it."""
    # 1. The stored target is current, or the assignor ran less than an assignment interval ago (KIP-1263). In the
    #    second case the first heartbeat after the interval computes it.
    if group.assignment_epoch >= group_epoch or not _may_compute(group, group_context):
        return stored_target(group, member)
    # 2. The assignor is chosen by the members' votes (KIP-848, "Assignor Selection"), this member's new vote included.
    members: Mapping[str, ConsumerGroupMember] = {**group.members, member.member_id: member}
    assignor = group_context.assignor(group.preferred_assignor(group_context.assignors, member))
    assigned = assignor.assign(_group_spec(group, members, subscriptions, group_context.image))
    # 3. As in TargetAssignmentBuilder: one record per member whose target changed, then the metadata record.
    #    `group.target` has no entry for a new member, so a new member always gets a record, also for an empty target.
    found = [
        records.target_assignment_record(group.group_id, member_id, assigned.get(member_id, NO_PARTITIONS))
        for member_id in sorted(members)
        if group.target.get(member_id) != assigned.get(member_id, NO_PARTITIONS)
    ]
    found.append(
        records.target_assignment_metadata_record(group.group_id, epoch=group_epoch, timestamp_ms=group_context.now_ms)
    )
    partitions = assigned.get(member.member_id, NO_PARTITIONS)
    return TargetAssignment(epoch=group_epoch, partitions=partitions, records=tuple(found))


def stored_target(group: ConsumerGroup, member: ConsumerGroupMember) -> TargetAssignment:
    """Return the stored target of a member."""
    return TargetAssignment(epoch=group.assignment_epoch, partitions=group.target_of(member.member_id))


def _may_compute(group: ConsumerGroup, group_context: GroupContext) -> bool:
    """A clock that went back does not lock the group."""
    last_ms = group.target_metadata.assignment_timestamp
    interval_ms = group_context.configuration.assignment_interval_ms
    return last_ms == 0 or interval_ms == 0 or not last_ms <= group_context.now_ms < last_ms + interval_ms


def _group_spec(
    group: ConsumerGroup,
    members: Mapping[str, ConsumerGroupMember],
    subscriptions: Subscriptions,
    image: MetadataImage,
) -> ConsumerGroupSpec:
    # Most groups subscribe to one list of topics. Resolving it once per distinct subscription, and not once per member,
    # makes the spec of a group of 1,000 members and 1,000 topics cost 1,000 look-ups instead of a million.
    known: dict[tuple[tuple[str, ...], str | None], tuple[UUID, ...]] = {}  # members alike have the same topics
    specs: dict[str, MemberSubscription] = {}
    counts: dict[UUID, int] = {}
    for member_id in sorted(members):
        member = members[member_id]
        key = (member.metadata.subscribed_topic_names, member.regex)
        if key not in known:
            topics = subscriptions.topics_of(member, image)
            known[key] = tuple(topic.topic_id for topic in topics.values())
            counts.update((topic.topic_id, topic.partitions) for topic in topics.values())
        specs[member_id] = MemberSubscription(
            topic_ids=known[key],
            instance_id=member.metadata.instance_id,
            rack_id=member.metadata.rack_id,
            previous=group.target_of(member_id),
        )
    return ConsumerGroupSpec(
        members=specs,
        partition_counts=counts,
        is_homogeneous=subscriptions.is_homogeneous(len(members)),
    )
