"""Time for the blocking client: deadlines, exponential backoff, and a clock that counts while the machine sleeps."""

from __future__ import annotations

import random
import threading
import time
from dataclasses import dataclass

__all__ = ["Backoff", "Deadline", "lease_clock_ms"]


def lease_clock_ms() -> int:
    """Return monotonic milliseconds that include suspended time: a lease runs out while a laptop sleeps."""
    # Linux: CLOCK_MONOTONIC stops in suspend, CLOCK_BOOTTIME does not. macOS: CLOCK_MONOTONIC of clock_gettime counts
    # suspended time, unlike time.monotonic().
    clock = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
    return time.clock_gettime_ns(clock) // 1_000_000


@dataclass(frozen=True, slots=True)
class Deadline:
    """A point in `time.monotonic()`."""

    at: float

    @classmethod
    def after_ms(cls, duration_ms: float) -> Deadline:
        """Return the deadline `duration_ms` from now."""
        return cls(time.monotonic() + duration_ms / 1000)

    @property
    def remaining_s(self) -> float:
        """The seconds left, never negative."""
        return max(0.0, self.at - time.monotonic())

    @property
    def passed(self) -> bool:
        """Whether the time is up."""
        return time.monotonic() >= self.at

    def earlier(self, duration_ms: float) -> Deadline:
        """Return this deadline, or `duration_ms` from now if that comes first."""
        return Deadline(min(self.at, time.monotonic() + duration_ms / 1000))


class Backoff:
    """Delays that double, with up to a fifth of jitter: `retry.backoff.ms` to `retry.backoff.max.ms`."""

    def __init__(self, first_ms: float = 50, highest_ms: float = 1_000) -> None:
        """Args:
        first_ms: The first delay.
        highest_ms: The longest delay.
        """
        self._next_ms = first_ms
        self._highest_ms = highest_ms

    def pause(self, deadline: Deadline, ended: threading.Event | None = None) -> None:
        """Sleep for the next delay, but not past the deadline, and not while `ended` is set."""
        # Jitter only shortens: clients that failed together do not retry together, and no deadline is missed by it.
        wait_s = self._next_ms * random.uniform(0.8, 1.0) / 1000
        self._next_ms = min(self._next_ms * 2, self._highest_ms)
        wait_s = min(wait_s, deadline.remaining_s)
        if ended is None:
            time.sleep(wait_s)
        else:
            ended.wait(wait_s)
