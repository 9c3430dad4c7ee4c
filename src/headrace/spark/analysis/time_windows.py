"""Windows of event time in `groupBy`: which columns are windows, their measures, and the call that assigns them.

`groupBy(F.window("time", "10 minutes"), "origin")` becomes a recorded call that gives each row its window, and a
grouping by the window's start. Spark does the same (`TimeWindowing` puts a projection, or an `Expand` for hopping
windows, in front of its aggregate), so windows have Spark's alignment: to the epoch in UTC, moved by `startTime`.

`F.session_window("time", "10 minutes")` gives each row the session that it is by itself, and a grouping by its time.
Sessions are joined behind the repartition topic (`runtime/operators/session_operator.py`); Spark joins them behind its
shuffle.
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
from headrace.spark.analysis.canonical_expressions import CanonicalExpressions
from headrace.spark.analysis.event_time import LONGEST_DELAY_US, has_watermark
from headrace.spark.analysis.plan_reader import nondeterministic_functions
from headrace.spark.frames import quoted
from headrace.spark.spark_internals import (
    analysed,
    class_of,
    column_of,
    interval_microseconds,
    interval_parts,
    logical_plan,
    sequence,
)
from headrace.spark.topology.nodes import (
    EVENT_TIME_COLUMN,
    WINDOW_COLUMN,
    NarrowCall,
    SessionWindow,
    TimeWindow,
    WindowKind,
)
from headrace.spark.unsupported import refusal, translated

__all__ = ["GroupedWindow", "find_window", "read_window"]

_TIME = "__headrace_window_time"


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupedWindow:
    """The window that a stream is grouped by."""

    call: NarrowCall  # `assignWindow`: it adds `WINDOW_COLUMN`
    name: str  # of the column that users see: "window"
    position: int  # among the grouping columns
    window: WindowKind
    time_expression: str  # canonical text of the event time
    has_watermark: bool
    is_relayed: bool = False  # whether it is the window of closed windows in front, by whose watermark it closes

    @property
    def expression(self) -> str:
        """Return the canonical text of the window's start."""
        return self.window.start_text(self.time_expression)

    def grouped_columns(self, columns: Sequence[Any]) -> tuple[Any, ...]:
        """Return the arguments of `groupBy` for rows behind `call`."""
        assigned = F.col(WINDOW_COLUMN).alias(self.name)
        return tuple(assigned if index == self.position else column for index, column in enumerate(columns))


def find_window(before: DataFrame, columns: Sequence[Any], where: str) -> GroupedWindow | None:
    """Return the window or session among the grouping columns of `before`, or None.

    Args:
        before: The rows that are grouped, an empty frame; with their event time where they have a watermark.
        columns: The arguments of `groupBy`.
        where: "file:line" of the user's call.

    Raises:
        TopologyError: not-supported-here, refused-by-spark.
    """
    found = [
        (position, column, call)
        for position, column in enumerate(columns)
        if isinstance(column, Column) and (call := _window_function(before, column)) is not None
    ]
    if not found:
        return None
    if len(found) > 1:
        raise refusal(
            "not-supported-here",
            "groupBy with two windows is not supported: each row would be in every pair of them",
            "group by one window, and by the other in an application behind the topic",
            where,
        )
    [(position, column, function)] = found
    group = f"g{position}"
    window = _session(before, group, function, where) if function.is_session else _window(group, function, where)
    return GroupedWindow(
        call=NarrowCall(method="assignWindow", args=(column,), where=where),
        name=_shown_name(before, column),
        position=position,
        window=window,
        time_expression=_time_expression(before, column_of(before.sparkSession, function.time), where),
        has_watermark=has_watermark(before),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Function:
    """A call of `window` or `session_window`."""

    time: Any  # expression
    durations: tuple[int, int, int] = (0, 0, 0)  # size, slide and start in microseconds
    gap: Any = None  # expression
    is_session: bool = False


def _window(group: str, function: _Function, where: str) -> TimeWindow:
    size_us, slide_us, start_us = function.durations
    if slide_us > size_us or size_us <= 0 or slide_us <= 0:
        raise refusal(
            "bad-value",
            f"a window of {size_us} us with a slide of {slide_us} us",
            'windows have a positive length and a slide of at most that: F.window("time", "10 minutes", "5 minutes")',
            where,
        )
    # Windows repeat with each slide, so a start beyond the slide names the same windows.
    return TimeWindow(group=group, size_us=size_us, slide_us=slide_us, start_us=start_us % slide_us)


def _session(before: DataFrame, group: str, function: _Function, where: str) -> SessionWindow:
    """Return the sessions of a call of `session_window`. Spark itself drops all rows of a gap that it cannot read."""
    if class_of(function.gap) != "Literal" or str(function.gap.dataType().json()) != '"string"':
        raise refusal(
            "not-supported-here",
            f"a session with the gap {function.gap.sql()}: a gap per row is not supported",
            'one gap as text: F.session_window("time", "10 minutes")',
            where,
        )
    text = str(function.gap.value())
    months, days, gap_us = interval_parts(before.sparkSession, text) or (0, 0, 0)
    if months or days:
        raise refusal(
            "not-supported-here",
            f"the gap {text!r} has days or months, whose length depends on the calendar and the time zone",
            'hours have one length: F.session_window("time", "24 hours")',
            where,
        )
    if not 0 < gap_us <= LONGEST_DELAY_US:
        raise refusal("bad-value", f"Invalid gap {text!r}: expected a positive interval", '"10 minutes"', where)
    if not has_watermark(before):
        raise refusal(
            "not-supported-here",
            "sessions without a watermark never close, and every one would be kept for ever",
            'withWatermark("time", "1 minute") in front of groupBy',
            where,
        )
    return SessionWindow(group=group, gap_us=gap_us)


def _window_function(before: DataFrame, column: Column) -> _Function | None:
    """Return the call of a window function that `column` is; None for another column.

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
        return _Function(time=expression.timeColumn(), durations=(int(size_us), int(slide_us), int(start_us)))
    if class_of(expression) == "SessionWindow":
        return _Function(time=expression.timeColumn(), gap=expression.gapDuration(), is_session=True)
    name = str(expression.nameParts().last()).lower() if class_of(expression) == "UnresolvedFunction" else ""
    if name == "session_window":
        time, gap = sequence(expression.arguments())
        return _Function(time=time, gap=gap, is_session=True)
    if name != "window":
        return None
    time, *durations = sequence(expression.arguments())
    lengths = [interval_microseconds(before.sparkSession, str(one.value())) for one in durations]
    size_us = lengths[0]
    slide_us, start_us = lengths[1] if len(lengths) > 1 else size_us, lengths[2] if len(lengths) > 2 else 0
    return _Function(time=time, durations=(size_us, slide_us, start_us))


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


def read_window(before: DataFrame, column: Column) -> tuple[Any, int, int, int] | None:
    """Return time, size, slide and start in microseconds of `window` in `column`; None for another column."""
    function = _window_function(before, column)
    return None if function is None or function.is_session else (function.time, *function.durations)
