"""Avro values of records, with or without a schema registry: their wire format, and the checks of declarations."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql.types import StructType

from headrace.array_types import BoolArray, ByteArray, Int64Array
from headrace.formats import Avro
from headrace.spark.formats.arrow_buffers import bytes_of
from headrace.spark.formats.avro_decoding import avro_reader
from headrace.spark.formats.avro_encoding import avro_writer, check_record_writable
from headrace.spark.formats.avro_schema import AvroSchemaError, avro_of, parse_schema, spark_type
from headrace.spark.formats.json_values import BadRow
from headrace.spark.formats.record_values import (
    HEADER_BYTES,
    bad_rows,
    header_of,
    in_order,
    schema_ids,
    schema_of_source,
)
from headrace.spark.formats.schema_registry import UnknownSchema, registered_id, schema_of_id
from headrace.spark.unsupported import refusal

__all__ = ["avro_columns", "decode_avro", "encode_avro", "sink_avro", "source_avro"]


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
            text = avro_of(columns, re.sub(r"[^A-Za-z0-9_]", "_", re.sub(r"^(?=[0-9])", "_", topic)))
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
    if avro.registry is None:
        return replace(avro, schema=text)
    return replace(avro, schema=text, subject=avro.subject or f"{topic}-value")


def avro_columns(avro: Avro) -> StructType:
    """Return the Spark columns of a format's own schema."""
    assert avro.schema is not None
    columns: Any = spark_type(parse_schema(avro.schema))
    return columns


def decode_avro(values: pa.Array, avro: Avro, wanted: Sequence[str]) -> tuple[pa.RecordBatch, list[BadRow]]:
    """Decode Avro values into one row per value, in order, and return the values that do not decode.

    Rows of undecodable and of null values are null. Whether a value decodes depends on the schemas alone, never on
    `wanted`.

    Args:
        values: Binary record values.
        avro: The source's format, with its reader's schema.
        wanted: The columns to build.
    """
    assert avro.schema is not None
    data, offsets = bytes_of(values)
    starts, ends = offsets[:-1].astype(np.int64), offsets[1:].astype(np.int64)
    there = values.is_valid().to_numpy(zero_copy_only=False)
    reasons: dict[int, str] = {}
    groups: list[tuple[str, Int64Array]] = []
    if avro.registry is None:
        groups.append((avro.schema, np.flatnonzero(there)))
    else:
        groups = _by_writer(avro, data, starts, ends, there, reasons)
        starts = starts + HEADER_BYTES
    pieces, order = [], []
    # One compiled run per writer's schema. A topic has few of them at a time; rows return to their places at the end.
    for writer, rows in groups:
        try:
            reader = avro_reader(writer, avro.schema)
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
        pieces = [avro_reader(avro.schema, avro.schema).read(np.zeros(0, np.uint8), nothing, nothing, wanted)[0]]
        order = [nothing]
    return in_order(pieces, order, len(values)), bad_rows(values, reasons)


def _by_writer(
    avro: Avro, data: ByteArray, starts: Int64Array, ends: Int64Array, there: BoolArray, reasons: dict[int, str]
) -> list[tuple[str, Int64Array]]:
    """Return (writer's schema, rows) for each schema id; `reasons` gets the rows without a usable one."""
    assert avro.registry is not None
    rows, ids, others = schema_ids(data, starts, ends, np.flatnonzero(there))
    reasons |= dict.fromkeys(others.tolist(), "it does not begin with a zero byte and the id of a schema")
    groups = []
    for schema_id in np.unique(ids).tolist():
        chosen = rows[ids == schema_id]
        try:
            groups.append((schema_of_id(avro.registry, schema_id).text, chosen))
        except UnknownSchema as error:
            reasons |= dict.fromkeys(chosen.tolist(), str(error))
    return groups


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
    prefix = b"" if avro.registry is None else header_of(registered_id(avro))
    return avro_writer(avro.schema).encode(batch, columns, prefix)
