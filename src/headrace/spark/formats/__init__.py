"""Conversion between Kafka records and Arrow columns: JSON, Avro, JSON Schema, Protobuf, single values, or raw columns.

The fetch stage calls `decode`; the sink stage calls `encode_value`, `encode_key` and `encode_keys`. All of them
work on Arrow arrays.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyspark.sql.types import StructField, StructType

from headrace.spark.formats.arrow_buffers import without_rows
from headrace.spark.formats.arrow_types import INSTANT
from headrace.spark.formats.java_text import java_double, java_float, quoted
from headrace.spark.formats.json_decoding import decode_json
from headrace.spark.formats.json_encoding import encode_json, time_text
from headrace.spark.formats.json_values import BadRow
from headrace.spark.formats.record_keys import decode_keys, encode_keys
from headrace.spark.formats.scalars import SCALARS, decode_scalars, encode_scalars
from headrace.spark.formats.schemas import COORDINATES, struct_of
from headrace.spark.formats.serdes import decode_values, encode_values
from headrace.spark.topology.nodes import COORDINATES_COLUMN, TopicSink, TopicSource, TypedKey

__all__ = [
    "BadRow",
    "Decoded",
    "decode",
    "encode_key",
    "encode_keys",
    "encode_value",
    "encode_value_json",
    "key_object_start",
    "source_schema",
    "value_schema_json",
]

_HEADERS = pa.list_(pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())]))


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoded:
    """Decoded columns with one row per record, in order. Rows in `bad_rows` are null in every decoded column.

    `tombstones` is the mask of records without a value, or None if there are none. A tombstone marks a deleted key.
    Streams of JSON objects drop it, as KStream does in Kafka Streams. With single values and with raw columns it is a
    row whose value is null.
    """

    batch: pa.RecordBatch
    bad_rows: tuple[BadRow, ...] = ()
    tombstones: NDArray[np.bool_] | None = None


def source_schema(source: TopicSource) -> StructType:
    """Return the Arrow schema that `decode` yields for `source`: the needed columns, followed by `_kafka` if needed."""
    fields = list(struct_of(source.schema_json).fields)
    if source.value_format != "raw":
        fields.append(StructField(COORDINATES_COLUMN, COORDINATES))
    if source.columns_needed is None:
        return StructType(fields)
    return StructType([field for field in fields if field.name in source.columns_needed])


def decode(records: pa.Table | pa.RecordBatch, source: TopicSource, *, topic: str, partition: int) -> Decoded:
    """Decode records of one partition into the columns of `source`.

    Args:
        records: Fetched records: key, value, offset, timestamp in ms, headers.
        source: The source whose columns are decoded.
        topic: Topic of the records.
        partition: Partition of the records.
    """
    wanted = source_schema(source).names
    bad: Sequence[BadRow] = ()
    key = source.typed_key
    tombstones = None
    columns: dict[str, pa.Array] = {}
    if source.value_format == "json" or source.serde is not None:
        values = _column(records, "value")
        used = [name for name in wanted if name != COORDINATES_COLUMN and (key is None or name != key.column)]
        batch, bad = _objects(values, source, used)
        tombstones = values.is_null().to_numpy(zero_copy_only=False) if values.null_count else None
        columns = dict(zip(batch.schema.names, batch.columns, strict=True))
    elif source.value_format in SCALARS:
        columns["value"], bad = decode_scalars(_column(records, "value"), source.value_format)
    else:
        columns = _raw(records, topic, partition, wanted)
    if key is not None:
        columns[key.column], bad = _typed_keys(_column(records, "key"), key, columns, bad, source.time_zone)
    if COORDINATES_COLUMN in wanted:
        fields = _coordinates(records, topic, partition)
        columns[COORDINATES_COLUMN] = pa.StructArray.from_arrays(list(fields.values()), names=list(fields))
    chosen = [columns[name] for name in wanted]
    # Only the number of rows matters, for instance for `count(*)`.
    if not chosen:  # a batch without columns has no length of its own
        return Decoded(batch=_rows_only(records.num_rows), bad_rows=tuple(bad), tombstones=tombstones)
    batch = pa.RecordBatch.from_arrays(chosen, names=wanted)
    return Decoded(batch=batch, bad_rows=tuple(bad), tombstones=tombstones)


def _typed_keys(
    keys: pa.Array, key: TypedKey, columns: dict[str, pa.Array], bad: Sequence[BadRow], zone_name: str
) -> tuple[pa.Array, list[BadRow]]:
    """Return (the column of keys, the bad rows of values and of keys); rows whose key is bad become null in `columns`.

    Keys are decoded whether the application uses them or not: which records are bad does not depend on it.
    """
    column, bad_keys = decode_keys(keys, key, zone_name)
    bad_keys = [replace(each, reason=f"its key: {each.reason}") for each in bad_keys]
    if not key.may_be_null and keys.null_count:
        missing = np.flatnonzero(keys.is_null().to_numpy(zero_copy_only=False)).tolist()
        bad_keys += [BadRow(row, "it has no key", "") for row in missing]
    if not bad_keys and not bad:
        return column, []
    reported = {row.index: row for row in (*bad_keys, *bad)}
    names = list(columns)
    whole = without_rows([*columns.values(), column], len(keys), reported)
    columns.update(zip(names, whole, strict=False))
    return whole[-1], [reported[index] for index in sorted(reported)]


def _objects(values: pa.Array, source: TopicSource, used: Sequence[str]) -> tuple[pa.RecordBatch, list[BadRow]]:
    if source.serde is not None:
        return decode_values(values, source.serde, used, source.time_zone)
    return decode_json(values, value_schema_json(source), source.time_zone, used)


def value_schema_json(source: TopicSource) -> str:
    """Return the schema of a source's values: its columns without that of the key."""
    if source.typed_key is None:
        return source.schema_json
    return _schema_without(source.schema_json, source.typed_key.column)


@lru_cache(maxsize=256)
def _schema_without(schema_json: str, name: str) -> str:
    return StructType([field for field in struct_of(schema_json).fields if field.name != name]).json()


def encode_value(batch: pa.RecordBatch, columns: Sequence[str], sink: TopicSink) -> pa.Array:
    """Return the record values of `batch` as binary; null is a tombstone.

    "string" and "raw" write their single column unchanged, and formats of single values as Kafka's serializers do.
    """
    if sink.value_format == "json":
        return encode_value_json(batch, columns)
    if sink.serde is not None:
        return encode_values(batch, columns, sink.serde)
    [name] = columns
    column = batch.column(name)
    if sink.value_format not in ("string", "raw"):
        return encode_scalars(column, sink.value_format, name)
    return column.cast(pa.binary()) if pa.types.is_binary(column.type) else _plain_text(column)


def encode_value_json(batch: pa.RecordBatch, columns: Sequence[str]) -> pa.Array:
    """One JSON object per row, as Spark's `to_json` with `ignoreNullFields` off: see `json_encoding`."""
    return encode_json(batch, columns)


def encode_key(batch: pa.RecordBatch, columns: Sequence[str]) -> pa.Array:
    """Return the record keys: one string or binary column unchanged, anything else as a JSON object. Never null.

    A null is written as JSON (`{"origin":null}`), because compacted topics reject records without a key. Strings that
    begin like such an object (`{"origin":`) are also written as an object, so that no two values share a key.
    """
    if len(columns) == 1:
        [name] = columns
        column = batch.column(name)
        if pa.types.is_string(column.type) or pa.types.is_large_string(column.type) or pa.types.is_binary(column.type):
            plain = column.cast(pa.binary())
            # A text that looks like the object of a null or of another text would share its bytes; it is written as an
            # object as well.
            as_object = pc.fill_null(pc.starts_with(plain, key_object_start(name)), True)
            if not pc.any(as_object, min_count=0).as_py():
                return plain
            return pc.if_else(as_object, encode_json(batch, columns), plain)
    return encode_json(batch, columns)


def key_object_start(name: str) -> str:
    """Return the first characters of the JSON object that replaces a plain-text key of one column."""
    return f"{{{quoted(name)}:"


def _plain_text(column: pa.Array) -> pa.Array:
    """Return the column as Spark's `cast(.. as string)` does, for the types that `value="string"` allows."""
    kind = column.type
    if pa.types.is_floating(kind):
        write = java_double if pa.types.is_float64(kind) else java_float
        texts = pa.array([None if value is None else write(value) for value in column.to_pylist()], pa.string())
    elif pa.types.is_decimal(kind):
        texts = pa.array([None if value is None else f"{value:f}" for value in column.to_pylist()], pa.string())
    elif pa.types.is_date(kind):
        texts = time_text(column)
    else:
        texts = column.cast(pa.string())
    return texts.cast(pa.binary())


def _column(records: pa.Table | pa.RecordBatch, name: str) -> pa.Array:
    column = records.column(name)
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column


def _raw(records: pa.Table | pa.RecordBatch, topic: str, partition: int, wanted: Sequence[str]) -> dict[str, pa.Array]:
    """Return the columns of Spark's own Kafka source. Columns with a cost are built only if they are in `wanted`."""
    columns = {name: _column(records, name) for name in ("key", "value", "offset") if name in wanted}
    if set(wanted) <= set(columns):
        return columns
    return _coordinates(records, topic, partition) | columns | {"timestampType": _timestamp_types(records)}


def _coordinates(records: pa.Table | pa.RecordBatch, topic: str, partition: int) -> dict[str, pa.Array]:
    count = records.num_rows
    names = records.schema.names
    headers = _column(records, "headers").cast(_HEADERS) if "headers" in names else pa.nulls(count, _HEADERS)
    return {
        "key": _column(records, "key"),
        "topic": pa.repeat(pa.scalar(topic), count),
        "partition": pa.repeat(pa.scalar(partition, pa.int32()), count),
        "offset": _column(records, "offset"),
        "timestamp": _column(records, "timestamp").cast(pa.timestamp("ms", "UTC")).cast(INSTANT),
        "headers": headers,
    }


def _timestamp_types(records: pa.Table | pa.RecordBatch) -> pa.Array:
    if "timestamp_type" in records.schema.names:
        return _column(records, "timestamp_type").cast(pa.int32())
    return pa.repeat(pa.scalar(0, pa.int32()), records.num_rows)  # CreateTime


def _rows_only(count: int) -> pa.RecordBatch:
    batch = pa.RecordBatch.from_arrays([pa.nulls(count)], names=["_"])
    return batch.select([])
