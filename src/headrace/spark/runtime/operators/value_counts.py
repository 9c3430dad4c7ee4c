"""Values of a table's rows with how often each occurs: what `min`, `max` and distinct counts need where rows leave.

A row that leaves may have been the greatest one of its group, and then the next one has to be found. So the store keeps
one entry for each distinct value of a group beside the group's row, with the number of rows that have it:

    FF 01 · number of the aggregate function · length of the group's key · key of the group · value  →  count

- Values of `min` and `max` are in an order of bytes in which the best one is the first: big endian, the sign turned,
  and all bits turned for `max`. The next value is found by a range scan of the group, from its start. Their types have
  a fixed width, so that no key is longer than the store's names: a longer name is a digest and has no order.
- The group's row holds the extreme itself. The range is scanned only when the last row with this value has left.
- A distinct count is a counter in the group's row, of entries that came less those that went.

The length of the group's key is in front of it, so that no group's range lies within another one's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from headrace.errors import StateError
from headrace.spark.arrow_types import arrow_type
from headrace.spark.runtime.operators.aggregate_states import cast_column, one_zero, order_codes
from headrace.spark.runtime.operators.table_functions import COUNTED, SIGN_COLUMN
from headrace.spark.runtime.rows.rows import ENTRY_PREFIX, decode_rows, encode_key, encode_rows
from headrace.spark.runtime.stores.bulk_load import order_of_keys
from headrace.spark.runtime.stores.byte_spans import array_of_spans
from headrace.spark.runtime.stores.time_keys import shortened_keys
from headrace.spark.topology.nodes import Aggregate, Buffer

__all__ = ["CountedValues", "ValueCounts", "counted_buffers", "value_counts_of"]

Positions = NDArray[np.int64]
_SIGN = np.uint64(1 << 63)


def counted_buffers(aggregate: Aggregate) -> tuple[Buffer, ...]:
    """Return the aggregate functions that count values, in the order that their entries are numbered in."""
    return tuple(buffer for buffer in aggregate.buffers if buffer.function in COUNTED)


@dataclass(frozen=True, slots=True)
class CountedValues:
    """Rows as values of groups, with the methods of `AggregateFunctions` that reduce rows."""

    group_names: tuple[str, ...]
    buffer: Buffer

    @property
    def is_extreme(self) -> bool:
        return self.buffer.function != "count_distinct"

    @property
    def type(self) -> pa.DataType:
        """The type of the values of `min` and `max`."""
        return arrow_type(str(self.buffer.input_type))

    def lifted(self, rows: pa.Table, *, by: tuple[str, ...]) -> pa.Table:
        """Return the grouping values, the value and the sign of each row that counts: one with a null does not."""
        buffer = self.buffer
        kinds = dict([(str(buffer.input), str(buffer.input_type)), *buffer.more_inputs])
        columns = {name: one_zero(rows.column(name)) for name in by}
        columns |= {name: one_zero(cast_column(rows.column(name), arrow_type(kind))) for name, kind in kinds.items()}
        table = pa.table(columns | {SIGN_COLUMN: rows.column(SIGN_COLUMN)})
        for name in buffer.inputs:
            if table.column(name).null_count:
                table = table.filter(pc.is_valid(table.column(name)))
        return table

    def combine(self, table: pa.Table, *, by: tuple[str, ...]) -> pa.Table:
        """Return each value once, with the sum of its signs."""
        keys = [*by, *self.buffer.inputs]
        summed = table.group_by(keys, use_threads=False).aggregate([(SIGN_COLUMN, "sum")])
        return summed.rename_columns([*keys, SIGN_COLUMN])

    def entry_keys(self, number: int, group_keys: pa.Array, values: Sequence[Any]) -> pa.Array:
        """Return the keys of entries; null where a value of `min` or `max` is null.

        Args:
            number: Of the aggregate function.
            group_keys: The key of the group of each value, as `shortened_keys` returns it.
            values: The input columns.
        """
        lengths = pc.binary_length(group_keys).to_numpy(zero_copy_only=False).astype(">u4")
        body = self._ordered(values[0]) if self.is_extreme else encode_key(list(values))
        prefix = pa.scalar(ENTRY_PREFIX + number.to_bytes(2, "big"), pa.binary())
        parts = [prefix, _fixed(lengths.view(np.uint8).reshape(-1, 4)), group_keys, body]
        return pc.binary_join_element_wise(*parts, pa.scalar(b"", pa.binary()))

    def _ordered(self, column: Any) -> pa.Array:
        """Return values as bytes, the best one first."""
        array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
        valid = array.is_valid().to_numpy(zero_copy_only=False)
        if pa.types.is_decimal(array.type):
            words = _decimal_words(array)
        else:
            codes, _ = order_codes(array)
            words = codes.astype(np.int64).view(np.uint64).reshape(-1, 1)
        words = words.copy()
        words[:, 0] ^= _SIGN
        if self.buffer.function == "max":
            words = ~words
        body = np.ascontiguousarray(words.astype(">u8")).view(np.uint8).reshape(len(array), self.width)
        found = _fixed(body)
        return found if valid.all() else pc.if_else(pa.array(valid), found, pa.scalar(None, pa.binary()))

    @property
    def width(self) -> int:
        """Bytes of a value of `min` or `max` in the key of its entry."""
        return 16 if pa.types.is_decimal(self.type) else 8

    def value_of(self, ordered: Sequence[bytes | None]) -> pa.Array:
        """Return the values of bytes in order, null for None: the inverse of their order."""
        words = np.frombuffer(b"".join(one or bytes(self.width) for one in ordered), ">u8").astype(np.uint64)
        words = words.reshape(-1, self.width // 8)
        if self.buffer.function == "max":
            words = ~words
        words[:, 0] ^= _SIGN
        mask = np.array([one is None for one in ordered], np.bool_)
        kind = self.type
        if pa.types.is_decimal(kind):
            body = np.ascontiguousarray(words[:, ::-1]).astype("<u8")
            return pc.if_else(
                pa.array(mask),
                pa.scalar(None, kind),
                pa.Array.from_buffers(kind, len(mask), [None, pa.py_buffer(body.tobytes())]),
            )
        codes = np.ascontiguousarray(words[:, 0]).view(np.int64)
        if pa.types.is_floating(kind):
            # The order of floats turns all but the sign of negative ones, and turning twice is the way back.
            bits = codes ^ ((codes >> 63) & np.int64((1 << 63) - 1))
            return pa.array(bits.view(np.float64), pa.float64(), mask=mask).cast(kind, safe=False)
        integers = pa.array(codes, pa.int64(), mask=mask)
        if pa.types.is_date32(kind):
            return integers.cast(pa.int32()).cast(kind)
        return integers.cast(kind)


@dataclass(frozen=True, slots=True)
class ValueCounts:
    """Changed entries of a micro-batch, in the byte order of their keys."""

    kinds: tuple[CountedValues, ...]
    keys: pa.Array
    group: Positions  # row number of the group
    buffer: Positions  # number of the aggregate function
    changes: Positions  # how many rows with this value came, less those that left
    group_keys: pa.Array  # of each group, shortened

    def counts(self, stored: pa.Array, fingerprint: bytes) -> tuple[Positions, Positions]:
        """Return the counts of the entries as stored, and as they are now. Raises StateError: state-corrupt."""
        before = np.zeros(len(self.keys), np.int64)
        there = np.flatnonzero(stored.is_valid().to_numpy(zero_copy_only=False))
        [found] = decode_rows(stored.drop_null(), [pa.int64()], fingerprint)
        before[there] = found.to_numpy()
        after = before + self.changes
        if len(after) and after.min() < 0:
            raise StateError(
                "state-corrupt",
                "a value of a table's row is taken out more often than it was added: the state does not belong to that "
                "of the table in front of it",
                "Compute both anew:  headrace upgrade GROUP --program APP --state recompute",
            )
        return before, after

    def written(self, after: Positions, fingerprint: bytes) -> pa.Array:
        """Return the new values of the entries, null for those that are gone."""
        values = encode_rows([pa.array(after)], fingerprint)
        return pc.if_else(pa.array(after == 0), pa.scalar(None, pa.binary()), values)

    def grown(self, number: int, before: Positions, after: Positions, groups: int) -> Positions:
        """Return by how much a distinct count of each group grows."""
        mine = self.buffer == number
        steps = (after > 0).astype(np.int64) - (before > 0)
        return np.bincount(self.group[mine], weights=steps[mine], minlength=groups).astype(np.int64)

    def extremes(
        self, number: int, stored: pa.Array, after: Positions, scan: Callable[[bytes, bytes, int], pa.Array]
    ) -> pa.Array:
        """Return the extreme of each group.

        Args:
            number: Of the aggregate function.
            stored: The extreme that each group had, null where it had none.
            after: As `counts` returns it.
            scan: `StoreReader.keys_between`.
        """
        kind, mine = self.kinds[number], np.flatnonzero(self.buffer == number)
        if not len(mine):
            return stored
        touched = np.unique(self.group[mine])
        # 1. The best of the values that came, of each group: keys are in order, so it is the first one.
        alive = mine[after[mine] > 0]
        came, first = np.unique(self.group[alive], return_index=True)
        new = dict(zip(came.tolist(), self.keys.take(pa.array(alive[first])).to_pylist(), strict=True))
        # 2. The extreme so far, and whether its last row has left.
        places = pa.array(touched)
        old_keys = kind.entry_keys(number, self.group_keys.take(places), [stored.take(places)])
        at = pc.index_in(old_keys, value_set=self.keys)
        found = at.fill_null(-1).to_numpy(zero_copy_only=False)
        gone = (found >= 0) & (after[found] == 0)
        best: list[bytes | None] = []
        for group, old, is_gone in zip(touched.tolist(), old_keys.to_pylist(), gone.tolist(), strict=True):
            # 3. Then the next one is found in the store, behind the entries that left in this micro-batch.
            candidate = self._next(old[: -kind.width], mine[self.group[mine] == group], after, scan) if is_gone else old
            others = [one for one in (candidate, new.get(group)) if one is not None]
            best.append(min(others)[-kind.width :] if others else None)
        changed = kind.value_of(best)
        rows = np.arange(len(stored), dtype=np.int64)
        rows[touched] = len(stored) + np.arange(len(touched))
        return pa.concat_arrays([stored, changed.cast(stored.type)]).take(pa.array(rows))

    def _next(
        self, prefix: bytes, mine: Positions, after: Positions, scan: Callable[[bytes, bytes, int], pa.Array]
    ) -> bytes | None:
        """Return the first entry of a group that is there after this micro-batch, among those that are stored."""
        left = set(self.keys.take(pa.array(mine[after[mine] == 0])).to_pylist())
        stored = scan(prefix, prefix + b"\xff" * 17, len(left) + 1).to_pylist()
        return next((key for key in stored if key not in left), None)


def value_counts_of(pairs: Sequence[tuple[CountedValues, pa.Table]], group_keys: pa.Array) -> ValueCounts:
    """Return the entries that a micro-batch changes.

    Args:
        pairs: Of each aggregate function that counts values, the values of the micro-batch.
        group_keys: The key of each group of the micro-batch.
    """
    shortened = shortened_keys(group_keys)
    keys, numbers, buffers, changes = [], [], [], []
    for number, (kind, table) in enumerate(pairs):
        table = table.filter(pc.not_equal(table.column(SIGN_COLUMN), 0))
        mine = encode_key([table.column(name) for name in kind.group_names])
        group = pc.index_in(mine, value_set=group_keys)
        values = [table.column(name).combine_chunks() for name in kind.buffer.inputs]
        keys.append(kind.entry_keys(number, shortened.take(group), values))
        numbers.append(group.to_numpy(zero_copy_only=False).astype(np.int64))
        buffers.append(np.full(table.num_rows, number, np.int64))
        changes.append(table.column(SIGN_COLUMN).to_numpy().astype(np.int64))
    found = pa.concat_arrays(keys)
    order = order_of_keys(found)
    places = np.arange(len(found)) if order is None else np.asarray(order.to_numpy(), np.int64)
    return ValueCounts(
        kinds=tuple(kind for kind, _ in pairs),
        keys=found.take(pa.array(places)),
        group=np.concatenate(numbers)[places],
        buffer=np.concatenate(buffers)[places],
        changes=np.concatenate(changes)[places],
        group_keys=shortened,
    )


def _decimal_words(array: pa.Array) -> NDArray[np.uint64]:
    """Return the two words of each decimal, the higher one first."""
    body = array.buffers()[1]
    words = np.frombuffer(body, "<u8", 2 * len(array), array.offset * 16).reshape(-1, 2)
    return np.ascontiguousarray(words[:, ::-1]).astype(np.uint64)


def _fixed(body: NDArray[np.uint8]) -> pa.Array:
    """Return the rows of a matrix as binary values."""
    count, width = body.shape
    starts = np.arange(count, dtype=np.int64) * width
    flat = np.ascontiguousarray(body).reshape(-1)
    return array_of_spans(flat, starts, np.full(count, width, np.int64), pa.binary(), np.zeros(count, np.bool_))
