"""Values of a group as one stored column: what `collect_list`, `collect_set`, percentiles and modes are made of.

A list is a run of bytes, one entry behind the other. An entry is a row (`rows.encode_rows`) of a value, or of a value
and how often it occurs. Where a row has no fixed size, its length is in front of it: four bytes, little endian.

- A *list* has the values in the order of the rows of the task. Merging is concatenation.
- A *set* has each value once, in the order of values, so equal sets are equal bytes.
- *Counts* are a set of which each value has its number. Merging adds up, and a value whose count is 0 is gone.
- *Ranks* are a set of which each value has two numbers, which merging adds up: see `quantile_sketches`.

A null is no value. The list of a group without values is null.

Rejected: entries of their own in the store, as those of exact distinct counts. Every result needs all values of its
group, so a micro-batch would read as many entries as it now reads bytes; and entries exist neither in sessions nor at
least once. The price is that a list is written as a whole, hence its limit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from headrace.errors import UserCodeError
from headrace.spark.runtime.operators.aggregate_kernels import count_entries, locate_entries
from headrace.spark.runtime.rows.rows import decode_rows, encode_rows, fixed_width
from headrace.spark.runtime.stores.byte_spans import array_of_spans, spans_of

__all__ = ["MOST_BYTES", "Kept", "ValueList"]

Kept: TypeAlias = Literal["list", "set", "counts", "ranks"]

# Of one list. A changelog record takes 1 MB unless the topic's `max.message.bytes` is raised.
MOST_BYTES = 900_000
_LENGTH = 4
_LIST = "__headrace_list"
_NUMBERS = {"list": (), "set": (), "counts": ("c0",), "ranks": ("c0", "c1")}  # columns beside the value of an entry

Numbers = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class ValueList:
    """Layout of the lists of one aggregate function."""

    types: tuple[pa.DataType, ...]  # of the columns that a value has
    kept: Kept
    shown: str  # the function, for messages

    @property
    def _entry_types(self) -> tuple[pa.DataType, ...]:
        return (*self.types, *(pa.int64() for _ in _NUMBERS[self.kept]))

    @property
    def _entry_size(self) -> int:
        """Bytes of an entry; 0 if entries have lengths."""
        widths = [fixed_width(kind) for kind in self._entry_types]
        if any(width is None for width in widths):
            return 0
        return 1 + (len(widths) + 7) // 8 + sum(width for width in widths if width is not None)

    @property
    def _names(self) -> list[str]:
        return [f"v{at}" for at in range(len(self.types))]

    def lifted(self, columns: Sequence[Any], counts: Any = None, *, keeps_nulls: bool = False) -> pa.Array:
        """Return the list of each row by itself, null where its value is null.

        Args:
            columns: The values.
            counts: How often each value occurs; once if left out.
            keeps_nulls: Whether a value with a null is a value, as a struct is.
        """
        arrays = [_combined(column) for column in columns]
        there = np.ones(len(arrays[0]), np.bool_)
        if not keeps_nulls:
            there = np.asarray(arrays[0].is_valid().to_numpy(zero_copy_only=False), np.bool_)
        times = pa.array(np.ones(len(there), np.int64)) if counts is None else _combined(counts)
        arrays.extend(times for _ in _NUMBERS[self.kept])
        entries = self._framed(encode_rows(arrays))
        return entries if there.all() else pc.if_else(pa.array(there), entries, pa.scalar(None, pa.binary()))

    def merged(self, lists: Any, numbers: Numbers, groups: int) -> pa.Array:
        """Return the list of each group. Raises UserCodeError: aggregate-too-large.

        Args:
            lists: In the order in which values of lists of values shall be.
            numbers: The group of each list, from 0.
            groups: How many there are.
        """
        if self.kept != "list":
            return self.packed(*self.distinct(lists, numbers), groups)
        order = np.argsort(numbers, kind="stable")
        return self._joined(_combined(lists).take(pa.array(order)), numbers[order], groups)

    def unpacked(self, lists: Any) -> tuple[Numbers, list[pa.Array]]:
        """Return the number of each entry's list, and the columns of all entries, in their order."""
        data, starts, sizes = spans_of(_without_nulls(lists))
        if self._entry_size:
            counts = sizes // self._entry_size
            of = np.repeat(np.arange(len(sizes)), counts)
            first = np.cumsum(counts) - counts
            at = starts[of] + (np.arange(len(of)) - first[of]) * self._entry_size
            lengths = np.full(len(of), self._entry_size, np.int64)
        else:
            counts = count_entries(data, starts, sizes)
            of = np.repeat(np.arange(len(sizes)), counts)
            at, lengths = locate_entries(data, starts, sizes, len(of))
        entries = array_of_spans(data, at, lengths, pa.binary(), np.zeros(len(of), np.bool_))
        return of.astype(np.int64), decode_rows(entries, self._entry_types)

    def distinct(self, lists: Any, numbers: Numbers) -> tuple[Numbers, list[pa.Array]]:
        """Return the group of each entry and the columns of all entries, each value of a group once, in order."""
        of, columns = self.unpacked(lists)
        counted = list(_NUMBERS[self.kept])
        keys, names = [_LIST, *self._names], [*self._names, *counted]
        table = pa.table([pa.array(numbers[of]), *columns], names=[*keys, *counted])
        table = table.group_by(keys, use_threads=False).aggregate([(name, "sum") for name in counted])
        table = table.rename_columns([*keys, *counted])
        if self.kept == "counts":
            table = table.filter(pc.not_equal(table.column(counted[0]), 0))
        table = table.sort_by([(name, "ascending") for name in keys])
        return table.column(_LIST).to_numpy(), [_combined(table.column(name)) for name in names]

    def packed(self, of: Numbers, columns: Sequence[pa.Array], groups: int) -> pa.Array:
        """Return the list of each group, of entries in their order. Raises UserCodeError: aggregate-too-large."""
        return self._joined(self._framed(encode_rows(list(columns))), of, groups)

    def _framed(self, entries: pa.Array) -> pa.Array:
        if self._entry_size:
            return entries
        lengths = pc.binary_length(entries).to_numpy(zero_copy_only=False).astype("<u4")
        flat = lengths.view(np.uint8).reshape(-1) if len(lengths) else np.zeros(1, np.uint8)
        starts = _LENGTH * np.arange(len(lengths), dtype=np.int64)
        fixed = np.full(len(lengths), _LENGTH, np.int64)
        heads = array_of_spans(flat, starts, fixed, pa.binary(), np.zeros(len(lengths), np.bool_))
        return pc.binary_join_element_wise(heads, entries, pa.scalar(b"", pa.binary()))

    def _joined(self, parts: pa.Array, numbers: Numbers, groups: int) -> pa.Array:
        """Return the parts of each group behind each other; they are in the order of groups."""
        data, starts, sizes = spans_of(_without_nulls(parts))
        totals = np.bincount(numbers, sizes, groups).astype(np.int64)
        if len(totals) and totals.max() > MOST_BYTES:
            raise UserCodeError(
                "aggregate-too-large",
                f"{self.shown} of a group has {int(totals.max()):,} bytes of values; at most {MOST_BYTES:,} are kept",
                "Group by a further column or by windows, so that groups are smaller; or write the rows to a topic, "
                "with the group as key.",
            )
        # The parts of a group lie behind each other already: only the ends of groups are new.
        begins = np.cumsum(totals) - totals + (int(starts[0]) if len(starts) else 0)
        return array_of_spans(data, begins, totals, pa.binary(), totals == 0)


def _combined(column: Any) -> pa.Array:
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column


def _without_nulls(column: Any) -> pa.Array:
    """Return one array of binaries whose bytes lie behind each other, a null as no bytes."""
    array = _combined(column)
    return array.fill_null(b"") if array.null_count else array
