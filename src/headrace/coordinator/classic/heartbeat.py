"""Heartbeat (API 12) of a member of a classic group: it lives, and learns whether it has to join again."""

from __future__ import annotations

from headrace.coordinator.classic import replies
from headrace.coordinator.classic.group_state import ClassicGroupState
from headrace.coordinator.classic.member_checks import member_refusal
from headrace.coordinator.classic.membership import ClassicMembership
from headrace.coordinator.classic.turn import session_timer
from headrace.coordinator.request_context import RequestContext
from headrace.coordinator.result import CoordinatorResult, Reply, SetTimer
from headrace.protocol.error_codes import ErrorCode
from headrace.protocol.messages import heartbeat_request as req

__all__ = ["heartbeat"]


def heartbeat(
    group: ClassicMembership, request: req.HeartbeatRequest, context: RequestContext, *, now_ms: int
) -> CoordinatorResult:
    """Changes nothing but the member's session."""
    code = member_refusal(group, request.member_id, request.group_instance_id)
    if code is ErrorCode.none and request.generation_id != group.generation:
        code = ErrorCode.illegal_generation
    if code is not ErrorCode.none:
        return _answer(context, code)
    if group.state is ClassicGroupState.PREPARING_REBALANCE:
        code = ErrorCode.rebalance_in_progress
    deadline_ms = now_ms + group.members[request.member_id].session_timeout_ms
    timer = SetTimer(key=session_timer(group.group_id, request.member_id), deadline_ms=deadline_ms)
    return _answer(context, code, timer)


def _answer(context: RequestContext, code: ErrorCode, *timers: SetTimer) -> CoordinatorResult:
    return CoordinatorResult(
        replies=(Reply(token=context.token, response=replies.heartbeat(code)),),
        timers=timers,
    )
