"""Steps 2 to 7 of a consumer heartbeat: admission of the member, and the changes that its request makes in the group.

Shared by the two protocols that a member of a consumer group may speak: ConsumerGroupHeartbeat, and JoinGroup of a
member that still uses the classic protocol (`live_migration`). The rules for epochs and static members are those of
streams groups too, see `modern`.

The assignor runs in a heartbeat, at most once per assignment interval. There is no timer: the first heartbeat after the
interval computes the target, and a member can act on a target only in its own heartbeat.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeAlias
from uuid import UUID

from headrace.coordinator.assignors.partition_assignors import ConsumerGroupSpec, MemberSubscription
from headrace.coordinator.consumer import records
from headrace.coordinator.consumer.current_assignment import reconcile
from headrace.coordinator.consumer.group import ConsumerGroup, Subscriptions
from headrace.coordinator.consumer.group_context import GroupContext, cancel_member_timers, regexes_timer
from headrace.coordinator.consumer.member import NO_PARTITIONS, ConsumerGroupMember, Partitions
from headrace.coordinator.consumer.regular_expressions import (
    ConsumerGroupSoftState,
    RegexChange,
    TopicRegexResolution,
    detect_regex_change,
    start_resolution_if_due,
)
from headrace.coordinator.metadata_image import MetadataImage
from headrace.coordinator.modern import (
    JOIN_EPOCH,
    STATIC_LEAVE_EPOCH,
    UNCHANGED_TIMEOUT_MS,
    Admission,
    cancel_replaced_member_timers,
    check_epoch,
    check_released,
    find_member,
    heartbeat_events,
    replace_member,
)
from headrace.coordinator.records.schemas import ConsumerGroupMemberMetadataValue, ConsumerGroupMetadataValue
from headrace.coordinator.request_context import CoordinatorError, RequestContext
from headrace.coordinator.result import CancelTimer, CoordinatorEvent, CoordinatorRecord, SetTimer
from headrace.protocol.error_codes import ErrorCode
from headrace.protocol.kio_units import to_ms
from headrace.protocol.messages import consumer_group_heartbeat_request as m

__all__ = [
    "ConsumerGroupAdmission",
    "HeartbeatStep",
    "TargetAssignment",
    "admit_member",
    "check_room",
    "heartbeat_step",
    "stored_target",
    "target_assignment",
    "update_member",
    "with_static_leave",
]


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


ConsumerGroupAdmission: TypeAlias = Admission[ConsumerGroup, ConsumerGroupMember]


def with_static_leave(member: ConsumerGroupMember) -> ConsumerGroupMember:
    """Return the record of a static member that left with epoch -2.

    It has nothing left to revoke, and its partitions count as assigned at epoch 0.
    """
    return replace(
        member,
        member_epoch=STATIC_LEAVE_EPOCH,
        assigned={topic_id: dict.fromkeys(of_topic, 0) for topic_id, of_topic in member.assigned.items()},
        pending_revocation={},
    )


def admit_member(
    group: ConsumerGroup, request: m.ConsumerGroupHeartbeatRequest, owned: Partitions | None, *, max_size: int
) -> ConsumerGroupAdmission:
    """Return the stored member, or a new one on a join. Raises GROUP_MAX_SIZE_REACHED, UNKNOWN_MEMBER_ID,
    FENCED_MEMBER_EPOCH; for a static member also UNRELEASED_INSTANCE_ID, FENCED_INSTANCE_ID."""
    member_id, instance_id = request.member_id, request.instance_id
    # 1. Who has the instance now. 2. Room in the group, which a known member or instance does not need. 3. A join
    #    finds, makes or replaces a member. 4. Anything else must come from a member with a valid epoch.
    known_id = None if instance_id is None else group.static_members.get(instance_id)
    check_room(group, member_id, known_id, max_size=max_size)
    if request.member_epoch == JOIN_EPOCH:
        return _admit_joining(group, member_id, instance_id, known_id)
    member = find_member(group, member_id, instance_id)
    check_epoch(
        member,
        request.member_epoch,
        group_type="consumer",
        owns_nothing_else=lambda: owned is not None and _has_all(member, owned),
    )
    return Admission(group=group, member=member)


def check_room(group: ConsumerGroup, member_id: str, known_id: str | None, *, max_size: int) -> None:
    """Check `group.max.size`.

    Raises GROUP_MAX_SIZE_REACHED for a new member; `known_id`: the member whose instance it is.
    """
    if len(group.members) >= max_size and member_id not in group.members and known_id is None:
        raise CoordinatorError(
            ErrorCode.group_max_size_reached,
            f"The consumer group has reached its maximum capacity of {max_size} members.",
        )


def _admit_joining(
    group: ConsumerGroup, member_id: str, instance_id: str | None, known_id: str | None
) -> ConsumerGroupAdmission:
    if known_id is None or instance_id is None:
        member = group.members.get(member_id) or ConsumerGroupMember(member_id=member_id)
        return Admission(group=group, member=member)
    known = group.members[known_id]
    # The same process joins again: its last reply was lost, or it was fenced (see `modern`).
    if known_id == member_id and not known.is_away:
        return Admission(group=group, member=known)
    if not known.uses_classic_protocol:  # a classic member gives way at once, as in a classic group
        check_released(known, instance_id, member_id)
    replacement = replace_member(group, known, member_id, records)
    return Admission(group=replacement.group, member=replacement.member, replacement=replacement)


def _has_all(member: ConsumerGroupMember, owned: Partitions) -> bool:
    return all(
        topic_id in member.assigned and member.assigned[topic_id].keys() >= set(partitions)
        for topic_id, partitions in owned.items()
    )


def update_member(
    member: ConsumerGroupMember, request: m.ConsumerGroupHeartbeatRequest, context: RequestContext
) -> ConsumerGroupMember:
    """Apply the fields of a request to a member. Returns the same object if nothing differs.

    Null means unchanged; client id and host are always those of the request.

    A member that spoke the classic protocol no longer does. A join says all of what is read: who takes a static
    member's place does not read what that one did.
    """
    known = member.metadata
    timeout_ms = to_ms(request.rebalance_timeout)
    names, regex = request.subscribed_topic_names, request.subscribed_topic_regex
    # A join replaces the subscription as a whole; null means "unchanged" only later.
    if request.member_epoch == JOIN_EPOCH:
        names, regex = names or (), regex or ""
    metadata = ConsumerGroupMemberMetadataValue(
        instance_id=known.instance_id if request.instance_id is None else request.instance_id,
        rack_id=known.rack_id if request.rack_id is None else request.rack_id,
        client_id=context.client_id,
        client_host=context.client_host,
        # Sorted and unique: another order of the same names must not be a change, which would raise the group epoch.
        subscribed_topic_names=known.subscribed_topic_names if names is None else tuple(sorted(set(names))),
        subscribed_topic_regex=known.subscribed_topic_regex if regex is None else regex,
        rebalance_timeout_ms=known.rebalance_timeout_ms if timeout_ms == UNCHANGED_TIMEOUT_MS else timeout_ms,
        server_assignor=known.server_assignor if request.server_assignor is None else request.server_assignor,
    )
    return member if metadata == known else replace(member, metadata=metadata)


@dataclass(frozen=True, slots=True, kw_only=True)
class HeartbeatStep:
    """Changes that one request of a member makes in its group.

    `admission`: the member before the request. `updated`: with the changes that the request reports; `reconciled`: with
    the partitions that it may have now. `metadata` is the group's own object if the epoch stays. `soft` applies the
    changes of soft state. `starts_resolution`: regular expressions are resolved anew.
    """

    admission: ConsumerGroupAdmission
    updated: ConsumerGroupMember
    reconciled: ConsumerGroupMember
    metadata: ConsumerGroupMetadataValue
    target: TargetAssignment
    change: RegexChange
    soft: Callable[[], None]
    starts_resolution: bool

    @property
    def replaced_id(self) -> str | None:
        """The member id whose place a static member took; None if it took none."""
        return self.admission.replaced_id

    def records(self) -> tuple[CoordinatorRecord, ...]:
        group = self.admission.group
        # Kafka's order within one batch: replacement, member, expressions, group, target, current assignment. A reader
        # that stops after any of them sees a group that the next heartbeat completes.
        found: list[CoordinatorRecord] = []
        if self.admission.replacement is not None:
            found.extend(self.admission.replacement.records)
        if self.updated is not self.admission.member:
            found.append(records.member_record(group.group_id, self.updated))
        found.extend(self.change.records)
        if self.metadata is not group.metadata:
            found.append(records.group_metadata_record(group.group_id, self.metadata))
            if group.partition_metadata is not None:  # of a broker before 4.1; the hash stands for it now
                found.append(records.partition_metadata_tombstone(group.group_id))
        found.extend(self.target.records)
        if self.reconciled is not self.updated:
            found.append(records.current_assignment_record(group.group_id, self.reconciled))
        return tuple(found)

    def timers(self, now_ms: int) -> list[SetTimer | CancelTimer]:
        """Return timers that do not depend on the member's protocol: of a replaced member, of regular expressions."""
        group_id = self.admission.group.group_id
        found: list[SetTimer | CancelTimer] = []
        if self.replaced_id is not None:
            found.extend(cancel_member_timers(group_id, self.replaced_id))
        found.extend(cancel_replaced_member_timers(group_id, self.replaced_id, self.admission.member.member_id))
        if self.starts_resolution:
            found.append(SetTimer(key=regexes_timer(group_id), deadline_ms=now_ms))
        return found

    def events(self) -> tuple[CoordinatorEvent, ...]:
        group, member_id = self.admission.group, self.admission.member.member_id
        return heartbeat_events(
            group.group_id,
            member_id,
            joined=member_id not in group.members,
            replaced_id=self.replaced_id,
            bumped_to=None if self.metadata is group.metadata else (self.metadata.epoch, self._bump_reason()),
            computed_for=self.target.epoch if self.target.records else None,
        )

    def _bump_reason(self) -> str:
        """The trigger of a new group epoch. A changed subscription alters the hash of topics too and comes first."""
        member = self.admission.member
        if member.member_id not in self.admission.group.members:
            return "a member joined"
        if self.updated.metadata != member.metadata or self.replaced_id is not None:
            return "a member or its subscription changed"
        return "topics or their partition counts changed"


def heartbeat_step(
    admission: ConsumerGroupAdmission,
    updated: ConsumerGroupMember,
    owned: Partitions | None,
    soft: ConsumerGroupSoftState,
    group_context: GroupContext,
    *,
    computes_target: bool = True,
) -> HeartbeatStep:
    """Run steps 4 to 7 of a heartbeat: group epoch, target assignment, current assignment.

    Args:
        admission: the member as it is recorded, from `admit_member`.
        updated: the member after the changes of the request.
        owned: partitions that the member reports; None if it did not report any.
        soft: state of the group that is not recorded.
        group_context: settings, topics and time.
        computes_target: False keeps the target. A member whose group requires another one is then not reconciled.

    Raises:
        CoordinatorError: the member is fenced, or its regular expression is invalid.
    """
    group, member = admission.group, admission.member
    # Step 4. `subscriptions` are the group's with this request; a copy, since only replay changes the group's own.
    change = detect_regex_change(group, member, updated)
    subscriptions = group.subscriptions
    # A copy per changed member costs O(subscriptions); heartbeats that change nothing share the group's own index.
    if updated is not member:
        subscriptions = subscriptions.changed(member.metadata, updated.metadata)
    names_changed = updated.metadata.subscribed_topic_names != member.metadata.subscribed_topic_names
    resolution = start_resolution_if_due(group, soft, change, subscriptions, group_context)
    metadata = _bump_group_epoch(
        group, soft, subscriptions, group_context, reads_others=names_changed or change.is_known
    )
    # Step 6.
    if computes_target:
        target = target_assignment(group, updated, subscriptions, metadata.epoch, group_context)
    else:
        target = stored_target(group, updated)
    # Step 7. A member that has its target and whose subscription stays is not looked at: this is the common case.
    subscription_changed = names_changed or change.changed
    reconciled = updated
    is_due = subscription_changed or not updated.is_reconciled_to(target.epoch)
    if is_due and (computes_target or target.epoch >= metadata.epoch):
        topics = subscriptions.topics_of(updated, group_context.image)
        reconciled = reconcile(
            group,
            updated,
            target=target.partitions,
            target_epoch=target.epoch,
            readable={topic.topic_id for topic in topics.values()},
            subscription_changed=subscription_changed,
            owned=owned,
        )
    return HeartbeatStep(
        admission=admission,
        updated=updated,
        reconciled=reconciled,
        metadata=metadata,
        target=target,
        change=change,
        soft=partial(_update_soft_state, soft, group_context.image, metadata.epoch, resolution),
        starts_resolution=resolution is not None,
    )


def _update_soft_state(
    soft: ConsumerGroupSoftState, image: MetadataImage, group_epoch: int, resolution: TopicRegexResolution | None
) -> None:
    # With the epoch that it led to: if the log refuses the records, the group stays at its epoch, and the comparison is
    # made again.
    soft.remember_comparison(image, group_epoch)
    if resolution is not None:
        soft.resolution = resolution


def _bump_group_epoch(
    group: ConsumerGroup,
    soft: ConsumerGroupSoftState,
    subscriptions: Subscriptions,
    group_context: GroupContext,
    *,
    reads_others: bool,
) -> ConsumerGroupMetadataValue:
    """Step 5: the group's metadata, one epoch on when the assignor would see something new; else the same object.

    A regular expression that is not resolved yet is no reason: it will be one when it is.
    """
    # The hash covers every subscribed topic. It is computed when the image is another one, or when the last comparison
    # led to an epoch that the log refused; not with every heartbeat.
    if not reads_others and not soft.must_compare(group_context.image, group.group_epoch):
        return group.metadata
    metadata_hash = subscriptions.metadata_hash(group_context.image)
    if not reads_others and metadata_hash == group.metadata.metadata_hash:
        return group.metadata
    return replace(group.metadata, epoch=group.group_epoch + 1, metadata_hash=metadata_hash)
