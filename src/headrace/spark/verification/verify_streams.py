"""Comparison of stateless sinks with their recomputation, as multisets: records of different tasks have no order."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from functools import reduce
from pathlib import Path

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    CharType,
    DataType,
    MapType,
    StringType,
    StructField,
    StructType,
    VarcharType,
)

from headrace.spark.formats import key_object_start
from headrace.spark.formats.scalars import SCALARS
from headrace.spark.frames import empty_frame, quoted
from headrace.spark.sinks.database_comparison import compare_table_rows, count_waiting_parts
from headrace.spark.sinks.delta import DeltaSink
from headrace.spark.sinks.delta_store import DeltaStoreSink
from headrace.spark.sinks.iceberg import IcebergSink
from headrace.spark.topic_frames import scalar_bytes, written_key
from headrace.spark.topology.nodes import KEY_COLUMN, TableSink, TopicSink
from headrace.spark.verification.verdict import SinkVerdict

EXAMPLES = 5
JSON_OPTIONS = {  # of `to_json`, so that it writes what `formats.encode_json` writes
    "timeZone": "UTC",
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
    "ignoreNullFields": "false",
}


def compare_stream(
    topic: str, expected: Sequence[tuple[DataFrame, TopicSink]], actual: DataFrame, ignored: frozenset[str]
) -> SinkVerdict:
    """Compare the records of a topic.

    Missing records are lost. Surplus records are repeated if the recomputation has the same record, else extra.
    """
    schema = value_schema(expected[0][0], expected[0][1])
    sides = [
        frame.select(
            key_of(frame, sink, None).alias("key"),
            canonical_value(value_of(frame, sink), sink, schema, ignored).alias("value"),
        )
        for frame, sink in expected
    ]
    sink = expected[0][1]
    found = actual.select("key", canonical_value(F.col("value"), sink, schema, ignored).alias("value"))
    return _compare(topic, reduce(lambda one, other: one.unionAll(other), sides), found)


def compare_files(sink: TableSink, expected: DataFrame, ignored: frozenset[str]) -> SinkVerdict:
    """The same for the rows of a Parquet, Delta or Iceberg sink."""
    schema = StructType.fromJson(json.loads(sink.schema_json))
    spark = expected.sparkSession
    files = rows_of_files(spark, sink, schema)
    kept = [name for name in sink.columns if name not in ignored]
    sides = [
        frame.select(
            F.lit(None).cast("binary").alias("key"),
            F.to_json(F.struct(*map(quoted, kept)), JSON_OPTIONS).alias("value"),
        )
        for frame in (expected.select(*map(quoted, sink.columns)), files)
    ]
    return _compare(sink.name, *sides)


def compare_database(sink: TableSink, expected: DataFrame, group_id: str, ignored: frozenset[str]) -> SinkVerdict:
    """The same for the rows of a database table that only grows. The recomputed rows pass through the driver."""
    name = sink.name
    undecided = SinkVerdict(topic=name, kind="stream", expected=0, found=0, equal=0)
    if ignored:
        return replace(undecided, undecided=f"{', '.join(sorted(ignored))} cannot be recomputed")
    waiting = count_waiting_parts(sink.sink, group_id)
    if waiting:
        why = f"rows of {waiting} micro-batches wait beside the table; an instance that runs adds them"
        return replace(undecided, undecided=why)
    rows = expected.select(*map(quoted, sink.columns)).toArrow()
    found = compare_table_rows(sink.sink, [rows], examples=EXAMPLES)
    shown = tuple(
        f"{', '.join(map(str, values))}: {there} there, {wanted} recomputed"
        for *values, there, wanted in found.examples
    )
    return _verdict_of_counts(name, found.expected, found.found, found.equal, found.repeated, found.extra, shown)


def rows_of_files(spark: SparkSession, sink: TableSink, schema: StructType) -> DataFrame:
    """Return the rows of a Parquet, Delta or Iceberg table that its readers see. Raises OSError, SinkError."""
    reader = spark.read.schema(schema)
    if _lies_in_a_store(sink.sink):
        # Spark's own readers of object stores need jars and credentials that this session may not have.
        rows = sink.sink.read_rows()
        return spark.createDataFrame(rows.select(schema.names), schema)
    if isinstance(sink.sink, DeltaSink):
        # The directory also has files that the log does not name any more. Values in directory names may look like
        # patterns, which this option of Spark's own turns off.
        files = sink.sink.files()
        reader = reader.option("basePath", sink.sink.path).option("__globPaths__", "false")
        return reader.parquet(*files) if files else empty_frame(spark, schema)
    if isinstance(sink.sink, IcebergSink):  # its files have all columns, whatever their directories are called
        files = sink.sink.files()
        return reader.option("__globPaths__", "false").parquet(*files) if files else empty_frame(spark, schema)
    return reader.parquet(sink.sink.path) if Path(sink.sink.path).is_dir() else empty_frame(spark, schema)


def _lies_in_a_store(sink: object) -> bool:
    return isinstance(sink, DeltaStoreSink) or (isinstance(sink, IcebergSink) and sink.lies_in_a_store())


def _compare(name: str, expected: DataFrame, actual: DataFrame) -> SinkVerdict:
    """Two multisets of (key, value)."""
    # Multisets: equal records are counted on both sides and joined by their bytes.
    wanted = expected.groupBy("key", "value").agg(F.count("*").alias("wanted"))
    found = actual.groupBy("key", "value").agg(F.count("*").alias("found"))
    same = wanted["key"].eqNullSafe(found["key"]) & wanted["value"].eqNullSafe(found["value"])
    pairs = wanted.join(found, same, "full_outer").select(
        F.coalesce(wanted["key"], found["key"]).alias("key"),
        F.coalesce(wanted["value"], found["value"]).alias("value"),
        F.coalesce("wanted", F.lit(0)).alias("wanted"),
        F.coalesce("found", F.lit(0)).alias("found"),
    )  # fmt: skip
    surplus = F.greatest(F.col("found") - F.col("wanted"), F.lit(0))
    totals = pairs.agg(
        F.coalesce(F.sum("wanted"), F.lit(0)),
        F.coalesce(F.sum("found"), F.lit(0)),
        F.coalesce(F.sum(F.least("wanted", "found")), F.lit(0)),
        F.coalesce(F.sum(F.when(F.col("wanted") > 0, surplus)), F.lit(0)),
        F.coalesce(F.sum(F.when(F.col("wanted") == 0, F.col("found"))), F.lit(0)),
    ).first()
    assert totals is not None
    expected_rows, found_rows, equal, repeated, extra = (int(total) for total in totals)
    is_same = expected_rows == found_rows == equal
    examples = [] if is_same else pairs.where("wanted != found").orderBy("value").limit(EXAMPLES).collect()
    shown = tuple(f"{row.value}: {row.found} there, {row.wanted} recomputed" for row in examples)
    return _verdict_of_counts(name, expected_rows, found_rows, equal, repeated, extra, shown)


def _verdict_of_counts(
    name: str, expected: int, found: int, equal: int, repeated: int, extra: int, examples: tuple[str, ...]
) -> SinkVerdict:
    return SinkVerdict(
        topic=name,
        kind="stream",
        expected=expected,
        found=found,
        equal=equal,
        missing=expected - equal,
        lost=expected - equal,
        repeated=repeated,
        extra=extra,
        examples=examples,
    )


def value_schema(frame: DataFrame, sink: TopicSink) -> StructType:
    """The columns of the value as `from_json` reads them back: in JSON the keys of every map are strings."""
    columns = frame.select(*map(quoted, sink.value_columns)).schema
    return StructType([StructField(field.name, _read_back(field.dataType)) for field in columns.fields])


def _read_back(kind: DataType) -> DataType:
    if isinstance(kind, StructType):
        return StructType([StructField(field.name, _read_back(field.dataType)) for field in kind.fields])
    if isinstance(kind, ArrayType):
        return ArrayType(_read_back(kind.elementType))
    if isinstance(kind, MapType):
        return MapType(StringType(), _read_back(kind.valueType))
    return StringType() if isinstance(kind, (CharType, VarcharType)) else kind


def is_scalar(value_format: str) -> bool:
    """Whether values are single ones in the bytes of Kafka's serializers; texts are compared as texts."""
    return value_format in SCALARS and value_format != "string"


def value_of(frame: DataFrame, sink: TopicSink) -> Column:
    """The record's value as Spark itself would write it."""
    if sink.value_format == "json":
        return F.to_json(F.struct(*map(quoted, sink.value_columns)), JSON_OPTIONS).cast("binary")
    if is_scalar(sink.value_format):
        return scalar_bytes(frame[quoted(sink.value_columns[0])], sink.value_format)
    return (
        frame[quoted(sink.value_columns[0])]
        .cast("string" if sink.value_format == "string" else "binary")
        .cast("binary")
    )


def key_of(frame: DataFrame, sink: TopicSink, group: Sequence[tuple[str, str]] | None) -> Column:
    """The record's key: `group` are (hidden column, name) of a table's grouping values."""
    if sink.typed_key is not None:
        return written_key(frame, sink.typed_key, JSON_OPTIONS)
    if sink.key_columns is not None:
        return key_of_columns(frame, [(name, name) for name in sink.key_columns])
    return F.col(KEY_COLUMN) if group is None else key_of_columns(frame, group)


def key_of_columns(frame: DataFrame, columns: Sequence[tuple[str, str]]) -> Column:
    """The key of a record whose key is made of `columns`: pairs of a column and the name in the key."""
    types = dict(frame.dtypes)
    parts = F.struct(*(F.col(quoted(column)).alias(name) for column, name in columns))
    as_object = F.to_json(parts, JSON_OPTIONS).cast("binary")
    if len(columns) == 1 and types[columns[0][0]] in {"string", "binary"}:
        plain = F.col(quoted(columns[0][0])).cast("binary")
        start = F.lit(key_object_start(columns[0][1]).encode())
        return F.when(plain.isNull() | F.startswith(plain, start), as_object).otherwise(plain)
    return as_object


def canonical_value(value: Column, sink: TopicSink, schema: StructType, ignored: frozenset[str]) -> Column:
    """Text that is equal when the typed values are: numbers and escapes are read and written once more."""
    if sink.value_format != "json":
        return value.cast("string") if sink.value_format == "string" else F.hex(value)
    # Read by the schema and written again by the same writer: 1.0 and 1.00, or two escapes of one character, become
    # equal text.
    kept = StructType([field for field in schema.fields if field.name not in ignored])
    return F.coalesce(F.to_json(F.from_json(value.cast("string"), kept), JSON_OPTIONS), value.cast("string"))
