"""Conversion of groups with members between the classic and the consumer protocol (KIP-848, "Migration").

**Upgrade** of a classic group to a consumer group, when the first member joins by the consumer protocol (in Kafka:
`GroupMetadataManager.convertToConsumerGroup`, `ConsumerGroup.fromClassicGroup`). The members stay, with their
partitions, as members that speak the classic protocol; their generation becomes the group epoch. Parked requests of the
classic group are answered with REBALANCE_IN_PROGRESS, so their senders rejoin, now in the consumer group.

**Downgrade** of a consumer group to a classic group, when the last member that spoke the consumer protocol left, or a
static member that speaks the classic protocol took its place (in Kafka: `GroupMetadataManager.convertToClassicGroup`).
The records are the consumer group's tombstones and one GroupMetadata record: each remaining member has its target as
its assignment, and the generation is the group epoch. If members left, the group rebalances at once.

The consumer's own protocol inside JoinGroup and SyncGroup names topics; a consumer group stores topic ids. A topic that
the image does not have is left out, as in Kafka. A member is answered in the version that its subscription has, 3 at
most.

Deliberate differences from Kafka 4.3.1:
- a group without a completed generation is upgraded, with the protocol that its members would have selected (Kafka
  fails internally with UNKNOWN_SERVER_ERROR);
- a refused upgrade has no effect on the group (Kafka has already told parked members to rejoin);
- user data in an assignment prevents the upgrade only for custom assignors. librdkafka's leaders return members their
  own subscription's user data with `cooperative-sticky`; nothing reads it, but Kafka refuses every such group;
- a group whose members' metadata cannot be read, or that have no protocol in common, stays a consumer group (in Kafka
  the request that would downgrade it fails, and the member cannot leave).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from uuid import UUID

from headrace.assignors.assignor import Assignment, TopicPartition
from headrace.assignors.consumer_protocol import (
    MalformedUserData,
    Reader,
    decode_assignment,
    decode_subscription,
    encode_assignment,
)
from headrace.coordinator.classic.group import (
    CONSUMER_PROTOCOL_TYPE,
    ClassicGroupState,
    ClassicMember,
    ClassicMembership,
    common_protocols,
)
from headrace.coordinator.classic.rebalance import prepare_rebalance
from headrace.coordinator.classic.transition import JOIN, SYNC, group_timer, join_error_reply, sync_error_reply
from headrace.coordinator.classic_groups import ClassicGroups
from headrace.coordinator.configuration import allows_downgrade, allows_upgrade
from headrace.coordinator.consumer import records
from headrace.coordinator.consumer.group import ConsumerGroup
from headrace.coordinator.consumer.group_context import GroupContext, cancel_member_timers, regexes_timer, session
from headrace.coordinator.consumer.member import (
    NO_METADATA,
    ConsumerGroupMember,
    Partitions,
    partitions_of,
    with_epochs,
    without_epochs,
)
from headrace.coordinator.group_registry import ShardState
from headrace.coordinator.metadata_image import MetadataImage, TopicImage
from headrace.coordinator.modern import FIRST_EPOCH, session_timer
from headrace.coordinator.records import schemas as s
from headrace.coordinator.records.schemas import group_metadata_tombstone
from headrace.coordinator.request_context import CoordinatorError
from headrace.coordinator.result import (
    CancelTimer,
    CoordinatorEvent,
    CoordinatorRecord,
    CoordinatorResult,
    Reply,
    SetTimer,
)
from headrace.protocol.error_codes import ErrorCode

__all__ = ["DowngradeRule", "assignment_bytes", "partitions_by_id", "upgrade_group"]


def partitions_by_id(named: Iterable[TopicPartition], image: MetadataImage) -> Partitions:
    """Return partitions by topic id; topics that the image lacks are left out."""
    return partitions_of(
        (image.topics[topic].topic_id, (partition,)) for topic, partition in named if topic in image.topics
    )


def assignment_bytes(partitions: Partitions, topics: Mapping[UUID, TopicImage], subscription: bytes) -> bytes:
    """`topics` by id; `subscription`: of the member who is to read it. Raises MalformedUserData when that has no
    version."""
    named = [
        (topics[topic_id].name, partition)
        for topic_id, of_topic in partitions.items()
        # Deleted topics have no name that the member could read.
        if topic_id in topics
        for partition in of_topic
    ]
    return encode_assignment(Assignment(partitions=tuple(named)), Reader(subscription).version())


KAFKAS_ASSIGNORS = frozenset({"range", "roundrobin", "sticky", "cooperative-sticky"})
"""They put nothing into an assignment but partitions."""


def upgrade_group(classic: ClassicMembership, group_context: GroupContext) -> tuple[ConsumerGroup, CoordinatorResult]:
    """The consumer group that the records make, and what comes before the joining member's own. Raises
    CoordinatorError(GROUP_ID_NOT_FOUND) in Kafka's words."""
    # 1. Refuse before anything is built: a refused upgrade must leave the classic group as it is.
    _check(classic, group_context)
    group = ConsumerGroup(group_id=classic.group_id)
    # 2. Build the consumer group in memory with the same calls that replay will use. The joining member's heartbeat
    #    runs on this copy, so its records can be in the same batch as the conversion's: after a crash there is either a
    #    classic group or a consumer group with all members, never half of one.
    members = _members(classic, group_context.image)
    for member in members:
        group.replay_member(member.member_id, member.metadata)
        group.target[member.member_id] = without_epochs(member.assigned)
        group.members[member.member_id] = member
        group.holders.hold(member)
    # 3. The generation becomes the epoch of group, target and members: everyone is reconciled, and commits with the old
    #    generation remain valid, since classic members send their epoch as generation.
    epoch = _epoch(classic)
    metadata_hash = group.subscriptions.metadata_hash(group_context.image)
    group.replay_metadata(s.ConsumerGroupMetadataValue(epoch=epoch, metadata_hash=metadata_hash))
    group.replay_target_metadata(s.ConsumerGroupTargetAssignmentMetadataValue(assignment_epoch=epoch))
    details = (("epoch", str(epoch)), ("members", str(len(members))))
    result = CoordinatorResult(
        records=(group_metadata_tombstone(classic.group_id), *_records(group, members)),
        replies=_refuse_parked_requests(classic),
        timers=(*_cancelled_timers(classic), *(session(group, member, group_context) for member in members)),
        events=(CoordinatorEvent(name="GroupUpgraded", group_id=classic.group_id, details=details),),
    )
    return group, result


def _check(classic: ClassicMembership, group_context: GroupContext) -> None:
    # In Kafka's order; the first reason is the one in the message.
    reason = None
    if not allows_upgrade(group_context.configuration.migration_policy):
        reason = "online upgrade is disabled"
    elif classic.protocol_type != CONSUMER_PROTOCOL_TYPE:
        reason = "the group does not use the consumer embedded protocol"
    elif len(classic.members) > group_context.configuration.max_size:
        reason = "the group size exceeds the consumer group maximum size"
    if reason is not None:
        raise _refused(classic, reason)


def _refused(classic: ClassicMembership, reason: str) -> CoordinatorError:
    message = f"Cannot upgrade classic group {classic.group_id} to consumer group because {reason}."
    return CoordinatorError(ErrorCode.group_id_not_found, message)


def _epoch(classic: ClassicMembership) -> int:
    # Generation 0 is a group that never finished a join; epochs begin at 1.
    return max(classic.generation, FIRST_EPOCH)


def _members(classic: ClassicMembership, image: MetadataImage) -> list[ConsumerGroupMember]:
    """Return the members in the order of their ids. There may be none: all left while the group rebalances."""
    if not classic.members:
        return []
    protocol = classic.protocol
    if protocol not in common_protocols(classic.protocol_counts, len(classic.members)):
        protocol = classic.select_protocol()  # who came since the last generation does not speak that one
    try:
        return [_member(classic.members[each], protocol, _epoch(classic), image) for each in sorted(classic.members)]
    except MalformedUserData:
        raise _refused(classic, "the embedded consumer protocol is malformed") from None
    except _CustomAssignor:
        hint = "Please refer to the documentation or switch to a default assignor before re-attempting the upgrade"
        raise _refused(classic, f"an unsupported custom assignor is in use. {hint}") from None


class _CustomAssignor(Exception):
    """Bytes in an assignment for the application's own assignor, which no one would read after the upgrade."""


def _member(member: ClassicMember, protocol: str | None, epoch: int, image: MetadataImage) -> ConsumerGroupMember:
    assignment = decode_assignment(member.assignment)
    # After the upgrade the coordinator assigns, and no leader writes these bytes any more.
    if assignment.user_data and protocol not in KAFKAS_ASSIGNORS:
        raise _CustomAssignor
    subscription = decode_subscription(member.metadata(protocol))
    return ConsumerGroupMember(
        member_id=member.member_id,
        metadata=s.ConsumerGroupMemberMetadataValue(
            instance_id=member.instance_id,
            rack_id=subscription.rack_id or None,
            client_id=member.client_id,
            client_host=member.client_host,
            subscribed_topic_names=tuple(sorted(set(subscription.topics))),
            subscribed_topic_regex=NO_METADATA.subscribed_topic_regex,
            rebalance_timeout_ms=member.rebalance_timeout_ms,
            classic_member_metadata=s.ClassicMemberMetadata(
                session_timeout_ms=member.session_timeout_ms, supported_protocols=member.protocols
            ),
        ),
        member_epoch=epoch,
        previous_member_epoch=epoch,
        assigned=with_epochs(partitions_by_id(assignment.partitions, image), epoch),
    )


def _records(group: ConsumerGroup, members: list[ConsumerGroupMember]) -> tuple[CoordinatorRecord, ...]:
    """Return the records of the new group, in Kafka's order."""
    group_id, targets = group.group_id, group.target
    return (
        *(records.member_record(group_id, member) for member in members),
        records.group_metadata_record(group_id, group.metadata),
        *(records.target_assignment_record(group_id, each.member_id, targets[each.member_id]) for each in members),
        records.target_assignment_metadata_record(group_id, epoch=group.assignment_epoch, timestamp_ms=0),
        *(records.current_assignment_record(group_id, member) for member in members),
    )


def _refuse_parked_requests(classic: ClassicMembership) -> tuple[Reply, ...]:
    # Parked members join again, and find the consumer group then.
    code = ErrorCode.rebalance_in_progress
    found: list[Reply] = []
    for member in classic.members.values():
        if member.join_token is not None:
            found.append(Reply(token=member.join_token, response=join_error_reply(code, member.member_id)))
        if member.sync_token is not None:
            found.append(Reply(token=member.sync_token, response=sync_error_reply(code)))
    return tuple(found)


def _cancelled_timers(classic: ClassicMembership) -> list[SetTimer | CancelTimer]:
    """Return the cancellations of all timers, also of ids that were given out and may still join."""
    group_id = classic.group_id
    found: list[SetTimer | CancelTimer] = [CancelTimer(key=group_timer(kind, group_id)) for kind in (JOIN, SYNC)]
    found.extend(CancelTimer(key=session_timer(group_id, member_id)) for member_id in classic.pending_joins)
    return found


class DowngradeRule:
    """The way back of the groups of one shard; a `Downgrade`."""

    def __init__(self, state: ShardState, classic: ClassicGroups) -> None:
        self._state = state
        self._classic = classic

    def __call__(self, group: ConsumerGroup, leaving: Collection[str], *, now_ms: int) -> CoordinatorResult | None:
        """Return None if the group stays a consumer group.

        It does if a remaining member speaks its protocol, if none remains, or if the policy does not allow a downgrade.
        """
        staying = [group.members[each] for each in sorted(group.members) if each not in leaving]
        # 1. A member must stay, and all that stay speak the classic protocol.
        if not staying or not self.is_due(staying):
            return None
        reason = "the last members that spoke the consumer protocol left"
        return self.downgrade_group(group, staying, now_ms=now_ms, rebalance_reason=reason)

    def is_due(self, members: Collection[ConsumerGroupMember]) -> bool:
        """Whether a group with these members is to be a classic one, and may."""
        configuration = self._state.configuration
        return (
            all(member.uses_classic_protocol for member in members)
            and allows_downgrade(configuration.consumer_migration_policy)
            and len(members) <= configuration.classic_groups.max_size
        )

    def downgrade_group(
        self,
        group: ConsumerGroup,
        members: Sequence[ConsumerGroupMember],
        *,
        now_ms: int,
        rebalance_reason: str | None,
        records: tuple[CoordinatorRecord, ...] = (),
    ) -> CoordinatorResult | None:
        """`group` goes, with `members` a classic group comes; the first leads. `records` come before all others.
        Without a reason to rebalance it is stable. None: it cannot be one."""
        topics = {topic.topic_id: topic for topic in self._state.image.topics.values()}
        try:
            membership = _membership(group, members, topics, now_ms)
        except MalformedUserData:
            return None
        if membership is None:
            return None
        # 2. Tombstones of the consumer group and the record of the classic group are in one batch: after a crash there
        #    is one group or the other.
        transition = self._classic.transition(membership, now_ms, (*records, *group.tombstones()))
        transition.write_group()
        transition.add_event("GroupDowngraded", generation=str(membership.generation), members=str(len(members)))
        for member in tuple(membership.members.values()):
            transition.set_session_timer(member)
        if rebalance_reason is not None:
            prepare_rebalance(transition, rebalance_reason)
        result = transition.result()
        # 3. Timers of all former members go, then those of the classic group come: a session timer has the same name in
        #    both.
        gone = [timer for each in sorted(group.members) for timer in cancel_member_timers(group.group_id, each)]
        gone.append(CancelTimer(key=regexes_timer(group.group_id)))
        return replace(result, timers=(*gone, *result.timers))


def _membership(
    group: ConsumerGroup, members: Sequence[ConsumerGroupMember], topics: Mapping[UUID, TopicImage], now_ms: int
) -> ClassicMembership | None:
    """Stable, each member with its target. None: they have no protocol in common. Raises MalformedUserData."""
    # Kafka: ClassicGroup.fromConsumerGroup. Members keep their *target* and not their current assignment: with the
    # target the group is balanced; partitions that are still being revoked will be revoked by the rebalance that
    # follows.
    found = ClassicMembership(
        group_id=group.group_id,
        state=ClassicGroupState.STABLE,
        state_since_ms=now_ms,
        protocol_type=CONSUMER_PROTOCOL_TYPE,
        generation=group.group_epoch,
    )
    for member in members:
        found.put(_classic_member(member))
    # Each member joined with a protocol in common with the others, but those others may have left and come back since.
    if not common_protocols(found.protocol_counts, len(members)):
        return None
    found.protocol = found.select_protocol()
    found.update_subscribed_topics()
    for each in tuple(found.members.values()):
        target, subscription = group.target_of(each.member_id), each.metadata(found.protocol)
        found.put(replace(each, assignment=assignment_bytes(target, topics, subscription)))
    return found


def _classic_member(member: ConsumerGroupMember) -> ClassicMember:
    """Return the member as one of a classic group."""
    metadata = member.metadata
    classic = metadata.classic_member_metadata
    assert classic is not None
    return ClassicMember(
        member_id=member.member_id,
        instance_id=metadata.instance_id,
        client_id=metadata.client_id,
        client_host=metadata.client_host,
        rebalance_timeout_ms=metadata.rebalance_timeout_ms,
        session_timeout_ms=classic.session_timeout_ms,
        protocols=classic.supported_protocols,
    )
