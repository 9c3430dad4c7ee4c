"""The aggregate of a table as an operator with state: changes in, changes out.

A record of the repartition topic holds the inputs of a row that its group had, of the row that it has now, or of both
(`CHANGE_COLUMN`). Both are in one record wherever the row stays in its group, so no result shows the group without it.
A row that moves to another group is one record to each of them: the two may be processed at different times, by
different tasks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from headrace.spark.runtime.operators.aggregate import AggregateFunctions
from headrace.spark.runtime.operators.aggregate_operator import (
    AggregateOperator,
    GroupMerge,
    GroupsWithEntries,
    PartialRows,
    RowMerging,
)
from headrace.spark.runtime.operators.stateful_operator import RunningOperator, TaskChanges
from headrace.spark.runtime.operators.table_functions import SIGN_COLUMN
from headrace.spark.runtime.operators.value_counts import CountedValues, ValueCounts, counted_buffers, value_counts_of
from headrace.spark.runtime.stores.store import StoreReader, StoreWrites
from headrace.spark.topology.nodes import CHANGE_COLUMN, NEW_ROW, OLD_ROW

__all__ = ["TableAggregateOperator", "signed_rows"]


@dataclass(frozen=True, slots=True)
class TableAggregateOperator(AggregateOperator):
    """A `StatefulOperator` with one store: the sums of each group over the rows that it has now."""

    def start(self) -> RunningOperator:
        return self.running(_TableMerging(self))


class _TableMerging(RowMerging):
    """Merge of changes with stored values."""

    def __init__(self, operator: TableAggregateOperator) -> None:
        super().__init__(operator)
        names = self.functions.group_names
        self.counted = [CountedValues(names, buffer) for buffer in counted_buffers(operator.aggregate)]

    def new_partials(self) -> list[PartialRows]:
        """Return what a micro-batch's rows of one task are added to: of its groups, then of each counted value."""
        return [PartialRows(self.functions), *map(PartialRows, self.counted)]

    def changes_of(self, partition: int, keys: pa.Array, rows: pa.Table, values: Sequence[pa.Table]) -> TaskChanges:
        if not self.counted:
            return super().changes_of(partition, keys, rows, ())
        counts = value_counts_of(list(zip(self.counted, values, strict=True)), keys)
        return _CountedChanges(self, partition, keys, rows, counts)

    def grouped(self, rows: pa.Table) -> pa.Table:
        """Changes as rows with a sign, with groups in the types that keys are encoded with."""
        return super().grouped(signed_rows(rows))


class _CountedChanges(GroupsWithEntries):
    """Groups with the values that came and left."""

    def __init__(
        self, merging: _TableMerging, partition: int, keys: pa.Array, rows: pa.Table, counts: ValueCounts
    ) -> None:
        super().__init__(merging, partition, keys, rows)
        self._counted, self._counts = merging.counted, counts

    def _update(self, reader: StoreReader) -> StoreWrites:
        fingerprint, counts, rows = self._merging.fingerprint, self._counts, self._rows
        # 1. How often each value that came or left occurs now; distinct counts follow from that alone.
        before, after = counts.counts(reader.values(counts.keys), fingerprint)
        for number, kind in enumerate(self._counted):
            if not kind.is_extreme:
                name, grown = kind.buffer.name, counts.grown(number, before, after, rows.num_rows)
                rows = rows.set_column(rows.schema.get_field_index(name), name, pa.array(grown))
        # 2. The groups' rows. Extremes follow from what is stored of the group and from its entries.
        self._merge = _CountedMerge(self._merging.functions, rows, fingerprint, counts, after, reader)
        values = self._merge(reader.values(self._keys))
        # 3. Keys of entries are behind all keys of groups.
        return StoreWrites(
            keys=pa.concat_arrays([self._keys, counts.keys]),
            values=pa.concat_arrays([values, counts.written(after, fingerprint)]),
        )


class _CountedMerge(GroupMerge):
    def __init__(
        self,
        functions: AggregateFunctions,
        rows: pa.Table,
        fingerprint: bytes,
        counts: ValueCounts,
        after: NDArray[np.int64],
        reader: StoreReader,
    ) -> None:
        super().__init__(functions, rows, fingerprint)
        self._counts, self._after, self._reader = counts, after, reader

    def _settled(self, merged: pa.Table, old: pa.Array) -> pa.Table:
        there = np.flatnonzero(old.is_valid().to_numpy(zero_copy_only=False))
        places = np.full(len(old), -1, np.int64)
        places[there] = np.arange(len(there))
        for number, kind in enumerate(self._counts.kinds):
            if not kind.is_extreme:
                continue
            stored = pa.nulls(len(old), kind.type)
            if self.stored is not None:
                column = self.stored.column(kind.buffer.name).combine_chunks()
                stored = column.take(pa.array(places, mask=places < 0))
            found = self._counts.extremes(number, stored, self._after, self._reader.keys_between)
            merged = merged.set_column(merged.schema.get_field_index(kind.buffer.name), kind.buffer.name, found)
        return merged


def signed_rows(changes: pa.Table) -> pa.Table:
    """Return new rows with the sign 1, and old rows with the sign -1."""
    kinds = changes.column(CHANGE_COLUMN[0])
    groups = [name for name in changes.column_names if name.startswith("g")]
    inputs = [name for name in changes.column_names if name.startswith("i")]
    parts = []
    for kind, sign, prefix in ((NEW_ROW, 1, "i"), (OLD_ROW, -1, "o")):
        mine = changes.filter(pc.not_equal(pc.bit_wise_and(kinds, pa.scalar(kind, kinds.type)), 0))
        columns = [mine.column(name) for name in groups] + [mine.column(f"{prefix}{name[1:]}") for name in inputs]
        part = pa.Table.from_arrays(columns, names=[*groups, *inputs])
        parts.append(part.append_column(SIGN_COLUMN, pa.array(np.full(mine.num_rows, sign, np.int64))))
    return pa.concat_tables(parts)
