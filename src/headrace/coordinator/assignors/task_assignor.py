"""Tasks, and the protocol of task assignors: (members, subtopologies, settings) → tasks by member (KIP-1071, KIP-1357).

A task is the pair (subtopology id, partition). Sets of tasks are sorted tuples without repetition, so that whatever is
derived from them has one order everywhere.

`Placement` is the working state of an assignment. Members are numbered so that the first members of all processes come
before the second member of any process. Filling members in that order spreads tasks over processes. All ties are
decided by that number, so the result does not depend on the order of any mapping.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import chain, groupby
from operator import itemgetter
from typing import Protocol, TypeAlias

__all__ = [
    "AssignableSubtopology",
    "AssignedTasks",
    "GroupSpec",
    "MemberSpec",
    "Placement",
    "Share",
    "Task",
    "TaskAssignor",
    "TasksTuple",
    "all_tasks",
    "by_subtopology",
    "sorted_tasks",
]


# A plain tuple and not a dataclass: an assignment puts every task into several sets and dictionaries and sorts it, and
# tuples hash and compare without a Python call.
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
    """Return the tasks sorted, without duplicates."""
    return tuple(sorted(set(tasks)))


def by_subtopology(tasks: Collection[Task]) -> tuple[tuple[str, tuple[int, ...]], ...]:
    """Return sorted tasks as (subtopology id, partitions), the shape of messages and records."""
    return tuple(
        (subtopology_id, tuple(partition for _, partition in group))
        for subtopology_id, group in groupby(tasks, key=itemgetter(0))
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class AssignableSubtopology:
    """`stateful`: it has a changelog, so a standby of its tasks makes sense."""

    subtopology_id: str
    tasks: int
    stateful: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberSpec:
    """A member as an assignor sees it. `previous` is its previous target (Kafka ≤ 4.3); sorted tasks. `task_offsets`:
    the changelog positions that it reported, also of tasks whose state it only found on its disk; and their ends."""

    process_id: str
    instance_id: str | None = None
    rack_id: str | None = None
    client_tags: tuple[tuple[str, str], ...] = ()
    previous: TasksTuple = TasksTuple()
    task_offsets: Mapping[Task, int] = field(default_factory=dict)
    task_end_offsets: Mapping[Task, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSpec:
    """A group as an assignor sees it: members by id, subtopologies, and the settings of the group."""

    members: Mapping[str, MemberSpec]
    subtopologies: tuple[AssignableSubtopology, ...]
    num_standby_replicas: int = 0
    rack_aware_assignment_tags: tuple[str, ...] = ()

    def active_tasks(self) -> list[Task]:
        """Return all tasks by partition and subtopology: neighbours in this order belong to different subtopologies."""
        tasks = [(each.subtopology_id, partition) for each in self.subtopologies for partition in range(each.tasks)]
        return sorted(tasks, key=lambda task: (task[1], task[0]))

    def stateful_tasks(self) -> list[Task]:
        stateful = {each.subtopology_id for each in self.subtopologies if each.stateful}
        return [task for task in self.active_tasks() if task[0] in stateful]


class TaskAssignor(Protocol):
    """Deterministic: the same spec gives the same answer, whatever the order of its mappings."""

    name: str

    def assign(self, group: GroupSpec) -> Mapping[str, TasksTuple]:
        """Assign tasks to every member of the group."""
        ...


class Share:
    """Even share of `tasks`: each member gets `base`, `extra` members get one more. Mutable: extras are used up."""

    __slots__ = ("base", "extra")

    def __init__(self, tasks: int, members: int) -> None:
        self.base, self.extra = divmod(tasks, members)

    def most(self) -> int:
        """Return how many tasks a member may have now."""
        return self.base + 1 if self.extra else self.base

    def note_load(self, count: int) -> None:
        """Note that a member has `count` tasks by now."""
        # A member that reaches base + 1 uses up an extra; without extras `most()` is the base. So at most n mod m
        # members exceed the base, which bounds the spread of loads to 1.
        if count == self.base + 1 and self.extra:
            self.extra -= 1


class Placement:
    """Mutable. `active`, `standby`: by member number; `kept_*` holds the sorted tuple itself when all of it stays."""

    def __init__(self, group: GroupSpec) -> None:
        self.group = group
        # 1. Sorted ids, so that the result does not depend on the order of the mapping. (Kafka's follows that of a Java
        #    HashMap.)
        by_process: dict[str, list[str]] = defaultdict(list)
        for member_id in sorted(group.members):
            by_process[group.members[member_id].process_id].append(member_id)
        processes = sorted(by_process)
        turns = max(len(members) for members in by_process.values())
        # 2. Members are numbered alternating between processes: first members of all processes, then second ones. Ties
        #    between equally loaded members go to the lower number, so a round fills processes evenly and not one after
        #    another.
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
        # 3. Tuples are shared or taken over from the previous target as they are; the first change of a member makes a
        #    list.
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
    # The same object means that the target record is not written: after a small change in a group of 1,000 members,
    # only those that gain or lose a task are written.
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
        self.ordered: tuple[Task, ...] = _tasks_of(each)
        self.all = frozenset(self.ordered)
        self.stateful_ordered: tuple[Task, ...] = _tasks_of([one for one in each if one.stateful])
        self.of_subtopology = {one.subtopology_id: one.tasks for one in each}
        self.stateful = frozenset(self.stateful_ordered)


def _tasks_of(subtopologies: Iterable[AssignableSubtopology]) -> tuple[Task, ...]:
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
