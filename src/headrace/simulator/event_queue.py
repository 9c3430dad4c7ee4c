"""Virtual time: a queue of events, ordered by time and then by the order in which they were added."""

from __future__ import annotations

import heapq
from collections.abc import Callable

__all__ = ["ClockStalled", "EventQueue"]

# Far above what 1,000 instances do at one instant, and reached within a second by a loop.
MOST_AT_ONCE = 20_000


class ClockStalled(AssertionError):
    """Events follow each other without letting time pass, for example a retry without a delay."""


class EventQueue:
    """The clock and the events that are still to come. Mutable."""

    def __init__(self, now_ms: int = 1_000_000) -> None:
        self.now_ms = now_ms
        self._entries: list[tuple[int, int, Callable[[], None]]] = []
        self._serial = 0

    def at(self, time_ms: int, action: Callable[[], None]) -> None:
        """Run `action` at `time_ms`, or as the next event if that time has passed."""
        # The serial number makes the order of simultaneous events total, so a seed always repeats the same run. It also
        # keeps heapq from comparing the actions, which have no order.
        self._serial += 1
        heapq.heappush(self._entries, (max(time_ms, self.now_ms), self._serial, action))

    def after(self, delay_ms: int, action: Callable[[], None]) -> None:
        self.at(self.now_ms + delay_ms, action)

    def run_until(self, end_ms: int) -> None:
        """Run all events due until `end_ms`, then set the clock to it. Raises ClockStalled."""
        at_once = 0
        while self._entries and self._entries[0][0] <= end_ms:
            time_ms, _, action = heapq.heappop(self._entries)
            # Virtual time stands still while events at one instant follow each other. A retry without a delay would
            # loop for ever; the bound turns that hang into a failure.
            at_once = at_once + 1 if time_ms == self.now_ms else 0
            if at_once > MOST_AT_ONCE:
                raise ClockStalled(f"more than {MOST_AT_ONCE} things happen at {time_ms} ms")
            self.now_ms = time_ms
            action()
        self.now_ms = max(self.now_ms, end_ms)
