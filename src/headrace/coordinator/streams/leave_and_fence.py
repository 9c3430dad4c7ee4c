"""Members that leave a streams group or are fenced by a timeout.

A member leaves for good with epoch -1, temporarily with -2. The records of a removed member are the same in all cases.
The remaining members get a new target by the timer of the assignment interval, at once if the interval is over; Kafka
waits for the next heartbeat of a member.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from headrace.coordinator.assignors.task_assignor import AssignedTasks
from headrace.coordinator.modern import (
    STATIC_LEAVE_EPOCH,
    find_member,
    rebalance_timer,
    session_timer,
)
from headrace.coordinator.request_context import CoordinatorError, RequestContext
from headrace.coordinator.result import CancelTimer, CoordinatorEvent, CoordinatorResult, Reply, SetTimer
from headrace.coordinator.streams import records
from headrace.coordinator.streams.group import StreamsGroup
from headrace.coordinator.streams.group_context import GroupContext, StreamsGroupSoftState, interval_timer
from headrace.coordinator.streams.heartbeat_messages import leave_reply
from headrace.coordinator.streams.member import MemberState, StreamsGroupMember
from headrace.coordinator.streams.target_assignment import interval_end_ms
from headrace.protocol.messages import streams_group_heartbeat_request as m

__all__ = [
    "process_leave",
    "rebalance_timed_out",
    "remove_member",
    "session_timed_out",
    "with_static_leave",
]


def with_static_leave(member: StreamsGroupMember) -> StreamsGroupMember:
    """Return the record of a static member that left with epoch -2.

    It has nothing left to revoke, and its tasks count as assigned at epoch 0.
    """
    return replace(
        member,
        member_epoch=STATIC_LEAVE_EPOCH,
        # The process that returns starts at epoch 0 under the same or another member id. An assignment epoch of 0 is
        # not above any epoch that it will have, so `may_commit` accepts its first commits.
        assigned=replace(member.assigned, active=dict.fromkeys(member.assigned.active, 0)),
        pending_revocation=AssignedTasks(),
    )


def process_leave(
    group: StreamsGroup,
    soft: StreamsGroupSoftState,
    request: m.StreamsGroupHeartbeatRequest,
    context: RequestContext,
    group_context: GroupContext,
) -> CoordinatorResult:
    """Process a leave, permanent (epoch -1) or temporary (epoch -2). The member's own epoch is not compared.

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
    """Return the one record of a static leave.

    The session runs on from the last heartbeat; nothing is left to be revoked.
    """
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
    """Remove a member that left or was fenced: its tombstones, a new group epoch, cancelled timers.

    Args:
        group: the group with the member.
        soft: state of the group that is not recorded.
        member_id: the member to remove.
        group_context: settings, topics and time.
        event: name of the event to log.
        reason: why it is removed, for the log.
    """
    group_id = group.group_id
    metadata = replace(group.metadata, epoch=group.group_epoch + 1)
    timers: list[SetTimer | CancelTimer] = [
        CancelTimer(key=session_timer(group_id, member_id)),
        CancelTimer(key=rebalance_timer(group_id, member_id)),
    ]
    is_last = len(group.members) == 1
    # Kafka computes the next target with the next heartbeat of any member, up to a heartbeat interval later (5 s by
    # default). The timer does it at once, or at the end of a running assignment interval, so the tasks of a lost member
    # are not idle for that long.
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


def session_timed_out(
    group: StreamsGroup, soft: StreamsGroupSoftState, member_id: str, group_context: GroupContext
) -> CoordinatorResult | None:
    """Fence a member without a heartbeat within its session."""
    if member_id not in group.members:
        return None
    return remove_member(
        group, soft, member_id, group_context, event="MemberFenced", reason="the member session expired"
    )


def rebalance_timed_out(
    group: StreamsGroup, soft: StreamsGroupSoftState, member_id: str, group_context: GroupContext
) -> CoordinatorResult | None:
    """Fence a member that has not revoked its tasks within its rebalance timeout."""
    member = group.members.get(member_id)
    # A static leave keeps the recorded state, so an away member may read UNREVOKED although nothing is pending.
    if member is None or member.state is not MemberState.UNREVOKED_TASKS or member.is_away:
        return None
    return remove_member(
        group, soft, member_id, group_context, event="MemberFenced", reason="the rebalance timeout expired"
    )
