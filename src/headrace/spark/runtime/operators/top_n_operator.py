"""The first rows of each key as an operator with state: `row_number()`, `rank()` or `dense_rank()` up to N.

Input only grows, so a row that fell out of the first N can never return: the store holds the rows that are in, and no
others. For `row_number` that is N rows a key. `rank` and `dense_rank` keep ties, so a key may have more.

1. *Order.* Rows are sorted by the declared order, and rows that it leaves equal by all other columns. The total order
   depends on the rows alone: neither the order of arrival nor cuts, moves or repeated partitions change a result. Rows
   that are equal in every column are interchangeable.
2. *Store.* One entry for each row, key `key of the group · slot`. Slots of a key are 0, 1, .. without gaps and in no
   order, so a row that enters the first N costs one write: into the slot of the one that leaves. Rejected: all rows of
   a key in one value, which writes N rows for each one that enters and outgrows a record where ties are kept; and slots
   in the order of the rows, where one new best row moves all others.
3. *Output.* Rows are published by position, 1 to the number of rows of the key: one row for each position whose row is
   another one now, and a deletion for each position that has none any more (ties that left together).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from headrace.spark.arrow_types import arrow_type
from headrace.spark.runtime.batches.stages import fitted
from headrace.spark.runtime.operators.stateful_operator import NO_KEYS, RunningOperator, StoreUpdate
from headrace.spark.runtime.rows.row_kernels import copy_spans
from headrace.spark.runtime.rows.row_schema import StoreSpec, store_of
from headrace.spark.runtime.rows.rows import decode_rows, encode_key, encode_rows
from headrace.spark.runtime.stores.byte_spans import Bytes, Positions, array_of_spans, spans_of
from headrace.spark.runtime.stores.order_codes import Codes, changes_of, codes_of, sorted_rows
from headrace.spark.runtime.stores.store import StoreWrites
from headrace.spark.topology.nodes import DELETED_COLUMN, KEY_COLUMN, TASK_COLUMN, OverRows, RankFunction, TopN

if TYPE_CHECKING:
    from headrace.spark.runtime.stores.store import BatchKey, StoreReader

__all__ = ["SLOT_BYTES", "Ranking", "RowOrder", "RunningTopN", "SortedRows", "TopNChanges", "TopNOperator"]

ENOUGH = 300_000  # waiting rows of a task that are reduced to the first ones of their keys
FIRST_SLOTS = 4  # that are read at once; while all of a key are taken, twice as many of it are read
SLOT_BYTES = 4
Mask = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class TopNOperator:
    """A `StatefulOperator` with one store: the first rows of each key."""

    top: TopN
    with_key: bool = False  # whether rows carry the key that their records will have

    @property
    def name(self) -> str:
        return "top_n"

    @property
    def stores(self) -> tuple[StoreSpec, ...]:
        return (store_of(self.top),)

    def start(self) -> RunningOperator:
        return RunningTopN(Ranking(self.top), self)


class RowOrder:
    """Order of the rows `g0.., i0..` of a node: by key, then as declared, then by all other inputs."""

    def __init__(self, node: TopN | OverRows) -> None:
        self.groups = pa.schema([(f"g{at}", arrow_type(kind)) for at, (_, kind) in enumerate(node.group_columns)])
        self.inputs = pa.schema([(name, arrow_type(kind)) for name, kind in node.inputs])
        self.kept = pa.schema([*self.groups, *self.inputs])
        self._order = node.order
        ordered = {one.column for one in node.order}
        self._others = [name for name in self.inputs.names if name not in ordered]

    def fitted(self, rows: pa.Table) -> pa.Table:
        """Return rows in the types that they are stored in, whatever time zone or width Spark used."""
        return fitted(rows, self.kept)

    def sort(self, rows: pa.Table, group: Positions) -> SortedRows:
        """Return the order of `rows`, whose keys are numbered by `group`."""
        # The group first, then the declared order. Each column is an array of integers in Spark's order, so one
        # lexicographic sort of numbers does all.
        codes: list[Codes] = [group]
        for one in self._order:
            column = rows.column(one.column).combine_chunks()
            codes += codes_of(column, descending=one.descending, nulls_last=one.nulls_last)
        order = sorted_rows(codes)
        starts_tie = changes_of(codes, order)
        self._order_ties(rows, order, starts_tie)
        starts_group = changes_of([group], order)
        return SortedRows(order, group[order], starts_group, starts_tie)

    def _order_ties(self, rows: pa.Table, order: Positions, starts_tie: Mask) -> None:
        """Order the rows within each tie by their other columns. Few rows are in one, so only those are looked at."""
        tied = ~starts_tie
        # `starts_tie` is False behind the first row of a tie; the first row itself is tied if the next one does not
        # start a tie.
        tied[:-1] |= ~starts_tie[1:]
        places = np.flatnonzero(tied)
        if not len(places) or not self._others:
            return
        mine = order[places]
        # Ties keep their places among each other: their number is the most significant code.
        codes: list[Codes] = [np.cumsum(starts_tie, dtype=np.int64)[places]]
        some = rows.select(self._others).take(pa.array(mine))
        for name in self._others:
            codes += codes_of(some.column(name).combine_chunks())
        order[places] = mine[sorted_rows(codes)]


class Ranking(RowOrder):
    """Order and ranks of rows."""

    def __init__(self, top: TopN) -> None:
        super().__init__(top)
        self.top = top


@dataclass(frozen=True, slots=True)
class SortedRows:
    """Rows in order: by key, then by rank."""

    rows: Positions  # numbers of the rows
    group: Positions
    starts_group: Mask
    starts_tie: Mask  # whether a row differs in key or order from the one before it

    def ranks(self, function: RankFunction) -> Positions:
        """Return the rank of each row, from 1."""
        # `rank` repeats the position of the tie's first row, `dense_rank` counts ties. Both are running maxima or sums
        # over all rows, less their value at the start of the group.
        number = np.arange(1, len(self.rows) + 1)
        if function == "dense_rank":
            number = np.cumsum(self.starts_tie)
        elif function == "rank":
            number = np.maximum.accumulate(np.where(self.starts_tie, number, 0))
        first = np.maximum.accumulate(np.where(self.starts_group, number, 0))
        return number - first + 1

    def positions(self) -> Positions:
        """Return the place of each row in its group, from 0."""
        return self.ranks("row_number") - 1

    def only(self, mask: Mask) -> SortedRows:
        """Return the rows in `mask`, in the same order."""
        tie, group = np.cumsum(self.starts_tie, dtype=np.int64)[mask], self.group[mask]
        return SortedRows(self.rows[mask], group, _changes(group), _changes(tie))


class TopNDescription(Protocol):
    """Description of a top-N: a `TopNOperator`, or one over windows that close."""

    @property
    def with_key(self) -> bool: ...

    @property
    def stores(self) -> tuple[StoreSpec, ...]: ...


class RunningTopN:
    """Mutable: the rows of the micro-batch that may be among the first ones."""

    def __init__(self, ranking: Ranking, operator: TopNDescription) -> None:
        self._ranking, self._operator = ranking, operator
        self._tables: dict[int, list[pa.Table]] = {}
        self._waiting: dict[int, int] = {}

    def begin(self, batch: BatchKey) -> None:
        del batch
        self._tables, self._waiting = {}, {}

    def on_rows(self, partition: int, rows: pa.Table) -> None:
        if not rows.num_rows:
            return
        tables = self._tables.setdefault(partition, [])
        tables.append(self._ranking.fitted(rows))
        self._waiting[partition] = self._waiting.get(partition, 0) + rows.num_rows
        # Rows that are not among the first N of their key in this micro-batch alone cannot be later: they are dropped
        # before the store is read. Done when enough new ones wait, so that the work stays proportional to the rows.
        if self._waiting[partition] > ENOUGH + 2 * tables[0].num_rows:
            first, _, _ = self._first_rows(tables)
            self._tables[partition], self._waiting[partition] = [first], 0

    def end(self, partition: int) -> TopNChanges | None:
        tables = self._waiting_rows(partition)
        if not tables:
            return None
        return TopNChanges(self._ranking, self._operator, partition, *self._first_rows(tables))

    def _waiting_rows(self, partition: int) -> list[pa.Table]:
        self._waiting.pop(partition, None)
        return self._tables.pop(partition, [])

    def _no_rows(self) -> tuple[pa.Table, pa.Array, Positions]:
        return self._ranking.kept.empty_table(), pa.array([], pa.binary()), np.empty(0, np.int64)

    def _first_rows(self, tables: Sequence[pa.Table]) -> tuple[pa.Table, pa.Array, Positions]:
        """Return the rows that are among the first ones of these, their distinct keys, and the key of each row."""
        rows = pa.concat_tables(tables).combine_chunks()
        found = encode_key([rows.column(name) for name in self._ranking.groups.names]).dictionary_encode()
        group = found.indices.to_numpy(zero_copy_only=False).astype(np.int64)
        top = self._ranking.top
        ordered = self._ranking.sort(rows, group)
        kept = ordered.rows[ordered.ranks(top.function) <= top.limit]
        return rows.take(pa.array(kept)), found.dictionary, group[kept]


@dataclass(frozen=True, slots=True)
class _Merged:
    """Stored and new rows of the keys of a micro-batch, in one order."""

    rows: pa.Table
    slot: Positions  # of each row in the store; negative for a new one
    before: SortedRows  # the stored rows
    after: SortedRows  # the rows that are among the first ones now
    ranks: Positions  # of these
    counts: Positions  # their number for each key
    counts_before: Positions

    def free_places(self) -> tuple[Positions, Positions]:
        """Return which of the kept rows need a slot, and a free one for each of them."""
        return _free_places(self.after.group, self.slot[self.after.rows], self.counts)

    def emptied(self, counts: Positions) -> tuple[Positions, Positions]:
        """Return (key, slot) of the slots that are not needed if each key has `counts` rows."""
        return _emptied(counts, self.counts_before)


class TopNChanges:
    """Changes of one task in one micro-batch, found when its store is open."""

    def __init__(
        self,
        ranking: Ranking,
        operator: TopNDescription,
        partition: int,
        rows: pa.Table,
        keys: pa.Array,
        group: Positions,
    ) -> None:
        self._ranking, self._top, self._with_key = ranking, ranking.top, operator.with_key
        [self._store] = operator.stores
        self._partition, self._rows, self._keys, self._group = partition, rows, keys, group
        self._results: pa.Table | None = None

    @property
    def stores(self) -> Sequence[StoreUpdate]:
        return (StoreUpdate(store=self._store, update=self._update),)

    def results(self) -> pa.Table:
        assert self._results is not None
        return self._results

    @property
    def _kept_names(self) -> list[str]:
        """Return the columns of stored rows."""
        return list(self._ranking.inputs.names)

    def _update(self, reader: StoreReader) -> StoreWrites:
        merged = self._merged(reader, self._rows, self._group)
        self._results = self._changed_rows(merged)
        placed, places = merged.free_places()
        kept = merged.after
        return self._writes(merged.rows, kept.rows[placed], kept.group[placed], places, merged.emptied(merged.counts))

    def _merged(self, reader: StoreReader, new: pa.Table, new_group: Positions) -> _Merged:
        """Return the stored rows of the keys and `new` ones, ranked."""
        # Stored rows in front of the new ones, in one order: of equal rows the stored ones stay.
        stored, stored_group, stored_slot = self._stored(reader)
        rows = pa.concat_tables([stored, new.select(self._kept_names)]).combine_chunks()
        group = np.concatenate([stored_group, new_group])
        slot = np.concatenate([stored_slot, np.full(len(new_group), -1, np.int64)])
        after = self._ranking.sort(rows, group)
        before = after.only(slot[after.rows] >= 0)
        ranks = after.ranks(self._top.function)
        kept = ranks <= self._top.limit
        after, ranks = after.only(kept), ranks[kept]
        return _Merged(
            rows=rows,
            slot=slot,
            before=before,
            after=after,
            ranks=ranks,
            counts=np.bincount(after.group, minlength=len(self._keys)),
            counts_before=np.bincount(before.group, minlength=len(self._keys)),
        )

    def _changed_rows(self, merged: _Merged) -> pa.Table:
        """Return the rows of positions that have another row now, and deletions of those that have none."""
        rows, before, after = merged.rows, merged.before, merged.after
        position = after.positions()
        position_before = np.full(len(rows), -1, np.int64)
        position_before[before.rows] = before.positions()
        changed = position_before[after.rows] != position
        ranks_before = before.ranks(self._top.function)
        gone = position_before[before.rows] >= merged.counts[before.group]
        return self._table(
            rows.take(pa.array(np.concatenate([after.rows[changed], before.rows[gone]]))),
            np.concatenate([after.group[changed], before.group[gone]]),
            np.concatenate([position[changed], position_before[before.rows[gone]]]),
            np.concatenate([merged.ranks[changed], ranks_before[gone]]),
            deleted=int(gone.sum()),
        )

    def _stored(self, reader: StoreReader) -> tuple[pa.Table, Positions, Positions]:
        """Return the stored rows of the keys, with the key and the slot of each."""
        values: list[pa.Array] = []
        groups: list[Positions] = [np.empty(0, np.int64)]
        slots: list[Positions] = [np.empty(0, np.int64)]
        full = np.arange(len(self._keys), dtype=np.int64)
        # Slots of a key have no gaps, so reading may stop at the first empty one. The number of slots read doubles
        # while all of a key are taken.
        first, count = 0, FIRST_SLOTS
        while len(full) and (count := self._readable(first, count)):
            group = np.repeat(full, count)
            slot = np.tile(np.arange(first, first + count, dtype=np.int64), len(full))
            found = reader.values(self._names(group, slot))
            there = found.is_valid().to_numpy(zero_copy_only=False)
            values.append(found.drop_null())
            groups.append(group[there])
            slots.append(slot[there])
            full = group[there & (slot == first + count - 1)]
            first, count = first + count, 2 * count
        stored = self._decoded(pa.concat_arrays(values) if values else NO_KEYS)
        return stored, np.concatenate(groups), np.concatenate(slots)

    def _decoded(self, values: pa.Array) -> pa.Table:
        """Return stored values as rows."""
        schema = pa.schema([self._ranking.kept.field(name) for name in self._kept_names])
        return pa.Table.from_arrays(decode_rows(values, schema.types, self._store.rows.fingerprint), schema=schema)

    def _readable(self, first: int, count: int) -> int:
        """Return how many slots from `first` may be taken, at most `count`."""
        return min(count, self._top.limit - first) if self._top.function == "row_number" else count

    def _names(self, group: Positions, slot: Positions) -> pa.Array:
        """Return the store's keys of (key, slot) pairs."""
        data, starts, sizes = spans_of(self._keys)
        starts, sizes = starts[group], sizes[group]
        ends = np.cumsum(sizes + SLOT_BYTES)
        begins = ends - sizes - SLOT_BYTES
        body: Bytes = np.empty(int(ends[-1]) if len(ends) else 0, np.uint8)
        copy_spans(body, begins, data, starts, sizes)
        tails = slot.astype(">u4").view(np.uint8)
        tail_starts = np.arange(len(slot), dtype=np.int64) * SLOT_BYTES
        copy_spans(body, begins + sizes, tails, tail_starts, np.full(len(slot), SLOT_BYTES, np.int64))
        return array_of_spans(body, begins, ends - begins, pa.binary(), np.zeros(len(slot), np.bool_))

    def _writes(
        self,
        rows: pa.Table,
        placed: Positions,
        group: Positions,
        places: Positions,
        emptied: tuple[Positions, Positions],
        more: tuple[pa.Array, pa.Array] = (NO_KEYS, NO_KEYS),
    ) -> StoreWrites:
        """Return the writes for `placed` rows and emptied slots, and `more` keys and values."""
        names = self._names(np.concatenate([group, emptied[0]]), np.concatenate([places, emptied[1]]))
        entered = rows.take(pa.array(placed)).combine_chunks()
        values = encode_rows([entered.column(name) for name in entered.column_names], self._store.rows.fingerprint)
        names = pa.concat_arrays([names, more[0]])
        values = pa.concat_arrays([values, pa.nulls(len(emptied[0]), pa.binary()), more[1]])
        return StoreWrites.ordered(names, values)

    def _table(
        self, rows: pa.Table, group: Positions, position: Positions, ranks: Positions, *, deleted: int = 0
    ) -> pa.Table:
        """Return rows for the next step; the last `deleted` of them are deletions."""
        groups = self._groups_of(rows, group)
        table = pa.table(
            {name: groups.column(name) for name in groups.column_names}
            | {name: rows.column(name) for name in self._ranking.inputs.names}
            | {
                "r": pa.array(ranks.astype(np.int32)),
                TASK_COLUMN: pa.array(np.full(len(group), self._partition, np.int32)),
            }
        )
        if self._with_key:
            table = table.append_column(KEY_COLUMN, self._record_keys(groups, position))
        if self._top.deletes:
            is_deleted = np.arange(len(group)) >= len(group) - deleted
            table = table.append_column(DELETED_COLUMN, pa.array(is_deleted))
        return table

    def _groups_of(self, rows: pa.Table, group: Positions) -> pa.Table:
        """Return the grouping values of `rows`, whose keys are `group`."""
        del rows
        of_group = np.zeros(len(self._keys), np.int64)  # some row of each key, for the values of its columns
        of_group[self._group] = np.arange(len(self._group))
        return self._rows.select(self._ranking.groups.names).take(pa.array(of_group[group]))

    def _shown(self, name: str, groups: pa.Table) -> pa.Array:
        """Return grouping values as the key of a record shows them."""
        return groups.column(name).combine_chunks()

    def _record_keys(self, groups: pa.Table, position: Positions) -> pa.Array:
        from headrace.spark.formats import encode_key as encode_sink_key

        names = [name for name, _ in self._top.group_columns]
        arrays = [self._shown(name, groups) for name in groups.column_names]
        if self._top.key_name is not None:
            names.append(self._top.key_name)
            arrays.append(pa.array((position + 1).astype(np.int32)))
        return encode_sink_key(pa.RecordBatch.from_arrays(arrays, names=names), tuple(names))


def _free_places(group: Positions, slot: Positions, counts: Positions) -> tuple[Positions, Positions]:
    """Return which of the kept rows have no slot below their key's count, and a free one for each of them.

    Args:
        group: Key of each kept row, ascending.
        slot: Its slot; negative for a new row.
        counts: Number of kept rows of each key.
    """
    first = np.cumsum(counts) - counts
    stays = (slot >= 0) & (slot < counts[group])
    used = np.zeros(len(group), np.bool_)
    used[first[group[stays]] + slot[stays]] = True
    placed, free = np.flatnonzero(~stays), np.flatnonzero(~used)  # both by key, as many of each
    return placed, free - first[group[placed]]


def _emptied(counts: Positions, counts_before: Positions) -> tuple[Positions, Positions]:
    """Return (key, slot) of the slots that are not needed any more."""
    fewer = np.flatnonzero(counts_before > counts)
    lengths = (counts_before - counts)[fewer]
    within = np.arange(int(lengths.sum())) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    return np.repeat(fewer, lengths), np.repeat(counts[fewer], lengths) + within


def _changes(values: Positions) -> Mask:
    changes = np.ones(len(values), np.bool_)
    changes[1:] = values[1:] != values[:-1]
    return changes
