"""Columns of a sink that cannot be recomputed, because they depend on nondeterministic functions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.spark.frames import apply_calls
from headrace.spark.grouped_stream import StreamTable
from headrace.spark.plan_reader import volatile_functions, volatile_functions_of
from headrace.spark.spark_internals import analysed, class_of, sequence, walk
from headrace.spark.stream import Stream
from headrace.spark.stream_rows import Rows

if TYPE_CHECKING:
    from headrace.spark.application_declaration import ApplicationDeclaration


def volatile_columns(rows: Rows, app: ApplicationDeclaration) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Find the nondeterministic columns of `rows`.

    Returns:
        The columns that are nondeterministic themselves, and the functions on which more than such a column depends.
    """
    columns: set[str] = set()
    whole: set[str] = set()
    final = set(rows.columns)
    if isinstance(rows, StreamTable):
        for arm in rows._aggregate.arms:
            frame = apply_calls(app._template_of_source(arm.source), arm.calls)
            whole |= volatile_functions_of(analysed(frame))
        rows_frames = [rows._template]
    else:
        assert isinstance(rows, Stream)
        rows_frames = [apply_calls(app._template_of_source(arm.source), arm.calls) for arm in rows._arms]
    for frame in rows_frames:
        top = analysed(frame)
        for node in walk(top):
            for expression in sequence(node.expressions()):
                found = volatile_functions(expression)
                if not found:
                    continue
                # Only what the last call itself computes is surely used by nothing else.
                if node.equals(top) and class_of(expression) == "Alias" and str(expression.name()) in final:
                    columns.add(str(expression.name()))
                else:
                    whole |= found
    return tuple(sorted(columns)), tuple(sorted(whole))
