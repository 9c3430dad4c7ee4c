"""Protobuf values of records, with or without a schema registry: their wire format, and the checks of declarations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyspark.sql.types import StructType

from headrace.formats import Protobuf
from headrace.protocol.record_batches import write_varint
from headrace.spark.formats import protobuf_kernels as kernels
from headrace.spark.formats.arrow_buffers import bytes_of
from headrace.spark.formats.json_values import BadRow
from headrace.spark.formats.protobuf_decoding import protobuf_reader
from headrace.spark.formats.protobuf_encoding import check_message_writable, encode_messages
from headrace.spark.formats.protobuf_schema import (
    ProtobufMessage,
    ProtobufSchemaError,
    index_path,
    message_at,
    message_of,
    proto_of,
    spark_columns,
)
from headrace.spark.formats.record_values import (
    HEADER_BYTES,
    bad_rows,
    header_of,
    in_order,
    schema_ids,
    schema_of_source,
    with_subject,
)
from headrace.spark.formats.schema_registry import UnknownSchema, registered_id, schema_of_id
from headrace.spark.unsupported import refusal

__all__ = [
    "decode_protobuf",
    "encode_protobuf",
    "protobuf_columns",
    "sink_protobuf",
    "source_protobuf",
    "why_unreadable",
]

_DEEPEST_MESSAGE: Final = 8  # within other messages of its file
_FIX: Final = "give a schema without that field, Protobuf(.., schema=..), or read the bytes with value='raw'"
# As what else a value of each kind may be read, without another meaning.
_WIDER: Final = {
    "int32": ("int64",),
    "uint32": ("int64", "uint64"),
    "sint32": ("sint64",),
    "enum": ("int32", "int64"),
    "string": ("bytes",),
    "bytes": ("string",),
}


def source_protobuf(protobuf: Protobuf, topics: Sequence[str], where: str) -> tuple[Protobuf, StructType]:
    """Return (the format with its schema, the columns) of a source.

    Raises:
        TopologyError: for a schema whose message has no columns of Spark's types.
        HeadraceError: if the registry does not have one, or cannot be reached.
    """
    if protobuf.schema is None:
        found = schema_of_source(protobuf, topics, "PROTOBUF", where)
        protobuf = replace(protobuf, schema=found.text, imports=dict(found.imports))
    try:
        columns = protobuf_columns(protobuf)
        if not columns.fields:
            raise ProtobufSchemaError("the message has no fields")
    except ProtobufSchemaError as error:
        raise refusal("bad-value", f"the Protobuf schema cannot be read as columns: {error}", _FIX, where) from None
    return protobuf, columns


def sink_protobuf(protobuf: Protobuf, topic: str, columns: StructType, where: str) -> Protobuf:
    """Return the format with its subject for a sink of these columns.

    Raises:
        TopologyError: without a schema, and for columns that it, or Protobuf, has no place for.
    """
    try:
        if protobuf.schema is None:
            raise refusal(
                "schema-missing",
                "a Protobuf sink needs a schema: fields are known by numbers, which must stay when columns change",
                f'Protobuf(.., schema="""{proto_of(columns, "Value")}""")',
                where,
            )
        if protobuf.registry is not None and protobuf.imports:
            raise ProtobufSchemaError("schemas with imports= are not registered by sinks; write one file")
        check_message_writable(_message(protobuf), columns)
    except ProtobufSchemaError as error:
        raise refusal(
            "bad-value",
            f"these rows cannot be written as Protobuf: {error}",
            "rename or cast the column, select fewer columns, or give another schema: Protobuf(.., schema=..)",
            where,
        ) from None
    return with_subject(protobuf, topic)


def protobuf_columns(protobuf: Protobuf) -> StructType:
    """Return the Spark columns of a format's own schema."""
    return spark_columns(_message(protobuf))


def _message(protobuf: Protobuf) -> ProtobufMessage:
    return message_of(*_schema(protobuf))


def _schema(protobuf: Protobuf) -> tuple[str, tuple[tuple[str, str], ...], str | None]:
    assert protobuf.schema is not None
    return protobuf.schema, protobuf.import_files, protobuf.message


def decode_protobuf(values: pa.Array, protobuf: Protobuf, wanted: Sequence[str]) -> tuple[pa.RecordBatch, list[BadRow]]:
    """Decode Protobuf values into one row per value, in order, and return the values that do not decode.

    Rows of undecodable and of null values are null. Whether a value decodes depends on the schemas alone, never on
    `wanted`.

    Args:
        values: Binary record values.
        protobuf: The source's format, with its schema.
        wanted: The columns to build.
    """
    data, offsets = bytes_of(values)
    starts, ends = offsets[:-1].astype(np.int64), offsets[1:].astype(np.int64)
    kept = values.is_valid().to_numpy(zero_copy_only=False).copy()
    reasons: dict[int, str] = {}
    if protobuf.registry is not None:
        starts = _behind_headers(protobuf, data, starts, ends, kept, reasons)
    rows = np.flatnonzero(kept)
    batch, bad = protobuf_reader(*_schema(protobuf)).read(data, starts[rows], ends[rows], wanted)
    reasons |= {int(rows[at]): why for at, why in bad.items()}
    return in_order([batch], [rows], len(values)), bad_rows(values, reasons)


def _behind_headers(
    protobuf: Protobuf,
    data: NDArray[np.uint8],
    starts: NDArray[np.int64],
    ends: NDArray[np.int64],
    kept: NDArray[np.bool_],
    reasons: dict[int, str],
) -> NDArray[np.int64]:
    """Return where the messages begin. Rows without a readable schema leave `kept` and get a reason."""

    def refuse(rows: NDArray[np.int64], why: str) -> None:
        kept[rows] = False
        reasons.update(dict.fromkeys(rows.tolist(), why))

    rows, ids, others = schema_ids(data, starts, ends, np.flatnonzero(kept))
    refuse(others, "it does not begin with a zero byte, the id of a schema and the place of a message")
    paths, behind = np.zeros((len(rows), _DEEPEST_MESSAGE + 1), np.int64), np.zeros(len(rows), np.int64)
    kernels.read_message_indexes(data, starts[rows] + HEADER_BYTES, ends[rows], paths, behind)
    refuse(rows[behind < 0], "the place of its message in the schema cannot be read")
    found = starts.copy()
    found[rows] = behind
    # Rows are grouped by schema and message, so that compatibility is checked once per writer's schema and not per
    # record.
    groups, members = np.unique(np.column_stack([ids, paths]), axis=0, return_inverse=True)
    for number, (schema_id, depth, *path) in enumerate(groups.tolist()):
        chosen = rows[(members.ravel() == number) & (behind >= 0)]
        why = why_unreadable(protobuf, schema_id, tuple(path[:depth])) if len(chosen) else None
        if why is not None:
            refuse(chosen, why)
    return found


def why_unreadable(protobuf: Protobuf, schema_id: int, path: tuple[int, ...]) -> str | None:
    """Return why messages of a writer's schema cannot be read with the source's, or None.

    Args:
        protobuf: The source's format.
        schema_id: The writer's schema.
        path: The place of the message in it.

    Raises:
        HeadraceError: if the registry cannot be reached.
    """
    assert protobuf.registry is not None
    try:
        writer = schema_of_id(protobuf.registry, schema_id, "PROTOBUF")
    except UnknownSchema as error:
        return str(error)
    return _difference(writer.text, writer.imports, path, *_schema(protobuf))


@lru_cache(maxsize=4096)
def _difference(text: str, imports: tuple[tuple[str, str], ...], path: tuple[int, ...], *schema: Any) -> str | None:
    try:
        written = message_at(text, imports, path)
        read = message_of(*schema)
        # Packages may differ between writer and reader; the message's own name must not, or another message would be
        # read by accident.
        if written.name.rpartition(".")[2] != read.name.rpartition(".")[2]:
            raise ProtobufSchemaError(f"it is a message {written.name}, and the source reads {read.name}")
        _check_readable(written, read, "")
    except ProtobufSchemaError as error:
        return f"its schema cannot be read as the source's: {error}"
    return None


def _check_readable(writer: ProtobufMessage, reader: ProtobufMessage, path: str) -> None:
    """Check that fields with the same number have types of which the reader's holds every value of the writer's."""
    wanted = {field.number: field for field in reader.fields}
    for field in writer.fields:
        read = wanted.get(field.number)
        if read is None:
            continue
        where = f"{path}.{read.name}".lstrip(".")
        # Fields are identified by number. A number that was reused for another type would be read as nonsense without
        # an error.
        same = field.kind == read.kind or read.kind in _WIDER.get(field.kind, ())
        if not same or field.is_map != read.is_map or (field.repeated and not read.repeated):
            raise ProtobufSchemaError(f"{where}: {field.declared} cannot be read as {read.declared}")
        if field.message is not None and read.message is not None:
            _check_readable(field.message, read.message, where)


def encode_protobuf(batch: pa.RecordBatch, columns: Sequence[str], protobuf: Protobuf) -> pa.Array:
    """Return the rows as Protobuf values, as a binary array.

    Args:
        batch: The rows.
        columns: Which columns to write.
        protobuf: The sink's format, with its schema.

    Raises:
        NotOfSchema: for values that the schema has no place for.
        HeadraceError: if the schema cannot be registered.
    """
    schema = _schema(protobuf)
    prefix = b""
    if protobuf.registry is not None:
        prefix = header_of(registered_id(protobuf)) + _message_indexes(index_path(*schema))
    return encode_messages(batch, columns, message_of(*schema), prefix)


def _message_indexes(path: tuple[int, ...]) -> bytes:
    """Return the place of a message as records carry it: zigzag varints, and one zero byte for the first message."""
    if path == (0,):
        return b"\0"
    found = bytearray()
    for number in (len(path), *path):
        write_varint(found, number)
    return bytes(found)
