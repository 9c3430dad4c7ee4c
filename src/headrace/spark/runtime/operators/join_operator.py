"""The inner equi-join of two streams as an operator with state.

Semantics: each pair of rows of the two sides with equal keys leaves once, with the micro-batch in which the later one
of the two is processed. So the rows that have left at any time are the join of the rows processed until then, whatever
the order of the sides, the cuts of micro-batches, moves and crashes.

Both sides come through one partition of one topic, which orders them. Rejected: a topic for each side. Pairs would be
the same, but the two would have to be kept at equal partition counts, and a task would have to read both.

The store has one entry per row,

    01 or 02 (side) · length of the key (2 bytes, big endian) · key · number of the row (8 bytes, big endian) → row

and the next number under `COUNTER_KEY`. The rows of a side with one key are the entries under one prefix, and the
length makes that no prefix begins with another one. A micro-batch looks up all its keys in one merge
(`StoreReader.values_under`). Rejected: one entry per key with all of its rows, which a key with many rows would write
again with each new one, to the changelog as well.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.spark.arrow_types import arrow_types
from headrace.spark.runtime.operators.stateful_operator import NO_KEYS, CollectedRows, RunningOperator, StoreUpdate
from headrace.spark.runtime.rows.row_kernels import copy_spans
from headrace.spark.runtime.rows.row_schema import StoreSpec, store_of_join
from headrace.spark.runtime.rows.rows import decode_rows, encode_rows
from headrace.spark.runtime.stores.bulk_load import order_of_keys
from headrace.spark.runtime.stores.byte_spans import Bytes, Positions, array_of_spans, spans_of
from headrace.spark.runtime.stores.store import StoreWrites
from headrace.spark.runtime.stores.time_keys import shortened_keys
from headrace.spark.topology.nodes import JOIN_COLUMNS, KEY_COLUMN, TASK_COLUMN, Join

if TYPE_CHECKING:
    from headrace.spark.runtime.stores.store import StoreReader

__all__ = ["COUNTER_KEY", "PAIRS_PER_TABLE", "JoinOperator", "entry_names", "numbered_keys", "read_counter"]

COUNTER_KEY = b"\x00next row"
PAIRS_PER_TABLE = 50_000
_SIDES = (1, 2)  # first bytes of keys: left, right
_SIDE, _ROW = (name for name, _ in JOIN_COLUMNS)


@dataclass(frozen=True, slots=True)
class JoinOperator:
    """A `StatefulOperator` with one store: all rows of both sides."""

    join: Join

    @property
    def name(self) -> str:
        return "join"

    @property
    def stores(self) -> tuple[StoreSpec, ...]:
        return (store_of_join(self.join),)

    def start(self) -> RunningOperator:
        return _Join(self)


class _Join(CollectedRows):
    def __init__(self, operator: JoinOperator) -> None:
        super().__init__([_SIDE, _ROW, KEY_COLUMN])
        self._operator = operator

    def end(self, partition: int) -> _Changes | None:
        tables = self._take_rows(partition)
        return _Changes(self._operator, partition, pa.concat_tables(tables)) if tables else None


class _Changes:
    """Rows of one task in one micro-batch. What they meet is known when its store is open."""

    def __init__(self, operator: JoinOperator, partition: int, rows: pa.Table) -> None:
        self._join, self._partition = operator.join, partition
        [self._store] = operator.stores
        self._new_rows: pa.Array = rows.column(_ROW).combine_chunks()
        keys = shortened_keys(rows.column(KEY_COLUMN).combine_chunks())
        self._keys, self._key_of_row = numbered_keys(keys)
        self._side_of_row: Positions = rows.column(_SIDE).to_numpy().astype(np.int64)
        self._pairs: _Pairs | None = None

    @property
    def stores(self) -> Sequence[StoreUpdate]:
        return (StoreUpdate(store=self._store, update=self._update),)

    def results(self) -> Iterator[pa.Table]:
        """Yield the joined rows, in tables of bounded size: a key with many rows on both sides has many pairs."""
        if self._pairs is None:
            return
        for pairs in self._pairs.tables(PAIRS_PER_TABLE):
            columns = {name: pairs.column(name) for name, _ in self._join.kept_columns}
            columns[TASK_COLUMN] = pa.array(np.full(pairs.num_rows, self._partition, np.int32))
            columns[KEY_COLUMN] = pa.nulls(pairs.num_rows, pa.binary())  # a pair comes from two records with two keys
            yield pa.table(columns)

    def _update(self, reader: StoreReader) -> StoreWrites:
        is_new_on = [self._rows_of(side) for side in range(2)]
        # 1. Rows of each side that are there, for the keys of which the other side has new rows.
        wanted = [np.unique(self._key_of_row[is_new_on[1 - side]]) for side in range(2)]
        prefixes = pa.concat_arrays([self._prefixes(side, keys) for side, keys in enumerate(wanted)])
        found, values = reader.values_under(prefixes)
        # 2. Pairs of new rows with rows that are there, and of new rows with each other.
        limit = len(wanted[0])
        sides = []
        for side, of_side in enumerate((found < limit, found >= limit)):
            stored_keys = wanted[side][found[of_side] - (limit if side else 0)]
            new = is_new_on[side]
            sides.append(
                _SideRows(
                    rows=pa.concat_arrays([self._new_rows.take(pa.array(new)), values.filter(pa.array(of_side))]),
                    keys=np.concatenate([self._key_of_row[new], stored_keys]),
                    new=len(new),
                )
            )
        self._pairs = _Pairs.of(self._join, self._store, *sides, keys=len(self._keys))
        # 3. New entries and the counter.
        return self._writes(reader)

    def _rows_of(self, side: int) -> Positions:
        return np.flatnonzero(self._side_of_row == side)

    def _prefixes(self, side: int, keys: Positions) -> pa.Array:
        """Return the prefixes of rows of one side with these keys, in byte order."""
        if not len(keys):
            return NO_KEYS
        return entry_names(np.full(len(keys), _SIDES[side], np.uint8), self._keys, keys, None)

    def _writes(self, reader: StoreReader) -> StoreWrites:
        # The counter is written with the rows that it numbers, in one transaction of the store: undoing a batch returns
        # both.
        first = read_counter(reader, COUNTER_KEY, self._store.rows.fingerprint)
        count = len(self._new_rows)
        # In byte order: by side, by key, by number.
        order = np.argsort(self._side_of_row * len(self._keys) + self._key_of_row, kind="stable")
        sides = np.array(_SIDES, np.uint8)[self._side_of_row[order]]
        names = entry_names(sides, self._keys, self._key_of_row[order], first + order)
        after = encode_rows([pa.array([first + count], pa.int64())], self._store.rows.fingerprint)
        return StoreWrites(
            keys=pa.concat_arrays([pa.array([COUNTER_KEY], pa.binary()), names]),
            values=pa.concat_arrays([after, self._new_rows.take(pa.array(order))]),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _SideRows:
    """Rows of one side that a micro-batch looks at: the new ones first, then stored ones, each in order."""

    rows: pa.Array
    keys: Positions  # number of the key of each
    new: int  # how many are new

    # New rows stay in front, so their number says which ones they are.
    def only(self, keys: np.typing.NDArray[np.bool_]) -> _SideRows:
        """Return the rows with these keys."""
        kept = keys[self.keys]
        return _SideRows(
            rows=self.rows.filter(pa.array(kept)), keys=self.keys[kept], new=int(np.count_nonzero(kept[: self.new]))
        )


@dataclass(frozen=True, slots=True)
class _Pairs:
    """Pairs of rows, numbered left row by left row. A left row meets a run of right rows."""

    left: pa.Table
    right: pa.Table
    begins: Positions  # for each left row, the first of its right rows
    ends: Positions  # for each left row, number of the pair behind its last one

    @classmethod
    def of(cls, join: Join, store: StoreSpec, left: _SideRows, right: _SideRows, *, keys: int) -> _Pairs:
        """Return all pairs with equal keys of which one row is new."""
        # Numbers of keys are small and dense, so counting per key replaces a hash table. Rows whose key the other side
        # lacks leave first, before any value is decoded.
        has_left, has_right = (np.bincount(side.keys, minlength=keys) > 0 for side in (left, right))
        left, right = (side.only(has_left & has_right) for side in (left, right))
        # The right rows of a key in one run, the new ones first: a stored left row meets only these.
        order = np.argsort(right.keys, kind="stable")
        all_of_key = np.bincount(right.keys, minlength=keys)
        new_of_key = np.bincount(right.keys[: right.new], minlength=keys)
        begin_of_key = np.cumsum(all_of_key) - all_of_key
        # A pair of two stored rows left with an earlier micro-batch: a stored left row meets only new right rows.
        counts = np.where(np.arange(len(left.keys)) < left.new, all_of_key[left.keys], new_of_key[left.keys])
        fingerprint = store.rows.fingerprint
        tables = [
            pa.table(
                decode_rows(rows, arrow_types(side.columns), fingerprint), names=[name for name, _ in side.columns]
            )
            for side, rows in zip(join.sides, (left.rows, right.rows.take(pa.array(order))), strict=True)
        ]
        return cls(tables[0], tables[1], begin_of_key[left.keys], np.cumsum(counts))

    def tables(self, most: int) -> Iterator[pa.Table]:
        """Yield the pairs with the columns of both sides, at most `most` in a table."""
        total = int(self.ends[-1]) if len(self.ends) else 0
        counts = np.diff(self.ends, prepend=0)
        for first in range(0, total, most):
            pairs = np.arange(first, min(first + most, total))
            # Pair `p` belongs to the first left row whose end is behind `p`. Its right row is as far from the run's
            # begin as the pair is from the left row's first pair.
            left = np.searchsorted(self.ends, pairs, side="right")
            right = self.begins[left] + pairs - (self.ends[left] - counts[left])
            columns = [*self.left.take(pa.array(left)).columns, *self.right.take(pa.array(right)).columns]
            yield pa.Table.from_arrays(columns, names=[*self.left.column_names, *self.right.column_names])


def read_counter(reader: StoreReader, key: bytes, fingerprint: bytes) -> int:
    """Return the number that a store keeps under a key; 0 before the first one."""
    stored = reader.values(pa.array([key], pa.binary()))
    if stored.null_count:
        return 0
    [numbers] = decode_rows(stored, [pa.int64()], fingerprint)
    return int(numbers[0].as_py())


def numbered_keys(keys: pa.Array) -> tuple[pa.Array, Positions]:
    """Return the distinct keys in the order of their entries, by length and then by bytes, and each row's number."""
    distinct = pc.unique(keys)
    headed = entry_names(np.zeros(len(distinct), np.uint8), distinct, np.arange(len(distinct)), None)
    order = order_of_keys(headed)
    if order is not None:
        distinct = distinct.take(order)
    return distinct, pc.index_in(keys, value_set=distinct).to_numpy(zero_copy_only=False).astype(np.int64)


def entry_names(sides: Bytes, keys: pa.Array, key_numbers: Positions, numbers: Positions | None) -> pa.Array:
    """Return the store's keys of rows: side, key and number of each. Without numbers: their prefixes."""
    data, starts, sizes = spans_of(keys)
    starts, sizes = starts[key_numbers], sizes[key_numbers]
    heads = np.empty((len(sides), 3), np.uint8)
    heads[:, 0] = sides
    # Big endian, so that the order of bytes is the order of lengths and of numbers.
    heads[:, 1:] = sizes.astype(">u2").view(np.uint8).reshape(-1, 2)
    parts = [_rows_of_bytes(heads), (data, starts, sizes)]
    if numbers is not None:
        parts.append(_rows_of_bytes(numbers.astype(">u8").view(np.uint8).reshape(-1, 8)))
    lengths: Positions = np.sum(np.stack([part[2] for part in parts]), axis=0)
    ends = np.cumsum(lengths)
    body: Bytes = np.empty(int(ends[-1]) if len(ends) else 0, np.uint8)
    at = ends - lengths
    for part, part_starts, part_sizes in parts:
        copy_spans(body, at, part, part_starts, part_sizes)
        at = at + part_sizes
    return array_of_spans(body, ends - lengths, lengths, pa.binary(), np.zeros(len(sides), np.bool_))


def _rows_of_bytes(table: Bytes) -> tuple[Bytes, Positions, Positions]:
    """Return the rows of a table of bytes as spans."""
    count, width = table.shape
    return (
        np.ascontiguousarray(table).reshape(-1),
        np.arange(count, dtype=np.int64) * width,
        np.full(count, width, np.int64),
    )
