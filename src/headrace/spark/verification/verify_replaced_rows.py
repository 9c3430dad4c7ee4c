"""Rows of tables outside of Kafka that replace each other, as the records of a topic that had been compacted.

`verify` compares the newest record of each key with a recomputed row (`verify_tables`, `verify_top_n`). A Delta,
Iceberg or database table holds these rows and no others. So its rows become records here, with the key that they would
have in a topic, and one comparison serves both. Rows of a database pass through the driver.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StringType, StructField, StructType

from headrace.spark.frames import quoted
from headrace.spark.sinks import staged_rows
from headrace.spark.sinks.database import DatabaseSink
from headrace.spark.sinks.database_comparison import count_waiting_parts
from headrace.spark.topology.nodes import TableSink, TopicSink
from headrace.spark.verification.verdict import SinkVerdict
from headrace.spark.verification.verify_streams import JSON_OPTIONS, key_of_columns, rows_of_files

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["as_topic", "current_records", "find_recast_columns", "find_unready", "with_second_rows"]


def as_topic(sink: TableSink) -> TopicSink:
    """Return the topic whose newest records are the rows of a table."""
    return TopicSink(topic=sink.name, value_columns=sink.columns, where=sink.where)


def find_recast_columns(sink: TableSink) -> tuple[str, ...]:
    """Return the columns whose text the table changes: those of PostgreSQL's types json, jsonb and uuid."""
    if not isinstance(sink.sink, DatabaseSink):
        return ()
    return tuple(column.name for column in sink.sink.layout.columns if column.cast)


def find_unready(sink: TableSink, key: Sequence[str], group_id: str) -> str:
    """Return why a table cannot be compared now; empty if it can. Raises OSError."""
    recast = next((name for name in find_recast_columns(sink) if name in key), None)
    if recast is not None:
        return f'the table changes the text of "{recast}", which is in the key'
    if isinstance(sink.sink, DatabaseSink):
        waiting = count_waiting_parts(sink.sink, group_id)
        if waiting:
            return f"rows of {waiting} micro-batches wait beside the table; an instance that runs adds them"
    return ""


def current_records(spark: SparkSession, sink: TableSink, key: Sequence[str]) -> DataFrame:
    """Return the rows of a table as the records of `as_topic`. Raises OSError, SinkError.

    Args:
        spark: The session.
        sink: A sink whose rows replace each other.
        key: The columns of the key, in the order in which a record's key has them.
    """
    schema = StructType.fromJson(json.loads(sink.schema_json))
    database = isinstance(sink.sink, DatabaseSink)
    rows = _rows_of_database(spark, sink.sink, schema) if database else rows_of_files(spark, sink, schema)
    return rows.select(
        key_of_columns(rows, [(name, name) for name in key]).alias("key"),
        F.to_json(F.struct(*map(quoted, sink.columns)), JSON_OPTIONS).cast("binary").alias("value"),
        F.lit(0).alias("timestamp"),
        F.lit(0).alias("offset"),
    )


def with_second_rows(verdict: SinkVerdict, records: DataFrame) -> SinkVerdict:
    """Return the verdict with further rows of one key as extra ones: a topic has one newest record, a table may not."""
    again = records.count() - records.select("key").distinct().count()
    if not again or verdict.undecided:
        return verdict
    example = f"{again} rows whose key another row has"
    return replace(
        verdict,
        found=verdict.found + again,
        extra=verdict.extra + again,
        examples=(example, *verdict.examples),
    )


def _rows_of_database(spark: SparkSession, sink: DatabaseSink, schema: StructType) -> DataFrame:
    # As texts, each of which Spark reads by the column's type: neither driver has all types of Spark.
    kinds = [(field.name, field.dataType.simpleString()) for field in schema.fields]
    readings = [sink.reading(staged_rows.quoted(name), kind) for name, kind in kinds]
    with sink.connection() as connection:
        found = connection.execute(f"SELECT {', '.join(one for one, _ in readings)} FROM {sink.target}")
    columns = list(zip(*found, strict=True)) or [() for _ in kinds]
    texts = pa.table({f"c{at}": pa.array(map(_text, column), pa.string()) for at, column in enumerate(columns)})
    text_schema = StructType([StructField(name, StringType()) for name in texts.column_names])
    read = [
        # Null, and so a difference, where another writer has left a value of another type.
        f"{expression.format(f'c{at}')} AS {quoted(name)}"
        for at, ((name, _), (_, expression)) in enumerate(zip(kinds, readings, strict=True))
    ]
    return spark.createDataFrame(texts, text_schema).selectExpr(*read)


def _text(value: object) -> str | None:
    # `repr` of a float is the shortest text that is read back as the same one.
    return None if value is None else repr(value) if isinstance(value, float) else str(value)
