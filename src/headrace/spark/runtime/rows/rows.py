"""Rows as bytes: what repartition topics, changelog topics and stores hold. Vectorised in both directions.

One row is

    version (1 byte) · fingerprint of the schema (4 bytes; format 2) · null bitmap (one bit per column, first column =
    lowest bit) · fixed-width columns, little endian, zero where null · one u32 length per variable-width column, zero
    where null · their bytes

A reader needs the column types; they are part of the topology. The fingerprint stands for all that the bytes depend on
(`row_schema`): a row of another schema is refused, never misread. Keys have none, and format 1. Types are Spark's
as they arrive in Arrow: boolean, tinyint … bigint, float, double, decimal(≤ 38), date, timestamp, timestamp_ntz,
string, binary. The version byte lets a later release read what an earlier one wrote.

Keys are stable for ever, because murmur2 over them decides the partition: one string column is its plain UTF-8 bytes
(`FF`, which no UTF-8 text begins with, stands for null), anything else is a row as above.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from headrace.errors import StateError
from headrace.spark.runtime.rows.row_kernels import copy_spans, find_prefix
from headrace.spark.runtime.stores.byte_spans import Bytes, Positions, array_of_spans, null_bitmap, spans_of

__all__ = [
    "ENTRY_PREFIX",
    "NULL_TEXT_KEY",
    "ROW_FORMAT",
    "ROW_VERSION",
    "SCHEMA_KEY",
    "decode_key",
    "decode_rows",
    "empty_row",
    "encode_key",
    "encode_rows",
    "fixed_width",
    "foreign_rows",
    "is_supported",
]

ROW_VERSION = 1  # of rows without a fingerprint: keys
ROW_FORMAT = 2  # of rows with one
NULL_TEXT_KEY = b"\xff"
# A record key that is no group's: no UTF-8 text contains FF, null is FF alone, and other keys begin with their version.
SCHEMA_KEY = b"\xff\x00headrace.schema\x00"
# Keys of entries that belong to a group beside its row (`distinct_values`); no group's for the same reason. They are
# behind all keys of groups in byte order.
ENTRY_PREFIX = b"\xff\x01"


def fixed_width(column_type: pa.DataType) -> int | None:
    """Return the bytes that a value of this type takes in a row; None for types of variable width."""
    if pa.types.is_boolean(column_type):
        return 1
    if _is_variable(column_type):
        return None
    if not is_supported(column_type):
        raise StateError("state-schema-changed", f"a row cannot hold a column of type {column_type}")
    return int(column_type.bit_width // 8)


def _is_variable(column_type: pa.DataType) -> bool:
    kinds = pa.types
    return bool(
        kinds.is_string(column_type)
        or kinds.is_binary(column_type)
        or kinds.is_large_string(column_type)
        or kinds.is_large_binary(column_type)
    )


def is_supported(column_type: pa.DataType) -> bool:
    """Whether a row can hold a column of this Arrow type."""
    kinds = pa.types
    return bool(
        _is_variable(column_type)
        or kinds.is_boolean(column_type)
        or kinds.is_signed_integer(column_type)
        or kinds.is_floating(column_type)
        or kinds.is_decimal128(column_type)
        or kinds.is_date32(column_type)
        or kinds.is_timestamp(column_type)
    )


def encode_rows(columns: Sequence[pa.Array], fingerprint: bytes = b"") -> pa.Array:
    """One binary value per row. All columns have one length; `pa.large_*` strings become plain ones.

    `fingerprint`: of the rows' schema; empty for keys.
    """
    arrays = [_plain(column) for column in columns]
    count = len(arrays[0]) if arrays else 0
    types = [array.type for array in arrays]
    start = _start(fingerprint)
    bitmap_at, fixed_at, lengths_at, head_size = _layout(types, len(start))
    # 1. The head: version, fingerprint, null bitmap, fixed-width values and lengths have the same place in every row,
    #    so they form a matrix that is filled column by column.
    head = np.zeros((count, head_size), np.uint8)
    if count:
        head[:, : len(start)] = start
    spans: list[tuple[Bytes, Positions, Positions]] = []
    variable = 0
    for index, array in enumerate(arrays):
        valid = _validity(array)
        head[:, bitmap_at + index // 8] |= (~valid).astype(np.uint8) << np.uint8(index % 8)
        width = fixed_width(array.type)
        if width is not None:
            at = fixed_at[index]
            # Zero where null: Arrow leaves arbitrary bytes there, and equal rows need equal bytes.
            head[:, at : at + width] = np.where(valid[:, None], _fixed_bytes(array, width), np.uint8(0))
            continue
        # 2. Values of variable width are only located here; their lengths go into the head.
        data, starts, lengths = spans_of(array)
        lengths = np.where(valid, lengths, 0)
        at = lengths_at + 4 * variable
        head[:, at : at + 4] = lengths.astype("<u4").view(np.uint8).reshape(count, 4)
        spans.append((data, starts, lengths))
        variable += 1
    return _assemble(head, spans)


def _assemble(head: Bytes, spans: list[tuple[Bytes, Positions, Positions]]) -> pa.Array:
    count, head_size = head.shape
    sizes = np.full(count, head_size, np.int64)
    for _data, _starts, lengths in spans:
        sizes += lengths
    ends = np.cumsum(sizes)
    total = int(ends[-1]) if count else 0
    if total > 2**31 - 1:
        raise StateError("row-batch-too-large", f"{count} rows of {total} bytes do not fit one Arrow array")
    offsets = np.zeros(count + 1, np.int32)
    offsets[1:] = ends
    # 3. Without such values the matrix is the result.
    if not spans:
        body = np.ascontiguousarray(head).reshape(-1)
    else:
        body = np.empty(total, np.uint8)
        row_starts = ends - sizes
        copy_spans(
            body,
            row_starts,
            np.ascontiguousarray(head).reshape(-1),
            np.arange(count, dtype=np.int64) * head_size,
            np.full(count, head_size, np.int64),
        )
        # 4. Otherwise heads and values are copied to their rows, one compiled pass per column. `at` holds for every row
        #    the position behind what is written already.
        at = row_starts + head_size
        for data, starts, lengths in spans:
            copy_spans(body, at, data, starts, lengths)
            at = at + lengths
    return pa.Array.from_buffers(pa.binary(), count, [None, pa.py_buffer(offsets), pa.py_buffer(body)])


def _start(fingerprint: bytes) -> Bytes:
    """The bytes that every row of a schema begins with."""
    return np.frombuffer(bytes([ROW_FORMAT if fingerprint else ROW_VERSION]) + fingerprint, np.uint8)


def empty_row(fingerprint: bytes) -> bytes:
    """Return the row without columns: the value of an entry whose key says all."""
    return bytes(_start(fingerprint))


def foreign_rows(rows: pa.Array, fingerprint: bytes) -> NDArray[np.int64]:
    """Return the mask of rows with another schema or format. A null row (a deletion) is not foreign."""
    start = _start(fingerprint)
    data, starts, sizes = spans_of(rows)
    ours = np.empty(len(rows), np.bool_)
    if find_prefix(data, starts, sizes, start, ours) == len(rows):
        return np.empty(0, np.int64)
    return np.flatnonzero(~ours & _validity(rows))


def decode_rows(rows: pa.Array, types: Sequence[pa.DataType], fingerprint: bytes = b"") -> list[pa.Array]:
    """Return the columns of rows that `encode_rows` has written. No row may be null.

    Raises StateError: `state-schema-changed` for a row of another schema (`facts["row"]` is its index), `state-format`,
    `state-corrupt` for what is no row.
    """
    rows = _plain(rows)
    count = len(rows)
    # 1. The fingerprint decides before a single byte is interpreted. Row lengths alone would not tell two schemas
    #    apart.
    if fingerprint and len(foreign := foreign_rows(rows, fingerprint)):
        row = int(foreign[0])
        seen = rows[row].as_py()
        raise StateError(
            "state-schema-changed",
            f"a stored row begins with {seen[: 1 + len(fingerprint)].hex()}, rows of this program with "
            f"{bytes(_start(fingerprint)).hex()}",
            "Run the version of the program that wrote it.",
            row=row,
            found=seen[1 : 1 + len(fingerprint)].hex(),
        )
    data, starts, sizes = spans_of(rows)
    bitmap_at, fixed_at, lengths_at, head_size = _layout(types, 1 + len(fingerprint))
    # 2. Nothing is read from a row that is shorter than its head: the kernel checks no bounds.
    if count and (int(sizes.min()) < head_size or rows.null_count):
        raise StateError("state-corrupt", f"a stored row is shorter than the {head_size} bytes its columns need")
    # 3. All heads into one matrix, then one column of it after the other; values of variable width follow the head in
    #    the order of the columns.
    head = np.empty((count, head_size), np.uint8)
    copy_spans(
        head.reshape(-1),
        np.arange(count, dtype=np.int64) * head_size,
        data,
        starts,
        np.full(count, head_size, np.int64),
    )
    if count and not fingerprint and not (head[:, 0] == ROW_VERSION).all():
        version = int(head[head[:, 0] != ROW_VERSION, 0][0])
        raise StateError("state-format", f"a stored row has format {version}; this release reads format {ROW_VERSION}")
    columns: list[pa.Array] = []
    variable = 0
    at = starts + head_size
    for index, column_type in enumerate(types):
        null = (head[:, bitmap_at + index // 8] >> np.uint8(index % 8)) & 1 == 1
        width = fixed_width(column_type)
        if width is not None:
            first = fixed_at[index]
            columns.append(_from_fixed(head[:, first : first + width], column_type, null))
            continue
        first = lengths_at + 4 * variable
        lengths = np.ascontiguousarray(head[:, first : first + 4]).view("<u4").reshape(-1).astype(np.int64)
        columns.append(array_of_spans(data, at, lengths, column_type, null))
        at = at + lengths
        variable += 1
    return columns


def encode_key(columns: Sequence[pa.Array]) -> pa.Array:
    """Return the key bytes of each row (see the module's docstring). They are never null, and equal only for equal
    groups.
    """
    if len(columns) == 1 and pa.types.is_string(_plain(columns[0]).type):
        text = _plain(columns[0])
        key = text.cast(pa.binary())
        return key.fill_null(NULL_TEXT_KEY) if text.null_count else key
    return encode_rows([_canonical(column) for column in columns])


def decode_key(keys: pa.Array, types: Sequence[pa.DataType]) -> list[pa.Array]:
    """Return the columns that `encode_key` encoded."""
    if len(types) == 1 and pa.types.is_string(types[0]):
        is_null = pc.equal(keys, pa.scalar(NULL_TEXT_KEY, pa.binary()))
        return [pc.if_else(is_null, pa.scalar(None, pa.binary()), keys).cast(pa.string())]
    return decode_rows(keys, types)


def _canonical(column: pa.Array) -> pa.Array:
    """Equal values have equal bytes: one NaN, one zero."""
    column = _plain(column)
    if not pa.types.is_floating(column.type):
        return column
    values = np.array(column.fill_null(0.0))
    # `values + 0.0` turns -0.0 into 0.0; NaN has many bit patterns, of which one is kept. Spark's GROUP BY treats both
    # the same way (`NormalizeFloatingNumbers`).
    values = np.where(np.isnan(values), np.nan, values + 0.0).astype(values.dtype)
    return pa.array(values, column.type, mask=~_validity(column))


def _layout(types: Sequence[pa.DataType], bitmap_at: int) -> tuple[int, list[int], int, int]:
    """Return the layout of a row: (start of the bitmap, start of each column's fixed bytes, start of the lengths, size
    of all that).
    """
    at = bitmap_at + (len(types) + 7) // 8
    fixed_at: list[int] = []
    variable = 0
    for column_type in types:
        width = fixed_width(column_type)
        fixed_at.append(at)
        if width is None:
            variable += 1
        else:
            at += width
    return bitmap_at, fixed_at, at, at + 4 * variable


def _plain(column: Any) -> pa.Array:
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    if pa.types.is_large_string(column.type):
        return column.cast(pa.string())
    if pa.types.is_large_binary(column.type):
        return column.cast(pa.binary())
    return column


def _validity(array: pa.Array) -> NDArray[np.bool_]:
    if not array.null_count:
        return np.ones(len(array), np.bool_)
    return np.asarray(array.is_valid().to_numpy(zero_copy_only=False), np.bool_)


def _fixed_bytes(array: pa.Array, width: int) -> Bytes:
    count = len(array)
    if pa.types.is_boolean(array.type):
        return (
            np.asarray(array.fill_null(pa.scalar(False)).to_numpy(zero_copy_only=False))
            .astype(np.uint8)
            .reshape(count, 1)
        )
    body = array.buffers()[1]
    if body is None:
        return np.zeros((count, width), np.uint8)
    return np.frombuffer(body, np.uint8, count * width, array.offset * width).reshape(count, width)


def _from_fixed(values: Bytes, column_type: pa.DataType, null: NDArray[np.bool_]) -> pa.Array:
    body = np.array(values, order="C")  # a copy even of one row: Arrow wants aligned buffers
    if pa.types.is_boolean(column_type):
        body = np.packbits(body.reshape(-1), bitorder="little")
    buffers = [null_bitmap(null), pa.py_buffer(body)]
    return pa.Array.from_buffers(column_type, len(null), buffers)
