"""The keyed aggregate as an operator with state: rows `g0.., i0..` in, one row `g0.., b0..` per changed key out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from headrace.spark.runtime.operators.aggregate import AggregateFunctions, in_order_of
from headrace.spark.runtime.operators.distinct_values import (
    DistinctEntries,
    DistinctPairs,
    distinct_buffers,
    entries_of,
    with_counters,
)
from headrace.spark.runtime.operators.stateful_operator import RunningOperator, StoreChange, StoreUpdate, TaskChanges
from headrace.spark.runtime.operators.table_functions import functions_of
from headrace.spark.runtime.rows.row_schema import StoreSpec, store_of
from headrace.spark.runtime.rows.rows import decode_rows, empty_row, encode_key, encode_rows
from headrace.spark.runtime.stores.bulk_load import order_of_keys
from headrace.spark.runtime.stores.store import BatchKey, StoreReader, StoreWrites
from headrace.spark.topology.nodes import (
    KEY_COLUMN,
    OLD_COLUMN,
    SESSION_END_COLUMN,
    TASK_COLUMN,
    Aggregate,
    SessionWindow,
    WindowKind,
)

__all__ = [
    "AggregateOperator",
    "GroupMerge",
    "GroupsWithEntries",
    "PartialRows",
    "RowMerging",
    "merge_stored",
    "window_column",
]

_ROW = "__headrace_row"
ENOUGH = 1_000_000  # partials of a task that wait to be combined with those before them
WORTHWHILE = 0.5  # partials per row below which a table's rows are combined as they come


@dataclass(frozen=True, slots=True)
class AggregateOperator:
    """A `StatefulOperator` with one store: the partial results of each group."""

    aggregate: Aggregate
    key_names: tuple[str, ...] | None = None  # names under which the sink's key shows the groups; None: no key column

    @property
    def name(self) -> str:
        return "aggregate"

    @property
    def stores(self) -> tuple[StoreSpec, ...]:
        return (store_of(self.aggregate),)

    def start(self) -> RunningOperator:
        return self.running(RowMerging(self))

    @staticmethod
    def running(merging: RowMerging) -> RunningOperator:
        """Return the operator in a worker, which merges rows by `merging`."""
        return _Aggregate(merging)


class RowMerging:
    """Merge of an aggregate's input rows with its stored values."""

    def __init__(self, operator: AggregateOperator) -> None:
        self.functions = functions_of(operator.aggregate)
        groups = self.functions.group_names
        self.distinct = [DistinctPairs(groups, buffer) for buffer in distinct_buffers(operator.aggregate)]
        [self.store] = operator.stores
        self.fingerprint = self.store.rows.fingerprint
        self.emits_changes = operator.aggregate.emits_changes
        self._key_names = operator.key_names
        self._window = operator.aggregate.window
        self._columns = pa.schema(list(zip(self.functions.group_names, self.functions.group_types, strict=True)))

    def grouped(self, rows: pa.Table) -> pa.Table:
        """Rows with groups in the types that keys are encoded with."""
        return _grouped_as(rows, self._columns)

    def new_partials(self) -> list[PartialRows]:
        """Return what a micro-batch's rows of one task are added to: of its groups, then of each distinct count."""
        kinds: list[_Reduction] = [self.functions, *self.distinct]
        return [PartialRows(kind) for kind in kinds]

    def no_rows(self) -> pa.Table:
        """Partial results of no group."""
        columns = [*self._columns, *((column.name, column.type) for column in self.functions.state)]
        return pa.schema(columns).empty_table()

    def changes_of(self, partition: int, keys: pa.Array, rows: pa.Table, values: Sequence[pa.Table]) -> TaskChanges:
        """Return the changes of one task.

        Args:
            partition: Of the task.
            keys: Of its groups, in byte order.
            rows: Partial results of each group.
            values: Of each distinct count, the values of the micro-batch.
        """
        if not self.distinct:
            return _Changes(self, partition, keys, GroupMerge(self.functions, rows, self.fingerprint))
        pairs = list(zip(self.distinct, values, strict=True))
        return _DistinctChanges(self, partition, keys, rows, entries_of(pairs, keys))

    def with_hidden(self, finished: pa.Table, partition: int) -> pa.Table:
        """Finished rows with the columns that later steps need."""
        finished = finished.append_column(TASK_COLUMN, pa.array(np.full(finished.num_rows, partition, np.int32)))
        if self._key_names is not None:
            from headrace.spark.formats import encode_key as encode_sink_key

            groups = pa.Table.from_arrays(
                [self._shown(name, finished) for name in self.functions.group_names],
                names=list(self._key_names),
            )
            [batch] = groups.combine_chunks().to_batches()
            finished = finished.append_column(KEY_COLUMN, encode_sink_key(batch, self._key_names))
        return finished

    def results(self, merger: GroupMerge, partition: int) -> pa.Table:
        """Rows for the next step of what `merger` has merged."""
        if not self.emits_changes:
            return self.with_hidden(self.functions.finish(merger.merged), partition)
        partials, is_old = merger.changed()
        if not partials.num_rows:  # what came changed no result, such as a price below the highest
            return pa.table({})
        rows = self.with_hidden(self.functions.finish(partials), partition)
        return rows.append_column(OLD_COLUMN, pa.array(is_old))

    def _shown(self, group: str, finished: pa.Table) -> pa.ChunkedArray:
        """Return grouping values as users see them: a window with its start and its end."""
        window = self._window
        is_window = window is not None and window.group == group
        return window_column(window, finished) if window is not None and is_window else finished.column(group)


class _Aggregate:
    def __init__(self, merging: RowMerging) -> None:
        self._merging = merging
        self._partials: dict[int, list[PartialRows]] = {}  # of a task: of its groups, then of each distinct count

    def begin(self, batch: BatchKey) -> None:
        del batch
        self._partials = {}

    def on_rows(self, partition: int, rows: pa.Table) -> None:
        if partition not in self._partials:
            self._partials[partition] = self._merging.new_partials()
        rows = self._merging.grouped(rows)
        for partials in self._partials[partition]:
            partials.add(rows)

    def end(self, partition: int) -> TaskChanges | None:
        found = self._partials.pop(partition, None)
        rows = found[0].combined() if found is not None else None
        if found is None or rows is None or rows.num_rows == 0:
            return None
        merging, by = self._merging, self._merging.functions.group_names
        keys = encode_key([rows.column(name) for name in by])
        # In the store's order, so that the merge reads and writes each block once.
        order = order_of_keys(keys)
        if order is not None:
            rows, keys = rows.take(order), keys.take(order)
        return merging.changes_of(partition, keys, rows, [partials.combined() for partials in found[1:]])


@dataclass(frozen=True, slots=True)
class _Changes:
    """Groups of one task that a micro-batch has rows of."""

    merging: RowMerging
    partition: int
    keys: pa.Array
    merger: GroupMerge

    @property
    def stores(self) -> Sequence[StoreChange]:
        return (StoreChange(store=self.merging.store, keys=self.keys, merge=self.merger),)

    def results(self) -> pa.Table:
        return self.merging.results(self.merger, self.partition)


class GroupsWithEntries(ABC):
    """Groups of one task that a micro-batch has rows of, whose values have entries of their own in the store."""

    def __init__(self, merging: RowMerging, partition: int, keys: pa.Array, rows: pa.Table) -> None:
        self._merging, self._partition = merging, partition
        self._keys, self._rows = keys, rows
        self._merge: GroupMerge | None = None  # of the last update

    @property
    def stores(self) -> Sequence[StoreUpdate]:
        return (StoreUpdate(store=self._merging.store, update=self._update),)

    def results(self) -> pa.Table:
        assert self._merge is not None
        return self._merging.results(self._merge, self._partition)

    @abstractmethod
    def _update(self, reader: StoreReader) -> StoreWrites:
        """Merge the groups with stored ones and with entries of their values, and set `_merge`."""


class _DistinctChanges(GroupsWithEntries):
    """Groups with the values that their distinct counts may not have."""

    def __init__(
        self, merging: RowMerging, partition: int, keys: pa.Array, rows: pa.Table, entries: DistinctEntries
    ) -> None:
        super().__init__(merging, partition, keys, rows)
        self._entries = entries

    def _update(self, reader: StoreReader) -> StoreWrites:
        fingerprint, entries, rows = self._merging.fingerprint, self._entries, self._rows
        # 1. Values without an entry are new.
        is_new = reader.values(entries.keys).is_null().to_numpy(zero_copy_only=False)
        rows = with_counters(rows, entries, is_new, self._merging.distinct)
        # 2. The groups' rows with the grown counters, then the new entries, whose keys are behind all keys of groups.
        self._merge = GroupMerge(self._merging.functions, rows, fingerprint)
        values = self._merge(reader.values(self._keys))
        added = entries.keys.filter(pa.array(is_new))
        marks = pa.repeat(pa.scalar(empty_row(fingerprint), pa.binary()), len(added))
        return StoreWrites(keys=pa.concat_arrays([self._keys, added]), values=pa.concat_arrays([values, marks]))


class GroupMerge:
    """Merge function of a store: stored values and the micro-batch's partials become new values."""

    def __init__(self, functions: AggregateFunctions, rows: pa.Table, fingerprint: bytes) -> None:
        self._functions, self._rows = functions, rows
        self._fingerprint = fingerprint
        self.merged: pa.Table = rows
        self.stored: pa.Table | None = None  # stored partials of those groups that have some
        self.old = self.new = pa.nulls(rows.num_rows, pa.binary())  # stored values, and those that replace them

    def __call__(self, old: pa.Array) -> pa.Array:
        # No group is stored yet: nothing to decode and nothing to merge.
        self.stored = None if old.null_count == len(old) else self._decoded(old)
        self.merged = self._rows
        if self.stored is not None:
            self.merged = merge_stored(self._functions, self._rows, self.stored, np.flatnonzero(old.is_valid()))
        self.merged = self._settled(self.merged, old)
        columns = [self.merged.column(column.name) for column in self._functions.state]
        self.old, self.new = old, encode_rows(columns, self._fingerprint)
        vacant = self._functions.vacant(self.merged)
        if vacant is not None and vacant.any():
            self.new = pc.if_else(pa.array(vacant), pa.scalar(None, pa.binary()), self.new)
        return self.new

    def _settled(self, merged: pa.Table, old: pa.Array) -> pa.Table:
        """Return merged groups with what does not follow from partial results alone."""
        del old
        return merged

    def _decoded(self, values: pa.Array) -> pa.Table:
        columns = self._functions.state
        decoded = decode_rows(values.drop_null(), [column.type for column in columns], self._fingerprint)
        return pa.table(decoded, names=[column.name for column in columns])

    def changed(self) -> tuple[pa.Table, NDArray[np.bool_]]:
        """Return the changed groups as partials: the old one, where there is one, in front of the new one.

        Returns:
            The partials, and which of them are old.
        """
        is_there, stays = (one.is_valid().to_numpy(zero_copy_only=False) for one in (self.old, self.new))
        same = pc.fill_null(pc.equal(self.old, self.new), False).to_numpy(zero_copy_only=False)
        new, old = np.flatnonzero(stays & ~same), np.flatnonzero(is_there & ~same)
        taken = self.merged.take(pa.array(new))
        if self.stored is None:
            return taken, np.zeros(len(new), np.bool_)
        places = (np.cumsum(is_there) - 1)[old]
        stored = self._rows.select(self._functions.group_names).take(pa.array(old))
        for column in self._functions.state:
            stored = stored.append_column(column.name, self.stored.column(column.name).take(pa.array(places)))
        # By group, the old one first.
        order = np.lexsort((np.concatenate([np.zeros(len(old)), np.ones(len(new))]), np.concatenate([old, new])))
        both = pa.concat_tables([stored, taken.select(stored.column_names)])
        return both.take(pa.array(order)), order < len(old)


def merge_stored(
    functions: AggregateFunctions, rows: pa.Table, stored: pa.Table, row_of_stored: NDArray[np.int64]
) -> pa.Table:
    """Return partials merged with the stored partials of the same groups, in the order of `rows`.

    Args:
        functions: Of the aggregate.
        rows: One row per group: grouping values and partial results.
        stored: Stored partial results of some of the groups.
        row_of_stored: For each row of `stored`, the number of its group in `rows`.
    """
    names = [column.name for column in functions.state]
    stored = stored.select(names).append_column(_ROW, pa.array(row_of_stored.astype(np.int64)))
    numbered = rows.select(names).append_column(_ROW, pa.array(np.arange(rows.num_rows, dtype=np.int64)))
    # New rows first: they are in the order of `rows` already. Stored values are older, where order matters.
    parts = [stored, numbered] if functions.keeps_order else [numbered, stored]
    merged = in_order_of(functions.combine(pa.concat_tables(parts), by=(_ROW,)), _ROW)
    columns = {name: rows.column(name) for name in functions.group_names}
    return pa.table(columns | {name: merged.column(name) for name in names})


def window_column(window: WindowKind, finished: pa.Table) -> pa.ChunkedArray:
    """Return the windows of an operator's rows as Spark shows them: structs of start and end."""
    begins = finished.column(window.group).combine_chunks()
    if isinstance(window, SessionWindow):
        ends = finished.column(SESSION_END_COLUMN).combine_chunks()
    else:
        ends = pc.add(begins.cast(pa.int64()), window.size_us).cast(begins.type)
    return pa.chunked_array([pa.StructArray.from_arrays([begins, ends], names=["start", "end"])])


class _Reduction(Protocol):
    """A reduction of rows that may be applied to its own results again."""

    @property
    def group_names(self) -> tuple[str, ...]: ...

    def lifted(self, rows: pa.Table, *, by: tuple[str, ...]) -> pa.Table: ...

    def combine(self, partials: pa.Table, /, *, by: tuple[str, ...]) -> pa.Table: ...


class PartialRows:
    """The micro-batch's rows of one task as few tables of partials. Mutable."""

    def __init__(self, functions: _Reduction) -> None:
        self._functions, self._by = functions, functions.group_names
        self._tables: list[pa.Table] = []
        self._waiting, self._least = 0, 0
        self._helps = True  # whether rows of one table share groups, so that it pays to combine them at once
        self._is_combined = False  # whether there is one table, with one row for each group

    def add(self, rows: pa.Table) -> None:
        table = self._functions.lifted(rows, by=self._by)
        # 1. Combining pays if rows share groups. Once a table did not shrink by half, tables are only collected: a
        #    table of unique keys would be hashed once per table and once more at the end.
        self._is_combined = self._helps and not self._tables
        if self._helps:
            table = self._functions.combine(table, by=self._by)
            self._helps = table.num_rows <= WORTHWHILE * rows.num_rows
        self._tables.append(table)
        self._waiting += table.num_rows
        # 2. Collected partials are combined when they have become several times what was left the last time. So the
        #    work stays proportional to the rows, and memory to the groups.
        if self._waiting > 4 * self._least + ENOUGH:
            self._tables, self._is_combined = [self.combined()], True
            self._waiting = self._least = self._tables[0].num_rows

    def combined(self) -> pa.Table:
        if self._is_combined:
            return self._tables[0]
        return self._functions.combine(pa.concat_tables(self._tables), by=self._by)


def _grouped_as(table: pa.Table, columns: pa.Schema) -> pa.Table:
    """Cast groups to the types that keys are encoded with, whatever time zone or width Spark used."""
    for wanted in columns:
        index = table.schema.get_field_index(wanted.name)
        if table.schema.field(index).type != wanted.type:
            table = table.set_column(index, wanted.name, table.column(index).cast(wanted.type))
    return table
