"""SyncGroup (API 14), Heartbeat (API 12) and LeaveGroup (API 13) of members of a classic group.

SyncGroup: the leader sends the assignment of every member, the others wait for theirs. The assignment is written to the
log before any member receives it. If it exceeds the size of a record, all members are refused and rejoin, as in Kafka.

LeaveGroup: several members at once from version 3 on, each with its own error code. Static members may be named by
instance id alone, which is how an operator removes them (KIP-345).
"""

from __future__ import annotations

from dataclasses import replace

from headrace.coordinator.classic import replies
from headrace.coordinator.classic.group import ClassicGroupState, ClassicMembership
from headrace.coordinator.classic.member import identity_error
from headrace.coordinator.classic.rebalance import (
    prepare_or_complete_rebalance,
    prepare_rebalance,
    propagate_assignment_error,
)
from headrace.coordinator.classic.transition import SYNC, ClassicTransition, session_timer
from headrace.coordinator.request_context import RequestContext
from headrace.coordinator.result import CoordinatorResult, Reply, SetTimer
from headrace.protocol.error_codes import ErrorCode
from headrace.protocol.messages import heartbeat_request
from headrace.protocol.messages import leave_group_request as leave_request
from headrace.protocol.messages import leave_group_response as leave_response
from headrace.protocol.messages import sync_group_request as sync_request

__all__ = ["answered", "heartbeat", "leave_group", "sync_group"]

_S = ClassicGroupState
_BATCH_OVERHEAD = 128
"""Bytes of a batch and a record beside key and value, and some to spare."""
_MEMBER_OVERHEAD = 20


def sync_group(transition: ClassicTransition, request: sync_request.SyncGroupRequest, context: RequestContext) -> None:
    """Answer SyncGroup: park it, return the assignment, or distribute it if the sender is the leader."""
    group, member_id = transition.group, request.member_id
    code = _refusal(group, request)
    if code is not ErrorCode.none:
        transition.reply(context.token, replies.sync_error_reply(code))
        return
    group.pending_syncs.pop(member_id, None)
    if not group.pending_syncs:
        transition.cancel_group_timer(SYNC)
    member = group.members[member_id]
    if group.state is _S.STABLE:
        transition.reply(context.token, replies.sync_reply(group, member))
        return
    # An earlier SyncGroup is parked if its connection was lost, or if two clients use one member id.
    member = transition.refuse_parked_sync(member, ErrorCode.rebalance_in_progress)
    group.put(replace(member, sync_token=context.token))
    if group.leader == member_id:
        _assign(transition, request)


def _refusal(group: ClassicMembership, request: sync_request.SyncGroupRequest) -> ErrorCode:
    if group.is_empty:
        return ErrorCode.unknown_member_id
    code = identity_error(group, request.member_id, request.group_instance_id)
    if code is not ErrorCode.none:
        return code
    if request.generation_id != group.generation:
        return ErrorCode.illegal_generation
    if _differs(request.protocol_type, group.protocol_type or None) or _differs(request.protocol_name, group.protocol):
        return ErrorCode.inconsistent_group_protocol
    if group.state is _S.PREPARING_REBALANCE:
        return ErrorCode.rebalance_in_progress
    return ErrorCode.none


def _differs(named: str | None, own: str | None) -> bool:
    """Versions before 5 name neither."""
    return named is not None and own is not None and named != own


def _assign(transition: ClassicTransition, request: sync_request.SyncGroupRequest) -> None:
    """Write and distribute the leader's assignment. A member that it omits gets no bytes; unknown ones are ignored."""
    group = transition.group
    assignments = {each.member_id: bytes(each.assignment) for each in request.assignments}
    if _record_bytes(group, assignments) > transition.configuration.max_record_bytes:
        propagate_assignment_error(transition, ErrorCode.unknown_server_error)
        prepare_rebalance(transition, "the leader's assignment is too large for a record")
        return
    transition.write_group(assignments)
    group.enter(_S.STABLE, transition.now_ms)
    transition.add_event("RebalanceCompleted", generation=str(group.generation), members=str(len(group.members)))
    for member in tuple(group.members.values()):
        token = member.sync_token
        member = replace(member, assignment=assignments.get(member.member_id, b""), sync_token=None)
        group.put(member)
        if token is not None:
            transition.reply(token, replies.sync_reply(group, member))
            transition.set_session_timer(member)


def _record_bytes(group: ClassicMembership, assignments: dict[str, bytes]) -> int:
    """An upper bound that is close."""
    total = _BATCH_OVERHEAD + 2 * len(group.group_id.encode()) + len(group.protocol_type) + len(group.protocol or "")
    for member in group.members.values():
        texts = (member.member_id, member.instance_id or "", member.client_id, member.client_host)
        total += _MEMBER_OVERHEAD + sum(2 + len(text.encode()) for text in texts)
        total += len(member.metadata(group.protocol)) + len(assignments.get(member.member_id, b""))
    return total


def heartbeat(
    group: ClassicMembership, request: heartbeat_request.HeartbeatRequest, context: RequestContext, *, now_ms: int
) -> CoordinatorResult:
    """Changes nothing but the member's session."""
    code = identity_error(group, request.member_id, request.group_instance_id)
    if code is ErrorCode.none and request.generation_id != group.generation:
        code = ErrorCode.illegal_generation
    if code is not ErrorCode.none:
        return _heartbeat_result(context, code)
    if group.state is ClassicGroupState.PREPARING_REBALANCE:
        code = ErrorCode.rebalance_in_progress
    deadline_ms = now_ms + group.members[request.member_id].session_timeout_ms
    timer = SetTimer(key=session_timer(group.group_id, request.member_id), deadline_ms=deadline_ms)
    return _heartbeat_result(context, code, timer)


def _heartbeat_result(context: RequestContext, code: ErrorCode, *timers: SetTimer) -> CoordinatorResult:
    return CoordinatorResult(
        replies=(Reply(token=context.token, response=replies.heartbeat_reply(code)),),
        timers=timers,
    )


def leave_group(
    transition: ClassicTransition, request: leave_request.LeaveGroupRequest, context: RequestContext
) -> None:
    """Answer LeaveGroup: remove the named members and rebalance the rest."""
    group = transition.group
    codes = [_leave(transition, identity) for identity in request.members]
    gone = [each.member_id for each, code in zip(request.members, codes, strict=True) if code is ErrorCode.none]
    if gone and not group.is_empty:
        prepare_or_complete_rebalance(transition, f"members left: {', '.join(gone)}")
    members = tuple(answered(each, code) for each, code in zip(request.members, codes, strict=True))
    transition.reply(context.token, replies.leave_reply(members))


def answered(identity: leave_request.MemberIdentity, code: ErrorCode) -> leave_response.MemberResponse:
    """Return the result for one member of a LeaveGroup request."""
    return leave_response.MemberResponse(
        member_id=identity.member_id, group_instance_id=identity.group_instance_id, error_code=code
    )


def _leave(transition: ClassicTransition, identity: leave_request.MemberIdentity) -> ErrorCode:
    group = transition.group
    member_id, instance_id = identity.member_id, identity.group_instance_id
    if not member_id and instance_id is not None:
        member_id = group.static_members.get(instance_id, "")
    if member_id in group.pending_joins:
        group.remove(member_id)
        transition.cancel_session_timer(member_id)
        return ErrorCode.none
    code = identity_error(group, member_id, instance_id)
    if code is ErrorCode.none:
        transition.remove(group.members[member_id])
        transition.add_event("MemberLeft", member=member_id, reason=identity.reason or "not provided")
    return code
