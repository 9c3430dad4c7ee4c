"""Rebalance of a classic group: from one generation to the next, and the timers that drive it.

1. `prepare` starts it: every member has to send JoinGroup again.
2. `complete_join` ends the join phase, once all members have joined or the rebalance timeout expired. Dynamic members
   that did not join are removed; static members stay until their session expires.
3. The leader's SyncGroup distributes the assignment (`member_requests.sync_group`).

An empty group first waits for more members (`group.initial.rebalance.delay.ms`). The delay restarts with each member
that joins, up to the longest rebalance timeout of the members.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from headrace.coordinator.classic import replies
from headrace.coordinator.classic.group import ClassicGroupState, ClassicMembership
from headrace.coordinator.classic.transition import (
    JOIN,
    NEW_MEMBER_TIMEOUT_MS,
    SYNC,
    ClassicTurn,
    group_timer,
    session_timer,
)
from headrace.coordinator.result import SetTimer
from headrace.protocol.error_codes import ErrorCode

__all__ = [
    "complete_join",
    "extend_initial_delay",
    "fail_generation",
    "join_timed_out",
    "loaded_timers",
    "prepare",
    "prepare_or_complete",
    "session_timed_out",
    "sync_timed_out",
]

_S = ClassicGroupState
_LEAST_WAIT_MS = 1_000
"""Before it is looked again whether somebody joined: members may say that a rebalance takes no time."""


def prepare_or_complete(turn: ClassicTurn, reason: str) -> None:
    """Members came, changed or went: a rebalance begins, or the one that runs may be complete."""
    if turn.group.can_rebalance:
        prepare(turn, reason)
    elif not turn.group.follows_empty and turn.group.all_joined:  # an initial delay runs to its end
        complete_join(turn)


def prepare(turn: ClassicTurn, reason: str) -> None:
    """Who waits for an assignment is told to join again."""
    group = turn.group
    if group.state is _S.COMPLETING_REBALANCE:
        fail_generation(turn, ErrorCode.rebalance_in_progress)
    group.pending_syncs.clear()
    turn.cancel_group_timer(SYNC)
    group.reason = reason
    turn.tell("RebalanceBegan", generation=str(group.generation), reason=reason)
    if group.is_empty:
        delay_ms = turn.configuration.initial_rebalance_delay_ms
        group.initial_delay = (delay_ms, max(group.rebalance_timeout_ms - delay_ms, 0))
        turn.set_group_timer(JOIN, delay_ms)
        group.enter(_S.PREPARING_REBALANCE, turn.now_ms)
        return
    group.enter(_S.PREPARING_REBALANCE, turn.now_ms)
    if group.all_joined:
        complete_join(turn)
    else:
        turn.set_group_timer(JOIN, group.rebalance_timeout_ms)


def fail_generation(turn: ClassicTurn, code: ErrorCode) -> None:
    """No assignment for anybody: parked SyncGroups are refused."""
    for member in tuple(turn.group.members.values()):
        was_waiting = member.sync_token is not None
        member = turn.end_sync(replace(member, assignment=b""), code)
        turn.group.put(member)
        if was_waiting:
            turn.expect_heartbeat(member)


def extend_initial_delay(turn: ClassicTurn) -> None:
    """The initial delay is over. It begins anew when somebody came meanwhile and there is time left."""
    group = turn.group
    delay_ms, remaining_ms = group.initial_delay or (0, 0)
    if not group.member_added or remaining_ms == 0:
        complete_join(turn)
        return
    group.member_added = False
    next_ms = min(turn.configuration.initial_rebalance_delay_ms, remaining_ms)
    group.initial_delay = (next_ms, max(remaining_ms - delay_ms, 0))
    turn.set_group_timer(JOIN, next_ms)


def complete_join(turn: ClassicTurn) -> None:
    """The next generation, of those that joined and of static members."""
    group = turn.group
    turn.cancel_group_timer(JOIN)
    group.initial_delay = None
    for member in tuple(group.members.values()):
        if not member.waits_for_join and member.instance_id is None:
            turn.remove(member)
            turn.tell("MemberFenced", member=member.member_id, reason="it did not join again in time")
    if not group.elect_joined_leader() and group.members:
        # Only static members are left, and none of them joined. Their sessions decide.
        turn.set_group_timer(JOIN, max(group.rebalance_timeout_ms, _LEAST_WAIT_MS))
        return
    group.begin_generation(turn.now_ms)
    if group.is_empty:
        turn.write_group()
        return
    for member in tuple(group.members.values()):
        if member.join_token is not None:
            turn.reply(member.join_token, replies.joined(group, member.member_id))
        member = replace(member, join_token=None, is_new=False)
        group.put(member)
        group.pending_syncs[member.member_id] = None
        turn.expect_heartbeat(member)
    turn.set_group_timer(SYNC, group.rebalance_timeout_ms)


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
