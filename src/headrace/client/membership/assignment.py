"""Tasks of a streams group member: subtopology id → sorted partitions, and the snapshot for the application."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from enum import IntEnum

__all__ = [
    "AssignmentSnapshot",
    "OwnedTasks",
    "StatusCode",
    "TaskId",
    "Tasks",
    "difference",
    "is_subset",
    "revoked_tasks",
    "task_ids",
    "tasks_from",
    "tasks_of",
    "tasks_text",
    "union",
    "with_active",
]

Tasks = Mapping[str, tuple[int, ...]]
"""Subtopology id → partitions, both sorted, no empty entries. Treat as immutable."""

TaskId = tuple[str, int]
"""(subtopology id, partition)."""


class StatusCode(IntEnum):
    """The statuses of a heartbeat reply (KIP-1071, "Status"). None of them is an error."""

    STALE_TOPOLOGY = 0
    MISSING_SOURCE_TOPICS = 1
    INCORRECTLY_PARTITIONED_TOPICS = 2
    MISSING_INTERNAL_TOPICS = 3
    SHUTDOWN_APPLICATION = 4
    ASSIGNMENT_DELAYED = 5
    MISSING_CLIENT_TAGS = 6


def tasks_of(tasks: Mapping[str, Iterable[int]]) -> dict[str, tuple[int, ...]]:
    """Return the tasks sorted, without duplicates and without empty subtopologies."""
    ordered = ((name, tuple(sorted(set(tasks[name])))) for name in sorted(tasks))
    # Empty subtopologies are dropped, so that equal assignments are equal values: events are emitted on differences.
    return {name: partitions for name, partitions in ordered if partitions}


def task_ids(tasks: Mapping[str, Iterable[int]]) -> frozenset[tuple[str, int]]:
    """Return the tasks as (subtopology id, partition)."""
    return frozenset((name, partition) for name, partitions in tasks.items() for partition in partitions)


def tasks_from(ids: Iterable[tuple[str, int]]) -> dict[str, tuple[int, ...]]:
    """Return tasks that are given as (subtopology id, partition): the inverse of `task_ids`."""
    grouped: dict[str, list[int]] = {}
    for name, partition in ids:
        grouped.setdefault(name, []).append(partition)
    return tasks_of(grouped)


def union(left: Tasks, right: Tasks) -> dict[str, tuple[int, ...]]:
    """Return tasks that are in either."""
    return tasks_of({name: (*left.get(name, ()), *right.get(name, ())) for name in (*left, *right)})


def difference(left: Tasks, right: Tasks) -> dict[str, tuple[int, ...]]:
    """Return tasks of `left` that are not in `right`."""
    return tasks_of({name: [p for p in left[name] if p not in right.get(name, ())] for name in left})


def is_subset(left: Tasks, right: Tasks) -> bool:
    """Return whether each task of `left` is in `right`."""
    return not difference(left, right)


def tasks_text(tasks: Mapping[str, Sequence[int]]) -> str:
    """Format tasks with runs of partitions joined: `flights 0-3   by-origin 0-3`."""
    return "   ".join(f"{name} {_ranges(partitions)}" for name, partitions in tasks.items())


def _ranges(numbers: Sequence[int]) -> str:
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and runs[-1][1] == number - 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnedTasks:
    """Tasks of the three roles of KIP-1071: active, standby, warm-up."""

    active: Tasks = field(default_factory=dict)
    standby: Tasks = field(default_factory=dict)
    warmup: Tasks = field(default_factory=dict)

    def union(self, other: OwnedTasks) -> OwnedTasks:
        """Return the union, role by role."""
        return OwnedTasks(
            active=union(self.active, other.active),
            standby=union(self.standby, other.standby),
            warmup=union(self.warmup, other.warmup),
        )

    def within(self, other: OwnedTasks) -> bool:
        """Return whether each task is in the same role of `other`."""
        return (
            # Role by role: a standby task that is still active here would be processed twice.
            is_subset(self.active, other.active)
            and is_subset(self.standby, other.standby)
            and is_subset(self.warmup, other.warmup)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class AssignmentSnapshot:
    """The member's assignment at one moment.

    Commit offsets with this `member_epoch`, captured when a batch is planned, never with a later one: KIP-1071 fences
    epochs, not tasks. `version` counts the changes of tasks since the process started; an acknowledgement names it.

    In a classic group `member_epoch` is the generation, and `held_since` has the generation since which each active
    task is held; `commit_generation` derives from it the generation for a commit. None in a streams group.
    """

    member_id: str
    member_epoch: int = 0
    active: Tasks = field(default_factory=dict)
    standby: Tasks = field(default_factory=dict)
    warmup: Tasks = field(default_factory=dict)
    status: tuple[tuple[int, str], ...] = ()
    version: int = 0
    held_since: Mapping[TaskId, int] | None = None

    @property
    def tasks(self) -> OwnedTasks:
        """The tasks of the three roles."""
        return OwnedTasks(active=self.active, standby=self.standby, warmup=self.warmup)


def with_active(snapshot: AssignmentSnapshot, tasks: Iterable[tuple[str, int]]) -> AssignmentSnapshot:
    """Return an assignment with further active tasks, given as (subtopology id, partition)."""
    more = tasks_from(tasks)
    return replace(snapshot, active=union(snapshot.active, more)) if more else snapshot


def revoked_tasks(
    before: AssignmentSnapshot | None,
    after: AssignmentSnapshot,
    *,
    running: AbstractSet[tuple[str, int]],
    delayed: AbstractSet[tuple[str, int]],
) -> frozenset[tuple[str, int]]:
    """Return the running tasks that a new assignment takes away from this member.

    A task that was *lost* may run as well, until its micro-batch ends. It is not revoked: another member may own it
    already, and has not waited for this one. Kept here, it would be opened again with the offsets of that moment. Once
    this member is assigned the task, its commits count, and rows that the other member has committed in between would
    be written twice.

    Args:
        before: The assignment that this one replaces; None at the first one and after a loss.
        after: The new assignment.
        running: Tasks that run in this process, lost ones included.
        delayed: Tasks whose revocation is delayed already.
    """
    if before is None:
        return frozenset()
    return frozenset((running & (task_ids(before.active) | delayed)) - task_ids(after.active))
