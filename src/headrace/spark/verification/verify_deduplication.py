"""Deduplication in event time as `verify` computes it: Spark SQL and plain Python, none of the operator's code.

Spark refuses `dropDuplicatesWithinWatermark` for a DataFrame, which has no order of arrival. Offsets are one. So the
watermark before a row is a maximum over the rows before it in its partition, which a window function computes. The
first rows of each key are found by a walk through its rows.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable

import pyarrow as pa
from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from headrace.spark.analysis.event_time import KeyedDeduplication
from headrace.spark.frames import quoted
from headrace.spark.topology.nodes import (
    COORDINATES_COLUMN,
    EVENT_TIME_COLUMN,
    OFFSET_COLUMN,
    TASK_COLUMN,
    TIMESTAMP_COLUMN,
    TopicSource,
)

__all__ = ["first_rows", "with_places"]

_ROW, _TIME, _NEWEST = "__headrace_row", "__headrace_time", "__headrace_newest"
_ADDED = (TASK_COLUMN, OFFSET_COLUMN, TIMESTAMP_COLUMN, EVENT_TIME_COLUMN, _ROW, _TIME, _NEWEST)


def with_places(decoded: DataFrame, source: TopicSource) -> DataFrame:
    """Return decoded records with partition, offset and timestamp in hidden columns, which survive the user's calls."""
    record = "" if source.value_format == "raw" else f"{COORDINATES_COLUMN}."
    return decoded.select(
        "*",
        F.col(f"{record}partition").alias(TASK_COLUMN),
        F.col(f"{record}offset").alias(OFFSET_COLUMN),
        F.unix_millis(f"{record}timestamp").alias(TIMESTAMP_COLUMN),
    )


def first_rows(rows: DataFrame, deduplication: KeyedDeduplication, max_ahead_us: int) -> DataFrame:
    """Return rows without late ones and without duplicates.

    Args:
        rows: With the columns of `with_places` and the event time.
        deduplication: The key and the delay.
        max_ahead_us: By how much an event time may exceed its record's timestamp and still move the watermark.
    """
    # 1. Rows in their order. One record may have become several rows: each Spark partition reads a partition in the
    #    order of its offsets, and calls on rows keep it.
    time, recorded = F.col(_TIME), F.col(TIMESTAMP_COLUMN)
    numbered = rows.withColumn(_ROW, F.monotonically_increasing_id()).withColumn(
        _TIME, F.unix_micros(EVENT_TIME_COLUMN)
    )
    # 2. The newest event time before each row, and the rows that are late by it.
    moves = (recorded < 0) | (time <= recorded * 1000 + max_ahead_us)
    before = Window.partitionBy(TASK_COLUMN).orderBy(OFFSET_COLUMN, _ROW).rowsBetween(Window.unboundedPreceding, -1)
    placed = numbered.withColumn(_NEWEST, F.max(F.when(moves, time)).over(before))
    newest = F.col(_NEWEST)
    on_time = placed.where(time.isNotNull() & (newest.isNull() | (time >= newest - deduplication.delay_us)))
    # 3. The first rows of each key.
    keys = [quoted(name) for name, _ in deduplication.key_columns]
    # By the task as well: the rule is per partition, and equal keys lie in one partition anyway.
    grouped = on_time.groupBy(TASK_COLUMN, *keys)
    return grouped.applyInArrow(_chooser(deduplication.delay_us), on_time.schema).drop(*_ADDED)


def _chooser(delay_us: int) -> Callable[[pa.Table], pa.Table]:
    def choose(rows: pa.Table) -> pa.Table:
        rows = rows.sort_by([(OFFSET_COLUMN, "ascending"), (_ROW, "ascending")])
        kept: list[int] = []
        first = []
        for time in rows.column(_TIME).to_pylist():
            # Kept times are sorted, so the nearest one at or above `time - delay` decides for both directions.
            near = bisect.bisect_left(kept, time - delay_us)
            is_first = near == len(kept) or kept[near] > time + delay_us
            first.append(is_first)
            if is_first:
                kept.insert(bisect.bisect_left(kept, time), time)
        return rows.filter(pa.array(first, pa.bool_()))

    return choose
