"""Standby tasks: each on a process that does not have the task otherwise; where its state is, if there is capacity.

1. A standby stays where it was.
2. A missing one goes to the task's previous active member, which has its state.
3. The rest is distributed to the least loaded members. Where that is not straightforward, a task goes to the process
   with the least loaded member, and there to this member.

The load counts active and standby tasks; steps 1 and 2 do not exceed the even share of both.
"""

from __future__ import annotations

import heapq

from headrace.coordinator.assignors.placement import Placement, Share
from headrace.coordinator.tasks import Task

__all__ = ["place_standby_tasks"]


def place_standby_tasks(placement: Placement, replicas: int) -> None:
    """Fills `placement.standby` with min(`replicas`, processes - 1) standbys of each stateful task."""
    replicas = min(replicas, placement.processes - 1)
    if replicas < 1 or not placement.tasks.stateful:
        return
    _StandbyPlacement(placement, replicas).place()


class _StandbyPlacement:
    """Mutable: loads of members, what each process holds in either role, and which tasks have all their standbys."""

    def __init__(self, placement: Placement, replicas: int) -> None:
        self._placement = placement
        self._replicas = replicas
        tasks = placement.tasks
        self._share = Share(len(tasks.ordered) + replicas * len(tasks.stateful), len(placement.member_ids))
        self._loads = [len(active) for active in placement.active]
        self._on_process: list[set[Task]] = [set() for _ in range(placement.processes)]
        for process, active in zip(placement.process, placement.active, strict=True):
            self._on_process[process].update(active)
        self._placed: dict[Task, int] = {}
        self._complete: set[Task] = set()
        self._of_the_needy: set[Task] | None = None  # tasks on processes whose members have less than their share

    def place(self) -> None:
        for number, previous in enumerate(self._placement.previous):
            if previous.standby:
                self._keep(number, previous.standby)
        missing = self._missing()
        if missing:
            self._place_at_previous_owners(frozenset(missing))
            for wanted in range(1, self._replicas + 1):
                missing = self._missing()
                if self._replicas > 1:
                    missing = [task for task in missing if self._placed.get(task, 0) < wanted]
                self._distribute(missing)
            self._place_at_least_loaded(self._missing())
            self._level_loads()

    def _missing(self) -> list[Task]:
        if len(self._complete) == len(self._placement.tasks.stateful):
            return []
        return [task for task in self._placement.tasks.stateful_ordered if task not in self._complete]

    def _keep(self, number: int, standby: tuple[Task, ...]) -> None:
        held = self._on_process[self._placement.process[number]]
        stateful = self._placement.tasks.stateful
        all_stay = (
            len(standby) <= self._share.most() - self._loads[number]
            and stateful.issuperset(standby)
            and held.isdisjoint(standby)
            and self._complete.isdisjoint(standby)
        )
        if not all_stay:
            for task in sorted(standby, key=self._can_be_taken):
                if self._loads[number] < self._share.most() and task in stateful:
                    self._assign_if_allowed(number, task)
            return
        self._placement.standby[number] = standby
        self._loads[number] += len(standby)
        self._share.took(self._loads[number])
        held.update(standby)
        if self._replicas == 1:
            self._complete.update(standby)
        else:
            for task in standby:
                self._count(task)

    def _can_be_taken(self, task: Task) -> bool:
        """Whether members with room may have this standby: those that run the task itself may not, so of too many
        standbys a member keeps these."""
        if self._of_the_needy is None:
            placement, base = self._placement, self._share.base
            self._of_the_needy = set()
            for number, previous in enumerate(placement.previous):
                if len(placement.active[number]) + len(previous.standby) < base:
                    self._of_the_needy |= self._on_process[placement.process[number]]
        return task not in self._of_the_needy

    def _place_at_previous_owners(self, missing: frozenset[Task]) -> None:
        for number, previous in enumerate(self._placement.previous):
            if previous.active and not missing.isdisjoint(previous.active):
                for task in previous.active:
                    if task in missing and self._loads[number] < self._share.most():
                        self._assign_if_allowed(number, task)

    def _distribute(self, missing: list[Task]) -> None:
        """One to each of the least loaded members, level by level up to the even share, as long as it is easy: a member
        whose process has the next two tasks is passed over."""
        loads, processes, on_process = self._loads, self._placement.process, self._on_process
        missing.reverse()
        level = min(loads)
        while missing and level < self._share.most():
            for number, load in enumerate(loads):
                if load > level:
                    continue
                held = on_process[processes[number]]
                if missing[-1] in held:
                    if missing[-2:][0] in held:
                        continue
                    missing[-2:] = missing[:-3:-1]
                self._assign(number, missing.pop(), held)
                if not missing:
                    break
            level += 1

    def _place_at_least_loaded(self, missing: list[Task]) -> None:
        if not missing:
            return
        members: list[list[tuple[int, int]]] = [[] for _ in self._on_process]
        for number, process in enumerate(self._placement.process):
            members[process].append((self._loads[number], number))
        for heap in members:
            heapq.heapify(heap)
        processes = [(heap[0], process) for process, heap in enumerate(members)]
        heapq.heapify(processes)
        for task in missing:
            passed = []
            while processes and task not in self._complete:
                least, process = heapq.heappop(processes)
                if self._assign_if_allowed(least[1], task):
                    heapq.heapreplace(members[process], (least[0] + 1, least[1]))
                    least = members[process][0]
                passed.append((least, process))
            for entry in passed:
                heapq.heappush(processes, entry)

    def _level_loads(self) -> None:
        """When the dealing ended with some below the base, since they had the last tasks already: standbys that came
        to a member without their state go on to one with two less."""
        loads, base = self._loads, self._share.base
        low = [number for number, load in enumerate(loads) if load < base]
        if low:
            for number in sorted(range(len(loads)), key=lambda each: -loads[each]):
                if loads[number] <= base:
                    break
                self._move_to_less_loaded(number, low)

    def _move_to_less_loaded(self, number: int, low: list[int]) -> None:
        placement, loads = self._placement, self._loads
        previous = placement.previous[number]
        for task in sorted(set(placement.standby[number]).difference(previous.standby, previous.active)):
            for other in low:
                held = self._on_process[placement.process[other]]
                if loads[other] + 1 < loads[number] and task not in held:
                    placement.standby[number] = [each for each in placement.standby[number] if each != task]
                    placement.standby[other] = [*placement.standby[other], task]
                    self._on_process[placement.process[number]].discard(task)
                    held.add(task)
                    loads[number] -= 1
                    loads[other] += 1
                    break

    def _assign_if_allowed(self, number: int, task: Task) -> bool:
        """A process has a task once, and a task as many standbys as are wanted."""
        placement = self._placement
        held = self._on_process[placement.process[number]]
        if task in held or task in self._complete:
            return False
        self._assign(number, task, held)
        return True

    def _assign(self, number: int, task: Task, held: set[Task]) -> None:
        standby, loads = self._placement.standby, self._loads
        has = standby[number]
        if isinstance(has, tuple):
            standby[number] = has = list(has)
        has.append(task)
        held.add(task)
        loads[number] += 1
        if loads[number] > self._share.base:
            self._share.took(loads[number])
        if self._replicas == 1:
            self._complete.add(task)
        else:
            self._count(task)

    def _count(self, task: Task) -> None:
        placed = self._placed.get(task, 0) + 1
        self._placed[task] = placed
        if placed == self._replicas:
            self._complete.add(task)
