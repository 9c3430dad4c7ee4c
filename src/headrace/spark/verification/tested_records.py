"""Records as a `TopologyTest` takes and returns them: rows to bytes by a source's format, bytes to rows by a sink's.

Mappings become JSON as `EmbeddedBroker.produce` makes it; with Avro and Protobuf they are encoded by the schema that
the source reads with. Bytes and text are written as they are, so a test can push what does not decode.
"""

from __future__ import annotations

import base64
import datetime as dt
import decimal
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import pyarrow as pa
from pyspark.sql.types import StructType

from headrace.broker.embedded_values import Key
from headrace.call_sites import call_site
from headrace.errors import TopologyError
from headrace.spark.formats import encode_value_json, value_schema_json
from headrace.spark.formats.arrow_types import arrow_schema
from headrace.spark.formats.record_keys import decode_keys, encode_keys
from headrace.spark.formats.record_values import with_subject
from headrace.spark.formats.scalars import SCALARS, decode_scalars, encode_scalars
from headrace.spark.formats.schemas import struct_of
from headrace.spark.formats.serdes import decode_values, encode_values, serde_columns, sink_serde
from headrace.spark.topology.nodes import TopicSink, TopicSource, TypedKey
from headrace.spark.unsupported import refusal
from headrace.suggestions import nearest

__all__ = ["Row", "Rows", "decode_sink_values", "encode_source_rows", "key_value", "record_keys"]

Row: TypeAlias = Mapping[str, object] | bytes | str | None
Rows: TypeAlias = Iterable[Row] | pa.Table | pa.RecordBatch


def encode_source_rows(rows: Rows, source: TopicSource) -> tuple[list[Any], pa.Array]:
    """Return rows of a test as a list, and the record values that they become.

    Raises:
        TopologyError: unresolved-column, bad-value.
    """
    if isinstance(rows, (pa.Table, pa.RecordBatch)):
        table = pa.Table.from_batches([rows]) if isinstance(rows, pa.RecordBatch) else rows
        _check_names(table.column_names, source)
        given = table.to_pylist()
        if source.typed_key is not None and source.typed_key.column in table.column_names:
            table = table.drop_columns([source.typed_key.column])
        return given, _encoded_columns(table, source)
    if isinstance(rows, (str, bytes, Mapping)):
        raise refusal("bad-value", "push takes a list of rows", "test.push(topic, [row])", call_site())
    given = list(rows)
    return given, _encoded_rows([_without_key(row, source) for row in given], source)


def _without_key(row: Row, source: TopicSource) -> Row:
    key = source.typed_key
    if key is None or not isinstance(row, Mapping):
        return row
    return {name: value for name, value in row.items() if name != key.column}


def _encoded_rows(given: list[Row], source: TopicSource) -> pa.Array:
    # Mappings are encoded together, by the schema; bytes and None between them stay as they are.
    if source.serde is not None and any(isinstance(row, Mapping) for row in given):
        return _encoded_with_schema(given, source)
    return pa.array([_value(row, source) for row in given], pa.binary())


def record_keys(key: Key | Sequence[object], rows: Sequence[Row], source: TopicSource) -> pa.Array:
    """Return the record key of each row, null where it has none.

    Args:
        key: As for `push`.
        rows: The rows.
        source: Of the topic. Its `key` column is the default for rows that are mappings.
    """
    # A declared key column is the key of every record by the user's own promise, so a test need not repeat it.
    chosen: Any = source.key_column if key is None else key
    if source.typed_key is not None:
        return _typed_keys(key, rows, source)
    if not isinstance(chosen, (str, bytes)) and isinstance(chosen, Sequence):
        if len(chosen) != len(rows):
            raise refusal(
                "bad-value",
                f"{len(chosen)} keys are given for {len(rows)} rows",
                "give one key for each row, or the name of a column",
                call_site(),
            )
        return pa.array([_key_bytes(each) for each in chosen], pa.binary())
    return pa.array([_key_of(chosen, row, source, is_given=key is not None) for row in rows], pa.binary())


def _typed_keys(key: Any, rows: Sequence[Row], source: TopicSource) -> pa.Array:
    """Return keys in the format of a source: those of its column in rows that are mappings, or the given ones."""
    typed = source.typed_key
    assert typed is not None
    if key is None or key == typed.column:
        given = [row.get(typed.column) if isinstance(row, Mapping) else None for row in rows]
    elif callable(key):
        given = [key(row) for row in rows]
    else:
        given = list(key) if not isinstance(key, (str, bytes)) and isinstance(key, Sequence) else [key] * len(rows)
    # Bytes are written as they are, so that a test can push keys that do not decode.
    kind = arrow_schema(struct_of(source.schema_json)).field(typed.column).type
    return pa.array(
        [one if isinstance(one, bytes) else _key_bytes_of(one, typed, kind, source) for one in given], pa.binary()
    )


def _key_bytes_of(value: object, typed: TypedKey, kind: pa.DataType, source: TopicSource) -> bytes | None:
    """Return a value in the format of a source's keys."""
    if typed.serde is None:
        return _scalar_bytes(value, typed.format)
    serde = with_subject(typed.serde, source.topics[0], "key")
    try:
        batch = pa.RecordBatch.from_arrays([pa.array([value], kind)], names=[typed.column])
        [found] = encode_keys(batch, replace(typed, serde=serde)).to_pylist()
    except (ValueError, pa.ArrowException) as error:
        message = f"{value!r} is no key of {source.name}: {error}"
        raise refusal("bad-value", message, "push its bytes", call_site()) from None
    return None if found is None else bytes(found)


def _scalar_bytes(value: object, name: str) -> bytes | None:
    """Return a value in a format of single values."""
    try:
        column = pa.array([value], arrow_schema(StructType().add("value", SCALARS[name].spark)).types[0])
        [found] = encode_scalars(column, name, "the value").to_pylist()
    except (ValueError, pa.ArrowException) as error:
        message = f"{value!r} is not {SCALARS[name].noun}: {error}"
        raise refusal("bad-value", message, "push its bytes", call_site()) from None
    return None if found is None else bytes(found)


def decode_sink_values(values: Sequence[bytes | None], sink: TopicSink) -> list[Any]:
    """Return record values as rows: a dict for JSON, Avro and Protobuf, text, or bytes. None is a tombstone."""
    if sink.serde is not None:
        # Tombstones are no values of any format. They return to their places afterwards.
        there = [value for value in values if value is not None]
        names = serde_columns(sink.serde).names
        batch, bad = decode_values(pa.array(there, pa.binary()), sink.serde, names)
        if bad:
            raise AssertionError(f"{sink.topic} holds a record that its own format does not read: {bad[0].reason}")
        decoded = iter(batch.to_pylist())
        return [None if value is None else next(decoded) for value in values]
    if sink.value_format in SCALARS:
        return _decoded_scalars(values, sink.value_format, sink.topic)
    readers: dict[str, Callable[[bytes], Any]] = {"json": json.loads}
    read = readers.get(sink.value_format, bytes)
    return [None if value is None else read(value) for value in values]


def _decoded_scalars(values: Sequence[bytes | None], name: str, topic: str) -> list[Any]:
    column, bad = decode_scalars(pa.array(values, pa.binary()), name)
    if bad:
        raise AssertionError(f"{topic} holds a record that its own format does not read: {bad[0].reason}")
    found: list[Any] = column.to_pylist()
    return found


def _decoded_key(key: bytes | None, typed: TypedKey, topic: str) -> Any:
    column, bad = decode_keys(pa.array([key], pa.binary()), typed)
    if bad:
        raise AssertionError(f"{topic} holds a key that its own format does not read: {bad[0].reason}")
    [found] = column.to_pylist()
    # As the grouping values of a state: a record of several fields cannot be the key of a dictionary.
    return tuple(found.values()) if isinstance(found, dict) else found


def key_value(key: bytes | None, sink: TopicSink) -> Any:
    """Return a record key: a value of the sink's format for keys; without one text, or bytes where it is no UTF-8."""
    if sink.typed_key is not None:
        return _decoded_key(key, sink.typed_key, sink.topic)
    try:
        return None if key is None else key.decode()
    except UnicodeDecodeError:
        return key


def _key_of(chosen: Any, row: Row, source: TopicSource, *, is_given: bool) -> bytes | None:
    # A declared key column says nothing about rows that are bytes or text: those have the key that is given, or none.
    if chosen is None or not (callable(chosen) or isinstance(row, Mapping) or is_given):
        return None
    if callable(chosen):
        return _key_bytes(chosen(row))
    if isinstance(row, Mapping) and isinstance(chosen, str):
        if chosen not in row:
            raise refusal(
                "unresolved-column",
                f'key="{chosen}" is no column of the row {row!r}',
                f"name a column, or give the keys themselves: key=[..]; columns of {source.name}: {_names(source)}",
                call_site(),
            )
        return _key_bytes(row[chosen])
    return _key_bytes(chosen)


def _key_bytes(key: object) -> bytes | None:
    return key if key is None or isinstance(key, bytes) else str(key).encode()


def _value(row: object, source: TopicSource) -> bytes | None:
    if row is None or isinstance(row, bytes):
        return row
    if isinstance(row, str):
        return row.encode()
    if isinstance(row, Mapping) and source.value_format == "json":
        _check_names(row, source)
        try:
            return json.dumps(row, separators=(",", ":"), default=_json_value).encode()
        except TypeError as error:
            raise refusal("bad-value", f"the row {row!r} is no JSON: {error}", "push its bytes", call_site()) from None
    if isinstance(row, Mapping) and source.value_format in SCALARS and set(row) <= {"value"}:
        return _scalar_bytes(row.get("value"), source.value_format)
    expected = "mappings, text, bytes or None" if source.value_format == "json" else "text, bytes or None"
    raise refusal(
        "bad-value",
        f"{source.name} reads {source.value_format} values, and a row is a {type(row).__name__}",
        f"push {expected}",
        call_site(),
    )


def _json_value(value: object) -> object:
    """Return what Spark's `from_json` reads as this value."""
    if isinstance(value, (dt.datetime, dt.date)):
        return value.isoformat()
    if isinstance(value, decimal.Decimal):
        return f"{value:f}"
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    raise TypeError(f"{type(value).__name__} has no JSON form")


def _encoded_columns(table: pa.Table, source: TopicSource) -> pa.Array:
    batch = _one_batch(table)
    if source.value_format == "json":
        return encode_value_json(batch, table.column_names)
    if source.serde is not None:
        return _encode_serde(batch, source)
    if table.column_names != ["value"]:
        raise refusal(
            "bad-value",
            f"{source.name} reads {source.value_format} values, which have the one column value",
            'pa.table({"value": [..]})',
            call_site(),
        )
    if source.value_format in SCALARS:
        return encode_scalars(batch.column(0), source.value_format, "value")
    return batch.column(0).cast(pa.binary())


def _encoded_with_schema(rows: Sequence[object], source: TopicSource) -> pa.Array:
    """Return values of rows that are mappings by the source's schema, others as they are."""
    schema = arrow_schema(struct_of(value_schema_json(source)))
    mappings = [row for row in rows if isinstance(row, Mapping)]
    for row in mappings:
        _check_names(row, source)
    try:
        table = pa.Table.from_pylist(mappings, schema)
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        raise refusal(
            "bad-value",
            f"a row does not fit the schema of {source.name}: {error}",
            f"columns: {_names(source)}",
            call_site(),
        ) from None
    encoded = iter(_encode_serde(_one_batch(table), source).to_pylist())
    return pa.array([next(encoded) if isinstance(row, Mapping) else _value(row, source) for row in rows], pa.binary())


def _encode_serde(batch: pa.RecordBatch, source: TopicSource) -> pa.Array:
    assert source.serde is not None
    columns = struct_of(value_schema_json(source))
    # The source's schema, used for writing: fields are checked as for a sink.
    serde = sink_serde(source.serde, source.topics[0], columns, source.where)
    try:
        return encode_values(batch, columns.names, serde)
    except ValueError as error:
        raise refusal(
            "bad-value", f"a row does not encode: {error}", f"columns: {_names(source)}", call_site()
        ) from None


def _one_batch(table: pa.Table) -> pa.RecordBatch:
    batches = table.combine_chunks().to_batches()
    return batches[0] if batches else pa.RecordBatch.from_pylist([], schema=table.schema)


def _check_names(names: Iterable[object], source: TopicSource) -> None:
    """Refuse a column that the source does not have: in a test it is a mistake, though JSON may have any fields."""
    if source.value_format == "raw" or source.value_format in SCALARS:
        return
    known = struct_of(source.schema_json).names
    for name in names:
        if name not in known:
            raise _unknown_column(str(name), known, source)


def _unknown_column(name: str, known: Sequence[str], source: TopicSource) -> TopologyError:
    near = nearest(name, known)
    hint = f'; did you mean "{near}"?' if near else ""
    return refusal(
        "unresolved-column",
        f'{source.name} has no column "{name}"{hint}',
        f"columns: {', '.join(known)}; a record with other fields: push its bytes",
        call_site(),
        column=name,
        suggestion=near,
    )


def _names(source: TopicSource) -> str:
    return ", ".join(struct_of(source.schema_json).names)
