"""Columns of Avro records: how the values that a run of `avro_kernels.run_program` has read become Arrow arrays."""

from __future__ import annotations

import decimal
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from headrace.array_types import ByteArray, Int32Array, Int64Array, IntegerArray
from headrace.spark.formats import avro_kernels as kernels
from headrace.spark.formats.arrow_buffers import slices_array, texts_of, validity

__all__ = ["Bytes", "Column", "Constant", "Decimal", "Entries", "Enum", "Flat", "List", "Storage", "Struct"]

_MOST_DIGITS: Final = 38


class Storage:
    """The entries of all slots."""

    def __init__(self, size: int) -> None:
        self.numbers = np.empty(size, np.int64)
        self.sizes = np.empty(size, np.int32)
        self.there = np.empty(size, np.uint8)


class Entries:
    """Values that a run has read, slot by slot. Collects entries whose bytes cannot be converted."""

    def __init__(self, data: ByteArray, bases: Int64Array, filled: Int64Array, storage: Storage) -> None:
        self.data = data
        self._bases, self._filled, self._storage = bases, filled, storage
        self._unreadable: list[tuple[NDArray[np.int64], str, tuple[int, ...]]] = []

    def span(self, slot: int) -> slice:
        return slice(int(self._bases[slot]), int(self._bases[slot] + self._filled[slot]))

    def numbers(self, slot: int) -> Int64Array:
        return self._storage.numbers[self.span(slot)]

    def sizes(self, slot: int) -> Int32Array:
        return self._storage.sizes[self.span(slot)]

    def there(self, slot: int) -> ByteArray:
        return self._storage.there[self.span(slot)]

    def refuse(self, which: IntegerArray, why: str, loops: tuple[int, ...]) -> None:
        """Note entries that cannot be converted; `loops` are the slots of the arrays and maps around them."""
        self._unreadable.append((np.asarray(which, np.int64), why, loops))

    def unreadable(self, rows: int) -> list[tuple[int, str]]:
        """Return (row, reason) of each entry that was refused."""
        found = []
        for entries, why, loops in self._unreadable:
            # `ends[i]` is the number of items up to list i, so the list that holds entry k is the first one with an end
            # above k. Repeated from the innermost loop outwards this leads to the record.
            for loop in reversed(loops):  # an entry's place in the list around it, outwards to the record
                ends = np.cumsum(np.where(self.there(loop) != 0, self.numbers(loop), 0))
                entries = np.searchsorted(ends, entries, side="right")
            found += [(int(row), why) for row in entries if row < rows]
        return found


@dataclass(slots=True)
class Column:
    """How the entries of a slot become an Arrow array.

    Attributes:
        kind: The array's type.
        slot: Where the values are; -1 if there is no slot.
        loops: The slots of the arrays and maps around it, from the outermost inwards.
    """

    kind: pa.DataType
    slot: int
    loops: tuple[int, ...]

    def array(self, entries: Entries, length: int) -> pa.Array:
        """Return all entries as an array of `length` values."""
        raise NotImplementedError

    def slots(self) -> list[int]:
        """Return the slots that get an entry where the whole value is null."""
        return [self.slot]

    def checked(self) -> list[Column]:
        """Return the columns within it, or itself, whose bytes are checked only when they become an array."""
        return []


@dataclass(slots=True)
class Constant(Column):
    """A field that the writer's schema lacks: its default, in every row."""

    value: Any

    def array(self, _entries: Entries, length: int) -> pa.Array:
        if self.value is None:
            return pa.nulls(length, self.kind)
        return pa.array([self.value], self.kind).take(pa.array(np.zeros(length, np.int64)))


@dataclass(slots=True)
class Flat(Column):
    """A number, a boolean, a date, an instant."""

    def array(self, entries: Entries, length: int) -> pa.Array:
        numbers, there = entries.numbers(self.slot), entries.there(self.slot)
        if pa.types.is_floating(self.kind):
            width = np.float32 if pa.types.is_float32(self.kind) else np.float64
            body = _floats(numbers, entries.sizes(self.slot)).astype(width)
        elif pa.types.is_boolean(self.kind):
            body = np.packbits(numbers.astype(np.bool_), bitorder="little")
        else:
            body = numbers.astype(f"i{self.kind.bit_width // 8}")
        return pa.Array.from_buffers(self.kind, length, [validity(there), pa.py_buffer(body)])


def _floats(numbers: Any, widths: Any) -> Any:
    """Return values that were written as double, float or integer; `widths` (8, 4, 0) is the form of each."""
    if (widths == 8).all():
        return numbers.view(np.float64)
    if (widths == 4).all():
        return numbers.astype(np.int32).view(np.float32)
    # A union of int, float and double may mix all three forms in one column, so the form of each value is kept in
    # `sizes`.
    singles = numbers.astype(np.int32).view(np.float32)
    return np.where(widths == 8, numbers.view(np.float64), np.where(widths == 4, singles, numbers.astype(np.float64)))


@dataclass(slots=True)
class Bytes(Column):
    """Bytes, fixed or a string."""

    path: str

    def array(self, entries: Entries, _length: int) -> pa.Array:
        at, sizes, there = entries.numbers(self.slot), entries.sizes(self.slot), entries.there(self.slot)
        found = slices_array(pa.binary(), entries.data, at, sizes, there)
        if pa.types.is_binary(self.kind):
            return found
        texts, wrong = texts_of(found)
        if len(wrong):
            entries.refuse(wrong, f"it is not Avro of its schema: {self.path}: it is not UTF-8", self.loops)
        return texts

    def checked(self) -> list[Column]:
        return [] if pa.types.is_binary(self.kind) else [self]


@dataclass(slots=True)
class Decimal(Column):
    """A decimal, in bytes or fixed."""

    path: str

    def array(self, entries: Entries, length: int) -> pa.Array:
        there = entries.there(self.slot)
        words, fits = np.empty((length, 2), np.uint64), np.empty(length, np.bool_)
        # Arrow's decimal128 is a little-endian 128-bit integer; Avro's is big-endian of any length.
        kernels.read_decimals(entries.data, entries.numbers(self.slot), entries.sizes(self.slot), there, words, fits)
        # Integers first: a cast from decimal(38, scale) is checked against the digits of the column's own type.
        found = pa.Array.from_buffers(
            pa.decimal128(38, self.kind.scale), length, [validity(there), pa.py_buffer(words)]
        )
        found, wrong = _narrowed(found, self.kind)
        wrong |= ~fits
        if wrong.any():
            why = f"it is not Avro of its schema: {self.path}: more than {self.kind.precision} digits"
            entries.refuse(np.flatnonzero(wrong), why, self.loops)
        return found

    def checked(self) -> list[Column]:
        return [self]


def _narrowed(found: pa.Array, kind: Any) -> tuple[pa.Array, NDArray[np.bool_]]:
    """Return (decimals of `kind`, mask of those that have too many digits, which are null)."""
    limit = decimal.Decimal(10**kind.precision).scaleb(-kind.scale)
    if kind.precision == _MOST_DIGITS:  # 10**38 is no decimal(38), so such values are compared as Python's
        values = found.to_pylist()
        wrong = np.array([value is not None and abs(value) >= limit for value in values], np.bool_)
    else:
        wide = pa.scalar(limit, pa.decimal128(_MOST_DIGITS, kind.scale))
        wrong = pc.or_(pc.greater_equal(found, wide), pc.less_equal(found, pc.negate(wide)))
        wrong = pc.fill_null(wrong, False).to_numpy(zero_copy_only=False)
    if wrong.any():
        found = pc.if_else(pa.array(wrong), pa.scalar(None, found.type), found)
    return found.cast(kind), np.asarray(wrong, np.bool_)


@dataclass(slots=True)
class Enum(Column):
    """The symbols of an enum, as text."""

    symbols: tuple[str, ...]

    def array(self, entries: Entries, _length: int) -> pa.Array:
        missing = entries.there(self.slot) == 0
        chosen = pa.array(entries.numbers(self.slot), mask=missing if missing.any() else None)
        # A symbol is read as its number. The text of each is made once, by the `take`.
        return pa.array(self.symbols, pa.string()).take(chosen)


@dataclass(slots=True)
class Struct(Column):
    """A record; without a slot it is always there."""

    names: list[str]
    columns: list[Column]

    def array(self, entries: Entries, length: int) -> pa.Array:
        arrays = [column.array(entries, length) for column in self.columns]
        fields = [pa.field(name, column.kind) for name, column in zip(self.names, self.columns, strict=True)]
        # Without nulls no mask is passed, which saves a bitmap and its checks further on.
        missing = None
        if self.slot >= 0 and not entries.there(self.slot).all():
            missing = pa.array(entries.there(self.slot) == 0)
        return pa.StructArray.from_arrays(arrays, fields=fields, mask=missing)

    def slots(self) -> list[int]:
        inner = [slot for column in self.columns for slot in column.slots()]
        return [slot for slot in (self.slot, *inner) if slot >= 0]  # constants have none

    def checked(self) -> list[Column]:
        return [leaf for column in self.columns for leaf in column.checked()]


@dataclass(slots=True)
class List(Column):
    """An array, or a map: then it has keys beside its items."""

    items: Column
    keys: Column | None = None

    def array(self, entries: Entries, length: int) -> pa.Array:
        there = entries.there(self.slot)
        ends = np.zeros(length + 1, np.int64)
        np.cumsum(entries.numbers(self.slot), out=ends[1:])
        total = int(ends[-1])
        items = self.items.array(entries, total)
        if self.keys is not None:
            pairs = [self.kind.key_field, self.kind.item_field]
            items = pa.StructArray.from_arrays([self.keys.array(entries, total), items], fields=pairs)
        buffers = [validity(there), pa.py_buffer(ends.astype(np.int32))]
        return pa.Array.from_buffers(self.kind, length, buffers, children=[items])

    def checked(self) -> list[Column]:
        return [*([] if self.keys is None else self.keys.checked()), *self.items.checked()]
