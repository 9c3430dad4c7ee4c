"""TimerQueue: deadlines as data. Soft state: after a restart the shard sets its timers anew (`on_loaded`).

The order is (deadline, kind, group, member), so equal deadlines fire in one order everywhere. Moving a timer to a later
time (each heartbeat does it to its session) costs no heap entry: the old entry is checked when it is due. A holder of a
`Timer` may even move its deadline without the queue, but only to a later time.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable

from headrace.coordinator.result import CancelTimer, SetTimer, TimerKey

__all__ = ["Timer", "TimerQueue"]

_Entry = tuple[int, str, str, str]


class Timer:
    """A deadline that is set. Mutable; dead once it fired or was cancelled: setting the name anew makes another."""

    __slots__ = ("deadline_ms",)

    def __init__(self, deadline_ms: int) -> None:
        self.deadline_ms = deadline_ms


class TimerQueue:
    """Named timers; a name has one deadline at most. Mutable: it is the shard's clockwork."""

    __slots__ = ("_heap", "_timers")

    def __init__(self) -> None:
        self._timers: dict[TimerKey, Timer] = {}
        self._heap: list[_Entry] = []

    def __len__(self) -> int:
        return len(self._timers)

    def apply(self, timers: Iterable[SetTimer | CancelTimer]) -> None:
        for timer in timers:
            if isinstance(timer, CancelTimer):
                self._timers.pop(timer.key, None)
                continue
            known = self._timers.get(timer.key)
            if known is None:
                self._timers[timer.key] = Timer(timer.deadline_ms)
                self._push(timer.key, timer.deadline_ms)
                continue
            if timer.deadline_ms < known.deadline_ms:
                self._push(timer.key, timer.deadline_ms)
            known.deadline_ms = timer.deadline_ms

    def timer(self, key: TimerKey) -> Timer | None:
        """The timer of that name, None when it is not set."""
        return self._timers.get(key)

    def deadline_ms(self, key: TimerKey) -> int | None:
        """When this timer fires, None when it is not set."""
        timer = self._timers.get(key)
        return None if timer is None else timer.deadline_ms

    def next_deadline_ms(self) -> int | None:
        entry = self._settled_head()
        return None if entry is None else entry[0]

    def pop_due(self, now_ms: int) -> TimerKey | None:
        """The next timer whose deadline has come, which is then no longer set; None when there is none."""
        entry = self._settled_head()
        if entry is None or entry[0] > now_ms:
            return None
        heapq.heappop(self._heap)
        key = _key(entry)
        del self._timers[key]
        return key

    def _settled_head(self) -> _Entry | None:
        """The heap's head after dropping cancelled entries and moving those that were set later."""
        # Entries are not removed when a timer moves or is cancelled: that would cost a search per heartbeat. An entry
        # whose time differs from the timer's is stale; it is pushed again if the timer is later, else dropped.
        while self._heap:
            entry = self._heap[0]
            key = _key(entry)
            deadline_ms = self.deadline_ms(key)
            if deadline_ms == entry[0]:
                return entry
            heapq.heappop(self._heap)
            if deadline_ms is not None and deadline_ms > entry[0]:
                self._push(key, deadline_ms)
        return None

    def _push(self, key: TimerKey, deadline_ms: int) -> None:
        heapq.heappush(self._heap, (deadline_ms, key.kind, key.group_id, key.member_id))


def _key(entry: _Entry) -> TimerKey:
    return TimerKey(kind=entry[1], group_id=entry[2], member_id=entry[3])
