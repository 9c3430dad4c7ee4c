"""StickyTaskAssignor: tasks stay where they are as long as the load allows it.

Guarantees (the property tests hold it to them, against a naive twin):
1. every task is active at exactly one member;
2. active tasks per member differ by 1 at most;
3. a stateful task has min(num.standby.replicas, processes - 1) standbys, each on a process of its own;
4. unchanged members and tasks give an unchanged assignment, and no more active tasks move than guarantee 2 demands;
5. tasks that move are distributed so that each subtopology spreads over the members.

Kafka's assignor of this name fills the least loaded *process* and then its least loaded member; here every member has
the same share, and members of different processes take turns, which gives guarantee 2 also for processes of different
sizes.

Active tasks: every member gets ⌊n/m⌋ tasks or one more, and no more tasks move than that requires.
1. A member keeps its tasks up to its share; it gives up tasks of the subtopology that it has most of.
2. A task without a member goes to a member with its state: a standby, else the one with the highest changelog offset.
3. The rest is distributed by subtopology to the members with the fewest tasks of it, so that one expensive
   subtopology does not accumulate on one member.

Standby tasks: each on a process that does not have the task otherwise; where its state is, if there is capacity.
1. A standby stays where it was.
2. A missing one goes to the task's previous active member, which has its state.
3. The rest is distributed to the least loaded members. Where that is not straightforward, a task goes to the process
   with the least loaded member, and there to this member.
4. Standbys move from a member to one with two tasks less until no such move is possible: inside a process, or those
   that have no state there yet, or those of a member with more than the even share.
The load counts active and standby tasks; step 2 does not exceed the even share of both. Step 4 ends where it finds
nothing to move, so the same step finds nothing in the next assignment of an unchanged group (guarantee 4).
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain, groupby
from operator import itemgetter

from headrace.coordinator.assignors.task_assignor import GroupSpec, Placement, Share, Task, TasksTuple

__all__ = ["StickyTaskAssignor", "place_active_tasks", "place_standby_tasks"]


def place_active_tasks(placement: Placement) -> None:
    """Fill `placement.active`."""
    if not placement.tasks.ordered:
        return
    # 1. Members keep what they have, up to their share. Those above the base share go first: they take the n mod m
    #    extra tasks, so that an extra task moves only if there are more such members than extras.
    share = Share(len(placement.tasks.ordered), len(placement.member_ids))
    previous = _previous(placement)
    counts = [0] * len(previous)
    kept: set[Task] = set()
    for number, tasks in _extras_first(previous, share):
        stays = tasks if len(tasks) <= share.most() else _drop_excess(tasks, share.most())
        placement.active[number] = stays
        counts[number] = len(stays)
        share.note_load(len(stays))
        kept.update(stays)
    if len(kept) == len(placement.tasks.ordered):
        return
    # 2. Tasks without a member: first to a member that has the state (restoring state is what makes a move expensive),
    #    3. then evenly, subtopology by subtopology.
    left = [task for task in placement.tasks.ordered if task not in kept]
    left = _place_at_state_holders(placement, left, counts, share)
    _distribute(placement, left, counts, share)


def _previous(placement: Placement) -> list[tuple[Task, ...]]:
    """Return the previous tasks by member: without tasks that are gone, each task at its first holder only."""
    # The common case is checked first: all previous tasks still exist and no task is claimed twice. The tuples are then
    # passed on as they are, so an unchanged target is recognised by identity and costs no record.
    previous = [tasks.active for tasks in placement.previous]
    union = set(chain.from_iterable(previous))
    if len(union) == sum(map(len, previous)) and union <= placement.tasks.all:
        return previous
    seen: set[Task] = set()
    valid = []
    for tasks in previous:
        mine = tuple(task for task in tasks if task in placement.tasks.all and task not in seen)
        seen.update(mine)
        valid.append(tasks if len(mine) == len(tasks) else mine)
    return valid


def _extras_first(previous: Sequence[tuple[Task, ...]], share: Share) -> Iterable[tuple[int, tuple[Task, ...]]]:
    """Return members in order, those above the base share first while extra tasks are scarce, so they keep one."""
    numbered = [(number, tasks) for number, tasks in enumerate(previous) if tasks]
    base = share.base
    return sorted(numbered, key=lambda each: len(each[1]) <= base)


def _drop_excess(tasks: tuple[Task, ...], keep: int) -> list[Task]:
    """Return the `keep` tasks that stay; dropped are the highest partitions of the largest subtopologies."""
    # Giving up from the largest subtopology keeps the member's mix even. A heap of (−count, name) finds it in O(log s)
    # per task; sorting again for each dropped task would cost O(s log s). Ties go to the smaller name, because the
    # result must be the same under every PYTHONHASHSEED.
    counts = Counter(subtopology_id for subtopology_id, _ in tasks)
    piles = {name: [task for task in tasks if task[0] == name] for name in counts}
    heap = [(-count, name) for name, count in counts.items()]
    heapq.heapify(heap)
    for _ in range(len(tasks) - keep):
        count, name = heap[0]
        piles[name].pop()
        heapq.heapreplace(heap, (count + 1, name))
    return list(chain.from_iterable(piles[name] for name in sorted(piles)))


def _place_at_state_holders(placement: Placement, left: list[Task], counts: list[int], share: Share) -> list[Task]:
    """Assign tasks to members with their state; return the tasks for which no such member has capacity."""
    members = placement.group.members.values()
    if not any(member.previous.standby or member.task_offsets for member in members):
        return left
    # Only stateful tasks have state to be near to. A standby follows the changelog, so it comes before a member that
    # merely reported an offset; among those, the highest offset has the least left to restore (KIP-1071, task offsets).
    holders = _holders(placement, placement.tasks.stateful.intersection(left))
    if not holders:
        return left
    rest = []
    for task in left:
        with_room = [each for each in holders.get(task, ()) if counts[each[2]] < share.most()]
        if with_room:
            _, _, number = min(with_room, key=lambda each: (each[0], each[1], counts[each[2]], each[2]))
            _assign(placement, number, task, counts, share)
        else:
            rest.append(task)
    return rest


def _holders(placement: Placement, wanted: frozenset[Task]) -> dict[Task, list[tuple[int, int, int]]]:
    """Map each task to (0 for a standby, else 1; minus the offset; member number): the smallest is the best."""
    holders: dict[Task, list[tuple[int, int, int]]] = {}
    for number, tasks in enumerate(placement.previous):
        for task in wanted.intersection(tasks.standby) if tasks.standby else ():
            holders.setdefault(task, []).append((0, 0, number))
        offsets = placement.group.members[placement.member_ids[number]].task_offsets
        if offsets:
            for task in sorted(wanted.intersection(offsets)):
                holders.setdefault(task, []).append((1, -offsets[task], number))
    return holders


def _assign(placement: Placement, number: int, task: Task, counts: list[int], share: Share) -> None:
    has = placement.active[number]
    if isinstance(has, tuple):
        placement.active[number] = has = list(has)
    has.append(task)
    counts[number] += 1
    share.note_load(counts[number])


def _distribute(placement: Placement, left: list[Task], counts: list[int], share: Share) -> None:
    for subtopology_id, group in groupby(left, key=itemgetter(0)):
        # `fair` = ⌈tasks of this subtopology / members⌉. Without it one expensive subtopology could end up on the
        # members that happened to have the fewest tasks; the total would be even and the work would not.
        tasks = deque(group)
        fair = -(-placement.tasks.of_subtopology[subtopology_id] // len(counts))
        same: dict[int, int] = {}
        while tasks and _distribute_once(placement, tasks, counts, share, same, fair):
            pass
        _distribute_beyond_share(placement, tasks, counts, share, same)


def _distribute_once(
    placement: Placement, tasks: deque[Task], counts: list[int], share: Share, same: dict[int, int], fair: int
) -> bool:
    """Assign at most one task to each member, least loaded first, up to the even share of this subtopology.

    Returns whether any task was assigned.
    """
    dealt = False
    subtopology_id = tasks[0][0]
    # One round gives each member one task at most, least loaded first, with one sort per round. A heap was rejected: it
    # would have to hold back all members that have their fair part of this subtopology.
    for number in sorted(range(len(counts)), key=counts.__getitem__):
        if counts[number] >= share.most():
            break  # so are all that follow
        if number not in same:
            has = placement.active[number]
            same[number] = sum([task[0] == subtopology_id for task in has]) if has else 0
        if same[number] < fair:
            same[number] += 1
            _assign(placement, number, tasks.popleft(), counts, share)
            dealt = True
            if not tasks:
                break
    return dealt


def _distribute_beyond_share(
    placement: Placement, tasks: deque[Task], counts: list[int], share: Share, same: dict[int, int]
) -> None:
    """Assign the rest to members with capacity that have fewest tasks of this subtopology, beyond its even share."""
    if not tasks:
        return
    # The total share counts more than the mix (guarantee 2 before guarantee 5): what is left goes to members below
    # their share, even if they have their part of this subtopology already.
    heap = [(same[number], count, number) for number, count in enumerate(counts) if count < share.most()]
    heapq.heapify(heap)
    while tasks:
        of_it, count, number = heap[0]
        if count >= share.most():  # the extras were used up meanwhile
            heapq.heappop(heap)
            continue
        _assign(placement, number, tasks.popleft(), counts, share)
        heapq.heapreplace(heap, (of_it + 1, count + 1, number))


def place_standby_tasks(placement: Placement, replicas: int) -> None:
    """Fill `placement.standby` with min(`replicas`, processes - 1) standbys of each stateful task."""
    replicas = min(replicas, placement.processes - 1)
    if replicas < 1 or not placement.tasks.stateful:
        return
    _StandbyPlacement(placement, replicas).place()


class _Ranking:
    """Mutable: processes by their least loaded member, and the members of each by load.

    Sorted lists instead of heaps: after a move the entries of two members change in place.
    """

    def __init__(self, loads: Sequence[int], process: Sequence[int], processes: int) -> None:
        self._process = process
        self._members: list[list[tuple[int, int]]] = [[] for _ in range(processes)]
        for number in range(len(loads)):
            self._members[process[number]].append((loads[number], number))
        for members in self._members:
            members.sort()
        self.processes = sorted((members[0][0], each) for each, members in enumerate(self._members))

    def least(self) -> int:
        """Return the load of the least loaded member."""
        return self.processes[0][0]

    def least_of(self, process: int) -> int:
        """Return the number of the least loaded member of a process."""
        return self._members[process][0][1]

    def change(self, number: int, load: int, new_load: int) -> None:
        """Note that the load of a member has become `new_load`."""
        process = self._process[number]
        members = self._members[process]
        before = members[0][0]
        del members[bisect_left(members, (load, number))]
        insort(members, (new_load, number))
        if members[0][0] != before:
            del self.processes[bisect_left(self.processes, (before, process))]
            insort(self.processes, (members[0][0], process))


class _StandbyPlacement:
    """Mutable: loads of members, what each process holds in either role, and which tasks have all their standbys."""

    def __init__(self, placement: Placement, replicas: int) -> None:
        self._placement = placement
        self._replicas = replicas
        tasks = placement.tasks
        self._share = Share(len(tasks.ordered) + replicas * len(tasks.stateful), len(placement.member_ids))
        self._even_share = self._share.most()
        self._loads = [len(active) for active in placement.active]
        self._on_process: list[set[Task]] = [set() for _ in range(placement.processes)]
        for process, active in zip(placement.process, placement.active, strict=True):
            self._on_process[process].update(active)
        self._placed: dict[Task, int] = {}
        self._complete: set[Task] = set()
        self._had_state: list[set[Task]] = []  # by process, only filled for levelling

    def place(self) -> None:
        # 1. Keep. Standbys stay before anything is placed, so a new standby never displaces one with state.
        for number, previous in enumerate(self._placement.previous):
            if previous.standby:
                self._keep(number, previous.standby)
        missing = self._missing()
        if missing:
            # 2. The member that ran the task until now has its state on disk.
            self._place_at_previous_owners(frozenset(missing))
            # 3. One replica of every task before the second one of any task: if the processes cannot hold all replicas,
            #    each task has one.
            for wanted in range(1, self._replicas + 1):
                missing = self._missing()
                if self._replicas > 1:
                    missing = [task for task in missing if self._placed.get(task, 0) < wanted]
                self._distribute(missing)
            # The tasks that `_distribute` passed over.
            self._place_at_least_loaded(self._missing())
        # 4. Also when nothing was missing: active tasks may have come to members with many standbys.
        self._level_loads()

    def _missing(self) -> list[Task]:
        if len(self._complete) == len(self._placement.tasks.stateful):
            return []
        return [task for task in self._placement.tasks.stateful_ordered if task not in self._complete]

    def _keep(self, number: int, standby: tuple[Task, ...]) -> None:
        held = self._on_process[self._placement.process[number]]
        stateful = self._placement.tasks.stateful
        # Common case: all standbys may stay. Then the tuple is passed on whole, without looking at single tasks.
        all_stay = stateful.issuperset(standby) and held.isdisjoint(standby) and self._complete.isdisjoint(standby)
        if not all_stay:
            for task in standby:
                if task in stateful:
                    self._assign_if_allowed(number, task)
            return
        self._placement.standby[number] = standby
        self._loads[number] += len(standby)
        self._share.note_load(self._loads[number])
        held.update(standby)
        if self._replicas == 1:
            self._complete.update(standby)
        else:
            for task in standby:
                self._count(task)

    def _place_at_previous_owners(self, missing: frozenset[Task]) -> None:
        for number, previous in enumerate(self._placement.previous):
            if previous.active and not missing.isdisjoint(previous.active):
                for task in previous.active:
                    if task in missing and self._loads[number] < self._share.most():
                        self._assign_if_allowed(number, task)

    def _distribute(self, missing: list[Task]) -> None:
        """One to each of the least loaded members, level by level up to the even share, as long as it is easy: a member
        whose process has the next two tasks is passed over."""
        # `missing` is used as a stack. If a member's process has the next task already, the one after it is tried;
        # looking further would make this O(n²). What does not fit is left to `_place_at_least_loaded`, which is slower
        # and complete.
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
        # Two levels of heaps, processes by their least loaded member: a task must not be twice on one process, so a
        # process that has it is passed over as a whole, and put back after the task is placed.
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
        """Move standbys from the most loaded members to members with two tasks less, until no such move is left."""
        loads = self._loads
        moved = max(loads) - min(loads) > 1
        if not moved:
            return
        placement = self._placement
        ranking = _Ranking(loads, placement.process, placement.processes)
        self._had_state = [set() for _ in range(placement.processes)]
        for process, previous in zip(placement.process, placement.previous, strict=True):
            self._had_state[process].update(previous.active, previous.standby)
        # Each move lowers the sum of the squared loads, so this ends. A member that could give nothing away is visited
        # again after a move of another: that one may have freed a process for its tasks.
        while moved:
            moved = False
            for number in sorted(range(len(loads)), key=lambda each: (-loads[each], each)):
                if loads[number] - ranking.least() < 2:
                    break
                moved |= self._level_member(number, ranking)

    def _level_member(self, number: int, ranking: _Ranking) -> bool:
        """Move standbys of one member to less loaded members; return whether any moved."""
        placement, loads = self._placement, self._loads
        own = placement.process[number]
        had_state = self._had_state[own]
        moved = False
        for task in sorted(placement.standby[number], key=lambda task: (task in had_state, task)):
            # A process has one directory of state, so a move inside it costs nothing. State is left behind only where
            # the member has more than the even share, not for the last bit of balance.
            beside = ranking.least_of(own)
            other: int | None = beside
            if loads[beside] + 1 >= loads[number]:
                if task in had_state and loads[number] <= self._even_share:
                    break
                other = self._least_loaded_without(task, ranking)
            if other is not None and loads[other] + 1 < loads[number]:
                self._move(task, number, other, ranking)
                moved = True
        return moved

    def _least_loaded_without(self, task: Task, ranking: _Ranking) -> int | None:
        for _, process in ranking.processes:
            if task not in self._on_process[process]:
                return ranking.least_of(process)
        return None

    def _move(self, task: Task, number: int, other: int, ranking: _Ranking) -> None:
        placement = self._placement
        placement.standby[number] = [each for each in placement.standby[number] if each != task]
        placement.standby[other] = [*placement.standby[other], task]
        self._on_process[placement.process[number]].discard(task)
        self._on_process[placement.process[other]].add(task)
        for each, change in ((number, -1), (other, 1)):
            ranking.change(each, self._loads[each], self._loads[each] + change)
            self._loads[each] += change

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
            self._share.note_load(loads[number])
        if self._replicas == 1:
            self._complete.add(task)
        else:
            self._count(task)

    def _count(self, task: Task) -> None:
        placed = self._placed.get(task, 0) + 1
        self._placed[task] = placed
        if placed == self._replicas:
            self._complete.add(task)


class StickyTaskAssignor:
    """The default of streams groups, as in Kafka."""

    name = "sticky"

    def assign(self, group: GroupSpec) -> Mapping[str, TasksTuple]:
        if not group.members:
            return {}
        placement = Placement(group)
        place_active_tasks(placement)
        place_standby_tasks(placement, group.num_standby_replicas)
        return placement.tasks_by_member()
