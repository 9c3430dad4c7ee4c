"""The broker's two clocks.

Records carry the wall clock's time. Leases (sessions, rebalance deadlines) are kept on a clock that starts at the wall
clock's time and then only goes forward steadily, so a jump of the wall clock fences nobody.
"""

from __future__ import annotations

import time

__all__ = ["SteadyClock", "wall_clock_ms"]


def wall_clock_ms() -> int:
    return time.time_ns() // 1_000_000


class SteadyClock:
    """Milliseconds since the epoch, as of the start, plus the monotonic time that has passed since."""

    def __init__(self) -> None:
        self._offset_ms = wall_clock_ms() - time.monotonic_ns() // 1_000_000

    def now_ms(self) -> int:
        return self._offset_ms + time.monotonic_ns() // 1_000_000
