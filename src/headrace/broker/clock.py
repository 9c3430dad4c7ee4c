"""The broker's two clocks, and what waits for them.

Records carry the wall clock's time. Leases (sessions, rebalance deadlines) are kept on a clock that starts at the wall
clock's time and then only goes forward steadily, so a jump of the wall clock fences no member.

All that becomes due by itself (group timers, transaction timeouts, retention, compaction) is asked of one `Clock`, so
that a test can put a `manual_clock.ManualClock` in its place. Waits that a client holds a connection open for (a
fetch's max wait, a throttled answer) are the event loop's own: a client's patience is real time.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Protocol

__all__ = ["Cancellable", "Clock", "SteadyClock", "WakeUpTimer", "wall_clock_ms"]


def wall_clock_ms() -> int:
    """Return the milliseconds since the epoch by the wall clock."""
    return time.time_ns() // 1_000_000


class Cancellable(Protocol):
    """A scheduled call that can be cancelled."""

    def cancel(self) -> None: ...


class Clock(Protocol):
    """Times in ms since the epoch. Belongs to the event loop it is used on."""

    def now_ms(self) -> int:
        """Return the milliseconds of a clock that never goes back, for leases."""

    def wall_clock_ms(self) -> int:
        """Return the milliseconds since the epoch, for records and files."""

    def call_later(self, delay_ms: float, callback: Callable[[], None]) -> Cancellable:
        """Call back on this loop."""

    async def every(self, interval_ms: int, task: Callable[[], Awaitable[None] | None]) -> None:
        """Do a task repeatedly, with the interval between two runs, until it is cancelled."""


class SteadyClock:
    """The real one. `now_ms` is the wall clock's time as of the start plus the monotonic time since then."""

    def __init__(self) -> None:
        # NTP may set the wall clock back; sessions must not live longer, or end early, because of it.
        self._offset_ms = wall_clock_ms() - time.monotonic_ns() // 1_000_000

    def now_ms(self) -> int:
        return self._offset_ms + time.monotonic_ns() // 1_000_000

    wall_clock_ms = staticmethod(wall_clock_ms)

    def call_later(self, delay_ms: float, callback: Callable[[], None]) -> Cancellable:
        return asyncio.get_running_loop().call_later(max(0.0, delay_ms / 1000), callback)

    async def every(self, interval_ms: int, task: Callable[[], Awaitable[None] | None]) -> None:
        while True:
            # The interval lies between two runs and not between two starts: a task that takes longer than its interval
            # must not follow itself without a pause.
            await asyncio.sleep(interval_ms / 1000)
            under_way = task()
            if under_way is not None:
                await under_way


class WakeUpTimer:
    """The single wake-up of an object that has many deadlines. Mutable; belongs to one event loop.

    Args:
        call_later: of the clock that the deadlines are kept on.
        now_ms: the time by that clock.
        wake: called when the earliest deadline passes. It arms the timer again for the next one.
    """

    def __init__(
        self,
        call_later: Callable[[float, Callable[[], None]], Cancellable],
        now_ms: Callable[[], int],
        wake: Callable[[], None],
    ) -> None:
        self._call_later, self._now_ms, self._wake = call_later, now_ms, wake
        self._pending: Cancellable | None = None
        self._deadline_ms = 0
        self._stopped = False

    def arm(self, deadline_ms: int | None) -> None:
        """Wake at `deadline_ms` or earlier; None changes nothing.

        A wake-up is only ever moved closer. A deadline that moved away costs one empty wake-up.
        """
        if deadline_ms is None or self._stopped:
            return
        if self._pending is not None:
            # An earlier wake-up is pending: it will ask for the next deadline itself.
            if self._deadline_ms <= deadline_ms:
                return
            self._pending.cancel()
        self._deadline_ms = deadline_ms
        self._pending = self._call_later(deadline_ms - self._now_ms(), self._fire)

    def stop(self) -> None:
        """Cancel the wake-up, and ignore all later deadlines."""
        self._stopped = True
        if self._pending is not None:
            self._pending.cancel()

    def _fire(self) -> None:
        # Cleared before `_wake`, which arms the timer again.
        self._pending = None
        self._wake()
