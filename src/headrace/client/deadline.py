"""Time for the blocking client: deadlines, growing pauses, and a clock that goes on while the machine sleeps."""

from __future__ import annotations

import random
import threading
import time
from dataclasses import dataclass

__all__ = ["Backoff", "Deadline", "lease_clock_ms"]


def lease_clock_ms() -> int:
    """Monotonic milliseconds that count suspended time too: a lease runs out while a laptop sleeps.

    Linux has CLOCK_BOOTTIME for that; macOS' monotonic clock of clock_gettime goes on by itself.
    """
    clock = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
    return time.clock_gettime_ns(clock) // 1_000_000


@dataclass(frozen=True, slots=True)
class Deadline:
    """A point of `time.monotonic()`."""

    at: float

    @classmethod
    def after_ms(cls, duration_ms: float) -> Deadline:
        return cls(time.monotonic() + duration_ms / 1000)

    @property
    def remaining_s(self) -> float:
        """Never negative."""
        return max(0.0, self.at - time.monotonic())

    @property
    def passed(self) -> bool:
        return time.monotonic() >= self.at

    def earlier(self, duration_ms: float) -> Deadline:
        """This deadline, or `duration_ms` from now when that comes first."""
        return Deadline(min(self.at, time.monotonic() + duration_ms / 1000))


class Backoff:
    """Pauses that double, with up to a fifth of jitter: `retry.backoff.ms` to `retry.backoff.max.ms`."""

    def __init__(self, first_ms: float = 50, highest_ms: float = 1_000) -> None:
        self._next_ms = first_ms
        self._highest_ms = highest_ms

    def pause(self, deadline: Deadline, ended: threading.Event | None = None) -> None:
        """Sleeps, but not past the deadline, and not when `ended` is or gets set."""
        wait_s = self._next_ms * random.uniform(0.8, 1.0) / 1000
        self._next_ms = min(self._next_ms * 2, self._highest_ms)
        wait_s = min(wait_s, deadline.remaining_s)
        if ended is None:
            time.sleep(wait_s)
        else:
            ended.wait(wait_s)
