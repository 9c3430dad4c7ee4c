"""Active tasks: they stay where they are as far as an even share allows; the rest moves where it is cheapest.

1. A member keeps its tasks up to its share; it gives up tasks of the subtopology that it has most of.
2. A task without a member goes to a member with its state: a standby, else the one with the highest changelog offset.
3. The rest is distributed by subtopology to the members with the fewest tasks of it, so that one expensive
   subtopology does not accumulate on one member.

Every member gets ⌊n/m⌋ tasks or one more, and no more tasks move than that requires.
"""

from __future__ import annotations

import heapq
from collections import Counter, deque
from collections.abc import Iterable, Sequence
from itertools import chain, groupby
from operator import itemgetter

from headrace.coordinator.assignors.placement import Placement, Share
from headrace.coordinator.tasks import Task

__all__ = ["place_active_tasks"]


def place_active_tasks(placement: Placement) -> None:
    """Fill `placement.active`."""
    if not placement.tasks.ordered:
        return
    share = Share(len(placement.tasks.ordered), len(placement.member_ids))
    previous = _previous(placement)
    counts = [0] * len(previous)
    kept: set[Task] = set()
    for number, tasks in _extras_first(previous, share):
        stays = tasks if len(tasks) <= share.most() else _drop_excess(tasks, share.most())
        placement.active[number] = stays
        counts[number] = len(stays)
        share.took(len(stays))
        kept.update(stays)
    if len(kept) == len(placement.tasks.ordered):
        return
    left = [task for task in placement.tasks.ordered if task not in kept]
    left = _place_at_state_holders(placement, left, counts, share)
    _distribute(placement, left, counts, share)


def _previous(placement: Placement) -> list[tuple[Task, ...]]:
    """Return the previous tasks by member: without tasks that are gone, each task at its first holder only."""
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
    share.took(counts[number])


def _distribute(placement: Placement, left: list[Task], counts: list[int], share: Share) -> None:
    for subtopology_id, group in groupby(left, key=itemgetter(0)):
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
    heap = [(same[number], count, number) for number, count in enumerate(counts) if count < share.most()]
    heapq.heapify(heap)
    while tasks:
        of_it, count, number = heap[0]
        if count >= share.most():  # the extras were used up meanwhile
            heapq.heappop(heap)
            continue
        _assign(placement, number, tasks.popleft(), counts, share)
        heapq.heapreplace(heap, (of_it + 1, count + 1, number))
