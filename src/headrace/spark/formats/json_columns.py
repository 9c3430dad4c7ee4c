"""Decoding of JSON records into Arrow columns by the compiled scanner of `json_kernels`.

Rows that the scanner does not read with certainty are reported as odd. Only requested columns are built, though every
field of the schema is checked. Strings are copied once, numbers are written directly into Arrow's buffers, and no
Python object is created per record.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from headrace.array_types import ByteArray, FloatArray, Int64Array, IntegerArray
from headrace.protocol.arrow_kernels import copy_slices
from headrace.spark.formats import json_kernels as kernels
from headrace.spark.formats.arrow_buffers import bytes_of, read_only, slices_array, validity
from headrace.spark.formats.arrow_types import arrow_type
from headrace.spark.formats.instants import local_times
from headrace.spark.formats.json_encoding import encode_json

__all__ = ["JsonColumns", "warm_up"]

_KINDS: Mapping[type[DataType], int] = {
    StringType: kernels.TEXT,
    LongType: kernels.INTEGER,
    IntegerType: kernels.INTEGER,
    ShortType: kernels.INTEGER,
    ByteType: kernels.INTEGER,
    DoubleType: kernels.DOUBLE,
    FloatType: kernels.NUMBER,
    DecimalType: kernels.NUMBER,
    BinaryType: kernels.TEXT,
    TimestampNTZType: kernels.TEXT,
    BooleanType: kernels.BOOLEAN,
    DateType: kernels.DATE,
    TimestampType: kernels.INSTANT,
}
_LIMITS: Mapping[type[DataType], int] = {
    LongType: (1 << 63) - 1,
    IntegerType: 1 << 31,
    ShortType: 1 << 15,
    ByteType: 1 << 7,
}


class JsonColumns:
    """Reader of records with one flat schema; `can_read` reports whether a schema is flat."""

    def __init__(self, schema: StructType, zone_name: str) -> None:
        self._types = [arrow_type(field.dataType) for field in schema.fields]
        self._index = {field.name: index for index, field in enumerate(schema.fields)}
        names = [field.name.encode() for field in schema.fields]
        self._names = read_only(np.frombuffer(b"".join(names), np.uint8))
        self._name_offsets = read_only(np.cumsum([0, *map(len, names)]).astype(np.int64))
        self._kinds = read_only(np.array([_KINDS[type(field.dataType)] for field in schema.fields], np.int64))
        self._limits = read_only(np.array([_LIMITS.get(type(f.dataType), 0) for f in schema.fields], np.int64))
        # These types are read as text first and converted afterwards, all rows at once: a decimal of up to 38 digits
        # fits no machine word, and the others need Arrow's or Python's parsers.
        made_of_text = (FloatType, DecimalType, BinaryType, TimestampNTZType)
        self._converted = [i for i, field in enumerate(schema.fields) if isinstance(field.dataType, made_of_text)]
        self._utc = zone_name == "UTC"

    @staticmethod
    def can_read(schema: StructType) -> bool:
        """Whether every field of `schema` has a type that the compiled scanner reads."""
        return bool(schema.fields) and all(type(field.dataType) in _KINDS for field in schema.fields)

    def read(self, values: pa.Array, wanted: Sequence[str]) -> tuple[pa.RecordBatch, NDArray[np.bool_]]:
        """Read records: (one row per value with the columns `wanted`, mask of odd rows, whose content is undefined)."""
        rows, fields = len(values), len(self._types)
        data, offsets = bytes_of(values)
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
        # Bytes above 127 are checked to be UTF-8 for the whole batch at once by Arrow's SIMD validation. Only if that
        # fails are the rows with such bytes decoded one by one, which finds the damaged ones among them.
        if foreign.any() and not _is_text(values):
            odd |= foreign
        # An odd row was abandoned half-way: what was found of it until then does not count.
        if odd.any():
            found[:, odd] = kernels.ABSENT
        converted = {}
        # Also columns that no query asks for are converted. Which records are bad must follow from the schema alone.
        for at in self._converted:  # all of them: each can make its row odd
            texts = _texts(data, found[at], text_at[at], text_size[at])
            converted[at], wrong = _converted(texts, self._types[at])
            odd |= wrong
        columns = []
        for name in wanted:
            at = self._index[name]
            there = found[at]
            if at in converted:
                columns.append(converted[at])
                continue
            match int(self._kinds[at]):
                case kernels.TEXT:
                    columns.append(_texts(data, there, text_at[at], text_size[at]))
                case kernels.DOUBLE:
                    columns.append(_doubles(data, there, doubles[at], text_at[at], text_size[at]))
                case _:
                    columns.append(_numbers(there, numbers[at], self._types[at]))
        return pa.RecordBatch.from_arrays(columns, names=list(wanted)), odd


def warm_up() -> None:
    """Compile these kernels and those that write JSON, or load them from numba's cache."""
    schema = StructType().add("a", StringType()).add("b", LongType())
    batch, _ = JsonColumns(schema, "UTC").read(pa.array([b'{"a":"b","b":1}'], pa.binary()), ["a", "b"])
    encode_json(batch, ["a", "b"])


def _is_text(values: pa.Array) -> bool:
    try:
        values.cast(pa.string())
    except pa.ArrowInvalid:
        return False
    return True


def _texts(data: ByteArray, there: ByteArray, at: IntegerArray, sizes: IntegerArray) -> pa.Array:
    lengths = np.where(there == kernels.PRESENT, sizes, 0)
    return slices_array(pa.string(), data, np.where(lengths > 0, at, 0), lengths, there)


def _numbers(there: ByteArray, numbers: Int64Array, kind: pa.DataType) -> pa.Array:
    if pa.types.is_boolean(kind):
        body = np.packbits(np.where(there == kernels.PRESENT, numbers, 0).astype(np.bool_), bitorder="little")
    else:
        body = numbers.astype(f"i{kind.bit_width // 8}")
    return pa.Array.from_buffers(kind, len(there), [validity(there), pa.py_buffer(body)])


def _doubles(data: ByteArray, there: ByteArray, doubles: FloatArray, at: IntegerArray, sizes: IntegerArray) -> pa.Array:
    hard = there == kernels.HARD
    if hard.any():
        rows = np.flatnonzero(hard)
        texts = _texts(data, np.ones(len(rows), np.uint8), at[rows], sizes[rows])
        doubles = doubles.copy()
        # Arrow parses doubles with fast_float, which rounds correctly as Java's parser does.
        doubles[rows] = texts.cast(pa.float64()).to_numpy()
    return pa.Array.from_buffers(pa.float64(), len(there), [validity(there), pa.py_buffer(np.array(doubles))])


def _converted(texts: pa.Array, kind: pa.DataType) -> tuple[pa.Array, NDArray[np.bool_]]:
    """Convert texts to a type that the kernels leave as text: (values, mask of rows to decode again one by one)."""
    if pa.types.is_binary(kind):
        values, wrong = _binaries(texts)
    elif pa.types.is_timestamp(kind):
        values, wrong = local_times(texts)
    else:
        values, wrong = _numbers_of_texts(texts, kind)
    return values, np.asarray(pc.fill_null(wrong, False).to_numpy(zero_copy_only=False), np.bool_)


def _numbers_of_texts(texts: pa.Array, kind: pa.DataType) -> tuple[pa.Array, pa.Array]:
    # The cast of all texts at once succeeds nearly always. If one of them fails, a pattern picks those that are certain
    # to fit, and the rest is decoded record by record, which reports the reason.
    try:
        return texts.cast(kind), pa.repeat(pa.scalar(False), len(texts))
    except pa.ArrowInvalid:
        pass
    if pa.types.is_decimal(kind):
        whole = f"[0-9]{{1,{kind.precision - kind.scale}}}" if kind.precision > kind.scale else "0"
        fraction = rf"(\.[0-9]{{1,{kind.scale}}})?" if kind.scale else ""
    else:
        whole, fraction = "[0-9]{1,30}", r"(\.[0-9]{1,30})?"
    plain = pc.match_substring_regex(texts, f"^-?{whole}{fraction}$")
    return pc.if_else(plain, texts, pa.scalar(None, pa.string())).cast(kind), pc.invert(plain)


def _binaries(texts: pa.Array) -> tuple[pa.Array, pa.Array]:
    """Decode base64, all texts at once: padding decodes to zeros, which are cut off the end of each value."""
    fine = pc.match_substring_regex(texts, "^([A-Za-z0-9+/]{4})*([A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$")
    kept = pc.fill_null(pc.if_else(fine, texts, ""), "")
    # Each value is padded to a multiple of four characters, so the concatenation decodes as one text and value i begins
    # at the sum of the sizes before it. `=` in the middle would end it; A stands for six zero bits instead.
    sizes = np.asarray(pc.binary_length(kept).to_numpy(zero_copy_only=False), np.int64) // 4 * 3
    padding = np.asarray(pc.count_substring(kept, "=").to_numpy(zero_copy_only=False), np.int64)
    joined = "".join(kept.to_pylist()) if len(kept) < 2 else pc.binary_join(_as_one_list(kept), "")[0].as_py()
    data = np.frombuffer(base64.b64decode(joined.replace("=", "A")), np.uint8)
    offsets = np.zeros(len(texts) + 1, np.int64)
    np.cumsum(sizes - padding, out=offsets[1:])
    packed = np.empty(int(offsets[-1]), np.uint8)
    copy_slices(data, np.cumsum(sizes) - sizes, offsets.astype(np.int32), packed)
    valid = np.asarray(pc.fill_null(fine, False).to_numpy(zero_copy_only=False), np.bool_)
    buffers = [pa.py_buffer(np.packbits(valid, bitorder="little")), pa.py_buffer(offsets.astype(np.int32))]
    return pa.Array.from_buffers(pa.binary(), len(texts), [*buffers, pa.py_buffer(packed)]), pc.invert(fine)


def _as_one_list(texts: pa.Array) -> pa.Array:
    return pa.ListArray.from_arrays(pa.array([0, len(texts)], pa.int32()), texts)
