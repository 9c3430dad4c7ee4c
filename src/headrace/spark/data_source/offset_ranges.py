"""Ranges of offsets: checked against the log, narrowed by filters, and split for Spark's tasks. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

from headrace.errors import BrokerError

__all__ = ["LogBounds", "Narrowing", "OffsetRange", "checked_start", "data_loss", "narrowing_of", "split_ranges"]

TopicPartition = tuple[str, int]
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetRange:
    """Records of one partition from `start` to `end`, exclusive. `topic_id` is empty where the broker has none."""

    topic: str
    partition: int
    start: int
    end: int
    topic_id: str = ""


@dataclass(frozen=True, slots=True)
class LogBounds:
    """First offset of a log, and its end.

    Under read_committed `latest` is the last stable offset: records of open transactions stand between it and `end`.
    """

    earliest: int
    latest: int
    end: int


def checked_start(key: TopicPartition, offset: int, bounds: LogBounds, *, fail_on_data_loss: bool) -> int:
    """Return `offset` if the log has it, or the nearest offset that it has.

    Raises:
        BrokerError: `offset-out-of-range`, with `fail_on_data_loss`.
    """
    if bounds.earliest <= offset <= bounds.end:
        return offset
    if fail_on_data_loss:
        raise data_loss(key, offset, f"its log begins at {bounds.earliest} and ends at {bounds.end}")
    return min(max(offset, bounds.earliest), bounds.end)


def data_loss(key: TopicPartition, offset: int, why: str) -> BrokerError:
    """Return the error for records that are missing."""
    topic, partition = key
    return BrokerError(
        "offset-out-of-range",
        f"Reading {topic}-{partition} from offset {offset} failed: {why}. Records may have been lost.",
        "Read from an offset that exists (startingOffsets, or another checkpoint), or accept the loss with "
        '.option("failOnDataLoss", "false").',
        topic=topic,
        partition=partition,
        offset=offset,
    )


def split_ranges(ranges: Iterable[OffsetRange], *, min_partitions: int, max_records: int) -> list[OffsetRange]:
    """Split ranges for Spark's tasks as `KafkaOffsetRangeCalculator` does; empty ranges are left out.

    Args:
        ranges: One per partition.
        min_partitions: The least number of tasks wanted, about; 0 for one per partition.
        max_records: The most offsets of a task; 0 for any number.
    """
    wanted = [each for each in ranges if each.end > each.start]
    if max_records:
        wanted = [part for each in wanted for part in _split(each, -(-(each.end - each.start) // max_records))]
    if min_partitions <= len(wanted):
        return wanted
    total = sum(each.end - each.start for each in wanted)
    # In proportion to their sizes, so that a large partition does not leave other tasks waiting.
    return [
        part
        for each in wanted
        for part in _split(each, max(1, round((each.end - each.start) / total * min_partitions)))
    ]


def _split(each: OffsetRange, parts: int) -> list[OffsetRange]:
    size = each.end - each.start
    parts = min(parts, size)
    cuts = [each.start + size * index // parts for index in range(parts + 1)]
    return [replace(each, start=start, end=end) for start, end in pairwise(cuts)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Narrowing:
    """Conditions on all rows that let ranges be shortened; None where there is none."""

    topics: frozenset[str] | None = None
    partitions: frozenset[int] | None = None
    first_offset: int | None = None
    end_offset: int | None = None
    timestamp_ms: int | None = None

    def apply(self, ranges: Iterable[OffsetRange]) -> list[OffsetRange]:
        """Return the ranges by everything except the timestamp, which needs the cluster."""
        narrowed = []
        for each in ranges:
            if self.topics is not None and each.topic not in self.topics:
                continue
            if self.partitions is not None and each.partition not in self.partitions:
                continue
            start = each.start if self.first_offset is None else max(each.start, self.first_offset)
            end = each.end if self.end_offset is None else min(each.end, self.end_offset)
            if start < end:
                narrowed.append(replace(each, start=start, end=end))
        return narrowed


def narrowing_of(filters: Iterable[Any]) -> Narrowing:
    """Return what Spark's filters (`pyspark.sql.datasource.Filter`) imply for all rows.

    Spark evaluates every filter again, so a filter that is not understood costs time only. Upper bounds of timestamps
    are not used: producers set timestamps, and a later record may have a smaller one.
    """
    found = Narrowing()
    for each in filters:
        path: tuple[str, ...] = getattr(each, "attribute", ())
        kind = type(each).__name__
        if len(path) != 1 or not hasattr(each, "value"):
            continue
        values = tuple(each.value) if kind == "In" else (each.value,)
        column = path[0].lower()
        if column in ("topic", "partition") and kind in ("EqualTo", "In"):
            found = _narrow_names(found, column, values)
        elif column == "offset" and len(values) == 1 and type(values[0]) is int:
            found = _narrow_offsets(found, kind, values[0])
        elif column == "timestamp" and kind in ("EqualTo", "GreaterThan", "GreaterThanOrEqual"):
            found = _narrow_time(found, values[0])
    return found


def _narrow_names(found: Narrowing, column: str, values: tuple[Any, ...]) -> Narrowing:
    if column == "topic":
        if not all(type(value) is str for value in values):
            return found
        topics = frozenset(values)
        return replace(found, topics=topics if found.topics is None else found.topics & topics)
    if not all(type(value) is int for value in values):
        return found
    partitions = frozenset(values)
    return replace(found, partitions=partitions if found.partitions is None else found.partitions & partitions)


def _narrow_offsets(found: Narrowing, kind: str, value: int) -> Narrowing:
    first = {"EqualTo": value, "GreaterThanOrEqual": value, "GreaterThan": value + 1, "In": value}.get(kind)
    end = {"EqualTo": value + 1, "LessThan": value, "LessThanOrEqual": value + 1, "In": value + 1}.get(kind)
    if first is not None:
        found = replace(found, first_offset=first if found.first_offset is None else max(found.first_offset, first))
    if end is not None:
        found = replace(found, end_offset=end if found.end_offset is None else min(found.end_offset, end))
    return found


def _narrow_time(found: Narrowing, value: Any) -> Narrowing:
    # A time without a zone is not an instant, and one at the epoch or before it stands for an end of the log in
    # ListOffsets.
    if not isinstance(value, datetime) or value.tzinfo is None:
        return found
    at = (value - _EPOCH) // timedelta(milliseconds=1)
    if at <= 0 or (found.timestamp_ms is not None and found.timestamp_ms >= at):
        return found
    return replace(found, timestamp_ms=at)
