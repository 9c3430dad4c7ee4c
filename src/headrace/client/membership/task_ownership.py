"""Active tasks that a member of a classic group holds, and the generation with which their offsets may be committed.

A classic coordinator accepts a commit only with the group's present generation (`ClassicGroup.validateOffsetCommit`):
it compares member id and generation, not tasks. A micro-batch that was planned in generation g may end in generation
g+1, while its tasks stayed with the member. It is committed with the newest generation of which the member knows that
it has held every task of the batch without a break since g. This is safe:

1. A member claims each task that it may have open in every JoinGroup, also a revoked one that it has not given back.
2. The leader assigns a claimed task to no other member (two-phase moves, KIP-429). So from the answer to the join of
   generation g+1 on, no member of g+1 but this one can own the task, whether or not the assignment has arrived.
3. The next generation without the claim needs another JoinGroup of this member, or its removal from the group. After a
   removal its member id is unknown, and a commit with it is refused (UNKNOWN_MEMBER_ID). A static member may miss a
   generation without a removal; it loses its tasks when the next join shows the gap.
4. A task that was given back and assigned again is held since the later generation. Another member may have committed
   in between, so batches that were planned before are not committed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from headrace.client.membership.assignment import AssignmentSnapshot, TaskId, Tasks, task_ids, tasks_from

__all__ = ["TaskOwnership", "commit_generation"]


class TaskOwnership:
    """Held active tasks and the generation since which each is held without a break. Mutable."""

    def __init__(self) -> None:
        self._since: dict[TaskId, int] = {}
        self._generation: int | None = None

    @property
    def generation(self) -> int | None:
        """The newest generation that the member joined; None outside of the group."""
        return self._generation

    @property
    def held_since(self) -> Mapping[TaskId, int]:
        """Held task → generation since which the member holds it. A copy, which snapshots keep."""
        return dict(self._since)

    @property
    def tasks(self) -> Tasks:
        """The held tasks: those that the application may have open."""
        return tasks_from(self._since)

    def on_generation(self, generation: int) -> None:
        """Note the answer to a join; the held tasks were claimed in it."""
        self._generation = generation

    def on_assigned(self, tasks: Iterable[TaskId]) -> None:
        """Hold assigned tasks from the present generation on; tasks that are held already keep their generation."""
        if self._generation is None:
            raise AssertionError("tasks are assigned in a generation")
        for task in tasks:
            self._since.setdefault(task, self._generation)

    def keep_only(self, tasks: Mapping[str, Iterable[int]]) -> None:
        """Give back all held tasks but these."""
        kept = task_ids(tasks)
        self._since = {task: since for task, since in self._since.items() if task in kept}

    def lose_all(self) -> None:
        """Lose all tasks: the member was fenced, or left."""
        self._since.clear()
        self._generation = None

    def commit_generation(self, planned_generation: int, tasks: Iterable[TaskId]) -> int | None:
        """Return the generation with which to commit a batch, None if it must be aborted.

        Args:
            planned_generation: The generation of the snapshot that the batch was planned with.
            tasks: The active tasks of the batch.
        """
        return _commit_generation(self._since, self._generation, planned_generation, tasks)


def commit_generation(
    newest: AssignmentSnapshot | None, *, member_id: str, planned_generation: int, tasks: Iterable[TaskId]
) -> int | None:
    """Return the generation with which to commit a batch, None if it must be aborted. For the process that commits.

    Args:
        newest: The newest snapshot of a member of a classic group; None without an assignment.
        member_id: The member id of the snapshot that the batch was planned with.
        planned_generation: Its generation.
        tasks: The active tasks of the batch.
    """
    # Another member id: the member was removed in between, and its tasks may have had other owners.
    if newest is None or newest.member_id != member_id:
        return None
    return _commit_generation(newest.held_since or {}, newest.member_epoch, planned_generation, tasks)


def _commit_generation(
    held_since: Mapping[TaskId, int], generation: int | None, planned_generation: int, tasks: Iterable[TaskId]
) -> int | None:
    # A lower generation than the planned one: the coordinator lost its data, and with it what members claimed.
    if generation is None or generation < planned_generation:
        return None
    for task in tasks:
        since = held_since.get(task)
        if since is None or since > planned_generation:
            return None
    return generation
