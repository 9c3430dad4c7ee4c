"""Placement of tasks in slots: where a store lies, then balance.

Slots of a local master share one state directory, so any of them will do, and a task keeps its slot by its number. On a
cluster each slot has the stores of its executor, and slots come and go.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping

__all__ = ["excess", "place"]

Stores = Mapping[int, frozenset[int]]  # slot → tasks with a store in its state directory


def place(tasks: Iterable[int], placed: Mapping[int, int], stores: Stores, *, assigned: int) -> dict[int, int]:
    """Return the slots of tasks that are to be opened.

    Args:
        tasks: The tasks.
        placed: Task → slot, of those that have one.
        stores: All slots, with their stores.
        assigned: Number of tasks that the slots share: none takes more than its part.
    """
    most = _share(assigned, len(stores))
    loads = Counter(placed.values())
    found: dict[int, int] = {}
    # Two passes: a task without a store anywhere must not take the room of one whose store lies there.
    waiting = sorted(tasks)
    for task in waiting:
        free = [slot for slot, there in stores.items() if task in there and loads[slot] < most]
        if free:
            found[task] = _least(free, loads)
            loads[found[task]] += 1
    for task in waiting:
        if task not in found:
            found[task] = _least(stores, loads)
            loads[found[task]] += 1
    return found


def excess(running: Collection[int], placed: Mapping[int, int], stores: Stores, *, assigned: int) -> list[int]:
    """Return running tasks that must leave their slots for others, so that no slot has more than its part.

    Args:
        running: Tasks that may be moved.
        placed: As for `place`.
        stores: As for `place`.
        assigned: As for `place`.
    """
    most = _share(assigned, len(stores))
    loads = Counter(placed.values())
    gone: list[int] = []
    # Those first that have a store in a slot with room: they move without a replay of the whole changelog.
    room = {slot for slot in stores if loads[slot] < most}
    for task in sorted(running, key=lambda task: (not any(task in stores[slot] for slot in room), task)):
        if loads[placed[task]] > most:
            loads[placed[task]] -= 1
            gone.append(task)
    return sorted(gone)


def _share(tasks: int, slots: int) -> int:
    return -(-tasks // slots) if slots else 0


def _least(slots: Iterable[int], loads: Mapping[int, int]) -> int:
    return min(slots, key=lambda slot: (loads[slot], slot))
