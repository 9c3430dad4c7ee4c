"""Columns on their way to bytes: how long each value will be, then where it is written.

Encoders of Avro and Protobuf build a tree of parts, one for each field. A part knows the size of every row's value
before anything is written, so that all rows are written into one buffer, column by column.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from headrace.array_types import ByteArray, Int64Array, IntegerArray, UInt64Array
from headrace.spark.formats import avro_kernels as kernels
from headrace.spark.formats.arrow_buffers import binary_array, read_only

__all__ = [
    "BytesPart",
    "ItemsPart",
    "NotOfSchema",
    "OptionalPart",
    "Part",
    "RecordPart",
    "VarintPart",
    "WordPart",
    "encode_part",
    "without_nulls",
]


class NotOfSchema(ValueError):
    """Rows that the sink's schema has no place for; the message names the column and the value."""


class Part:
    """A column that knows how many bytes each value takes. `write` moves each position behind its value."""

    sizes: NDArray[np.int64]

    def write(self, at: Int64Array, target: ByteArray) -> None:
        raise NotImplementedError


class RecordPart(Part):
    """Fields, one behind the other."""

    def __init__(self, rows: int, fields: list[Part]) -> None:
        self._fields = fields
        self.sizes = np.zeros(rows, np.int64)
        for part in fields:
            self.sizes += part.sizes

    def write(self, at: Int64Array, target: ByteArray) -> None:
        for part in self._fields:
            part.write(at, target)


class VarintPart(Part):
    """Integers as zigzag varints."""

    def __init__(self, values: IntegerArray) -> None:
        self._values = read_only(np.ascontiguousarray(values, np.int64))
        self.sizes = np.zeros(len(values), np.int64)
        kernels.add_varint_sizes(self._values, self.sizes)

    def write(self, at: Int64Array, target: ByteArray) -> None:
        kernels.write_varints(self._values, at, target)


class WordPart(Part):
    """Values of one to eight bytes: floats, doubles, booleans."""

    def __init__(self, words: UInt64Array, width: int) -> None:
        self._words, self._width = read_only(np.ascontiguousarray(words, np.uint64)), width
        self.sizes = np.full(len(words), width, np.int64)

    def write(self, at: Int64Array, target: ByteArray) -> None:
        kernels.write_words(self._words, self._width, at, target)


class BytesPart(Part):
    """Bytes and strings, behind their length as a zigzag varint if they have one."""

    def __init__(self, values: pa.Array, *, has_length: bool) -> None:
        values = values.cast(pa.large_binary())
        _, offsets, data = values.buffers()
        count = len(values)
        self._offsets = read_only(np.frombuffer(offsets, np.int64, count + 1, values.offset * 8).copy())
        self._data = read_only(np.frombuffer(data, np.uint8) if data is not None else np.zeros(0, np.uint8))
        lengths: Int64Array = np.diff(self._offsets)
        self._lengths = VarintPart(lengths) if has_length else None
        self.sizes = lengths if self._lengths is None else lengths + self._lengths.sizes

    def write(self, at: Int64Array, target: ByteArray) -> None:
        if self._lengths is not None:
            self._lengths.write(at, target)
        kernels.write_bytes(self._data, self._offsets, at, target)


class OptionalPart(Part):
    """Values of the rows where they are there; the other rows have no bytes."""

    def __init__(self, there: NDArray[np.bool_], values: Part) -> None:
        self._there, self._values = there, values
        self.sizes = np.zeros(len(there), np.int64)
        self.sizes[there] = values.sizes

    def write(self, at: Int64Array, target: ByteArray) -> None:
        if self._there.all():
            self._values.write(at, target)
            return
        # A fancy index copies, so the moved positions have to be written back.
        positions = at[self._there]
        self._values.write(positions, target)
        at[self._there] = positions


class ItemsPart(Part):
    """Items of lists, one behind the other; `counts` are the items of each row."""

    def __init__(self, counts: NDArray[np.int64], items: Part) -> None:
        self._counts, self._items = counts, items
        reached = np.concatenate([np.zeros(1, np.int64), np.cumsum(items.sizes)])
        # `reached[k]` is the sum of the sizes of the first k items. The items of row i are `ends[i] - counts[i]` to
        # `ends[i]`, so two look-ups give the bytes of each row, also where it has none.
        ends = np.cumsum(counts)
        self._starts, self._begins = reached[:-1], reached[ends - counts]  # of each item, of the items of each row
        self.sizes = reached[ends] - self._begins

    def write(self, at: Int64Array, target: ByteArray) -> None:
        # Position of an item: where its row stands now, plus the distance of the item from the first one of that row.
        self._items.write(np.repeat(at - self._begins, self._counts) + self._starts, target)
        at += self.sizes


def encode_part(part: Part, prefix: bytes) -> pa.Array:
    """Return each row, behind `prefix`, as a binary array."""
    offsets = np.zeros(len(part.sizes) + 1, np.int64)
    np.cumsum(part.sizes + len(prefix), out=offsets[1:])
    target = np.empty(int(offsets[-1]), np.uint8)
    at = offsets[:-1].copy()
    # Byte by byte over all rows: the prefix has five bytes (a registry's magic byte and schema id) or a few more.
    for i, byte in enumerate(prefix):
        target[at + i] = byte
    at += len(prefix)
    part.write(at, target)
    return binary_array(offsets, target)


def without_nulls(column: pa.Array, path: str) -> pa.Array:
    """Return the column, or raise NotOfSchema if it has nulls."""
    if column.null_count:
        raise NotOfSchema(f"{path} is null, and the schema of the sink does not allow null there")
    return column
