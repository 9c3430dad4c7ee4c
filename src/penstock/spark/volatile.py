"""Which columns of a sink cannot be recomputed, because a function in them answers differently when asked twice."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyspark.sql import DataFrame

from penstock.spark.frames import apply_calls
from penstock.spark.grouped_stream import StreamTable
from penstock.spark.plan_reader import analysed, class_of, sequence, walk
from penstock.spark.stream import Rows, Stream

if TYPE_CHECKING:
    from penstock.spark.streams_app import StreamsApp

_TIME_FUNCTIONS = frozenset({"CurrentTimestamp", "CurrentDate", "Now", "LocalTimestamp", "CurrentTime"})


def volatile_columns(rows: Rows, app: StreamsApp) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """(columns of `rows` that are volatile themselves, functions on which more than such a column depends)."""
    columns: set[str] = set()
    whole: set[str] = set()
    final = set(rows.columns)
    if isinstance(rows, StreamTable):
        for arm in rows._aggregate.arms:
            whole |= _functions(apply_calls(app._template_of_source(arm.source), arm.calls))
        rows_frames = [rows._template]
    else:
        assert isinstance(rows, Stream)
        rows_frames = [apply_calls(app._template_of_source(arm.source), arm.calls) for arm in rows._arms]
    for frame in rows_frames:
        top = analysed(frame)
        for node in walk(top):
            for expression in sequence(node.expressions()):
                found = _in_expression(expression)
                if not found:
                    continue
                # Only what the last call itself computes is surely used by nothing else.
                if node.equals(top) and class_of(expression) == "Alias" and str(expression.name()) in final:
                    columns.add(str(expression.name()))
                else:
                    whole |= found
    return tuple(sorted(columns)), tuple(sorted(whole))


def _functions(frame: DataFrame) -> set[str]:
    return {
        name
        for node in walk(analysed(frame))
        for expression in sequence(node.expressions())
        for name in _in_expression(expression)
    }


def _in_expression(expression: Any) -> set[str]:
    found: set[str] = set()
    pending = [expression]
    while pending:
        one = pending.pop()
        children = sequence(one.children())
        if class_of(one) in _TIME_FUNCTIONS or (
            not one.deterministic() and all(child.deterministic() for child in children)
        ):
            found.add(str(one.prettyName()))
        pending.extend(children)
    return found
