"""Active tasks: stay where they are, as far as everybody's even share allows; the rest goes where it costs least.

1. A member keeps what it had, up to its share; what it must give up comes from the subtopology it has most of.
2. A task without a member goes to one that has its state: a standby, else who reported the highest changelog offset.
3. What is left is dealt out, subtopology by subtopology, to those who have fewest tasks of that one, so that a heavy
   subtopology does not pile up on one member.

Everybody ends with the even share (differences of 1 at most), and no more tasks move than that demands.
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
    """Fills `placement.active`."""
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
    """What each member had that still is a task and that nobody else had too."""
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
    """Members by number; but while extras are scarce, who had more than the base comes first and may keep one."""
    numbered = [(number, tasks) for number, tasks in enumerate(previous) if tasks]
    base = share.base
    return sorted(numbered, key=lambda each: len(each[1]) <= base)


def _drop_excess(tasks: tuple[Task, ...], keep: int) -> list[Task]:
    """Gives up the highest partitions of whatever subtopology the member has most of."""
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
    """Returns what nobody with state has room for."""
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
    """Task → (0 for a standby, else 1; minus the offset; member number)."""
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
    """At most one to each, the least loaded first, and nobody beyond the subtopology's own even share. Whether any was
    dealt."""
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
    """Those with room have their share of this subtopology already: whoever has least of it."""
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
