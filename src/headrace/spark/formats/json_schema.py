"""JSON values that belong to a JSON Schema, with or without a schema registry: wire format, checks of declarations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import StructType

from headrace.formats import JsonSchema
from headrace.spark.formats.arrow_buffers import bytes_of
from headrace.spark.formats.json_decoding import decode_json
from headrace.spark.formats.json_encoding import encode_json
from headrace.spark.formats.json_schema_types import (
    JsonSchemaError,
    JsonType,
    check_writable,
    json_schema_of,
    parse_json_schema,
)
from headrace.spark.formats.json_values import BadRow
from headrace.spark.formats.record_values import (
    HEADER_BYTES,
    NO_HEADER,
    bad_rows,
    header_of,
    in_order,
    rows_by_schema,
    schema_of_source,
    with_subject,
    without_header,
)
from headrace.spark.formats.schema_registry import UnknownSchema, registered_id, schema_of_id
from headrace.spark.formats.value_parts import NotOfSchema
from headrace.spark.unsupported import refusal

__all__ = [
    "decode_json_schema",
    "encode_json_schema",
    "json_schema_columns",
    "sink_json_schema",
    "source_json_schema",
    "why_no_text",
]


def source_json_schema(serde: JsonSchema, topics: Sequence[str], where: str) -> tuple[JsonSchema, StructType]:
    """Return (the format with the schema that gives the columns, the columns) of a source.

    Raises:
        TopologyError: for a schema that does not describe columns.
        HeadraceError: if the registry does not have one, or cannot be reached.
    """
    text = serde.schema
    if text is None:
        text = schema_of_source(serde, topics, "JSON", where).text
    serde = replace(serde, schema=text)
    try:
        return serde, json_schema_columns(serde)
    except JsonSchemaError as error:
        raise refusal(
            "bad-value",
            f"the JSON Schema cannot be read as columns: {error}",
            "give a schema without that part, JsonSchema(.., schema=..), or read the bytes with value='raw'",
            where,
        ) from None


def sink_json_schema(serde: JsonSchema, topic: str, columns: StructType, where: str) -> JsonSchema:
    """Return the format with its schema and subject for a sink of these columns.

    Raises:
        TopologyError: for columns that the schema has no place for, and keywords that would not be checked.
    """
    try:
        text = serde.schema
        if text is None:
            text = json_schema_of(columns, topic)
        else:
            check_writable(parse_json_schema(text), columns)
    except JsonSchemaError as error:
        raise refusal(
            "bad-value",
            f"these rows cannot be written with the JSON Schema: {error}",
            "rename or cast the column, select fewer columns, or give another schema: JsonSchema(.., schema=..)",
            where,
        ) from None
    return with_subject(replace(serde, schema=text), topic)


def json_schema_columns(serde: JsonSchema) -> StructType:
    """Return the Spark columns of a format's own schema. Raises JsonSchemaError."""
    assert serde.schema is not None
    columns = parse_json_schema(serde.schema).spark
    assert isinstance(columns, StructType)
    return columns


# -- values to rows ----------------------------------------------------------------------------------------------------


def decode_json_schema(
    values: pa.Array, serde: JsonSchema, wanted: Sequence[str], zone_name: str
) -> tuple[pa.RecordBatch, list[BadRow]]:
    """Decode values into one row per value, in order, and return the values that do not decode.

    Rows of undecodable and of null values are null. Properties are found by name, so a writer's schema decides nothing;
    it must be one of the registry, and a JSON Schema.

    Args:
        values: Binary record values.
        serde: The source's format, with its schema.
        wanted: The columns to build.
        zone_name: Time zone of timestamps without one.
    """
    columns = json_schema_columns(serde).json()
    if serde.registry is None:
        return decode_json(values, columns, zone_name, wanted)
    data, offsets = bytes_of(values)
    starts, ends = offsets[:-1].astype(np.int64), offsets[1:].astype(np.int64)
    there = np.flatnonzero(values.is_valid().to_numpy(zero_copy_only=False))
    reasons: dict[int, str] = {}
    groups = rows_by_schema(serde.registry, "JSON", data, starts, ends, there, reasons)
    # Readable values are decoded together, in their order: properties have names.
    rows = np.sort(np.concatenate([there[:0], *(rows for _, rows in groups)]))
    texts = pc.binary_slice(values.take(pa.array(rows)), HEADER_BYTES)
    batch, bad = decode_json(texts, columns, zone_name, wanted)
    reasons |= {int(rows[one.index]): one.reason for one in bad}
    if not wanted:
        return batch, bad_rows(values, reasons)
    return in_order([batch], [rows], len(values)), bad_rows(values, reasons)


def why_no_text(value: bytes, serde: JsonSchema) -> str | None:
    """Return why a value has no JSON text behind a header of the registry; None if it has. For `verify`."""
    assert serde.registry is not None
    try:
        schema_of_id(serde.registry, without_header(bytes(value))[0], "JSON")
    except UnknownSchema as error:
        return str(error)
    except ValueError:
        return NO_HEADER
    return None


# -- rows to values ----------------------------------------------------------------------------------------------------


def encode_json_schema(batch: pa.RecordBatch, columns: Sequence[str], serde: JsonSchema) -> pa.Array:
    """Return the rows as values, as a binary array.

    Args:
        batch: The rows.
        columns: Which columns to write.
        serde: The sink's format, with its schema.

    Raises:
        NotOfSchema: for a null that the schema does not allow, and a number that JSON does not have.
        HeadraceError: if the schema cannot be registered.
    """
    assert serde.schema is not None
    properties = dict(parse_json_schema(serde.schema).properties)
    for name in columns:
        _check_values(batch.column(name), properties[name])
    texts = encode_json(batch, columns)
    if serde.registry is None:
        return texts
    header = pa.scalar(header_of(registered_id(serde)), pa.binary())
    return pc.binary_join_element_wise(header, texts.cast(pa.binary()), b"")


def _check_values(column: pa.Array, schema: JsonType) -> None:
    if column.null_count and not schema.allows_null:
        raise NotOfSchema(f"{schema.path} is null, and its JSON Schema allows none")
    kind = column.type
    if pa.types.is_floating(kind) and not pc.all(pc.is_finite(column), min_count=0).as_py():
        raise NotOfSchema(f"{schema.path} is NaN or infinite; JSON has only finite numbers")
    if pa.types.is_struct(kind):
        properties = dict(schema.properties)
        there = column.filter(column.is_valid()) if column.null_count else column
        for position, field in enumerate(kind):
            _check_values(pc.struct_field(there, [position]), properties[field.name])
    elif pa.types.is_map(kind):
        assert schema.element is not None
        there = column.filter(column.is_valid()) if column.null_count else column
        _check_values(_map_items(there), schema.element)
    elif pa.types.is_list(kind) or pa.types.is_large_list(kind):
        assert schema.element is not None
        _check_values(column.flatten(), schema.element)


def _map_items(column: pa.Array) -> pa.Array:
    start, end = column.offsets[0].as_py(), column.offsets[-1].as_py()  # of a slice: `items` has those of the whole
    return column.items.slice(start, end - start)
