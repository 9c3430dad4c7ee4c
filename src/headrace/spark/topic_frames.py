"""Topics as finite DataFrames: fixed ranges of offsets, read by Spark's Python workers through our own fetcher."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    ByteType,
    DataType,
    MapType,
    ShortType,
    StringType,
    StructField,
    StructType,
)

from headrace.client.security import ClientSecurity
from headrace.formats import Avro, JsonSchema, Protobuf
from headrace.spark.formats import value_schema_json
from headrace.spark.formats.json_schema import why_no_text
from headrace.spark.formats.record_values import HEADER_BYTES
from headrace.spark.formats.scalar_reference import scalar_reader, scalar_writer
from headrace.spark.formats.scalars import SCALARS
from headrace.spark.formats.schemas import RAW, struct_of
from headrace.spark.formats.serdes import Serde, row_reader, serde_columns
from headrace.spark.frames import empty_frame, quoted
from headrace.spark.topology.nodes import COORDINATES_COLUMN, KEY_COLUMN, TopicSource, TypedKey

BAD_COLUMN = "__headrace_bad"
_NOT_JSON = "__headrace_not_json"
_NO_TEXT = "__headrace_no_text"
# As our own decoder: RFC 8259 without Spark's leniency for single quotes.
_JSON_OPTIONS = {"columnNameOfCorruptRecord": BAD_COLUMN, "allowSingleQuotes": "false", "mode": "PERMISSIVE"}
TopicPartition = tuple[str, int]


def topic_frame(
    spark: SparkSession,
    bootstrap_servers: str,
    security: ClientSecurity,
    ranges: Mapping[TopicPartition, tuple[int, int]],
) -> DataFrame:
    """Return the records of `[from, to)` of each topic-partition, with the eight columns of Spark's Kafka source."""
    wanted = [
        (topic, partition, start, end) for (topic, partition), (start, end) in sorted(ranges.items()) if end > start
    ]
    if not wanted:
        return empty_frame(spark, RAW)
    reader = _reader(wanted, bootstrap_servers, security)
    # One Spark partition per range, in the order of the ranges: `verify` relies on records of a partition staying in
    # order.
    return spark.range(0, len(wanted), 1, len(wanted)).mapInArrow(reader, RAW)


def _reader(
    wanted: list[tuple[str, int, int, int]], bootstrap_servers: str, security: ClientSecurity
) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    raw = TopicSource(name="raw", topics=(), value_format="raw", schema_json=RAW.json())

    def read(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from headrace.client.fetcher import Fetcher
        from headrace.client.network_client import NetworkClient
        from headrace.spark import formats

        for batch in batches:
            for index in batch.column(0).to_pylist():
                topic, partition, start, end = wanted[index]
                with NetworkClient(bootstrap_servers, client_id="headrace-verify", security=security) as client:
                    for fetched in Fetcher(client, isolation_level="read_committed").fetch_ranges(
                        {(topic, partition): (start, end)}
                    ):
                        yield formats.decode(fetched.table, raw, topic=topic, partition=partition).batch

    return read


def decoded_by_spark(records: DataFrame, source: TopicSource) -> DataFrame:
    """Return `records` as the columns of `source`, decoded by Spark's functions: the reference for Headrace's decoder.

    Hidden columns: the record's key, `_kafka`, and BAD_COLUMN, which is not null for a record that does not decode.
    `from_json` accepts texts that are not JSON; Python's own reader refuses those. Tombstones of a JSON stream are left
    out.
    """
    if source.typed_key is not None:
        return _with_typed_key(records, source, source.typed_key)
    key = F.col("key").alias(KEY_COLUMN)
    if source.value_format == "raw":
        return records.select("*", key, F.lit(None).cast("string").alias(BAD_COLUMN))
    coordinates = F.struct("key", "topic", "partition", "offset", "timestamp", "headers").alias(COORDINATES_COLUMN)
    text = F.col("value").cast("string")
    if source.value_format == "string":
        bad = F.when(~F.expr("is_valid_utf8(cast(value as string))"), F.lit("not UTF-8"))
        return records.select(text.alias("value"), coordinates, key, bad.alias(BAD_COLUMN))
    if source.value_format in SCALARS:
        row = scalar_values("value", source.value_format)
        read = records.select(row.alias("__headrace_row"), coordinates, key)
        found, bad = (F.col("__headrace_row").getField(name) for name in ("value", "bad"))
        return read.select(found.alias("value"), COORDINATES_COLUMN, KEY_COLUMN, bad.alias(BAD_COLUMN))
    columns = struct_of(source.schema_json)
    no_text = F.lit(None).cast("string")
    if isinstance(source.serde, JsonSchema):
        records, no_text = json_texts(records, source.serde)
        text = F.col("value").cast("string")
    elif source.serde is not None:
        row = F.col("__headrace_row")
        rows = serde_rows(source.serde, columns).alias("__headrace_row")
        read = records.where("value IS NOT NULL").select(rows, coordinates, key)
        fields = [row.getField("row").getField(field.name).alias(field.name) for field in columns.fields]
        return read.select(*fields, COORDINATES_COLUMN, KEY_COLUMN, row.getField("bad").alias(BAD_COLUMN))
    wide = _without_bytes(columns)
    schema = StructType([*wide.fields, StructField(BAD_COLUMN, StringType())])
    not_json = F.udf(lambda value: _not_a_json_object(value), StringType())("value")  # else Spark reads the annotations
    parsed = records.where("value IS NOT NULL").select(
        F.from_json(text, schema, _JSON_OPTIONS).alias("__headrace_row"),
        coordinates,
        key,
        F.coalesce(no_text, not_json).alias(_NOT_JSON),
    )
    bad = F.coalesce(F.col(_NOT_JSON), F.col(f"__headrace_row.{BAD_COLUMN}"))
    fields = []
    for mine, read in zip(columns.fields, wide.fields, strict=True):
        found = F.col("__headrace_row").getField(mine.name)
        if mine.dataType != read.dataType:
            narrow = found.try_cast(mine.dataType)
            # `from_json` wraps 200 to -56 for a tinyint. Read as smallint, cast back, and compared as JSON: a
            # difference is a value that does not fit.
            same = F.to_json(F.struct(narrow.alias("v"))) == F.to_json(F.struct(found.alias("v")))
            found, bad = narrow, F.when(same, bad).otherwise(F.coalesce(bad, F.lit("a number is no tinyint")))
        fields.append(found.alias(mine.name))
    return parsed.select(*fields, COORDINATES_COLUMN, KEY_COLUMN, bad.alias(BAD_COLUMN))


def _with_typed_key(records: DataFrame, source: TopicSource, key: TypedKey) -> DataFrame:
    """Return `decoded_by_spark` of a source whose keys are a column."""
    values = replace(source, typed_key=None, schema_json=value_schema_json(source))
    decoded = decoded_by_spark(records, values)
    kind = struct_of(source.schema_json)[key.column].dataType
    rows = decoded.withColumn("__headrace_key_row", _keys_read(key, kind))
    found, bad = (F.col("__headrace_key_row").getField(name) for name in ("value", "bad"))
    if not key.may_be_null:
        bad = F.when(F.col(KEY_COLUMN).isNull(), F.lit("it has no key")).otherwise(bad)
    reason = F.coalesce(F.col(BAD_COLUMN), bad)
    names = [quoted(field.name) for field in struct_of(values.schema_json).fields]
    return rows.select(found.alias(key.column), *names, COORDINATES_COLUMN, KEY_COLUMN, reason.alias(BAD_COLUMN))


def _keys_read(key: TypedKey, kind: DataType) -> Column:
    """Return the keys of records read by other libraries: a struct of `value` and `bad`, why there is none."""
    if key.serde is None:
        return scalar_values(KEY_COLUMN, key.format, is_key=True)
    if not isinstance(key.serde, JsonSchema):
        row = serde_rows(key.serde, kind, KEY_COLUMN)
        return F.struct(row.getField("row").alias("value"), row.getField("bad").alias("bad"))
    assert isinstance(kind, StructType)
    serde, text, no_text = key.serde, F.col(KEY_COLUMN), F.lit(None).cast("string")
    if serde.registry is not None:
        text = F.expr(f"substring({KEY_COLUMN}, {HEADER_BYTES + 1})")
        no_text = F.udf(lambda value: None if value is None else why_no_text(value, serde), StringType())(KEY_COLUMN)
    not_json = F.udf(lambda value: None if value is None else _not_a_json_object(value), StringType())(text)
    row = F.from_json(
        text.cast("string"), StructType([*kind.fields, StructField(BAD_COLUMN, StringType())]), _JSON_OPTIONS
    )
    bad = F.coalesce(no_text, not_json, row.getField(BAD_COLUMN))
    found = F.struct(*(row.getField(field.name).alias(field.name) for field in kind.fields))
    return F.struct(F.when(F.col(KEY_COLUMN).isNotNull() & bad.isNull(), found).alias("value"), bad.alias("bad"))


def keys_as_json(records: DataFrame, key: TypedKey, names: Sequence[str], options: Mapping[str, str]) -> DataFrame:
    """Return records whose keys have a schema with JSON objects in their place, as `written_key` writes them.

    Args:
        records: With the column `key`.
        key: The keys of a sink.
        names: The fields of a struct that is the key; empty where it is none.
        options: Of `to_json`.
    """
    assert key.serde is not None
    if isinstance(key.serde, JsonSchema):
        text = F.col("key") if key.serde.registry is None else F.expr(f"substring(key, {HEADER_BYTES + 1})")
        return records.withColumn("key", text)
    row = serde_rows(key.serde, serde_columns(key.serde), "key").getField("row")
    # In the order of the columns: the schema may have another one.
    fields = key.columns if key.is_record else names
    shown = F.struct(*(row.getField(name).alias(name) for name in fields)) if fields else F.struct(row.alias("key"))
    return records.withColumn("key", F.when(F.col("key").isNotNull(), F.to_json(shown, dict(options)).cast("binary")))


def written_key(frame: DataFrame, key: TypedKey, options: Mapping[str, str]) -> Column:
    """Return the keys of a sink as bytes: single values by Python, and keys with a schema as JSON objects."""
    if key.serde is None:
        return scalar_bytes(F.col(quoted(key.column)), key.format)
    if key.is_record:
        return F.to_json(F.struct(*map(quoted, key.columns)), dict(options)).cast("binary")
    column = F.col(quoted(key.column))
    is_struct = isinstance(frame.schema[key.column].dataType, StructType)
    shown = column if is_struct else F.struct(column.alias("key"))
    return F.when(column.isNotNull(), F.to_json(shown, dict(options)).cast("binary"))


def scalar_values(column: str, name: str, *, is_key: bool = False) -> Column:
    """Return a binary column read by Python: a struct of `value` and `bad`, why there is none.

    Args:
        column: The column.
        name: Its format, one of `SCALARS`.
        is_key: Whether only the bytes that a serializer writes are good.
    """
    found = StructType().add("value", SCALARS[name].spark).add("bad", StringType())
    read, write = scalar_reader(name), scalar_writer(name)

    def value_of(given: bytes | None) -> tuple[Any, str | None]:
        value, bad = read(given)
        if is_key and name == "uuid" and bad is None and given is not None and write(value) != bytes(given):
            return None, "not as a serializer writes it"
        return value, bad

    return F.udf(lambda given: value_of(given), found).asNondeterministic()(column)


def scalar_bytes(column: Column, name: str) -> Column:
    """Return a column written by Python in a format of single values."""
    write = scalar_writer(name)
    return F.udf(lambda value: write(value), BinaryType())(column)


def json_texts(records: DataFrame, serde: JsonSchema) -> tuple[DataFrame, Column]:
    """Return (records with the texts behind the headers of a registry as values, why a value has none)."""
    if serde.registry is None:
        return records, F.lit(None).cast("string")
    reason = F.udf(lambda value: None if value is None else why_no_text(value, serde), StringType())("value")
    texts = records.withColumn(_NO_TEXT, reason)
    return texts.withColumn("value", F.expr(f"substring(value, {HEADER_BYTES + 1})")), F.col(_NO_TEXT)


def serde_rows(serde: Avro | Protobuf, kind: DataType, column: str = "value") -> Column:
    """Return a binary column read by another library: a struct of `row` and `bad`, why there is no row."""
    found = StructType().add("row", kind).add("bad", StringType())
    read = row_reader(serde)
    rows = F.udf(lambda value: (None, None) if value is None else read(value), found)
    return rows.asNondeterministic()(column)


def values_as_json(records: DataFrame, serde: Serde, options: Mapping[str, str]) -> DataFrame:
    """Return records with values as Spark's `to_json` writes them; undecodable ones as they are.

    Args:
        records: With the column `value`.
        serde: The topic's format, with its schema.
        options: Of `to_json`.
    """
    if isinstance(serde, JsonSchema):
        return json_texts(records, serde)[0]
    row = serde_rows(serde, serde_columns(serde)).getField("row")
    as_json = F.to_json(row, dict(options)).cast("binary")
    return records.withColumn("value", F.when(F.col("value").isNotNull(), F.coalesce(as_json, F.col("value"))))


def scalars_as_json(records: DataFrame, name: str, column: str, options: Mapping[str, str]) -> DataFrame:
    """Return records whose values are single ones with JSON objects in their place; undecodable ones as they are.

    Args:
        records: With the column `value`.
        name: The format of the values.
        column: The only name in the objects.
        options: Of `to_json`.
    """
    row = scalar_values("value", name)
    as_json = F.to_json(F.struct(row.getField("value").alias(column)), dict(options)).cast("binary")
    good = F.col("value").isNotNull() & row.getField("bad").isNull()
    return records.withColumn("value", F.when(good, as_json).otherwise(F.col("value")))


def _without_bytes(kind: DataType) -> Any:
    """Return `kind` with smallint in place of tinyint: `from_json` reads 200 as the tinyint -56."""
    if isinstance(kind, StructType):
        return StructType([StructField(field.name, _without_bytes(field.dataType)) for field in kind.fields])
    if isinstance(kind, ArrayType):
        return ArrayType(_without_bytes(kind.elementType))
    if isinstance(kind, MapType):
        return MapType(kind.keyType, _without_bytes(kind.valueType))
    return ShortType() if isinstance(kind, ByteType) else kind


def _not_a_json_object(value: bytes) -> str | None:
    """Return the reason why a value is not one JSON object by RFC 8259, or None. Its fields are left to `from_json`."""

    def refuse(constant: str) -> None:
        raise ValueError(f"{constant} is not JSON")

    try:
        found = json.loads(bytes(value).decode(), parse_constant=refuse, parse_int=str, parse_float=str)
    except (ValueError, RecursionError) as error:
        return str(error)
    return None if isinstance(found, dict) else "not a JSON object"


def good_rows(decoded: DataFrame) -> DataFrame:
    """Return the rows that decoded, without BAD_COLUMN."""
    return decoded.where(F.col(BAD_COLUMN).isNull()).drop(BAD_COLUMN)
