"""How far a member may go towards its target now. KIP-1071, "Reconciliation"; the rules of Kafka 4.3.

A task is revoked before it is given to somebody else: it stays in its holder's `pending_revocation` until that member
says, by its list of owned tasks, that it let go. So no active task ever has two holders.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from penstock.coordinator.errors import CoordinatorError
from penstock.coordinator.streams.group import StreamsGroup
from penstock.coordinator.streams.member import MemberState, StreamsGroupMember
from penstock.coordinator.streams.tasks import AssignedTasks, Task, TasksTuple, sorted_tasks
from penstock.protocol.error_codes import ErrorCode

__all__ = ["reconcile"]


def reconcile(
    group: StreamsGroup,
    member: StreamsGroupMember,
    *,
    target: TasksTuple,
    target_epoch: int,
    owned: TasksTuple | None,
) -> StreamsGroupMember:
    """The member one step closer to its target; the same object when nothing may change.

    `owned`: what the member says it has, None when it did not say. Raises CoordinatorError(FENCED_MEMBER_EPOCH) for a
    member whose recorded state is unknown and that still owns something.
    """
    if member.is_reconciled_to(target_epoch):
        return member
    if member.state is MemberState.UNREVOKED_TASKS:
        if owned is None or owned.contains_any(member.pending_revocation):
            return member
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
    """Drop what is not in the target; when that is confirmed, take what nobody holds."""
    kept, revoked = _split(member.assigned, target)
    if revoked and (owned is None or owned.contains_any(revoked)):
        return member.moved_to(
            epoch=epoch, state=MemberState.UNREVOKED_TASKS, assigned=kept, pending_revocation=revoked
        )
    granted, is_waiting = _grantable(group, member, kept, target, target_epoch)
    state = MemberState.UNRELEASED_TASKS if is_waiting else MemberState.STABLE
    return member.moved_to(epoch=target_epoch, state=state, assigned=kept.merged(granted) if granted else kept)


def _split(assigned: AssignedTasks, target: TasksTuple) -> tuple[AssignedTasks, AssignedTasks]:
    """(kept, to revoke), role by role."""
    active, standby, warmup = set(target.active), set(target.standby), set(target.warmup)
    kept = AssignedTasks(
        active={task: epoch for task, epoch in assigned.active.items() if task in active},
        standby=tuple(task for task in assigned.standby if task in standby),
        warmup=tuple(task for task in assigned.warmup if task in warmup),
    )
    revoked = AssignedTasks(
        active={task: epoch for task, epoch in assigned.active.items() if task not in active},
        standby=tuple(task for task in assigned.standby if task not in standby),
        warmup=tuple(task for task in assigned.warmup if task not in warmup),
    )
    return kept, revoked


def _grantable(
    group: StreamsGroup, member: StreamsGroupMember, kept: AssignedTasks, target: TasksTuple, target_epoch: int
) -> tuple[AssignedTasks, bool]:
    """The missing tasks that are free, and whether some are not."""
    holders, members, process = group.holders, group.members, member.process_id

    def on_process(member_ids: Iterable[str]) -> bool:
        return any(members[each].process_id == process for each in member_ids)

    def is_replica_here(task: Task) -> bool:
        return on_process(holders.standby(task)) or on_process(holders.warmup(task))

    def is_active_free(task: Task) -> bool:
        return holders.active(task) is None and not is_replica_here(task)

    def is_replica_free(task: Task) -> bool:
        holder = holders.active(task)
        return (holder is None or members[holder].process_id != process) and not is_replica_here(task)

    active, active_waits = _free(target.active, kept.active, is_active_free)
    standby, standby_waits = _free(target.standby, dict.fromkeys(kept.standby), is_replica_free)
    warmup, warmup_waits = _free(target.warmup, dict.fromkeys(kept.warmup), is_replica_free)
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
