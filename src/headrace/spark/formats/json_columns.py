"""Columns out of JSON records by the compiled pass of `json_kernels`, as Arrow; rows it is not sure of are named.

Only what is asked for becomes a column, though every field of the schema is checked. Strings are copied once, numbers
are written where Arrow wants them; no Python object per record.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyspark.sql.types import (
    BooleanType,
    DataType,
    DateType,
    DoubleType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
    StructType,
    TimestampType,
)

from headrace.protocol.arrow_decoding_kernels import copy_slices
from headrace.spark.formats import json_kernels as kernels
from headrace.spark.formats.arrow_types import arrow_type
from headrace.spark.formats.json_encoding import encode_json, read_only

__all__ = ["JsonColumns", "warm_up"]

_KINDS: Mapping[type[DataType], int] = {
    StringType: kernels.TEXT,
    LongType: kernels.INTEGER,
    IntegerType: kernels.INTEGER,
    ShortType: kernels.INTEGER,
    DoubleType: kernels.DOUBLE,
    BooleanType: kernels.BOOLEAN,
    DateType: kernels.DATE,
    TimestampType: kernels.INSTANT,
}
_LIMITS: Mapping[type[DataType], int] = {LongType: (1 << 63) - 1, IntegerType: 1 << 31, ShortType: 1 << 15}


class JsonColumns:
    """Reads records of one flat schema. `can_read` says whether a schema is flat."""

    def __init__(self, schema: StructType, zone_name: str) -> None:
        self._types = [arrow_type(field.dataType) for field in schema.fields]
        self._index = {field.name: index for index, field in enumerate(schema.fields)}
        names = [field.name.encode() for field in schema.fields]
        self._names = read_only(np.frombuffer(b"".join(names), np.uint8))
        self._name_offsets = read_only(np.cumsum([0, *map(len, names)]).astype(np.int64))
        self._kinds = read_only(np.array([_KINDS[type(field.dataType)] for field in schema.fields], np.int64))
        self._limits = read_only(np.array([_LIMITS.get(type(f.dataType), 0) for f in schema.fields], np.int64))
        self._utc = zone_name == "UTC"

    @staticmethod
    def can_read(schema: StructType) -> bool:
        return bool(schema.fields) and all(type(field.dataType) in _KINDS for field in schema.fields)

    def read(self, values: pa.Array, wanted: Sequence[str]) -> tuple[pa.RecordBatch, NDArray[np.bool_]]:
        """(a row per value with the columns `wanted`, which rows are odd: theirs mean nothing)."""
        rows, fields = len(values), len(self._types)
        data, offsets = _bytes_of(values)
        found = np.empty((fields, rows), np.uint8)
        numbers = np.empty((fields, rows), np.int64)
        doubles = np.empty((fields, rows), np.float64)
        text_at = np.empty((fields, rows), np.int64)
        text_size = np.empty((fields, rows), np.int32)
        odd, foreign = np.empty(rows, np.bool_), np.empty(rows, np.bool_)
        kernels.scan_objects(
            data, offsets, self._names, self._name_offsets, self._kinds, self._limits, self._utc,
            found, numbers, doubles, text_at, text_size, odd, foreign,
        )  # fmt: skip
        if foreign.any() and not _is_text(values):
            odd |= foreign
        if odd.any():
            found[:, odd] = kernels.ABSENT
        columns = []
        for name in wanted:
            at = self._index[name]
            there = found[at]
            match int(self._kinds[at]):
                case kernels.TEXT:
                    columns.append(_texts(data, there, text_at[at], text_size[at]))
                case kernels.DOUBLE:
                    columns.append(_doubles(data, there, doubles[at], text_at[at], text_size[at]))
                case _:
                    columns.append(_numbers(there, numbers[at], self._types[at]))
        return pa.RecordBatch.from_arrays(columns, names=list(wanted)), odd


def warm_up() -> None:
    """Compile, or load from the cache, these kernels and those that write JSON."""
    schema = StructType().add("a", StringType()).add("b", LongType())
    batch, _ = JsonColumns(schema, "UTC").read(pa.array([b'{"a":"b","b":1}'], pa.binary()), ["a", "b"])
    encode_json(batch, ["a", "b"])


def _bytes_of(values: pa.Array) -> tuple[Any, Any]:
    """The bytes of a binary column and its rows' ends; a null is an empty row, which is odd."""
    if pa.types.is_large_binary(values.type):
        values = values.cast(pa.binary())
    _, ends, body = values.buffers()
    if ends is None or not len(values):
        return read_only(np.zeros(0, np.uint8)), read_only(np.zeros(len(values) + 1, np.int32))
    offsets = np.frombuffer(ends, np.int32, len(values) + 1, values.offset * 4)
    if values.null_count:
        # What stands behind a null is not looked at: such rows are read from nowhere.
        return _bytes_of(values.fill_null(b""))
    data = np.frombuffer(body, np.uint8) if body is not None and body.size else np.zeros(0, np.uint8)
    return read_only(data), read_only(offsets)


def _is_text(values: pa.Array) -> bool:
    try:
        values.cast(pa.string())
    except pa.ArrowInvalid:
        return False
    return True


def _texts(data: Any, there: Any, at: Any, sizes: Any) -> pa.Array:
    lengths = np.where(there == kernels.PRESENT, sizes, 0)
    ends = np.zeros(len(there) + 1, np.int64)
    np.cumsum(lengths, out=ends[1:])
    offsets = ends.astype(np.int32)
    packed = np.empty(int(ends[-1]), np.uint8)
    copy_slices(data, np.where(lengths > 0, at, 0), offsets, packed)
    buffers = [_validity(there), pa.py_buffer(offsets), pa.py_buffer(packed)]
    return pa.Array.from_buffers(pa.string(), len(there), buffers)


def _numbers(there: Any, numbers: Any, kind: pa.DataType) -> pa.Array:
    if pa.types.is_boolean(kind):
        body = np.packbits(np.where(there == kernels.PRESENT, numbers, 0).astype(np.bool_), bitorder="little")
    else:
        body = numbers.astype(f"i{kind.bit_width // 8}")
    return pa.Array.from_buffers(kind, len(there), [_validity(there), pa.py_buffer(body)])


def _doubles(data: Any, there: Any, doubles: Any, at: Any, sizes: Any) -> pa.Array:
    hard = there == kernels.HARD
    if hard.any():
        rows = np.flatnonzero(hard)
        texts = _texts(data, np.ones(len(rows), np.uint8), at[rows], sizes[rows])
        doubles = doubles.copy()
        doubles[rows] = texts.cast(pa.float64()).to_numpy()
    return pa.Array.from_buffers(pa.float64(), len(there), [_validity(there), pa.py_buffer(np.array(doubles))])


def _validity(there: Any) -> pa.Buffer | None:
    valid = there != kernels.ABSENT
    return None if valid.all() else pa.py_buffer(np.packbits(valid, bitorder="little"))
