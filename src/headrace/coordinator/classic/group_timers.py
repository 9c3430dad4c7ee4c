"""What happens in a classic group when its time is over: of a session, of joining a rebalance, of syncing after it."""

from __future__ import annotations

from collections.abc import Iterator

from headrace.coordinator.classic.group_state import ClassicGroupState
from headrace.coordinator.classic.membership import ClassicMembership
from headrace.coordinator.classic.rebalance import complete_join, extend_initial_delay, prepare
from headrace.coordinator.classic.turn import JOIN, NEW_MEMBER_TIMEOUT_MS, SYNC, ClassicTurn, group_timer, session_timer
from headrace.coordinator.result import SetTimer

__all__ = ["join_timed_out", "loaded_timers", "session_timed_out", "sync_timed_out"]

_S = ClassicGroupState


def session_timed_out(turn: ClassicTurn, member_id: str) -> bool:
    """Nothing was heard of a member, or of somebody who was given an id. False: nothing to do."""
    group = turn.group
    member = group.members.get(member_id)
    if member_id in group.pending_joins:
        group.remove(member_id)
        if group.state is _S.PREPARING_REBALANCE and group.all_joined:
            complete_join(turn)
        return True
    if member is None or member.needs_no_heartbeat:
        return False
    turn.remove(member)
    turn.tell("MemberFenced", member=member_id, reason="its session timed out")
    if group.can_rebalance:
        prepare(turn, f"the session of member {member_id} timed out")
    elif group.all_joined:
        complete_join(turn)
    return True


def join_timed_out(turn: ClassicTurn) -> bool:
    """The time to join is over, or the initial delay."""
    group = turn.group
    if group.state is not _S.PREPARING_REBALANCE:
        return False
    if group.initial_delay is not None:
        extend_initial_delay(turn)
    else:
        complete_join(turn)
    return True


def sync_timed_out(turn: ClassicTurn) -> bool:
    """Who has its generation and never asked for its assignment is out."""
    group = turn.group
    if group.state not in (_S.COMPLETING_REBALANCE, _S.STABLE) or not group.pending_syncs:
        return False
    silent = tuple(group.pending_syncs)
    for member_id in silent:
        turn.remove(group.members[member_id])
        turn.tell("MemberFenced", member=member_id, reason="it did not ask for its assignment")
    prepare(turn, f"members did not ask for their assignment: {', '.join(silent)}")
    return True


def loaded_timers(group: ClassicMembership, *, now_ms: int) -> Iterator[SetTimer]:
    """After a load, or when the log can be written again: every time that runs begins anew."""
    group_id = group.group_id
    for member in group.members.values():
        if not member.needs_no_heartbeat:
            timeout_ms = NEW_MEMBER_TIMEOUT_MS if member.is_new else member.session_timeout_ms
            yield SetTimer(key=session_timer(group_id, member.member_id), deadline_ms=now_ms + timeout_ms)
    longest_ms = group.rebalance_timeout_ms
    if group.state is _S.PREPARING_REBALANCE:
        delay_ms = longest_ms if group.initial_delay is None else group.initial_delay[0]
        yield SetTimer(key=group_timer(JOIN, group_id), deadline_ms=now_ms + delay_ms)
    elif group.pending_syncs:
        yield SetTimer(key=group_timer(SYNC, group_id), deadline_ms=now_ms + longest_ms)
