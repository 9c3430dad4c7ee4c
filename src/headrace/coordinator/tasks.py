"""Tasks: what the members of a streams group run.

A task is the pair (subtopology id, partition). Sets of tasks are sorted tuples without repetition, so that whatever is
derived from them has one order everywhere.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import groupby
from operator import itemgetter
from typing import TypeAlias

__all__ = ["AssignedTasks", "Task", "TasksTuple", "by_subtopology", "sorted_tasks"]

Task: TypeAlias = tuple[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class TasksTuple:
    """Tasks by role, each a sorted tuple: a target, or what a member says it owns."""

    active: tuple[Task, ...] = ()
    standby: tuple[Task, ...] = ()
    warmup: tuple[Task, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.active or self.standby or self.warmup)

    def contains_any(self, tasks: AssignedTasks) -> bool:
        """Whether some task is here in the same role as there."""
        return not (
            tasks.active.keys().isdisjoint(self.active)
            and set(tasks.standby).isdisjoint(self.standby)
            and set(tasks.warmup).isdisjoint(self.warmup)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class AssignedTasks:
    """Tasks a member has, by role; an active one with the epoch it was assigned at. `active` is in task order."""

    active: Mapping[Task, int] = field(default_factory=dict)
    standby: tuple[Task, ...] = ()
    warmup: tuple[Task, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.active or self.standby or self.warmup)

    def contains_all(self, tasks: TasksTuple) -> bool:
        """Whether every task there is here in the same role."""
        return (
            self.active.keys() >= set(tasks.active)
            and set(self.standby).issuperset(tasks.standby)
            and set(self.warmup).issuperset(tasks.warmup)
        )

    def merge(self, other: AssignedTasks) -> AssignedTasks:
        return AssignedTasks(
            active=dict(sorted({**self.active, **other.active}.items())),
            standby=sorted_tasks((*self.standby, *other.standby)),
            warmup=sorted_tasks((*self.warmup, *other.warmup)),
        )

    def without_epochs(self) -> TasksTuple:
        return TasksTuple(active=tuple(self.active), standby=self.standby, warmup=self.warmup)


def sorted_tasks(tasks: Iterable[Task]) -> tuple[Task, ...]:
    """A sorted tuple without repetition."""
    return tuple(sorted(set(tasks)))


def by_subtopology(tasks: Collection[Task]) -> tuple[tuple[str, tuple[int, ...]], ...]:
    """Sorted tasks as (subtopology id, partitions), the shape of messages and records."""
    return tuple(
        (subtopology_id, tuple(partition for _, partition in group))
        for subtopology_id, group in groupby(tasks, key=itemgetter(0))
    )
