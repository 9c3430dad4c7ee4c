"""A classic group with members becomes a consumer group: the first member that speaks the consumer protocol joined.

The members stay, with what they have, as members that speak the classic protocol; their generation is the group epoch.
Who waits for an answer of the classic group is told to join again, and does so in the consumer group (`join_group`).

Where we differ from Kafka 4.3.1, on purpose: a group that has not had a generation yet is upgraded (Kafka fails inside,
UNKNOWN_SERVER_ERROR), with the protocol that its members would have got; a group that cannot be upgraded does not
notice (Kafka has told those that wait to join again by then); and user data in an assignment is in the way only where
an assignor of somebody's own put it there: librdkafka's leaders send members their own subscription's user data back
with `cooperative-sticky`, which nobody reads, and Kafka refuses every such group.
"""

from __future__ import annotations

from headrace.assignors.consumer_protocol import MalformedUserData, decode_assignment, decode_subscription
from headrace.coordinator.classic import replies
from headrace.coordinator.classic.group import ClassicMembership, candidates
from headrace.coordinator.classic.member import CONSUMER_PROTOCOL_TYPE, ClassicMember
from headrace.coordinator.classic.transition import JOIN, SYNC, group_timer
from headrace.coordinator.configuration import allows_upgrade
from headrace.coordinator.consumer import records
from headrace.coordinator.consumer.group import FIRST_EPOCH, ConsumerGroup
from headrace.coordinator.consumer.group_context import Circumstances
from headrace.coordinator.consumer.member import NO_METADATA, ConsumerGroupMember, with_epochs, without_epochs
from headrace.coordinator.consumer.timers import session
from headrace.coordinator.errors import CoordinatorError
from headrace.coordinator.metadata_image import MetadataImage
from headrace.coordinator.migration.embedded_protocol import partitions_by_id
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

__all__ = ["upgraded"]

KAFKAS_ASSIGNORS = frozenset({"range", "roundrobin", "sticky", "cooperative-sticky"})
"""They put nothing into an assignment but partitions."""


def upgraded(classic: ClassicMembership, circumstances: Circumstances) -> tuple[ConsumerGroup, CoordinatorResult]:
    """The consumer group that the records make, and what comes before the joining member's own. Raises
    CoordinatorError(GROUP_ID_NOT_FOUND) in Kafka's words."""
    _check(classic, circumstances)
    group = ConsumerGroup(group_id=classic.group_id)
    members = _members(classic, circumstances.image)
    for member in members:
        group.replay_member(member.member_id, member.metadata)
        group.target[member.member_id] = without_epochs(member.assigned)
        group.members[member.member_id] = member
        group.holders.hold(member)
    epoch = _epoch(classic)
    metadata_hash = group.subscriptions.metadata_hash(circumstances.image)
    group.replay_metadata(c.ConsumerGroupMetadataValue(epoch=epoch, metadata_hash=metadata_hash))
    group.replay_target_metadata(c.ConsumerGroupTargetAssignmentMetadataValue(assignment_epoch=epoch))
    details = (("epoch", str(epoch)), ("members", str(len(members))))
    result = CoordinatorResult(
        records=(group_metadata_tombstone(classic.group_id), *_records(group, members)),
        replies=_told_to_join_again(classic),
        timers=(*_timers_gone(classic), *(session(group, member, circumstances) for member in members)),
        events=(CoordinatorEvent(name="GroupUpgraded", group_id=classic.group_id, details=details),),
    )
    return group, result


def _check(classic: ClassicMembership, circumstances: Circumstances) -> None:
    reason = None
    if not allows_upgrade(circumstances.configuration.migration_policy):
        reason = "online upgrade is disabled"
    elif classic.protocol_type != CONSUMER_PROTOCOL_TYPE:
        reason = "the group does not use the consumer embedded protocol"
    elif len(classic.members) > circumstances.configuration.max_size:
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
    if protocol not in candidates(classic.support, len(classic.members)):
        protocol = classic.selected_protocol()  # who came since the last generation does not speak that one
    try:
        return [_member(classic.members[each], protocol, _epoch(classic), image) for each in sorted(classic.members)]
    except MalformedUserData:
        raise _refused(classic, "the embedded consumer protocol is malformed") from None
    except _CustomAssignor:
        hint = "Please refer to the documentation or switch to a default assignor before re-attempting the upgrade"
        raise _refused(classic, f"an unsupported custom assignor is in use. {hint}") from None


class _CustomAssignor(Exception):
    """An assignment carries bytes for an assignor of the application's own, which nobody would read any more."""


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
    """What makes the group; the order is Kafka's."""
    group_id, targets = group.group_id, group.target
    return (
        *(records.member_record(group_id, member) for member in members),
        records.group_metadata_record(group_id, group.metadata),
        *(records.target_assignment_record(group_id, each.member_id, targets[each.member_id]) for each in members),
        records.target_assignment_metadata_record(group_id, epoch=group.assignment_epoch, timestamp_ms=0),
        *(records.current_assignment_record(group_id, member) for member in members),
    )


def _told_to_join_again(classic: ClassicMembership) -> tuple[Reply, ...]:
    code = ErrorCode.rebalance_in_progress
    found: list[Reply] = []
    for member in classic.members.values():
        if member.join_token is not None:
            found.append(Reply(token=member.join_token, response=replies.join_refused(code, member.member_id)))
        if member.sync_token is not None:
            found.append(Reply(token=member.sync_token, response=replies.sync_refused(code)))
    return tuple(found)


def _timers_gone(classic: ClassicMembership) -> list[SetTimer | CancelTimer]:
    """Also those of ids that were given out: who has one may come with it as before."""
    group_id = classic.group_id
    found: list[SetTimer | CancelTimer] = [CancelTimer(key=group_timer(kind, group_id)) for kind in (JOIN, SYNC)]
    found.extend(CancelTimer(key=session_timer(group_id, member_id)) for member_id in classic.pending_joins)
    return found
