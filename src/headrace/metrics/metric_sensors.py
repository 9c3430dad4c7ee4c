"""What measures: rates over the last minute, and distributions of times over the last minute. Kafka's windows.

As Kafka's sensors: two windows of 30 s, the older one dropped when a new one begins. `clock` gives seconds that only go
forward. Mutable, and never larger than when new: a distribution counts in buckets 9 % apart.
"""

from __future__ import annotations

import math
from collections.abc import Callable

__all__ = ["Distribution", "Meter"]

WINDOW_SECONDS = 30.0
_PER_DOUBLING = 8
_LEAST_MS = 0.001
_BUCKETS = 30 * _PER_DOUBLING  # up to 12 days


class Meter:
    """A total, and its rate per second."""

    __slots__ = ("_before", "_clock", "_current", "_started", "total")

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._started = clock()
        self._before = 0
        self._current = 0
        self.total = 0

    def add(self, count: int = 1) -> None:
        self._turn()
        self._current += count
        self.total += count

    def rate(self) -> float:
        """Per second, over the last 30 to 60 s; a young meter's over a whole window, as Kafka's."""
        self._turn()
        return (self._before + self._current) / (WINDOW_SECONDS + self._clock() - self._started)

    def _turn(self) -> None:
        passed = self._clock() - self._started
        if passed >= WINDOW_SECONDS:
            self._before = self._current if passed < 2 * WINDOW_SECONDS else 0
            self._current = 0
            self._started += passed - passed % WINDOW_SECONDS


class Distribution:
    """Times in ms: how many ever, and mean, greatest and percentiles of the last 30 to 60 s; 0 when there were none."""

    __slots__ = ("_before", "_clock", "_current", "_started", "count")

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._started = clock()
        self._before, self._current = _Window(), _Window()
        self.count = 0

    def add(self, time_ms: float, times: int = 1) -> None:
        self._turn()
        self.count += times
        self._current.add(time_ms, times)

    def add_all(self, times_ms: list[float]) -> None:
        """Of some that ended just now."""
        if times_ms:
            self._turn()
            self.count += len(times_ms)
            self._current.add_all(times_ms)

    def mean(self) -> float:
        self._turn()
        count = self._before.count + self._current.count
        return (self._before.sum_ms + self._current.sum_ms) / count if count else 0.0

    def max(self) -> float:
        self._turn()
        return max(self._before.max_ms, self._current.max_ms)

    def percentile(self, share: float) -> float:
        """The time that `share` (0 to 1) of all stayed below; within 9 %."""
        self._turn()
        wanted = share * (self._before.count + self._current.count)
        if not wanted:
            return 0.0
        seen = 0
        for bucket in range(_BUCKETS):
            seen += self._before.buckets.get(bucket, 0) + self._current.buckets.get(bucket, 0)
            if seen >= wanted:
                return min(float(_LEAST_MS * 2 ** ((bucket + 1) / _PER_DOUBLING)), self.max())
        return self.max()

    def _turn(self) -> None:
        passed = self._clock() - self._started
        if passed >= WINDOW_SECONDS:
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
        buckets = self.buckets
        for bucket in map(_bucket, times_ms):
            buckets[bucket] = buckets.get(bucket, 0) + 1
        self.count += len(times_ms)
        self.sum_ms += sum(times_ms)
        self.max_ms = max(self.max_ms, *times_ms)


def _bucket(time_ms: float) -> int:
    if time_ms <= _LEAST_MS:
        return 0
    bucket = int(_PER_DOUBLING * math.log2(time_ms / _LEAST_MS))
    return bucket if bucket < _BUCKETS else _BUCKETS - 1
