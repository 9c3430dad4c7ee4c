"""TimerQueue: deadlines as data. Soft state: after a restart the shard asks for its timers anew (`on_loaded`).

Order is (deadline, kind, group, member), so that equal deadlines fire in one order everywhere. A timer that is set
again later (each heartbeat does it to its session) costs no heap entry: the old one is looked at when its time comes.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable

from penstock.coordinator.result import CancelTimer, SetTimer, TimerKey

__all__ = ["TimerQueue"]

_Entry = tuple[int, str, str, str]


class TimerQueue:
    """Named timers; a name has one deadline at most. Mutable: it is the shard's clockwork."""

    __slots__ = ("_deadlines", "_heap")

    def __init__(self) -> None:
        self._deadlines: dict[TimerKey, int] = {}
        self._heap: list[_Entry] = []

    def __len__(self) -> int:
        return len(self._deadlines)

    def apply(self, timers: Iterable[SetTimer | CancelTimer]) -> None:
        for timer in timers:
            if isinstance(timer, CancelTimer):
                self._deadlines.pop(timer.key, None)
                continue
            known = self._deadlines.get(timer.key)
            self._deadlines[timer.key] = timer.deadline_ms
            if known is None or timer.deadline_ms < known:
                self._push(timer.key, timer.deadline_ms)

    def deadline_ms(self, key: TimerKey) -> int | None:
        """When this timer fires, None when it is not set."""
        return self._deadlines.get(key)

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
        del self._deadlines[key]
        return key

    def _settled_head(self) -> _Entry | None:
        """The heap's head after dropping cancelled entries and moving those that were set later."""
        while self._heap:
            entry = self._heap[0]
            key = _key(entry)
            deadline_ms = self._deadlines.get(key)
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
