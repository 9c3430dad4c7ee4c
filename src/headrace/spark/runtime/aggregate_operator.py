"""The keyed aggregate as an operator with state: rows `g0.., i0..` in, one row `g0.., b0..` per changed key out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from headrace.spark.runtime.aggregate import AggregateFunctions
from headrace.spark.runtime.bulk_load import order_of_keys
from headrace.spark.runtime.row_schema import StoreSpec, store_of
from headrace.spark.runtime.rows import decode_rows, encode_key, encode_rows
from headrace.spark.runtime.stateful_operator import RunningOperator, StoreChange
from headrace.spark.runtime.store import BatchKey
from headrace.spark.topology.nodes import KEY_COLUMN, TASK_COLUMN, Aggregate

__all__ = ["AggregateOperator", "RowMerging"]

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
        return _Aggregate(RowMerging(self))


class RowMerging:
    """Merge of an aggregate's input rows with its stored values."""

    def __init__(self, operator: AggregateOperator) -> None:
        self.functions = AggregateFunctions(operator.aggregate)
        [self.store] = operator.stores
        self.fingerprint = self.store.rows.fingerprint
        self._key_names = operator.key_names
        self._columns = pa.schema(list(zip(self.functions.group_names, self.functions.group_types, strict=True)))

    def grouped(self, rows: pa.Table) -> pa.Table:
        """Rows with groups in the types that keys are encoded with."""
        return _grouped_as(rows, self._columns)

    def with_hidden(self, finished: pa.Table, partition: int) -> pa.Table:
        """Finished rows with the columns that later steps need."""
        finished = finished.append_column(TASK_COLUMN, pa.array(np.full(finished.num_rows, partition, np.int32)))
        if self._key_names is not None:
            from headrace.spark.formats import encode_key as encode_sink_key

            groups = pa.Table.from_arrays(
                [finished.column(name) for name in self.functions.group_names], names=list(self._key_names)
            )
            [batch] = groups.combine_chunks().to_batches()
            finished = finished.append_column(KEY_COLUMN, encode_sink_key(batch, self._key_names))
        return finished


class _Aggregate:
    def __init__(self, merging: RowMerging) -> None:
        self._merging = merging
        self._partials: dict[int, _Partials] = {}

    def begin(self, batch: BatchKey) -> None:
        del batch
        self._partials = {}

    def on_rows(self, partition: int, rows: pa.Table) -> None:
        partials = self._partials.setdefault(partition, _Partials(self._merging.functions))
        partials.add(self._merging.grouped(rows))

    def end(self, partition: int) -> _Changes | None:
        partials = self._partials.pop(partition, None)
        rows = partials.combined() if partials is not None else None
        if rows is None or rows.num_rows == 0:
            return None
        keys = encode_key([rows.column(name) for name in self._merging.functions.group_names])
        order = order_of_keys(keys)
        if order is not None:
            rows, keys = rows.take(order), keys.take(order)
        return _Changes(
            self._merging, partition, keys, _Merger(self._merging.functions, rows, self._merging.fingerprint)
        )


@dataclass(frozen=True, slots=True)
class _Changes:
    """Groups of one task that a micro-batch has rows of."""

    merging: RowMerging
    partition: int
    keys: pa.Array
    merger: _Merger

    @property
    def stores(self) -> Sequence[StoreChange]:
        return (StoreChange(store=self.merging.store, keys=self.keys, merge=self.merger),)

    def results(self) -> pa.Table:
        return self.merging.with_hidden(self.merging.functions.finish(self.merger.merged), self.partition)


class _Merger:
    """Merge function of a store: stored values and the micro-batch's partials become new values."""

    def __init__(self, functions: AggregateFunctions, rows: pa.Table, fingerprint: bytes) -> None:
        self._functions, self._rows = functions, rows
        self._fingerprint = fingerprint
        self.merged: pa.Table = rows

    def __call__(self, old: pa.Array) -> pa.Array:
        self.merged = self._rows if old.null_count == len(old) else self._with(old)
        columns = [self.merged.column(column.name) for column in self._functions.state]
        return encode_rows(columns, self._fingerprint)

    def _with(self, values: pa.Array) -> pa.Table:
        """The rows, each merged with the stored value beside it."""
        rows, names = self._rows, [column.name for column in self._functions.state]
        types = [column.type for column in self._functions.state]
        stored = pa.table(decode_rows(values.drop_null(), types, self._fingerprint), names=names)
        stored = stored.append_column(_ROW, pa.array(np.flatnonzero(values.is_valid().to_numpy(zero_copy_only=False))))
        numbered = rows.select(names).append_column(_ROW, pa.array(np.arange(rows.num_rows, dtype=np.int64)))
        # Every row comes first in `numbered`, so the order stays.
        merged = self._functions.combine(pa.concat_tables([numbered, stored]), by=(_ROW,))
        columns = {name: rows.column(name) for name in self._functions.group_names}
        return pa.table(columns | {name: merged.column(name) for name in names})


class _Partials:
    """The micro-batch's rows of one task as few tables of partials. Mutable."""

    def __init__(self, functions: AggregateFunctions) -> None:
        self._functions, self._by = functions, functions.group_names
        self._tables: list[pa.Table] = []
        self._waiting, self._least = 0, 0
        self._helps = True  # whether rows of one table share groups, so that it pays to combine them at once

    def add(self, rows: pa.Table) -> None:
        table = self._functions.lifted(rows, by=self._by)
        if self._helps:
            table = self._functions.combine(table, by=self._by)
            self._helps = table.num_rows <= WORTHWHILE * rows.num_rows
        self._tables.append(table)
        self._waiting += table.num_rows
        if self._waiting > 4 * self._least + ENOUGH:
            self._tables = [self.combined()]
            self._waiting = self._least = self._tables[0].num_rows

    def combined(self) -> pa.Table:
        if len(self._tables) == 1 and self._helps:
            return self._tables[0]
        return self._functions.combine(pa.concat_tables(self._tables), by=self._by)


def _grouped_as(table: pa.Table, columns: pa.Schema) -> pa.Table:
    """Cast groups to the types that keys are encoded with, whatever time zone or width Spark used."""
    for wanted in columns:
        index = table.schema.get_field_index(wanted.name)
        if table.schema.field(index).type != wanted.type:
            table = table.set_column(index, wanted.name, table.column(index).cast(wanted.type))
    return table
