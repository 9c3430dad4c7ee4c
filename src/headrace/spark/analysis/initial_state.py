"""The initial state of a stateful processor: rows of a plain DataFrame, read where the stream is declared.

They are part of the compiled operator, as the processor is, so every task has them wherever it runs, and no task needs
the DataFrame's source. Rejected: to write them to the repartition topic. Whether that was done would have to be known
exactly once, and rows of the stream could come before them.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, GroupedData
from pyspark.sql import functions as F
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

from headrace.errors import TopologyError
from headrace.spark.analysis.processor_columns import GroupedColumns
from headrace.spark.arrow_types import schema_of
from headrace.spark.frames import quoted
from headrace.spark.runtime.rows.rows import encode_key
from headrace.spark.spark_internals import analysed, class_of, expression_id, is_classic, sequence
from headrace.spark.topology.nodes import KEY_COLUMN, InitialState, ProcessorInterface
from headrace.spark.unsupported import refusal, translated

__all__ = ["read_initial_state"]

MOST_ROWS = 1_000_000
MOST_BYTES = 64 * 1024 * 1024  # every worker has them


def read_initial_state(
    given: object,
    processor: StatefulProcessor,
    group: tuple[tuple[str, str], ...],
    interface: ProcessorInterface,
    where: str,
) -> InitialState:
    """Return the rows of `initialState`.

    Args:
        given: The argument: grouped rows of a plain DataFrame.
        processor: The user's processor.
        group: (name, type JSON) of the stream's grouping columns.
        interface: Form of the rows that the processor takes.
        where: "file:line" of the user's call.

    Raises:
        TopologyError: bad-value, not-supported-here, refused-by-spark.
    """
    frame, keys = _grouped(given, where)
    if type(processor).handleInitialState is StatefulProcessor.handleInitialState:
        raise refusal(
            "bad-value",
            f"the processor {type(processor).__name__} has no handleInitialState, so initialState would change nothing",
            "define handleInitialState(self, key, initialState, timerValues), or leave initialState out",
            where,
        )
    columns = GroupedColumns(frame, keys, where)
    types, expected = ([kind for _, kind in found] for found in (columns.columns, group))
    if types != expected:
        raise refusal(
            "bad-value",
            f"initialState is grouped by columns of the types {', '.join(types)}, the stream by {', '.join(expected)}",
            "group both by columns of the same types, in the same order: cast those of the DataFrame",
            where,
        )
    projection = columns.projection(bare=False)
    selected = frame.selectExpr(*(f"{sql} as {name}" for name, sql in projection.key_sql + projection.input_sql))
    with translated(where, frame.columns):
        rows = selected.limit(MOST_ROWS + 1).toArrow()
    if len(rows) > MOST_ROWS or rows.nbytes > MOST_BYTES:
        raise refusal(
            "not-supported-here",
            f"initialState has more than {MOST_ROWS:,} rows or {MOST_BYTES >> 20} MiB; every worker holds all of it",
            "leave out columns, or write the rows to a topic and union it with the stream: unionByName",
            where,
        )
    names = [name for name, _ in projection.columns]
    rows = rows.cast(schema_of(projection.columns)).combine_chunks()
    key = encode_key([rows.column(name).combine_chunks() for name in names[: len(group)]])
    rows = rows.append_column(KEY_COLUMN, key)
    written = pa.BufferOutputStream()
    with pa.ipc.new_stream(written, rows.schema) as stream:
        stream.write_table(rows)
    return InitialState(rows=written.getvalue().to_pybytes(), row_columns=columns.row_columns(interface))


def _grouped(given: object, where: str) -> tuple[DataFrame, list[Any]]:
    """Return the DataFrame and the columns that it is grouped by."""
    frame = getattr(given, "_df", None)
    if not isinstance(given, GroupedData) or not isinstance(frame, DataFrame) or not is_classic(frame):
        raise _refused(f"initialState takes grouped rows of a plain DataFrame, not {type(given).__name__}", where)
    if frame.isStreaming:
        raise _refused("initialState takes a DataFrame that ends, and this one is a Structured Streaming query", where)
    with translated(where, frame.columns):
        plan = analysed(given.agg(F.count(F.lit(1))))
    keys = sequence(plan.groupingExpressions()) if class_of(plan) == "Aggregate" else []
    known = {expression_id(one) for one in sequence(analysed(frame).output())}
    if not keys or any(class_of(key) != "AttributeReference" or expression_id(key) not in known for key in keys):
        raise _refused("initialState takes rows that are grouped by columns", where)
    return frame, [F.col(quoted(str(key.name()))) for key in keys]


def _refused(message: str, where: str) -> TopologyError:
    return refusal("bad-value", message, 'initialState=df.groupBy("id")', where)
