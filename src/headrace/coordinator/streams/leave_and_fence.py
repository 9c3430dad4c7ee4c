"""Members that leave a streams group (epoch -1, or -2 for a while) or are removed by a timeout.

The records of a removed member are the same in all cases. The remaining members get a new target by the timer of the
assignment interval, at once if the interval is over; Kafka waits for the next heartbeat of a member.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from headrace.coordinator.errors import CoordinatorError
from headrace.coordinator.modern.join import find_member
from headrace.coordinator.modern.member import STATIC_LEAVE_EPOCH
from headrace.coordinator.modern.timers import rebalance_timer, session_timer
from headrace.coordinator.request_context import RequestContext
from headrace.coordinator.result import CancelTimer, CoordinatorEvent, CoordinatorResult, Reply, SetTimer
from headrace.coordinator.streams import records
from headrace.coordinator.streams.group import StreamsGroup
from headrace.coordinator.streams.group_context import GroupContext, StreamsGroupSoftState
from headrace.coordinator.streams.heartbeat_response import leave_reply
from headrace.coordinator.streams.join import with_static_leave
from headrace.coordinator.streams.member import StreamsGroupMember
from headrace.coordinator.streams.target_assignment import interval_end_ms, interval_timer
from headrace.protocol.messages import streams_group_heartbeat_request as m

__all__ = ["process_leave", "remove_member"]


def process_leave(
    group: StreamsGroup,
    soft: StreamsGroupSoftState,
    request: m.StreamsGroupHeartbeatRequest,
    context: RequestContext,
    group_context: GroupContext,
) -> CoordinatorResult:
    """A member leaves for good (epoch -1) or temporarily (epoch -2); its own epoch is not compared.

    Raises:
        CoordinatorError: UNKNOWN_MEMBER_ID; FENCED_INSTANCE_ID if the instance id belongs to another member.
    """
    try:
        member = find_member(group, request.member_id, request.instance_id)
    except CoordinatorError:
        # As in Kafka, the shutdown request of a sender that is no member (any more) counts as well. A refusal has no
        # result that could carry the change, and no record whose append could fail, so it is written here.
        if request.shutdown_application:
            soft.request_shutdown(request.member_id)
        raise
    if request.member_epoch == STATIC_LEAVE_EPOCH:
        result = _static_leave(group, member)
    else:
        result = remove_member(group, soft, request.member_id, group_context, event="MemberLeft", reason="leave")
    response = leave_reply(request.member_id, request.member_epoch)
    soft_changes = result.soft
    if request.shutdown_application:
        soft_changes = partial(_request_shutdown, soft, request.member_id, then=result.soft)
    return replace(result, replies=(Reply(token=context.token, response=response),), soft=soft_changes)


def _request_shutdown(soft: StreamsGroupSoftState, member_id: str, *, then: Callable[[], None] | None) -> None:
    soft.request_shutdown(member_id)
    if then is not None:
        then()


def _static_leave(group: StreamsGroup, member: StreamsGroupMember) -> CoordinatorResult:
    """One record. The session runs on from the last heartbeat; nothing is left to be revoked."""
    details = (("member_id", member.member_id), ("reason", "will be back"))
    return CoordinatorResult(
        records=(records.current_assignment_record(group.group_id, with_static_leave(member)),),
        timers=(CancelTimer(key=rebalance_timer(group.group_id, member.member_id)),),
        events=(CoordinatorEvent(name="StaticMemberAway", group_id=group.group_id, details=details),),
    )


def remove_member(
    group: StreamsGroup,
    soft: StreamsGroupSoftState,
    member_id: str,
    group_context: GroupContext,
    *,
    event: str,
    reason: str,
) -> CoordinatorResult:
    """Return the member's tombstones and a new group epoch."""
    group_id = group.group_id
    metadata = replace(group.metadata, epoch=group.group_epoch + 1)
    timers: list[SetTimer | CancelTimer] = [
        CancelTimer(key=session_timer(group_id, member_id)),
        CancelTimer(key=rebalance_timer(group_id, member_id)),
    ]
    is_last = len(group.members) == 1
    if is_last:
        if group_context.interval_timer_runs:
            timers.append(CancelTimer(key=interval_timer(group_id)))
    elif not group_context.initial_delay_runs:
        end_ms = interval_end_ms(group, group_context.configuration, group_context.now_ms)
        due_ms = group_context.now_ms if end_ms is None else end_ms
        timers.append(SetTimer(key=interval_timer(group_id), deadline_ms=due_ms))
    bumped = (("epoch", str(metadata.epoch)), ("reason", "a member left" if event == "MemberLeft" else reason))
    return CoordinatorResult(
        records=(
            *records.member_tombstones(group_id, member_id),
            records.group_metadata_record(group_id, metadata),
        ),
        timers=tuple(timers),
        soft=partial(
            soft.forget_member,
            member_id,
            is_last=is_last,
            had_endpoint=group.members[member_id].metadata.user_endpoint is not None,
        ),
        events=(
            CoordinatorEvent(name=event, group_id=group_id, details=(("member_id", member_id), ("reason", reason))),
            CoordinatorEvent(name="GroupEpochBumped", group_id=group_id, details=bumped),
        ),
    )
