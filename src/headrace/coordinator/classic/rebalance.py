"""Rebalance of a classic group: from one generation to the next, and the timers that drive it.

1. `prepare_rebalance` starts it: every member has to send JoinGroup again.
2. `complete_join` ends the join phase, once all members have joined or the rebalance timeout expired. Dynamic members
   that did not join are removed; static members stay until their session expires.
3. The leader's SyncGroup distributes the assignment (`requests.sync_group`).

An empty group first waits for more members (`group.initial.rebalance.delay.ms`). The delay restarts with each member
that joins, up to the longest rebalance timeout of the members.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from headrace.coordinator.classic.group import ClassicGroupState, ClassicMembership
from headrace.coordinator.classic.transition import (
    JOIN,
    NEW_MEMBER_TIMEOUT_MS,
    SYNC,
    ClassicTransition,
    group_timer,
    join_reply,
    session_timer,
)
from headrace.coordinator.result import SetTimer
from headrace.protocol.error_codes import ErrorCode

__all__ = [
    "complete_join",
    "extend_initial_delay",
    "join_timed_out",
    "prepare_or_complete_rebalance",
    "prepare_rebalance",
    "propagate_assignment_error",
    "session_timed_out",
    "sync_timed_out",
    "timers_after_load",
]

_S = ClassicGroupState
_LEAST_WAIT_MS = 1_000
"""Least time until the next check whether a member joined: a rebalance timeout may be 0."""


def prepare_or_complete_rebalance(transition: ClassicTransition, reason: str) -> None:
    """Start a rebalance after a change of members, or complete the running one if all have joined."""
    if transition.group.can_rebalance:
        prepare_rebalance(transition, reason)
    elif not transition.group.follows_empty and transition.group.all_joined:  # an initial delay runs to its end
        complete_join(transition)


def prepare_rebalance(transition: ClassicTransition, reason: str) -> None:
    """Start a rebalance. Parked SyncGroups are answered with REBALANCE_IN_PROGRESS."""
    group = transition.group
    if group.state is _S.COMPLETING_REBALANCE:
        propagate_assignment_error(transition, ErrorCode.rebalance_in_progress)
    group.pending_syncs.clear()
    transition.cancel_group_timer(SYNC)
    group.reason = reason
    transition.add_event("RebalanceBegan", generation=str(group.generation), reason=reason)
    if group.is_empty:
        # KIP-134. The pair holds the delay that runs, and how much longer it may become: never beyond the rebalance
        # timeout, after which members would give up.
        delay_ms = transition.configuration.initial_rebalance_delay_ms
        group.initial_delay = (delay_ms, max(group.rebalance_timeout_ms - delay_ms, 0))
        transition.set_group_timer(JOIN, delay_ms)
        group.enter(_S.PREPARING_REBALANCE, transition.now_ms)
        return
    group.enter(_S.PREPARING_REBALANCE, transition.now_ms)
    if group.all_joined:
        complete_join(transition)
    else:
        transition.set_group_timer(JOIN, group.rebalance_timeout_ms)


def propagate_assignment_error(transition: ClassicTransition, code: ErrorCode) -> None:
    """Clear all assignments and refuse parked SyncGroups, as Kafka's `resetAndPropagateAssignmentError`."""
    for member in tuple(transition.group.members.values()):
        # A parked request stood for the member's heartbeats (`has_satisfied_heartbeat`), so its session starts with the
        # reply.
        was_waiting = member.sync_token is not None
        member = transition.refuse_parked_sync(replace(member, assignment=b""), code)
        transition.group.put(member)
        if was_waiting:
            transition.set_session_timer(member)


def extend_initial_delay(transition: ClassicTransition) -> None:
    """Extend the initial delay if a member joined meanwhile and time is left; else complete the join phase."""
    group = transition.group
    delay_ms, remaining_ms = group.initial_delay or (0, 0)
    if not group.member_added or remaining_ms == 0:
        complete_join(transition)
        return
    group.member_added = False
    # Kafka: GroupMetadataManager.tryCompleteInitialRebalanceElseSchedule. Each round in which someone joined adds one
    # more delay, as long as the total stays within the rebalance timeout.
    next_ms = min(transition.configuration.initial_rebalance_delay_ms, remaining_ms)
    group.initial_delay = (next_ms, max(remaining_ms - delay_ms, 0))
    transition.set_group_timer(JOIN, next_ms)


def complete_join(transition: ClassicTransition) -> None:
    """Start the next generation with the members that joined, and static members."""
    group = transition.group
    transition.cancel_group_timer(JOIN)
    # 1. Dynamic members that did not rejoin are removed. Static members stay until their session expires (KIP-345).
    group.initial_delay = None
    for member in tuple(group.members.values()):
        if not member.is_awaiting_join and member.instance_id is None:
            transition.remove(member)
            transition.add_event("MemberFenced", member=member.member_id, reason="it did not join again in time")
    if not group.elect_joined_leader() and group.members:
        # Only static members are left, and none of them joined. Their sessions decide.
        transition.set_group_timer(JOIN, max(group.rebalance_timeout_ms, _LEAST_WAIT_MS))
        return
    # 2. The next generation selects a protocol; without members the group becomes empty, which is recorded.
    group.begin_generation(transition.now_ms)
    if group.is_empty:
        transition.write_group()
        return
    # 3. Every member gets its reply, the leader with the list of members. It has the rebalance timeout to sync.
    for member in tuple(group.members.values()):
        if member.join_token is not None:
            transition.reply(member.join_token, join_reply(group, member.member_id))
        member = replace(member, join_token=None, is_new=False)
        group.put(member)
        group.pending_syncs[member.member_id] = None
        transition.set_session_timer(member)
    transition.set_group_timer(SYNC, group.rebalance_timeout_ms)


def session_timed_out(transition: ClassicTransition, member_id: str) -> bool:
    """Remove a member, or a handed-out id, whose session expired. Returns False if there is nothing to do."""
    group = transition.group
    member = group.members.get(member_id)
    if member_id in group.pending_joins:
        group.remove(member_id)
        if group.state is _S.PREPARING_REBALANCE and group.all_joined:
            complete_join(transition)
        return True
    # A member with a parked request cannot send heartbeats on that connection. Its timer fires and is not set again;
    # the reply to the request restarts the session.
    if member is None or member.has_satisfied_heartbeat:
        return False
    transition.remove(member)
    transition.add_event("MemberFenced", member=member_id, reason="its session timed out")
    if group.can_rebalance:
        prepare_rebalance(transition, f"the session of member {member_id} timed out")
    elif group.all_joined:
        complete_join(transition)
    return True


def join_timed_out(transition: ClassicTransition) -> bool:
    """End the join phase or the initial delay. Returns False if the group is not rebalancing."""
    group = transition.group
    if group.state is not _S.PREPARING_REBALANCE:
        return False
    if group.initial_delay is not None:
        extend_initial_delay(transition)
    else:
        complete_join(transition)
    return True


def sync_timed_out(transition: ClassicTransition) -> bool:
    """Remove the members of the generation that never asked for their assignment. Returns False if there are none."""
    group = transition.group
    if group.state not in (_S.COMPLETING_REBALANCE, _S.STABLE) or not group.pending_syncs:
        return False
    # KAFKA-12890: members may heartbeat while the group waits for its assignment, so the session alone does not notice
    # a member that never sends SyncGroup, and the group would stay in CompletingRebalance. Static members are removed
    # as well.
    silent = tuple(group.pending_syncs)
    for member_id in silent:
        transition.remove(group.members[member_id])
        transition.add_event("MemberFenced", member=member_id, reason="it did not ask for its assignment")
    prepare_rebalance(transition, f"members did not ask for their assignment: {', '.join(silent)}")
    return True


def timers_after_load(group: ClassicMembership, *, now_ms: int) -> Iterator[SetTimer]:
    """Yield the timers of a loaded group: every running timeout starts anew."""
    group_id = group.group_id
    # Deadlines are not in the log. A full timeout from now gives every member the time to find the new coordinator.
    for member in group.members.values():
        if not member.has_satisfied_heartbeat:
            timeout_ms = NEW_MEMBER_TIMEOUT_MS if member.is_new else member.session_timeout_ms
            yield SetTimer(key=session_timer(group_id, member.member_id), deadline_ms=now_ms + timeout_ms)
    longest_ms = group.rebalance_timeout_ms
    if group.state is _S.PREPARING_REBALANCE:
        delay_ms = longest_ms if group.initial_delay is None else group.initial_delay[0]
        yield SetTimer(key=group_timer(JOIN, group_id), deadline_ms=now_ms + delay_ms)
    elif group.pending_syncs:
        yield SetTimer(key=group_timer(SYNC, group_id), deadline_ms=now_ms + longest_ms)
