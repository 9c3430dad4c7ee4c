"""Windows of event time in `groupBy`: which columns are windows, how long they are, and the call that assigns them.

`groupBy(F.window("time", "10 minutes"), "origin")` becomes a recorded call that gives each row its window, and a
grouping by the window's start. Spark does the same (`TimeWindowing` puts a projection, or an `Expand` for hopping
windows, in front of its aggregate), so windows have Spark's alignment: to the epoch in UTC, moved by `startTime`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import TimestampType

from headrace.errors import TopologyError
from headrace.spark.canonical_expressions import CanonicalExpressions
from headrace.spark.event_time import has_watermark
from headrace.spark.frames import quoted
from headrace.spark.plan_reader import nondeterministic_functions
from headrace.spark.spark_internals import (
    analysed,
    class_of,
    column_of,
    interval_microseconds,
    logical_plan,
    sequence,
)
from headrace.spark.topology.nodes import EVENT_TIME_COLUMN, WINDOW_COLUMN, NarrowCall, TimeWindow
from headrace.spark.unsupported import refusal, translated

__all__ = ["GroupedWindow", "find_window"]

_TIME = "__headrace_window_time"


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupedWindow:
    """The window that a stream is grouped by."""

    call: NarrowCall  # `assignWindow`: it adds `WINDOW_COLUMN`
    name: str  # of the column that users see: "window"
    position: int  # among the grouping columns
    window: TimeWindow
    time_expression: str  # canonical text of the event time
    has_watermark: bool

    @property
    def expression(self) -> str:
        """Return the canonical text of the window's start."""
        window = self.window
        measures = f"size {window.size_us} us, slide {window.slide_us} us, start {window.start_us} us"
        return f"window({self.time_expression}, {measures}).start"

    def grouped_columns(self, columns: Sequence[Any]) -> tuple[Any, ...]:
        """Return the arguments of `groupBy` for rows behind `call`."""
        assigned = F.col(WINDOW_COLUMN).alias(self.name)
        return tuple(assigned if index == self.position else column for index, column in enumerate(columns))


def find_window(before: DataFrame, columns: Sequence[Any], where: str) -> GroupedWindow | None:
    """Return the window among the grouping columns of `before`, or None.

    Args:
        before: The rows that are grouped, an empty frame; with their event time where they have a watermark.
        columns: The arguments of `groupBy`.
        where: "file:line" of the user's call.

    Raises:
        TopologyError: not-supported-here, refused-by-spark.
    """
    # Spark itself refuses a second window.
    found = [
        (position, column, arguments)
        for position, column in enumerate(columns)
        if isinstance(column, Column) and (arguments := _window_function(before, column)) is not None
    ]
    if not found:
        return None
    [(position, column, (time, size_us, slide_us, start_us))] = found
    if slide_us > size_us or size_us <= 0 or slide_us <= 0:
        raise refusal(
            "bad-value",
            f"a window of {size_us} us with a slide of {slide_us} us",
            'windows have a positive length and a slide of at most that: F.window("time", "10 minutes", "5 minutes")',
            where,
        )
    call = NarrowCall(method="assignWindow", args=(column,), where=where)
    return GroupedWindow(
        call=call,
        name=_shown_name(before, column),
        position=position,
        # Windows repeat with each slide, so a start beyond the slide names the same windows.
        window=TimeWindow(group=f"g{position}", size_us=size_us, slide_us=slide_us, start_us=start_us % slide_us),
        time_expression=_time_expression(before, column_of(before.sparkSession, time), where),
        has_watermark=has_watermark(before),
    )


def _window_function(before: DataFrame, column: Column) -> tuple[Any, int, int, int] | None:
    """Return the arguments of `window` in `column`: time, size, slide and start in microseconds; None for another one.

    The unanalysed plan has the function as it was written. Analysis replaces it by the arithmetic of its start.
    """
    try:
        [expression] = sequence(logical_plan(before.select(column)).projectList())
    except (PySparkException, ValueError):  # an error that groupBy reports itself; a star
        return None
    while class_of(expression) in ("UnresolvedAlias", "Alias"):
        expression = expression.child()
    if class_of(expression) == "TimeWindow":
        size_us, slide_us, start_us = expression.windowDuration(), expression.slideDuration(), expression.startTime()
        return expression.timeColumn(), int(size_us), int(slide_us), int(start_us)
    if class_of(expression) != "UnresolvedFunction" or str(expression.nameParts().last()).lower() != "window":
        return None
    time, *durations = sequence(expression.arguments())
    lengths = [interval_microseconds(before.sparkSession, str(one.value())) for one in durations]
    size_us = lengths[0]
    return time, size_us, (lengths[1] if len(lengths) > 1 else size_us), (lengths[2] if len(lengths) > 2 else 0)


def _shown_name(before: DataFrame, column: Column) -> str:
    [name] = before.select(column).columns
    return name


def _time_expression(before: DataFrame, time: Column, where: str) -> str:
    """Return the canonical text of a window's time. Refuse what is no event time of these rows."""
    hidden = [quoted(EVENT_TIME_COLUMN)] if has_watermark(before) else []
    with translated(where, before.columns):
        frame = before.select(time.alias(_TIME), *hidden)
    time_attribute, *event_times = sequence(analysed(frame).output())
    canonical = CanonicalExpressions(frame)
    text = canonical.text(time_attribute)
    changing = {name for node in sequence(analysed(frame).expressions()) for name in nondeterministic_functions(node)}
    if changing:
        raise _no_event_time(
            f"windows over {', '.join(sorted(changing))}() are windows of processing time; they are not supported yet",
            'take a column of the records: F.window("time", "10 minutes")',
            where,
        )
    kind = frame.schema[0].dataType
    if not isinstance(kind, TimestampType):
        raise _no_event_time(
            f"the time of a window is of type {kind.simpleString()}, expected timestamp",
            'cast it first: withColumn("time", F.col("time").cast("timestamp"))',
            where,
        )
    if event_times and canonical.text(event_times[0]) != text:
        raise _no_event_time(
            f"the window is over {text}, the watermark over {canonical.text(event_times[0])}; "
            "no watermark tells when such windows close",
            "name the same column in withWatermark and in F.window",
            where,
        )
    return text


def _no_event_time(message: str, fix: str, where: str) -> TopologyError:
    return refusal("not-supported-here", message, fix, where)
