"""Rate of a group's progress from its commits, in intervals of `BUCKET_MS`. Pure."""

from __future__ import annotations

from collections import deque

from headrace.coordinator.history.standstill import TopicPartition

__all__ = ["BUCKET_MS", "CommitRates"]

BUCKET_MS = 10_000
# A step of a group lasts ten minutes at most, with a minute before and after it.
_BUCKETS = 80


class CommitRates:
    """Progress of one group by interval. Mutable."""

    def __init__(self) -> None:
        self._offsets: dict[TopicPartition, int] = {}
        self._buckets: deque[list[int]] = deque(maxlen=_BUCKETS)
        self._since_ms: int | None = None

    def commit(self, key: TopicPartition, offset: int, at_ms: int) -> None:
        """Count the records between two commits of a partition; one that goes back counts nothing."""
        before = self._offsets.get(key)
        self._offsets[key] = offset
        if self._since_ms is None:
            self._since_ms = at_ms
        if before is None or offset <= before:
            return
        number = at_ms // BUCKET_MS
        if self._buckets and self._buckets[-1][0] >= number:
            self._buckets[-1][1] += offset - before
        else:
            self._buckets.append([number, offset - before])

    def offset(self, key: TopicPartition) -> int | None:
        """Return the last committed offset of a partition; None if none is known."""
        return self._offsets.get(key)

    def forget(self, key: TopicPartition) -> None:
        """Take note that the committed offset of a partition was removed."""
        self._offsets.pop(key, None)

    def rate(self, from_ms: int, to_ms: int) -> float | None:
        """Return records per second between two times, to the precision of an interval.

        None: the time is shorter than an interval, or no commit is known from before it.
        """
        first, last = from_ms // BUCKET_MS, to_ms // BUCKET_MS
        if last <= first or self._since_ms is None or self._since_ms > from_ms:
            return None
        records = sum(count for number, count in self._buckets if first <= number < last)
        return records * 1000 / ((last - first) * BUCKET_MS)
