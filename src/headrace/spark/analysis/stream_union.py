"""Union of streams: the columns of each side, the event time of the rows, and the identity of what a side computes.

Each side keeps its own watermark, with its own delay, so the sides need no common order. What lies behind the union
knows its columns by their names alone. Where operators keep rows of a union in event time, the text of a union names
the sources and how each of them computes the columns: a source that is added later would bring rows of windows that
have closed, and a redefined column would mix old values with new ones.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from headrace.spark.analysis.canonical_expressions import CanonicalExpressions
from headrace.spark.analysis.event_time import event_time_text, has_watermark
from headrace.spark.analysis.plan_reader import columns_read
from headrace.spark.frames import UNION, apply_calls, empty_frame, quoted, split_at_union
from headrace.spark.spark_internals import analysed, sequence
from headrace.spark.stream_source import RowSource, StreamSource
from headrace.spark.topology.nodes import EVENT_TIME_COLUMN, HIDDEN_PREFIX, NarrowCall, ProjectForGroup, TopicSource
from headrace.spark.unsupported import refusal

__all__ = ["aligned", "common_event_time", "union_text", "united_columns"]

TemplateOf: TypeAlias = Callable[[RowSource], DataFrame]


def aligned(origin: StreamSource, template: DataFrame, schema: StructType, where: str) -> StreamSource:
    """Return `origin`, whose rows have the columns of `template`, with the columns and types of the union."""
    return origin.followed_by(NarrowCall(method=UNION, args=tuple(united_columns(template, schema)), where=where))


def united_columns(template: DataFrame, schema: StructType) -> list[Column]:
    """Return the columns of a union, computed from those of one side."""
    # Each side is compiled by itself, without the union. So names are resolved here as `unionByName` does, and types
    # that Spark widened are cast.
    have = {field.name.lower(): field for field in template.schema if not field.name.startswith(HIDDEN_PREFIX)}
    columns: list[Column] = []
    for field in schema.fields:
        own = have.get(field.name.lower())
        column = F.lit(None) if own is None else F.col(quoted(own.name))
        if own is None or own.dataType != field.dataType:
            column = column.cast(field.dataType)
        columns.append(column.alias(field.name))
    return columns


def common_event_time(templates: Sequence[DataFrame], names: Sequence[str], where: str) -> str | None:
    """Return the column of a union that is the event time of the rows of each side; None without watermarks.

    Args:
        templates: An empty frame of each side, with its event time if it has a watermark.
        names: The columns of the union.
        where: "file:line" of the user's call.

    Raises:
        TopologyError: not-supported-here.
    """
    marked = list(map(has_watermark, templates))
    if not any(marked):
        return None
    if not all(marked):
        raise refusal(
            "not-supported-here",
            "one side of unionByName has a watermark and the other has none, so nothing says which rows are late",
            'withWatermark("time", "10 minutes") on both sides, each with its own delay, or behind unionByName',
            where,
        )
    found = [_event_time_columns(template) for template in templates]
    common = next((name for name in names if all(name.lower() in columns for columns in found)), None)
    if common is None:
        left, right = (" or ".join(sorted(columns)) or "a column that was dropped" for columns in found)
        raise refusal(
            "not-supported-here",
            f"the event time of one side is {left}, of the other {right}; it has to be one column of the union",
            'give both one name in front of withWatermark: withColumnRenamed("clicked_at", "time")',
            where,
        )
    return common


def _event_time_columns(template: DataFrame) -> set[str]:
    """Return the columns, in lower case, that equal the event time."""
    canonical, event_time = CanonicalExpressions(template), event_time_text(template)
    columns = sequence(analysed(template).output())
    names = (str(one.name()) for one in columns if canonical.text(one) == event_time)
    return {name.lower() for name in names if not name.startswith(HIDDEN_PREFIX)}


def union_text(origins: Sequence[StreamSource], projection: ProjectForGroup, template_of: TemplateOf) -> str:
    """Return the sources of a union in event time, and how each computes the columns that `projection` reads.

    Args:
        origins: The ways on which the rows come.
        projection: Over the columns of the union and the calls behind it.
        template_of: An empty frame with the columns of a source.
    """
    sides = []
    for origin in origins:
        assert isinstance(origin.source, TopicSource)  # no watermark comes through an operator
        # The last one, if a side is itself a union: its columns are followed to the source through all of them.
        united, later = split_at_union(origin.calls)
        side = apply_calls(template_of(origin.source), united)
        behind = apply_calls(empty_frame(side.sparkSession, side.schema), later)
        wanted = projection.key_sql + projection.input_sql
        read = {*columns_read(behind.selectExpr(*(f"{sql} as {name}" for name, sql in wanted), EVENT_TIME_COLUMN))}
        canonical = CanonicalExpressions(side)
        texts = [
            f"{canonical.text(one)} as {one.name()}"
            for one in sequence(analysed(side).output())
            if str(one.name()) in read and str(one.name()) != EVENT_TIME_COLUMN
        ]
        sides.append(f"{origin.source.name}: {', '.join(sorted(texts))}")
    return f"union of ({'; '.join(sorted(sides))})"
