"""Windows that close as `verify` computes them: Spark SQL over offsets, none of the operators' code.

Spark's batch knows no watermark: every row counts, and every window is complete. So the rows that came too late are
taken out first, by the watermark before each row in its own partition, and only closed windows are compared where a
sink has complete windows only.
"""

from __future__ import annotations

from collections.abc import Iterable

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from headrace.spark.event_time import ClosingWindows
from headrace.spark.topology.nodes import (
    EVENT_TIME_COLUMN,
    OFFSET_COLUMN,
    TASK_COLUMN,
    TIMESTAMP_COLUMN,
    WINDOW_COLUMN,
)

__all__ = ["closed_rows", "rows_on_time"]


_ROW, _TIME, _NEWEST = "__headrace_row", "__headrace_time", "__headrace_newest"


def rows_on_time(rows: DataFrame, closing: ClosingWindows, max_ahead_us: int) -> DataFrame:
    """Return rows without those whose window was closed before them.

    Args:
        rows: With the columns of `verify_deduplication.with_places`, the event time and the window.
        closing: The delay of the watermark.
        max_ahead_us: By how much an event time may exceed its record's timestamp and still move the watermark.
    """
    placed = rows.withColumn(_ROW, F.monotonically_increasing_id())
    # The rows before a row in its own partition, the row itself not included, as the operator judges.
    before = Window.partitionBy(TASK_COLUMN).orderBy(OFFSET_COLUMN, _ROW).rowsBetween(Window.unboundedPreceding, -1)
    placed = placed.withColumn(_NEWEST, F.max(_moving_time(max_ahead_us)).over(before))
    newest, end = F.col(_NEWEST), F.unix_micros(F.col(WINDOW_COLUMN).getField("end"))
    on_time = placed.where(newest.isNull() | (end > newest - closing.delay_us))
    return on_time.drop(_ROW, _NEWEST)


def closed_rows(
    on_time: DataFrame,
    rows: DataFrame,
    closing: ClosingWindows,
    max_ahead_us: int,
    partitions: Iterable[int],
    *,
    own_partition: bool,
) -> DataFrame:
    """Return the rows of closed windows.

    Args:
        on_time: The rows on time, of which those are returned.
        rows: All rows, as for `rows_on_time`: late ones move the watermark too.
        closing: As for `rows_on_time`.
        max_ahead_us: As for `rows_on_time`.
        partitions: Those of the source.
        own_partition: Whether a group is in one partition, by whose clock its windows close. Else they close by the
            least watermark of all partitions, and one without rows keeps every window open.
    """
    newest = rows.groupBy(TASK_COLUMN).agg(F.max(_moving_time(max_ahead_us)).alias(_TIME)).collect()
    times = {row[TASK_COLUMN]: row[_TIME] - closing.delay_us for row in newest if row[_TIME] is not None}
    if not times or (not own_partition and set(partitions) - times.keys()):
        return on_time.limit(0)
    closed_until = F.lit(min(times.values()))
    if own_partition:
        clocks = F.create_map(*(F.lit(part) for pair in times.items() for part in pair))
        closed_until = F.element_at(clocks, F.col(TASK_COLUMN))
    return on_time.where(F.unix_micros(F.col(WINDOW_COLUMN).getField("end")) <= closed_until)


def _moving_time(max_ahead_us: int) -> Column:
    """Return the event time of a row that moves the watermark, null for any other."""
    time, recorded = F.unix_micros(EVENT_TIME_COLUMN), F.col(TIMESTAMP_COLUMN)
    return F.when((recorded < 0) | (time <= recorded * 1000 + max_ahead_us), time)
