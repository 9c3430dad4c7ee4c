"""Steps that decoders of values with a schema share: headers of a schema registry, the order of rows, bad rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final, Literal, TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from headrace.errors import HeadraceError
from headrace.formats import Avro, JsonSchema, Protobuf, SchemaRegistry
from headrace.spark.formats.json_values import EXCERPT_LENGTH, BadRow
from headrace.spark.formats.schema_registry import (
    RegisteredSchema,
    SchemaKind,
    UnknownSchema,
    latest_schema,
    schema_of_id,
)
from headrace.spark.unsupported import refusal

__all__ = [
    "HEADER_BYTES",
    "NO_HEADER",
    "bad_rows",
    "header_of",
    "in_order",
    "rows_by_schema",
    "schema_ids",
    "schema_of_source",
    "with_subject",
    "without_header",
]

Format = TypeVar("Format", bound=Avro | JsonSchema | Protobuf)

_MAGIC: Final = 0  # the first byte of each value
HEADER_BYTES: Final = 5  # that byte, then the schema's id, high byte first
NO_HEADER: Final = "it does not begin with a zero byte and the id of a schema"


def schema_of_source(
    serde: Avro | JsonSchema | Protobuf, topics: Sequence[str], kind: SchemaKind, where: str
) -> RegisteredSchema:
    """Return the latest schema of the subject, for a source without a schema of its own.

    Raises:
        TopologyError: if it is not known which subject, or its schema is of another kind.
        HeadraceError: if the registry does not have one, or cannot be reached.
    """
    assert serde.registry is not None
    name = type(serde).__name__
    if serde.subject is None and len(topics) > 1:
        raise refusal(
            "schema-missing",
            f"which subject has the schema of {', '.join(topics)}?",
            f'{name}(registry=.., subject="orders-value"), or {name}(registry=.., schema=..)',
            where,
        )
    try:
        return latest_schema(serde.registry, serde.subject or f"{topics[0]}-value", kind)
    except UnknownSchema as error:
        raise refusal("bad-value", str(error), f"{name}(registry=.., subject=..) names another", where) from None
    except HeadraceError as error:
        error.locate(where)
        raise


def header_of(schema_id: int) -> bytes:
    """Return the bytes that values begin with: a zero byte and the schema's id."""
    return bytes([_MAGIC]) + schema_id.to_bytes(HEADER_BYTES - 1, "big")


def without_header(value: bytes) -> tuple[int, bytes]:
    """Return (the id of a value's schema, the bytes behind it). Raises ValueError if it does not begin with one."""
    if len(value) < HEADER_BYTES or value[0] != _MAGIC:
        raise ValueError("no schema id")
    return int.from_bytes(value[1:HEADER_BYTES], "big"), value[HEADER_BYTES:]


def schema_ids(
    data: NDArray[np.uint8],
    starts: NDArray[np.int64],
    ends: NDArray[np.int64],
    rows: NDArray[np.int64],
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Return (rows that begin with a header, the id of each, rows that do not).

    Args:
        data: The bytes of all values.
        starts: Where each value begins.
        ends: Where each value ends.
        rows: Which values to look at.
    """
    framed = ends[rows] - starts[rows] >= HEADER_BYTES
    # Only values that are long enough are looked at: the kernel-like indexing below would read a neighbour's bytes.
    framed[framed] = data[starts[rows[framed]]] == _MAGIC
    found = rows[framed]
    ids = np.zeros(len(found), np.int64)
    for i in range(1, HEADER_BYTES):
        ids = ids << 8 | data[starts[found] + i]
    return found, ids, rows[~framed]


def rows_by_schema(
    registry: SchemaRegistry,
    kind: SchemaKind,
    data: NDArray[np.uint8],
    starts: NDArray[np.int64],
    ends: NDArray[np.int64],
    rows: NDArray[np.int64],
    reasons: dict[int, str],
) -> list[tuple[RegisteredSchema, NDArray[np.int64]]]:
    """Return (writer's schema, rows) for each schema id; `reasons` gets the rows without a usable one.

    Args:
        registry: The registry.
        kind: What kind of schemas is expected.
        data: The bytes of all values.
        starts: Where each value begins.
        ends: Where each value ends.
        rows: Which values to look at.
        reasons: Why values do not decode, by row.

    Raises:
        HeadraceError: if the registry cannot be reached.
    """
    found, ids, others = schema_ids(data, starts, ends, rows)
    reasons |= dict.fromkeys(others.tolist(), NO_HEADER)
    groups = []
    for schema_id in np.unique(ids).tolist():
        chosen = found[ids == schema_id]
        try:
            groups.append((schema_of_id(registry, schema_id, kind), chosen))
        except UnknownSchema as error:
            reasons |= dict.fromkeys(chosen.tolist(), str(error))
    return groups


def with_subject(serde: Format, topic: str, part: Literal["key", "value"] = "value") -> Format:
    """Return a sink's format with the subject of its schema, where it has a registry."""
    if serde.registry is None:
        return serde
    return replace(serde, subject=serde.subject or f"{topic}-{part}")


def in_order(pieces: Sequence[pa.RecordBatch], rows: Sequence[NDArray[np.int64]], count: int) -> pa.RecordBatch:
    """Return `count` rows: those of each piece at their places, null at all others.

    Args:
        pieces: At least one; all with the same columns.
        rows: The places of the rows of each piece.
        count: How many rows to return.
    """
    if len(pieces) == 1 and len(rows[0]) == count:
        return pieces[0]
    filled = np.concatenate(rows)
    place = np.full(count, -1, np.int64)
    place[filled] = np.arange(len(filled))
    # A mask makes nulls of the rows that no piece holds.
    taken = pa.array(place, mask=place < 0)
    table = pa.Table.from_batches(pieces)
    columns = [column.combine_chunks().take(taken) for column in table.columns]
    return pa.RecordBatch.from_arrays(columns, names=table.schema.names)


def bad_rows(values: pa.Array, reasons: Mapping[int, str]) -> list[BadRow]:
    """Return the values that do not decode, with the reason of each and its first bytes in hexadecimal."""
    return [BadRow(row, reasons[row], (values[row].as_py() or b"").hex()[:EXCERPT_LENGTH]) for row in sorted(reasons)]
