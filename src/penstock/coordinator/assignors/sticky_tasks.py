"""StickyTaskAssignor: tasks stay where they are as long as the load allows it.

Guarantees (the property tests hold it to them):
1. every task is active at exactly one member;
2. active tasks per member differ by 1 at most;
3. a stateful task has min(num.standby.replicas, processes - 1) standbys, each on a process of its own;
4. unchanged members and tasks give an unchanged answer; a member that left moves its own tasks only, when those fit.

Kafka fills the least loaded *process* and then its least loaded member; we look at the member first and at its process
second, which gives guarantee 2 also when processes have different numbers of members. Ties follow the member id.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Mapping

from penstock.coordinator.assignors.assignor import GroupSpec
from penstock.coordinator.streams.tasks import Task, TasksTuple

__all__ = ["StickyTaskAssignor"]


class StickyTaskAssignor:
    """The default of streams groups, as in Kafka."""

    name = "sticky"

    def assign(self, group: GroupSpec) -> Mapping[str, TasksTuple]:
        if not group.members:
            return {}
        placement = _Placement(group)
        placement.place_active()
        if group.num_standby_replicas > 0:
            placement.place_standbys()
        return placement.tasks_by_member()


class _Quota:
    """The share of a member: ceil(what is left / members that have room), lowered as members fill up."""

    __slots__ = ("_members", "_tasks", "value")

    def __init__(self, tasks: int, members: int) -> None:
        self._tasks = tasks
        self._members = members
        self.value = _ceil(tasks, members)

    def placed(self, count: int) -> None:
        """A member has `count` now: once it has its share, the others' share is computed without it."""
        if count == self.value:
            self._members -= 1
            self._tasks -= count
            self.value = _ceil(self._tasks, self._members)


class _Placement:
    """The computation's scratch state."""

    def __init__(self, group: GroupSpec) -> None:
        self._group = group
        self._member_ids = sorted(group.members)
        self._process = {member_id: group.members[member_id].process_id for member_id in self._member_ids}
        self._members_of: dict[str, int] = {}
        for process in self._process.values():
            self._members_of[process] = self._members_of.get(process, 0) + 1
        self._active: dict[str, list[Task]] = {member_id: [] for member_id in self._member_ids}
        self._standby: dict[str, list[Task]] = {member_id: [] for member_id in self._member_ids}
        self._count = dict.fromkeys(self._member_ids, 0)
        self._process_count = dict.fromkeys(self._members_of, 0)
        self._on_process: dict[Task, set[str]] = {}
        self._tasks = group.active_tasks()
        self._stateful = group.stateful_tasks()
        self._previous_active = _owners(group, lambda tasks: tasks.active)
        self._previous_standby = _owners(group, lambda tasks: tasks.standby)

    def place_active(self) -> None:
        quota = _Quota(len(self._tasks), len(self._member_ids))
        left = []
        for task in self._tasks:
            owner = next(iter(self._previous_active.get(task, ())), None)
            if owner is not None and self._count[owner] < quota.value:
                self._put_active(task, owner)
                quota.placed(self._count[owner])
            else:
                left.append(task)
        left = [task for task in left if not self._placed_at_standby(task, quota)]
        heap = [self._load(member_id) for member_id in self._member_ids]
        heapq.heapify(heap)
        for task in sorted(left):
            member_id = self._least_loaded(heap)
            self._put_active(task, member_id)
            heapq.heappush(heap, self._load(member_id))

    def place_standbys(self) -> None:
        replicas = min(self._group.num_standby_replicas, len(self._members_of) - 1)
        if replicas < 1:
            return
        quota = _Quota(len(self._tasks) + replicas * len(self._stateful), len(self._member_ids))
        deferred: list[tuple[Task, int]] = []
        for task in reversed(self._stateful):
            for placed in range(replicas):
                member_id = self._sticky_standby(task, quota.value)
                if member_id is None:
                    deferred.append((task, replicas - placed))
                    break
                self._put_standby(task, member_id)
                quota.placed(self._count[member_id])
        heap = [self._load(member_id) for member_id in self._member_ids]
        heapq.heapify(heap)
        for task, missing in sorted(deferred, reverse=True):
            for _ in range(missing):
                self._put_on_other_process(task, heap)

    def tasks_by_member(self) -> dict[str, TasksTuple]:
        return {
            member_id: TasksTuple(
                active=tuple(sorted(self._active[member_id])), standby=tuple(sorted(self._standby[member_id]))
            )
            for member_id in self._member_ids
        }

    def _placed_at_standby(self, task: Task, quota: _Quota) -> bool:
        """A previous standby has the state already, so it is the best home of a task that must move."""
        candidates = [m for m in self._previous_standby.get(task, ()) if self._count[m] < quota.value]
        if not candidates:
            return False
        best = min(candidates, key=self._load)
        self._put_active(task, best)
        quota.placed(self._count[best])
        return True

    def _sticky_standby(self, task: Task, quota: int) -> str | None:
        """The previous active owner, else the least loaded previous standby, if its process lacks the task."""
        active = self._previous_active.get(task, ())
        previous = (active, self._previous_standby.get(task, ()))
        for members in previous:
            free = [m for m in members if self._count[m] < quota and self._process[m] not in self._on_process[task]]
            if free:
                return min(free, key=self._load)
        return None

    def _put_on_other_process(self, task: Task, heap: list[tuple[int, float, str]]) -> None:
        passed = []
        while heap:
            member_id = self._least_loaded(heap)
            if self._process[member_id] not in self._on_process[task]:
                self._put_standby(task, member_id)
                passed.append(member_id)
                break
            passed.append(member_id)
        for member_id in passed:
            heapq.heappush(heap, self._load(member_id))

    def _least_loaded(self, heap: list[tuple[int, float, str]]) -> str:
        """Takes the least loaded member off the heap; entries whose process has changed since are renewed."""
        while True:
            entry = heap[0]
            current = self._load(entry[2])
            if entry == current:
                return heapq.heappop(heap)[2]
            heapq.heapreplace(heap, current)

    def _load(self, member_id: str) -> tuple[int, float, str]:
        process = self._process[member_id]
        return (self._count[member_id], self._process_count[process] / self._members_of[process], member_id)

    def _put_active(self, task: Task, member_id: str) -> None:
        self._active[member_id].append(task)
        self._put(task, member_id)

    def _put_standby(self, task: Task, member_id: str) -> None:
        self._standby[member_id].append(task)
        self._put(task, member_id)

    def _put(self, task: Task, member_id: str) -> None:
        process = self._process[member_id]
        self._count[member_id] += 1
        self._process_count[process] += 1
        self._on_process.setdefault(task, set()).add(process)


def _owners(group: GroupSpec, role: Callable[[TasksTuple], Iterable[Task]]) -> dict[Task, list[str]]:
    """Task → member ids in ascending order."""
    owners: dict[Task, list[str]] = {}
    for member_id in sorted(group.members):
        for task in role(group.members[member_id].previous):
            owners.setdefault(task, []).append(member_id)
    return owners


def _ceil(tasks: int, members: int) -> int:
    return -(-tasks // members) if members > 0 else 0
