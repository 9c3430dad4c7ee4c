"""Virtual time: what happens when, in one order everywhere (time, then the order in which it was asked for)."""

from __future__ import annotations

import heapq
from collections.abc import Callable

__all__ = ["EventQueue", "TimeStandsStill"]

MOST_AT_ONCE = 20_000


class TimeStandsStill(AssertionError):
    """Somebody asks again and again without letting time pass."""


class EventQueue:
    """Mutable: the clock and what is still to happen."""

    def __init__(self, now_ms: int = 1_000_000) -> None:
        self.now_ms = now_ms
        self._entries: list[tuple[int, int, Callable[[], None]]] = []
        self._serial = 0

    def at(self, time_ms: int, action: Callable[[], None]) -> None:
        """`action` happens at `time_ms`, or now when that is over."""
        self._serial += 1
        heapq.heappush(self._entries, (max(time_ms, self.now_ms), self._serial, action))

    def after(self, delay_ms: int, action: Callable[[], None]) -> None:
        self.at(self.now_ms + delay_ms, action)

    def run_until(self, end_ms: int) -> None:
        """Everything that is due until `end_ms`, then the clock stands there. Raises TimeStandsStill."""
        at_once = 0
        while self._entries and self._entries[0][0] <= end_ms:
            time_ms, _, action = heapq.heappop(self._entries)
            at_once = at_once + 1 if time_ms == self.now_ms else 0
            if at_once > MOST_AT_ONCE:
                raise TimeStandsStill(f"more than {MOST_AT_ONCE} things happen at {time_ms} ms")
            self.now_ms = time_ms
            action()
        self.now_ms = max(self.now_ms, end_ms)
