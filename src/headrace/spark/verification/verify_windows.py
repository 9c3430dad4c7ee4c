"""Windows that close as `verify` computes them: Spark SQL over offsets, none of the operators' code.

Spark's batch knows no watermark: every row counts, and every window is complete. So the rows that came too late are
taken out first, by the watermark before each row in its own partition, and only closed windows are compared where a
sink has complete windows only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from headrace.spark.topology.nodes import (
    EVENT_TIME_COLUMN,
    OFFSET_COLUMN,
    TASK_COLUMN,
    TIMESTAMP_COLUMN,
    WINDOW_COLUMN,
)

__all__ = ["closed_rows", "moving_time", "rows_on_time", "watermarks"]


_ROW, _TIME, _NEWEST, _END = "__headrace_row", "__headrace_time", "__headrace_newest", "__headrace_end"


def rows_on_time(rows: DataFrame, delay_us: int, max_ahead_us: int, *, session: bool) -> DataFrame:
    """Return rows of one source without those that are late.

    Args:
        rows: With the columns of `verify_deduplication.with_places`, the event time and the window.
        delay_us: Of the watermark.
        max_ahead_us: By how much an event time may exceed its record's timestamp and still move the watermark.
        session: Whether the windows are sessions.
    """
    placed = rows.withColumn(_ROW, F.monotonically_increasing_id())
    # The rows before a row in its own partition, the row itself not included, as the operator judges.
    before = Window.partitionBy(TASK_COLUMN).orderBy(OFFSET_COLUMN, _ROW).rowsBetween(Window.unboundedPreceding, -1)
    placed = placed.withColumn(_NEWEST, F.max(moving_time(max_ahead_us)).over(before))
    newest, end = F.col(_NEWEST), F.unix_micros(F.col(WINDOW_COLUMN).getField("end"))
    on_time = newest.isNull() | (end > newest - delay_us)
    if session:  # a row before the watermark might join a closed session
        on_time = newest.isNull() | (F.unix_micros(EVENT_TIME_COLUMN) >= newest - delay_us)
    on_time = placed.where(on_time)
    return on_time.drop(_ROW, _NEWEST)


def watermarks(rows: DataFrame, delay_us: int, max_ahead_us: int) -> dict[int, int]:
    """Return the watermark in microseconds of each partition of a source that has one.

    Args:
        rows: All rows, as for `rows_on_time`: late ones move the watermark too.
        delay_us: As there.
        max_ahead_us: As there.
    """
    newest = rows.groupBy(TASK_COLUMN).agg(F.max(moving_time(max_ahead_us)).alias(_TIME)).collect()
    return {row[TASK_COLUMN]: row[_TIME] - delay_us for row in newest if row[_TIME] is not None}


def closed_rows(
    on_time: DataFrame,
    clocks: Sequence[Mapping[int, int | None]],
    *,
    own_partition: bool,
    session_of: Sequence[Any] | None = None,
) -> DataFrame:
    """Return the rows of closed windows.

    Args:
        on_time: The rows on time of all sources, of which those are returned.
        clocks: Of each source, the watermark of each partition; None for one without.
        own_partition: Whether a group is in one partition, by whose clock its windows close. Else they close by the
            least watermark of all partitions, and one without rows keeps every window open.
        session_of: Of sessions, the other grouping columns.
    """
    times = [time for clock in clocks for time in clock.values()]
    known = [time for time in times if time is not None]
    if not known or (not own_partition and len(known) < len(times)):
        return on_time.limit(0)
    closed_until = F.lit(min(known))
    if own_partition:
        [clock] = clocks
        pairs = [(partition, time) for partition, time in clock.items() if time is not None]
        of_partition = F.create_map(*(F.lit(part) for pair in pairs for part in pair))
        closed_until = F.element_at(of_partition, F.col(TASK_COLUMN))
    if session_of is None:
        return on_time.where(F.unix_micros(F.col(WINDOW_COLUMN).getField("end")) <= closed_until)
    return _with_session_ends(on_time, session_of).where(F.col(_END) < closed_until).drop(_END)


def _with_session_ends(rows: DataFrame, keys: Sequence[Any]) -> DataFrame:
    """Return rows with the end of their session in microseconds, found by the gap to the rows before."""
    own_end = F.unix_micros(F.col(WINDOW_COLUMN).getField("end"))
    hidden = [f"{_END}_{at}" for at in range(len(keys))]
    in_order = Window.partitionBy(*hidden).orderBy(_TIME)
    rows = rows.withColumns(dict(zip(hidden, map(_column, keys), strict=True)))
    rows = rows.withColumn(_TIME, F.unix_micros(EVENT_TIME_COLUMN))
    rows = rows.withColumn(_END, F.max(own_end).over(in_order.rowsBetween(Window.unboundedPreceding, -1)))
    begins = F.when(F.col(_END).isNull() | (F.col(_TIME) > F.col(_END)), 1).otherwise(0)
    rows = rows.withColumn(_END, begins)
    # Another projection: Spark does not nest window functions.
    rows = rows.withColumn(_ROW, F.sum(_END).over(in_order.rowsBetween(Window.unboundedPreceding, 0)))
    ends = F.max(own_end).over(Window.partitionBy(*hidden, _ROW))
    return rows.withColumn(_END, ends).drop(_ROW, _TIME, *hidden)


def _column(key: Any) -> Column:
    return F.col(key) if isinstance(key, str) else key


def moving_time(max_ahead_us: int) -> Column:
    """Return the event time of a row that moves the watermark, null for any other."""
    time, recorded = F.unix_micros(EVENT_TIME_COLUMN), F.col(TIMESTAMP_COLUMN)
    return F.when((recorded < 0) | (time <= recorded * 1000 + max_ahead_us), time)
