"""SyncGroup (API 14): the leader brings everybody's assignment, the others ask for theirs and wait for it.

The assignment is written before anybody gets it. When it cannot be, because it is larger than a record may be, all are
refused and join again, as in Kafka.
"""

from __future__ import annotations

from dataclasses import replace

from headrace.coordinator.classic import replies
from headrace.coordinator.classic.group_state import ClassicGroupState
from headrace.coordinator.classic.member_checks import member_refusal
from headrace.coordinator.classic.membership import ClassicMembership
from headrace.coordinator.classic.rebalance import fail_generation, prepare
from headrace.coordinator.classic.turn import SYNC, ClassicTurn
from headrace.coordinator.request_context import RequestContext
from headrace.protocol.error_codes import ErrorCode
from headrace.protocol.messages import sync_group_request as req

__all__ = ["sync_group"]

_S = ClassicGroupState
_BATCH_OVERHEAD = 128
"""Bytes of a batch and a record beside key and value, and some to spare."""
_MEMBER_OVERHEAD = 20


def sync_group(turn: ClassicTurn, request: req.SyncGroupRequest, context: RequestContext) -> None:
    group, member_id = turn.group, request.member_id
    code = _refusal(group, request)
    if code is not ErrorCode.none:
        turn.reply(context.token, replies.sync_refused(code))
        return
    group.pending_syncs.pop(member_id, None)
    if not group.pending_syncs:
        turn.cancel_group_timer(SYNC)
    member = group.members[member_id]
    if group.state is _S.STABLE:
        turn.reply(context.token, replies.synced(group, member))
        return
    member = turn.end_sync(member, ErrorCode.rebalance_in_progress)  # a double, or a connection that was lost
    group.put(replace(member, sync_token=context.token))
    if group.leader == member_id:
        _assign(turn, request)


def _refusal(group: ClassicMembership, request: req.SyncGroupRequest) -> ErrorCode:
    if group.is_empty:
        return ErrorCode.unknown_member_id
    code = member_refusal(group, request.member_id, request.group_instance_id)
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


def _assign(turn: ClassicTurn, request: req.SyncGroupRequest) -> None:
    """From the leader: Stable. A member that the leader forgot gets no bytes; others that it names are nobody."""
    group = turn.group
    assignments = {each.member_id: bytes(each.assignment) for each in request.assignments}
    if _record_bytes(group, assignments) > turn.configuration.max_record_bytes:
        fail_generation(turn, ErrorCode.unknown_server_error)
        prepare(turn, "the leader's assignment is too large for a record")
        return
    turn.write_group(assignments)
    group.enter(_S.STABLE, turn.now_ms)
    turn.tell("RebalanceCompleted", generation=str(group.generation), members=str(len(group.members)))
    for member in tuple(group.members.values()):
        token = member.sync_token
        member = replace(member, assignment=assignments.get(member.member_id, b""), sync_token=None)
        group.put(member)
        if token is not None:
            turn.reply(token, replies.synced(group, member))
            turn.expect_heartbeat(member)


def _record_bytes(group: ClassicMembership, assignments: dict[str, bytes]) -> int:
    """An upper bound that is close."""
    total = _BATCH_OVERHEAD + 2 * len(group.group_id.encode()) + len(group.protocol_type) + len(group.protocol or "")
    for member in group.members.values():
        texts = (member.member_id, member.instance_id or "", member.client_id, member.client_host)
        total += _MEMBER_OVERHEAD + sum(2 + len(text.encode()) for text in texts)
        total += len(member.metadata(group.protocol)) + len(assignments.get(member.member_id, b""))
    return total
