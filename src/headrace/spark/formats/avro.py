"""Avro values of records, with or without a schema registry: their wire format, and the checks of declarations."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql.types import StructField, StructType

from headrace.array_types import Int64Array
from headrace.formats import Avro
from headrace.spark.formats.arrow_buffers import bytes_of
from headrace.spark.formats.avro_decoding import avro_reader
from headrace.spark.formats.avro_encoding import avro_writer, check_record_writable, check_writable
from headrace.spark.formats.avro_schema import AvroSchemaError, avro_of, avro_type_of, parse_schema, spark_type
from headrace.spark.formats.json_values import BadRow
from headrace.spark.formats.record_values import (
    HEADER_BYTES,
    bad_rows,
    header_of,
    in_order,
    rows_by_schema,
    schema_of_source,
    with_subject,
)
from headrace.spark.formats.schema_registry import registered_id
from headrace.spark.unsupported import refusal

__all__ = [
    "as_field",
    "avro_columns",
    "decode_avro",
    "decode_avro_keys",
    "encode_avro",
    "encode_avro_keys",
    "is_record_schema",
    "sink_avro",
    "sink_avro_key",
    "source_avro",
    "source_avro_key",
]


def source_avro(avro: Avro, topics: Sequence[str], where: str) -> tuple[Avro, StructType]:
    """Return (the format with its reader's schema, the columns) of a source.

    Raises:
        TopologyError: for a schema that is not a record of Spark's types.
        HeadraceError: if the registry does not have one, or cannot be reached.
    """
    text = avro.schema
    if text is None:
        text = schema_of_source(avro, topics, "AVRO", where).text
    try:
        schema = parse_schema(text)
        columns = spark_type(schema)
        if not isinstance(columns, StructType) or not columns.fields:
            raise AvroSchemaError("it is not a record with fields")
        avro_reader(text, text)
    except AvroSchemaError as error:
        raise refusal(
            "bad-value",
            f"the Avro schema cannot be read as columns: {error}",
            "give a reader's schema without that field, Avro(.., schema=..), or read the bytes with value='raw'",
            where,
        ) from None
    return replace(avro, schema=text), columns


def sink_avro(avro: Avro, topic: str, columns: StructType, where: str) -> Avro:
    """Return the format with its schema and subject for a sink of these columns.

    Raises:
        TopologyError: for columns that the schema, or Avro, has no place for.
    """
    try:
        if avro.schema is None:
            text = avro_of(columns, _record_name(topic))
        else:
            text = avro.schema
            schema = parse_schema(text)
            if schema.kind != "record":
                raise AvroSchemaError("the schema of a record's value must be an Avro record")
            check_record_writable(schema, {field.name: field.dataType for field in columns.fields})
    except AvroSchemaError as error:
        raise refusal(
            "bad-value",
            f"these rows cannot be written as Avro: {error}",
            "rename or cast the column, select fewer columns, or give another schema: Avro(.., schema=..)",
            where,
        ) from None
    return with_subject(replace(avro, schema=text), topic)


def avro_columns(avro: Avro) -> StructType:
    """Return the Spark columns of a format's own schema."""
    assert avro.schema is not None
    columns: Any = spark_type(parse_schema(avro.schema))
    return columns


def source_avro_key(avro: Avro, column: str, topics: Sequence[str], where: str) -> tuple[Avro, StructField]:
    """Return (the format with its reader's schema, the column of the keys) of a source. Raises as `source_avro`."""
    text = avro.schema
    if text is None:
        text = schema_of_source(avro, topics, "AVRO", where).text
    try:
        kind = spark_type(parse_schema(text))
        avro_reader(as_field(text), as_field(text))
    except AvroSchemaError as error:
        raise refusal(
            "bad-value",
            f"the Avro schema of the keys cannot be read as a column: {error}",
            'give a schema without that field, Avro(.., schema=..), or read the keys with key_format="bytes"',
            where,
        ) from None
    return replace(avro, schema=text), StructField(column, kind)


def sink_avro_key(avro: Avro, topic: str, field: StructField, where: str) -> Avro:
    """Return the format with its schema for a sink whose keys are one column. Raises as `sink_avro`."""
    try:
        if avro.schema is None:
            return replace(avro, schema=avro_type_of(field.dataType, f"{_record_name(topic)}_key"))
        check_writable(parse_schema(avro.schema), field.dataType, field.name)
    except AvroSchemaError as error:
        raise refusal(
            "bad-value",
            f"these keys cannot be written as Avro: {error}",
            "cast the column, or give another schema: Avro(.., schema=..)",
            where,
        ) from None
    return avro


def is_record_schema(text: str) -> bool:
    """Whether a schema is that of a record. One that cannot be parsed is not; the checks of sinks report it."""
    try:
        return parse_schema(text).kind == "record"
    except AvroSchemaError:
        return False


def _record_name(topic: str) -> str:
    return re.sub(r"[^A-Za-z0-9_]", "_", re.sub(r"^(?=[0-9])", "_", topic))


@lru_cache(maxsize=256)
def as_field(schema: str) -> str:
    """Return the schema of a record whose only field, `key`, has the schema of a key.

    Keys are often primitives. Avro writes a record as its fields, one behind the other, so the bytes are the same.
    """
    field = {"name": "key", "type": json.loads(schema)}
    return json.dumps({"type": "record", "name": "key_of_a_record", "fields": [field]})


def decode_avro_keys(keys: pa.Array, avro: Avro) -> tuple[pa.Array, list[BadRow]]:
    """Return (one value per key, the keys that do not decode), with a schema of any type."""
    batch, bad = decode_avro(keys, avro, ["key"], as_field)
    return batch.column(0), bad


def encode_avro_keys(column: pa.Array, avro: Avro) -> pa.Array:
    """Return a column as Avro of the schema of a sink's keys, as a binary array. Raises as `encode_avro`."""
    assert avro.schema is not None
    batch = pa.RecordBatch.from_arrays([column], names=["key"])
    return avro_writer(as_field(avro.schema)).encode(batch, ["key"], _prefix(avro))


def _same(schema: str) -> str:
    return schema


def decode_avro(
    values: pa.Array, avro: Avro, wanted: Sequence[str], as_record: Callable[[str], str] = _same
) -> tuple[pa.RecordBatch, list[BadRow]]:
    """Decode Avro values into one row per value, in order, and return the values that do not decode.

    Rows of undecodable and of null values are null. Whether a value decodes depends on the schemas alone, never on
    `wanted`.

    Args:
        values: Binary record values.
        avro: The source's format, with its reader's schema.
        wanted: The columns to build.
        as_record: Makes the schema of a record of a schema, the reader's and each writer's.
    """
    assert avro.schema is not None
    schema = as_record(avro.schema)
    data, offsets = bytes_of(values)
    starts, ends = offsets[:-1].astype(np.int64), offsets[1:].astype(np.int64)
    there = values.is_valid().to_numpy(zero_copy_only=False)
    reasons: dict[int, str] = {}
    groups: list[tuple[str, Int64Array]] = []
    if avro.registry is None:
        groups.append((avro.schema, np.flatnonzero(there)))
    else:
        found = rows_by_schema(avro.registry, "AVRO", data, starts, ends, np.flatnonzero(there), reasons)
        groups = [(schema.text, rows) for schema, rows in found]
        starts = starts + HEADER_BYTES
    pieces, order = [], []
    # One compiled run per writer's schema. A topic has few of them at a time; rows return to their places at the end.
    for writer, rows in groups:
        try:
            reader = avro_reader(as_record(writer), schema)
        # The schema of these records cannot be resolved. That makes the records bad and not the source: others may
        # follow that can be read.
        except AvroSchemaError as error:
            reasons |= dict.fromkeys(rows.tolist(), f"its schema cannot be read as the source's: {error}")
            continue
        batch, bad = reader.read(data, starts[rows], ends[rows], wanted)
        reasons |= {int(rows[at]): why for at, why in bad.items()}
        pieces.append(batch)
        order.append(rows)
    if not pieces:  # nothing decodes: the reader's own types, without rows
        nothing = np.zeros(0, np.int64)
        pieces = [avro_reader(schema, schema).read(np.zeros(0, np.uint8), nothing, nothing, wanted)[0]]
        order = [nothing]
    return in_order(pieces, order, len(values)), bad_rows(values, reasons)


def encode_avro(batch: pa.RecordBatch, columns: Sequence[str], avro: Avro) -> pa.Array:
    """Return the rows as Avro values, as a binary array.

    Args:
        batch: The rows.
        columns: Which columns to write.
        avro: The sink's format, with its schema.

    Raises:
        NotOfSchema: for values that the schema has no place for.
        HeadraceError: if the schema cannot be registered.
    """
    assert avro.schema is not None
    return avro_writer(avro.schema).encode(batch, columns, _prefix(avro))


def _prefix(avro: Avro) -> bytes:
    return b"" if avro.registry is None else header_of(registered_id(avro))
