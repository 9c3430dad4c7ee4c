"""How a classic group gets from one generation to the next.

`prepare` begins: all members have to join anew. `complete_join` ends the joining, when all have, or when the time for
it is over: who did not join is out, but for static members. Then the leader's SyncGroup brings the assignment
(`sync_group`). A group that was empty waits for more members first (`group.initial.rebalance.delay.ms`), again with
each that comes, but no longer than the members' rebalance timeout.
"""

from __future__ import annotations

from dataclasses import replace

from headrace.coordinator.classic import replies
from headrace.coordinator.classic.group_state import ClassicGroupState
from headrace.coordinator.classic.turn import JOIN, SYNC, ClassicTurn
from headrace.protocol.error_codes import ErrorCode

__all__ = ["complete_join", "extend_initial_delay", "fail_generation", "prepare", "prepare_or_complete"]

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
