"""Working state of a task assignment: members by number, what each has so far, and how much it may have.

Members are numbered so that the first members of all processes come before the second member of any process. Filling
members in that order spreads tasks over processes. All ties are decided by that number, so the result does not depend
on the order of any mapping.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from functools import lru_cache
from itertools import chain

from headrace.coordinator.assignors.task_assignor import AssignableSubtopology, GroupSpec
from headrace.coordinator.tasks import Task, TasksTuple

__all__ = ["Placement", "Share", "all_tasks"]


class Share:
    """Even share of `tasks`: each member gets `base`, `extra` members get one more. Mutable: extras are used up."""

    __slots__ = ("base", "extra")

    def __init__(self, tasks: int, members: int) -> None:
        self.base, self.extra = divmod(tasks, members)

    def most(self) -> int:
        """Return how many tasks a member may have now."""
        return self.base + 1 if self.extra else self.base

    def took(self, count: int) -> None:
        """Note that a member has `count` tasks by now."""
        if count == self.base + 1 and self.extra:
            self.extra -= 1


class Placement:
    """Mutable. `active`, `standby`: by member number; `kept_*` holds the sorted tuple itself when all of it stays."""

    def __init__(self, group: GroupSpec) -> None:
        self.group = group
        by_process: dict[str, list[str]] = defaultdict(list)
        for member_id in sorted(group.members):
            by_process[group.members[member_id].process_id].append(member_id)
        processes = sorted(by_process)
        turns = max(len(members) for members in by_process.values())
        ranked = [
            (by_process[process][turn], number)
            for turn in range(turns)
            for number, process in enumerate(processes)
            if turn < len(by_process[process])
        ]
        self.member_ids = [member_id for member_id, _ in ranked]
        self.process = [process for _, process in ranked]
        self.processes = len(processes)
        self.previous = [group.members[member_id].previous for member_id in self.member_ids]
        self.tasks = all_tasks(group.subtopologies)
        self.active: list[list[Task] | tuple[Task, ...]] = [()] * len(self.member_ids)
        self.standby: list[list[Task] | tuple[Task, ...]] = [()] * len(self.member_ids)

    def tasks_by_member(self) -> dict[str, TasksTuple]:
        """Return the result by member id; the very same object for a member whose tasks did not change."""
        return {
            member_id: _as_tuple(self.previous[number], self.active[number], self.standby[number])
            for number, member_id in enumerate(self.member_ids)
        }


def _as_tuple(
    previous: TasksTuple, active: list[Task] | tuple[Task, ...], standby: list[Task] | tuple[Task, ...]
) -> TasksTuple:
    if active is previous.active and standby is previous.standby and not previous.warmup:
        return previous
    return TasksTuple(
        active=active if isinstance(active, tuple) else tuple(sorted(active)),
        standby=standby if isinstance(standby, tuple) else tuple(sorted(standby)),
    )


class TaskList:
    """All tasks of some subtopologies, as a list in their order and as a set; the stateful ones apart. Immutable."""

    __slots__ = ("all", "of_subtopology", "ordered", "stateful", "stateful_ordered")

    def __init__(self, subtopologies: Iterable[AssignableSubtopology]) -> None:
        each = sorted(subtopologies, key=lambda subtopology: subtopology.subtopology_id)
        self.ordered: tuple[Task, ...] = _tasks(each)
        self.all = frozenset(self.ordered)
        self.stateful_ordered: tuple[Task, ...] = _tasks([one for one in each if one.stateful])
        self.of_subtopology = {one.subtopology_id: one.tasks for one in each}
        self.stateful = frozenset(self.stateful_ordered)


def _tasks(subtopologies: Iterable[AssignableSubtopology]) -> tuple[Task, ...]:
    return tuple(
        chain.from_iterable(
            ((subtopology.subtopology_id, partition) for partition in range(subtopology.tasks))
            for subtopology in subtopologies
        )
    )


@lru_cache(maxsize=16)
def all_tasks(subtopologies: tuple[AssignableSubtopology, ...]) -> TaskList:
    """Return all tasks of the subtopologies; cached, because a group asks again with every assignment."""
    return TaskList(subtopologies)
