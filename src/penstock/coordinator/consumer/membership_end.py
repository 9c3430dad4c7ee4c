"""A member goes: it leaves (epoch -1), its session ends, or it does not revoke in time; or a static member leaves for a
while (epoch -2, `static_membership`): it stays a member as long as its session lasts.

The records of a member that goes are the same in all cases. Who stays gets a new target with the next heartbeat of
somebody, as in Kafka.
"""

from __future__ import annotations

from dataclasses import replace

from penstock.coordinator.consumer import records
from penstock.coordinator.consumer.circumstances import Circumstances
from penstock.coordinator.consumer.group import ConsumerGroup
from penstock.coordinator.consumer.heartbeat_reply import heartbeat_reply
from penstock.coordinator.consumer.member import (
    NO_METADATA,
    STATIC_LEAVE_EPOCH,
    ConsumerGroupMember,
    MemberState,
)
from penstock.coordinator.consumer.member_admission import unknown_member
from penstock.coordinator.consumer.static_membership import member_away, static_member
from penstock.coordinator.member_timer_keys import rebalance_timer, session_timer
from penstock.coordinator.request_context import RequestContext
from penstock.coordinator.result import CancelTimer, CoordinatorEvent, CoordinatorRecord, CoordinatorResult, Reply
from penstock.protocol.messages import consumer_group_heartbeat_request as m

__all__ = ["consumer_group_leave", "member_removed", "rebalance_timed_out", "session_timed_out"]


def consumer_group_leave(
    group: ConsumerGroup,
    request: m.ConsumerGroupHeartbeatRequest,
    context: RequestContext,
    circumstances: Circumstances,
) -> CoordinatorResult:
    """Epoch -1 or -2; any member epoch will do. Raises UNKNOWN_MEMBER_ID, and FENCED_INSTANCE_ID for an instance whose
    member is another."""
    if request.instance_id is not None:
        static_member(group, request.instance_id, request.member_id)
    elif request.member_id not in group.members:
        raise unknown_member(group, request.member_id)
    if request.member_epoch == STATIC_LEAVE_EPOCH:
        result = _left_for_a_while(group, group.members[request.member_id])
    else:
        result = member_removed(group, request.member_id, circumstances, event="MemberLeft", reason="leave")
    response = heartbeat_reply(member_id=request.member_id, member_epoch=request.member_epoch)
    return replace(result, replies=(Reply(token=context.token, response=response),))


def session_timed_out(group: ConsumerGroup, member_id: str, circumstances: Circumstances) -> CoordinatorResult | None:
    """No heartbeat within the session: the member is fenced."""
    if member_id not in group.members:
        return None
    return member_removed(group, member_id, circumstances, event="MemberFenced", reason="the member session expired")


def rebalance_timed_out(group: ConsumerGroup, member_id: str, circumstances: Circumstances) -> CoordinatorResult | None:
    """The member was told to revoke partitions and has not within its rebalance timeout: it is fenced."""
    member = group.members.get(member_id)
    if member is None or member.state is not MemberState.UNREVOKED_PARTITIONS or member.is_away:
        return None
    return member_removed(group, member_id, circumstances, event="MemberFenced", reason="the rebalance timeout expired")


def member_removed(
    group: ConsumerGroup, member_id: str, circumstances: Circumstances, *, event: str, reason: str
) -> CoordinatorResult:
    """The member's tombstones, its regular expression's when nobody else has it, and a new group epoch."""
    group_id, member = group.group_id, group.members[member_id]
    subscriptions = group.subscriptions.changed(member.metadata, NO_METADATA)
    metadata = replace(
        group.metadata, epoch=group.group_epoch + 1, metadata_hash=subscriptions.metadata_hash(circumstances.image)
    )
    forgotten: tuple[CoordinatorRecord, ...] = ()
    if member.regex is not None and member.regex not in subscriptions.regexes:
        forgotten = (records.regular_expression_tombstone(group_id, member.regex),)
    return CoordinatorResult(
        records=(
            *records.member_tombstones(group_id, member_id),
            *forgotten,
            records.group_metadata_record(group_id, metadata),
        ),
        timers=(
            CancelTimer(key=session_timer(group_id, member_id)),
            CancelTimer(key=rebalance_timer(group_id, member_id)),
        ),
        events=(
            CoordinatorEvent(name=event, group_id=group_id, details=(("member_id", member_id), ("reason", reason))),
            CoordinatorEvent(name="GroupEpochBumped", group_id=group_id, details=(("epoch", str(metadata.epoch)),)),
        ),
    )


def _left_for_a_while(group: ConsumerGroup, member: ConsumerGroupMember) -> CoordinatorResult:
    """One record. The session runs on from the last heartbeat; nothing is left to be revoked."""
    details = (("member_id", member.member_id), ("reason", "will be back"))
    return CoordinatorResult(
        records=(records.current_assignment_record(group.group_id, member_away(member)),),
        timers=(CancelTimer(key=rebalance_timer(group.group_id, member.member_id)),),
        events=(CoordinatorEvent(name="StaticMemberAway", group_id=group.group_id, details=details),),
    )
