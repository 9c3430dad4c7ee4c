"""Sensors of the last minute: rates, and distributions of times, in Kafka's windows.

As Kafka's sensors they have two windows of 30 s, of which the older one is dropped when a new one begins. `clock`
returns seconds that only go forward. Sensors never grow: a distribution counts in buckets of which each is 9 % wider
than the one before.
"""

from __future__ import annotations

import math
from collections.abc import Callable

__all__ = ["Distribution", "Meter"]

WINDOW_SECONDS = 30.0
_BUCKETS_PER_DOUBLING = 8
_SMALLEST_MS = 0.001
# From 1 us to 2 ** 30 us, which is 18 min. Longer times count in the last bucket: a percentile is at most 18 min, while
# mean and maximum are exact.
_BUCKETS = 30 * _BUCKETS_PER_DOUBLING


class Meter:
    """A total and its rate per second. Mutable."""

    __slots__ = ("_before", "_clock", "_current", "_started", "total")

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._started = clock()
        self._before = 0
        self._current = 0
        self.total = 0

    def add(self, count: int = 1) -> None:
        """Count events."""
        self._roll_windows()
        self._current += count
        self.total += count

    def rate(self) -> float:
        """Return the rate per second over the last 30 to 60 s.

        As in Kafka, a meter younger than one window is divided by a whole window, so that its first events are no
        burst.
        """
        self._roll_windows()
        # `Rate.windowSize` in Kafka does the same: it counts at least one whole window beside the one that is being
        # filled.
        return (self._before + self._current) / (WINDOW_SECONDS + self._clock() - self._started)

    def _roll_windows(self) -> None:
        # Windows have fixed bounds: a sensor without events for a while drops both of them.
        passed = self._clock() - self._started
        if passed >= WINDOW_SECONDS:
            self._before = self._current if passed < 2 * WINDOW_SECONDS else 0
            self._current = 0
            self._started += passed - passed % WINDOW_SECONDS


class Distribution:
    """Times in ms: the total count; mean, maximum and percentiles of the last 30 to 60 s (0 if none). Mutable."""

    __slots__ = ("_before", "_clock", "_current", "_started", "count")

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._started = clock()
        self._before, self._current = _Window(), _Window()
        self.count = 0

    def add(self, time_ms: float, times: int = 1) -> None:
        """Count a time, `times` times."""
        self._roll_windows()
        self.count += times
        self._current.add(time_ms, times)

    def add_all(self, times_ms: list[float]) -> None:
        """Count many times at once."""
        if times_ms:
            self._roll_windows()
            self.count += len(times_ms)
            self._current.add_all(times_ms)

    def mean(self) -> float:
        """Return the mean."""
        self._roll_windows()
        count = self._before.count + self._current.count
        return (self._before.sum_ms + self._current.sum_ms) / count if count else 0.0

    def max(self) -> float:
        """Return the maximum."""
        self._roll_windows()
        return max(self._before.max_ms, self._current.max_ms)

    def percentile(self, share: float) -> float:
        """Return the time below which a `share` (0 to 1) of all times lies, within 9 %."""
        self._roll_windows()
        # The windows are merged while counting, from the smallest bucket up. The answer is the upper bound of the
        # bucket that holds the wanted time, so it is at most one bucket (9 %) too high, and never above the true
        # maximum.
        wanted = share * (self._before.count + self._current.count)
        if not wanted:
            return 0.0
        seen = 0
        for bucket in range(_BUCKETS):
            seen += self._before.buckets.get(bucket, 0) + self._current.buckets.get(bucket, 0)
            if seen >= wanted:
                return min(float(_SMALLEST_MS * 2 ** ((bucket + 1) / _BUCKETS_PER_DOUBLING)), self.max())
        return self.max()

    def _roll_windows(self) -> None:
        passed = self._clock() - self._started
        if passed >= WINDOW_SECONDS:
            # Two windows instead of a list of samples: memory is bounded, and a value is dropped 30 to 60 s after it
            # was added.
            self._before = self._current if passed < 2 * WINDOW_SECONDS else _Window()
            self._current = _Window()
            self._started += passed - passed % WINDOW_SECONDS


class _Window:
    __slots__ = ("buckets", "count", "max_ms", "sum_ms")

    def __init__(self) -> None:
        self.buckets: dict[int, int] = {}
        self.count = 0
        self.sum_ms = 0.0
        self.max_ms = 0.0

    def add(self, time_ms: float, times: int) -> None:
        bucket = _bucket(time_ms)
        self.buckets[bucket] = self.buckets.get(bucket, 0) + times
        self.count += times
        self.sum_ms += time_ms * times
        self.max_ms = max(self.max_ms, time_ms)

    def add_all(self, times_ms: list[float]) -> None:
        # The overhead of the calls of `add` is paid once for many times.
        buckets = self.buckets
        for bucket in map(_bucket, times_ms):
            buckets[bucket] = buckets.get(bucket, 0) + 1
        self.count += len(times_ms)
        self.sum_ms += sum(times_ms)
        self.max_ms = max(self.max_ms, *times_ms)


def _bucket(time_ms: float) -> int:
    if time_ms <= _SMALLEST_MS:
        return 0
    # Logarithmic buckets: 8 for each doubling, so bucket bounds differ by 2 ** (1/8), about 9 %.
    bucket = int(_BUCKETS_PER_DOUBLING * math.log2(time_ms / _SMALLEST_MS))
    return bucket if bucket < _BUCKETS else _BUCKETS - 1
