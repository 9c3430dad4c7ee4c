"""Reconciliation of a member of a streams group with its target. KIP-1071, "Reconciliation"; the rules of Kafka 4.4.

A task is revoked before another member gets it: it stays in its holder's `pending_revocation` until that member's list
of owned tasks shows that it let go. So no active task ever has two holders.

A task that changes its role at one member keeps its state there (Kafka 4.3 revokes it first, state and all):
- an active task becomes a standby at once, while the active one is still pending revocation;
- a standby becomes a warm-up, or the other way round, at once;
- a standby or warm-up that is to be active stays what it is until it can be active.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from headrace.coordinator.assignors.task_assignor import AssignedTasks, Task, TasksTuple, sorted_tasks
from headrace.coordinator.request_context import CoordinatorError
from headrace.coordinator.streams.group import StreamsGroup
from headrace.coordinator.streams.member import MemberState, StreamsGroupMember
from headrace.protocol.error_codes import ErrorCode

__all__ = ["reconcile"]


def reconcile(
    group: StreamsGroup,
    member: StreamsGroupMember,
    *,
    target: TasksTuple,
    target_epoch: int,
    owned: TasksTuple | None,
) -> StreamsGroupMember:
    """Move a member one step closer to its target: first it revokes, then it is assigned what others have released.

    Args:
        group: current holders of all tasks.
        member: the member with its recorded assignment.
        target: tasks that it should have.
        target_epoch: epoch of the target.
        owned: tasks that the member reports; None if it did not report any.

    Returns:
        The changed member; the same object when nothing may change.

    Raises:
        CoordinatorError: FENCED_MEMBER_EPOCH for a member whose recorded state is unknown and that still owns tasks.
    """
    # The states are those of Kafka's CurrentAssignmentBuilder.build: STABLE and UNRELEASED_TASKS take the same step,
    # since in both the member has confirmed everything it was asked to revoke.
    if member.is_reconciled_to(target_epoch):
        return member
    # A pending revocation blocks everything else, also a newer target: tasks that were promised to others must be free
    # before this member may be asked for more.
    if member.state is MemberState.UNREVOKED_TASKS:
        if owned is None or owned.contains_any(member.pending_revocation):
            return member
        # The member's epoch rises by one at most here, not to the target's: what it holds still belongs to the epochs
        # before. `_next` sets the target's epoch once nothing is left to revoke.
        return _next(group, member, target, target_epoch, owned, epoch=member.member_epoch + 1)
    if member.state is MemberState.UNKNOWN:
        if owned is None or owned:
            raise CoordinatorError(
                ErrorCode.fenced_member_epoch,
                "The coordinator does not know the state of this member. The member must abandon all its tasks and "
                "rejoin.",
            )
        return _next(group, member, target, target_epoch, owned, epoch=target_epoch)
    return _next(group, member, target, target_epoch, owned, epoch=member.member_epoch)


def _next(
    group: StreamsGroup,
    member: StreamsGroupMember,
    target: TasksTuple,
    target_epoch: int,
    owned: TasksTuple | None,
    *,
    epoch: int,
) -> StreamsGroupMember:
    """Drop what is not in the target; once that is confirmed, take what has no holder."""
    # 1. Revoke first. The member keeps its old tasks as pending until its own list no longer contains them; a member
    #    that lists nothing (None) has not confirmed anything.
    kept, revoked = _split(member.assigned, target)
    if revoked and (owned is None or owned.contains_any(revoked)):
        return _unless_same(
            member,
            member.with_assignment(
                epoch=epoch, state=MemberState.UNREVOKED_TASKS, assigned=kept, pending_revocation=revoked
            ),
        )
    # 2. Then assign, but only tasks without a holder. The epoch of the target counts from now on even if some tasks are
    #    missing: the member has revoked all it had to (UNRELEASED), and asks again with each heartbeat.
    granted, is_waiting = _grantable(group, member, kept, target, target_epoch)
    state = MemberState.UNRELEASED_TASKS if is_waiting else MemberState.STABLE
    assigned = _promoted(kept, granted).merge(granted) if granted else kept
    return _unless_same(member, member.with_assignment(epoch=target_epoch, state=state, assigned=assigned))


def _unless_same(member: StreamsGroupMember, moved: StreamsGroupMember) -> StreamsGroupMember:
    """Return the same member if it only waits. Kafka writes a record then, because the previous epoch changes."""
    return member if replace(moved, previous_member_epoch=member.previous_member_epoch) == member else moved


def _split(assigned: AssignedTasks, target: TasksTuple) -> tuple[AssignedTasks, AssignedTasks]:
    """(kept, to revoke), role by role. What changes its role here is kept: see the module's text."""
    # 1. Kept are tasks whose role stays, and replicas that only change their role: the state is on the member's disk,
    #    so revoking it would throw the state away and restore it from the changelog (KIP-1071 as of Kafka 4.4; 4.3
    #    revokes and assigns anew).
    active, standby, warmup = set(target.active), set(target.standby), set(target.warmup)
    own_replicas = {*assigned.standby, *assigned.warmup}
    kept = AssignedTasks(
        active={task: epoch for task, epoch in assigned.active.items() if task in active},
        standby=sorted_tasks(
            task
            for task in (*assigned.standby, *assigned.warmup, *assigned.active)
            if task in standby or (task in active and task in assigned.standby)
        ),
        warmup=sorted_tasks(
            task
            for task in (*assigned.standby, *assigned.warmup)
            if task in warmup or (task in active and task in assigned.warmup)
        ),
    )
    # 2. An active task that leaves its role is always revoked, even when it stays as a standby: another member may be
    #    waiting to write its output. A replica is revoked only if the target has no role for it at all.
    wanted_replicas = {*active, *standby, *warmup} & own_replicas
    revoked = AssignedTasks(
        active={task: epoch for task, epoch in assigned.active.items() if task not in active},
        standby=tuple(task for task in assigned.standby if task not in wanted_replicas),
        warmup=tuple(task for task in assigned.warmup if task not in wanted_replicas),
    )
    return kept, revoked


def _promoted(kept: AssignedTasks, granted: AssignedTasks) -> AssignedTasks:
    """Return the assignment without the replicas of tasks that are active now."""
    return replace(
        kept,
        standby=tuple(task for task in kept.standby if task not in granted.active),
        warmup=tuple(task for task in kept.warmup if task not in granted.active),
    )


def _grantable(
    group: StreamsGroup, member: StreamsGroupMember, kept: AssignedTasks, target: TasksTuple, target_epoch: int
) -> tuple[AssignedTasks, bool]:
    """The missing tasks that are free, and whether some are not."""
    # `holders` indexes assigned and pending tasks of all members, so these checks cost one look-up per missing task and
    # not one pass over the group.
    holders, members, process = group.holders, group.members, member.process_id

    def here(member_ids: Iterable[str]) -> bool:
        return any(members[each].process_id == process for each in member_ids)

    def others_here(member_ids: Iterable[str]) -> bool:
        return here(each for each in member_ids if each != member.member_id)

    def active_at(task: Task) -> tuple[str, ...]:
        holder = holders.active(task)
        return () if holder is None else (holder,)

    # An active task must have no holder at all: two writers of one task would corrupt its output. Replicas only must
    # not share a process with another copy of the task, because copies in one process do not survive its failure.
    def is_active_free(task: Task) -> bool:
        is_replica_here = others_here(holders.standby(task)) or others_here(holders.warmup(task))
        return not active_at(task) and not is_replica_here

    def is_standby_free(task: Task) -> bool:
        is_taken = others_here(active_at(task)) or here(holders.standby(task)) or others_here(holders.warmup(task))
        return not is_taken

    def is_warmup_free(task: Task) -> bool:
        is_taken = here(active_at(task)) or others_here(holders.standby(task)) or here(holders.warmup(task))
        return not is_taken

    active, active_waits = _free(target.active, kept.active, is_active_free)
    standby, standby_waits = _free(target.standby, dict.fromkeys(kept.standby), is_standby_free)
    warmup, warmup_waits = _free(target.warmup, dict.fromkeys(kept.warmup), is_warmup_free)
    granted = AssignedTasks(
        active=dict.fromkeys(active, target_epoch), standby=sorted_tasks(standby), warmup=sorted_tasks(warmup)
    )
    return granted, active_waits or standby_waits or warmup_waits


def _free(
    wanted: tuple[Task, ...], kept: Mapping[Task, object], is_free: Callable[[Task], bool]
) -> tuple[list[Task], bool]:
    missing = [task for task in wanted if task not in kept]
    free = [task for task in missing if is_free(task)]
    return free, len(free) < len(missing)
