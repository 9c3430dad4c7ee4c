"""Upgrade of a classic group with members to a consumer group, when the first member joins by the consumer protocol.

The members stay, with their partitions, as members that speak the classic protocol; their generation becomes the group
epoch. Parked requests of the classic group are answered with REBALANCE_IN_PROGRESS, so their senders rejoin, now in the
consumer group (`classic_members`).

Deliberate differences from Kafka 4.3.1:
- a group without a completed generation is upgraded, with the protocol that its members would have selected (Kafka
  fails internally with UNKNOWN_SERVER_ERROR);
- a refused upgrade has no effect on the group (Kafka has already told parked members to rejoin);
- user data in an assignment prevents the upgrade only for custom assignors. librdkafka's leaders return members their
  own subscription's user data with `cooperative-sticky`; nothing reads it, but Kafka refuses every such group.
"""

from __future__ import annotations

from headrace.assignors.consumer_protocol import MalformedUserData, decode_assignment, decode_subscription
from headrace.coordinator.classic import replies
from headrace.coordinator.classic.group import ClassicMembership, common_protocols
from headrace.coordinator.classic.member import CONSUMER_PROTOCOL_TYPE, ClassicMember
from headrace.coordinator.classic.transition import JOIN, SYNC, group_timer
from headrace.coordinator.configuration import allows_upgrade
from headrace.coordinator.consumer import records
from headrace.coordinator.consumer.group import ConsumerGroup
from headrace.coordinator.consumer.group_context import GroupContext
from headrace.coordinator.consumer.member import NO_METADATA, ConsumerGroupMember, with_epochs, without_epochs
from headrace.coordinator.consumer.timers import session
from headrace.coordinator.errors import CoordinatorError
from headrace.coordinator.metadata_image import MetadataImage
from headrace.coordinator.migration.embedded_protocol import partitions_by_id
from headrace.coordinator.modern.group import FIRST_EPOCH
from headrace.coordinator.modern.timers import session_timer
from headrace.coordinator.records import consumer_schemas as c
from headrace.coordinator.records.builders import group_metadata_tombstone
from headrace.coordinator.result import (
    CancelTimer,
    CoordinatorEvent,
    CoordinatorRecord,
    CoordinatorResult,
    Reply,
    SetTimer,
)
from headrace.protocol.error_codes import ErrorCode

__all__ = ["upgrade_group"]

KAFKAS_ASSIGNORS = frozenset({"range", "roundrobin", "sticky", "cooperative-sticky"})
"""They put nothing into an assignment but partitions."""


def upgrade_group(classic: ClassicMembership, group_context: GroupContext) -> tuple[ConsumerGroup, CoordinatorResult]:
    """The consumer group that the records make, and what comes before the joining member's own. Raises
    CoordinatorError(GROUP_ID_NOT_FOUND) in Kafka's words."""
    _check(classic, group_context)
    group = ConsumerGroup(group_id=classic.group_id)
    members = _members(classic, group_context.image)
    for member in members:
        group.replay_member(member.member_id, member.metadata)
        group.target[member.member_id] = without_epochs(member.assigned)
        group.members[member.member_id] = member
        group.holders.hold(member)
    epoch = _epoch(classic)
    metadata_hash = group.subscriptions.metadata_hash(group_context.image)
    group.replay_metadata(c.ConsumerGroupMetadataValue(epoch=epoch, metadata_hash=metadata_hash))
    group.replay_target_metadata(c.ConsumerGroupTargetAssignmentMetadataValue(assignment_epoch=epoch))
    details = (("epoch", str(epoch)), ("members", str(len(members))))
    result = CoordinatorResult(
        records=(group_metadata_tombstone(classic.group_id), *_records(group, members)),
        replies=_refuse_parked_requests(classic),
        timers=(*_timers_gone(classic), *(session(group, member, group_context) for member in members)),
        events=(CoordinatorEvent(name="GroupUpgraded", group_id=classic.group_id, details=details),),
    )
    return group, result


def _check(classic: ClassicMembership, group_context: GroupContext) -> None:
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
    return max(classic.generation, FIRST_EPOCH)


def _members(classic: ClassicMembership, image: MetadataImage) -> list[ConsumerGroupMember]:
    """In the order of their ids. There may be none: all left while the group rebalances."""
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
    if assignment.user_data and protocol not in KAFKAS_ASSIGNORS:
        raise _CustomAssignor
    subscription = decode_subscription(member.metadata(protocol))
    return ConsumerGroupMember(
        member_id=member.member_id,
        metadata=c.ConsumerGroupMemberMetadataValue(
            instance_id=member.instance_id,
            rack_id=subscription.rack_id or None,
            client_id=member.client_id,
            client_host=member.client_host,
            subscribed_topic_names=tuple(sorted(set(subscription.topics))),
            subscribed_topic_regex=NO_METADATA.subscribed_topic_regex,
            rebalance_timeout_ms=member.rebalance_timeout_ms,
            classic_member_metadata=c.ClassicMemberMetadata(
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
    code = ErrorCode.rebalance_in_progress
    found: list[Reply] = []
    for member in classic.members.values():
        if member.join_token is not None:
            found.append(Reply(token=member.join_token, response=replies.join_error_reply(code, member.member_id)))
        if member.sync_token is not None:
            found.append(Reply(token=member.sync_token, response=replies.sync_error_reply(code)))
    return tuple(found)


def _timers_gone(classic: ClassicMembership) -> list[SetTimer | CancelTimer]:
    """Also those of ids that were given out: who has one may come with it as before."""
    group_id = classic.group_id
    found: list[SetTimer | CancelTimer] = [CancelTimer(key=group_timer(kind, group_id)) for kind in (JOIN, SYNC)]
    found.extend(CancelTimer(key=session_timer(group_id, member_id)) for member_id in classic.pending_joins)
    return found
