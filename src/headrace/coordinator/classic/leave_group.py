"""LeaveGroup (API 13): members go, each with an answer of its own. From version 3 on several at once, static ones also
by their instance id alone, which is how an operator removes them (KIP-345)."""

from __future__ import annotations

from headrace.coordinator.classic import replies
from headrace.coordinator.classic.member_checks import member_refusal
from headrace.coordinator.classic.rebalance import prepare_or_complete
from headrace.coordinator.classic.turn import ClassicTurn
from headrace.coordinator.request_context import RequestContext
from headrace.protocol.error_codes import ErrorCode
from headrace.protocol.messages import leave_group_request as req
from headrace.protocol.messages import leave_group_response as res

__all__ = ["answered", "leave_group"]


def leave_group(turn: ClassicTurn, request: req.LeaveGroupRequest, context: RequestContext) -> None:
    group = turn.group
    codes = [_leave(turn, identity) for identity in request.members]
    gone = [each.member_id for each, code in zip(request.members, codes, strict=True) if code is ErrorCode.none]
    if gone and not group.is_empty:
        prepare_or_complete(turn, f"members left: {', '.join(gone)}")
    members = tuple(answered(each, code) for each, code in zip(request.members, codes, strict=True))
    turn.reply(context.token, replies.left(members))


def answered(identity: req.MemberIdentity, code: ErrorCode) -> res.MemberResponse:
    return res.MemberResponse(
        member_id=identity.member_id, group_instance_id=identity.group_instance_id, error_code=code
    )


def _leave(turn: ClassicTurn, identity: req.MemberIdentity) -> ErrorCode:
    group = turn.group
    member_id, instance_id = identity.member_id, identity.group_instance_id
    if not member_id and instance_id is not None:
        member_id = group.static_members.get(instance_id, "")
    if member_id in group.pending_joins:
        group.remove(member_id)
        turn.expect_no_heartbeat(member_id)
        return ErrorCode.none
    code = member_refusal(group, member_id, instance_id)
    if code is ErrorCode.none:
        turn.remove(group.members[member_id])
        turn.tell("MemberLeft", member=member_id, reason=identity.reason or "not provided")
    return code
