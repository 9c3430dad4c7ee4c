"""Ranges of offsets: checks against the log, splits for tasks, and what filters imply."""

from __future__ import annotations

import random
from datetime import UTC, datetime
from typing import Any

import pytest
from pyspark.sql.datasource import (
    EqualTo,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringStartsWith,
)

from headrace.errors import BrokerError
from headrace.spark.data_source.offset_ranges import (
    LogBounds,
    Narrowing,
    OffsetRange,
    checked_start,
    narrowing_of,
    split_ranges,
)


def offset_range(partition: int, start: int, end: int, topic: str = "orders") -> OffsetRange:
    return OffsetRange(topic=topic, partition=partition, start=start, end=end, topic_id="id")


def test_an_offset_outside_of_the_log_is_an_error_or_the_nearest_one() -> None:
    bounds = LogBounds(10, 18, 20)
    assert [checked_start(("t", 0), at, bounds, fail_on_data_loss=True) for at in (10, 15, 20)] == [10, 15, 20]
    assert [checked_start(("t", 0), at, bounds, fail_on_data_loss=False) for at in (9, 21)] == [10, 20]
    for lost in (9, 21):
        with pytest.raises(BrokerError, match=f"t-0 from offset {lost} failed: its log begins at 10") as caught:
            checked_start(("t", 0), lost, bounds, fail_on_data_loss=True)
        assert "failOnDataLoss" in caught.value.fix


def test_a_split_has_every_offset_once_and_no_empty_task() -> None:
    chosen = random.Random(4)
    for _ in range(300):
        ranges = [offset_range(p, s := chosen.randrange(50), s + chosen.choice((0, 1, 7, 1000))) for p in range(4)]
        least, most = chosen.choice((0, 1, 3, 9, 64)), chosen.choice((0, 1, 5, 400))
        parts = split_ranges(ranges, min_partitions=least, max_records=most)
        for each in ranges:
            mine = [part for part in parts if part.partition == each.partition]
            assert [o for part in mine for o in range(part.start, part.end)] == list(range(each.start, each.end))
        assert all(part.start < part.end and part.topic_id == "id" for part in parts)
        assert not most or all(part.end - part.start <= most for part in parts)


def test_large_partitions_get_most_of_the_tasks() -> None:
    parts = split_ranges([offset_range(0, 0, 900), offset_range(1, 0, 100)], min_partitions=10, max_records=0)
    assert [part.partition for part in parts].count(0) == 9


COLUMNS = {"topic": ("orders", "bills"), "partition": (0, 1, 2), "offset": tuple(range(6))}


def random_filter(chosen: random.Random) -> Any:
    column = chosen.choice(list(COLUMNS))
    values = COLUMNS[column]
    value = chosen.choice(values)
    kinds: list[Any] = [EqualTo((column,), value), Not(EqualTo((column,), value)), In((column,), (value, values[0]))]
    if column == "topic":
        return chosen.choice([*kinds, StringStartsWith((column,), "o"), IsNotNull((column,))])
    return chosen.choice([*kinds, *(kind((column,), value) for kind in COMPARISONS)])


COMPARISONS = (GreaterThan, GreaterThanOrEqual, LessThan, LessThanOrEqual)


def holds(each: Any, row: dict[str, Any]) -> bool:
    if isinstance(each, Not):
        return not holds(each.child, row)
    value = row[each.attribute[0]]
    match type(each).__name__:
        case "EqualTo":
            return bool(value == each.value)
        case "In":
            return value in each.value
        case "IsNotNull":
            return value is not None
        case "StringStartsWith":
            return str(value).startswith(each.value)
        case "GreaterThan":
            return bool(value > each.value)
        case "GreaterThanOrEqual":
            return bool(value >= each.value)
        case "LessThan":
            return bool(value < each.value)
        case _:
            return bool(value <= each.value)


def test_narrowed_ranges_keep_every_row_that_passes_the_filters() -> None:
    chosen = random.Random(7)
    ranges = [offset_range(p, 1, 6, topic) for topic in ("orders", "bills") for p in range(3)]
    narrower = 0
    for _ in range(500):
        filters = [random_filter(chosen) for _ in range(chosen.randrange(1, 4))]
        kept = {
            (each.topic, each.partition, offset)
            for each in narrowing_of(filters).apply(ranges)
            for offset in range(each.start, each.end)
        }
        rows = [(e.topic, e.partition, offset) for e in ranges for offset in range(e.start, e.end)]
        wanted = {row for row in rows if all(holds(f, dict(zip(COLUMNS, row, strict=True))) for f in filters)}
        assert wanted <= kept, filters
        narrower += len(kept) < len(rows)
    assert narrower > 250


def test_only_lower_bounds_of_times_with_a_zone_are_used() -> None:
    noon = datetime(2026, 1, 1, 12, 0, 0, 1500, tzinfo=UTC)
    at = int(noon.timestamp() * 1000)
    assert narrowing_of([GreaterThan(("timestamp",), noon)]) == Narrowing(timestamp_ms=at)
    assert narrowing_of([EqualTo(("timestamp",), noon)]) == Narrowing(timestamp_ms=at)
    for unused in (
        LessThan(("timestamp",), noon),
        GreaterThan(("timestamp",), noon.replace(tzinfo=None)),
        GreaterThan(("timestamp",), datetime(1970, 1, 1, tzinfo=UTC)),
        GreaterThan(("headers", "timestamp"), noon),
        Not(GreaterThan(("timestamp",), noon)),
    ):
        assert narrowing_of([unused]) == Narrowing()
