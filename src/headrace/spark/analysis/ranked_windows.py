"""Windows among the columns of a stream, for ranks and groups by one: which columns they are, how long.

A rank over a window of event time is final when the window closes, and so is a group of closed windows. The window is
a column that the program computed with `F.window`, or one of the rows of closed windows. Columns are compared by their
canonical text, so a renamed window is one, and a column that was computed under its name is none.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from headrace.spark.analysis.canonical_expressions import CanonicalExpressions
from headrace.spark.analysis.time_windows import GroupedWindow, read_window
from headrace.spark.frames import apply_calls, empty_frame, quoted, split_at_union
from headrace.spark.spark_internals import analysed, column_of, sequence
from headrace.spark.stream_source import ClosedWindows, StreamSource
from headrace.spark.topology.nodes import NarrowCall, TimeWindow

if TYPE_CHECKING:
    from headrace.spark.stream_base import Application

__all__ = ["WindowColumn", "find_window_column", "window_columns"]


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowColumn:
    """A column that is a window."""

    window: TimeWindow  # without its group
    time_expression: str  # canonical text of the event time
    expression: str  # canonical text of the start


def window_columns(app: Application, origin: StreamSource) -> Mapping[str, WindowColumn]:
    """Return the windows that `origin` computes, by their canonical texts."""
    template = app._template_of_source(origin.source)
    if isinstance(origin.source, ClosedWindows):
        grouped = origin.source.state.window
        if grouped is None or not isinstance(grouped.window, TimeWindow):
            return {}
        text, _ = _texts(template, F.col(quoted(grouped.name)))
        column = WindowColumn(
            window=grouped.window, time_expression=grouped.time_expression, expression=grouped.expression
        )
        return {text: column}
    united, calls = split_at_union(origin.calls)
    if united:
        side = apply_calls(template, united)
        template = empty_frame(side.sparkSession, side.schema)
    found: dict[str, WindowColumn] = {}
    for number, call in enumerate(calls):
        columns = list(_columns_of(call))
        if not columns:
            continue
        before = apply_calls(template, calls[:number])
        for column in columns:
            window = _read(before, column)
            if window is not None:
                found[window[0]] = window[1]
    return found


def find_window_column(
    before: DataFrame, columns: Sequence[Any], windows: Mapping[str, WindowColumn], where: str
) -> GroupedWindow | None:
    """Return the grouping column of `before` that is one of `windows`, or None."""
    for position, given in enumerate(columns):
        column = F.col(given) if isinstance(given, str) else given
        try:
            text, name = _texts(before, column)
        except (PySparkException, ValueError):  # an error that groupBy reports itself; a star
            continue
        if text in windows:
            found = windows[text]
            return GroupedWindow(
                call=NarrowCall(method="assignWindow", args=(column,), where=where),
                name=name,
                position=position,
                window=replace(found.window, group=f"g{position}"),
                time_expression=found.time_expression,
                has_watermark=False,
                is_relayed=True,
            )
    return None


def _read(before: DataFrame, column: Column) -> tuple[str, WindowColumn] | None:
    """Return the canonical text of `column` and its window, if it is one."""
    function = read_window(before, column)
    if function is None:
        return None
    time, size_us, slide_us, start_us = function
    text, _ = _texts(before, column)
    time_text, _ = _texts(before, column_of(before.sparkSession, time))
    window = TimeWindow(group="", size_us=size_us, slide_us=slide_us, start_us=start_us % slide_us)
    return text, WindowColumn(window=window, time_expression=time_text, expression=window.start_text(time_text))


def _texts(before: DataFrame, column: Column) -> tuple[str, str]:
    frame = before.select(column)
    [attribute] = sequence(analysed(frame).output())
    return CanonicalExpressions(frame).text(attribute), str(attribute.name())


def _columns_of(call: NarrowCall) -> Iterator[Column]:
    """Yield the columns that a call computes."""
    pending: list[Any] = [*call.args]
    while pending:
        one = pending.pop()
        if isinstance(one, Column):
            yield one
        elif isinstance(one, (list, tuple)):
            pending.extend(one)
        elif isinstance(one, dict):
            pending.extend(one.values())
        elif isinstance(one, str) and call.method == "selectExpr" and "window" in one.lower():
            try:
                yield F.expr(one)
            except PySparkException:  # a name of a column with other characters
                continue
