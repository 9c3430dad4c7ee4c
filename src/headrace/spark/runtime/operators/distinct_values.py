"""Exact distinct counts: one entry of the aggregate's store per group and value, and a counter in the group's row.

A micro-batch is reduced to its distinct pairs of group and value. Those without an entry are new: they are written as
entries, and the group's counter grows by their number. So the work per row does not depend on how many values a group
has, and no result depends on how the input is cut.

Entries lie in the store and changelog of the groups' rows, under keys that no group has (`rows.encode_key`):

    FF 01 · number of the aggregate function · row of the grouping values and the value

In windows that close, keys are in the order of time (`time_keys`), so that entries leave with their window:

    02 · start of the window · number of the aggregate function · row of the grouping values and the value

Rejected: a store of its own. Counter and entries must never part, not in a copy either: a standby or a restore that had
one without the other would count a value twice or never. In one topic the order of records keeps them together.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from headrace.spark.arrow_types import arrow_type
from headrace.spark.runtime.operators.aggregate_states import cast_column, one_zero
from headrace.spark.runtime.rows.rows import ENTRY_PREFIX, encode_key
from headrace.spark.runtime.stores.bulk_load import order_of_keys
from headrace.spark.runtime.stores.time_keys import DISTINCT_ENTRY, microseconds, shortened_keys, timed_keys
from headrace.spark.topology.nodes import Aggregate, Buffer

__all__ = ["DistinctEntries", "DistinctPairs", "distinct_buffers", "entries_of", "with_counters"]


def distinct_buffers(aggregate: Aggregate) -> tuple[Buffer, ...]:
    """Return the distinct counts of an aggregate, in the order that their entries are numbered in."""
    return tuple(buffer for buffer in aggregate.buffers if buffer.function == "count_distinct")


@dataclass(frozen=True, slots=True)
class DistinctPairs:
    """Rows as distinct pairs of group and value, with the methods of `AggregateFunctions` that reduce rows."""

    group_names: tuple[str, ...]
    buffer: Buffer

    def lifted(self, rows: pa.Table, *, by: tuple[str, ...]) -> pa.Table:
        """Return the grouping values and the value of each row that counts: one with a null does not."""
        buffer = self.buffer
        kinds = dict([(str(buffer.input), str(buffer.input_type)), *buffer.more_inputs])
        columns = {name: one_zero(rows.column(name)) for name in by}
        columns |= {name: one_zero(cast_column(rows.column(name), arrow_type(kind))) for name, kind in kinds.items()}
        table = pa.table(columns)
        for name in buffer.inputs:
            if table.column(name).null_count:
                table = table.filter(pc.is_valid(table.column(name)))
        return table

    def combine(self, table: pa.Table, *, by: tuple[str, ...]) -> pa.Table:
        """Return each pair once."""
        return table.group_by([*by, *self.buffer.inputs], use_threads=False).aggregate([])


@dataclass(frozen=True, slots=True)
class DistinctEntries:
    """Entries that a micro-batch may add: their keys in byte order, and whose counter each one is part of."""

    keys: pa.Array
    group: NDArray[np.int64]  # row number of the group
    buffer: NDArray[np.int64]  # number of the distinct count

    def counts(self, is_new: NDArray[np.bool_], buffer: int, groups: int) -> NDArray[np.int64]:
        """Return by how much each group's counter grows."""
        counted = self.group[is_new & (self.buffer == buffer)]
        return np.bincount(counted, minlength=groups).astype(np.int64)


def entries_of(
    pairs: list[tuple[DistinctPairs, pa.Table]], group_keys: pa.Array, *, window: str | None = None
) -> DistinctEntries:
    """Return the entries of all distinct counts.

    Args:
        pairs: Of each distinct count, in their order, the pairs of the micro-batch.
        group_keys: The key of each group of the micro-batch.
        window: The grouping column that windows begin at, where entries are found and deleted by it.
    """
    keys, groups, buffers = [], [], []
    for number, (kind, table) in enumerate(pairs):
        by = kind.group_names
        body = encode_key([table.column(name) for name in (*by, *kind.buffer.inputs)])
        prefix = number.to_bytes(2, "big") if window is not None else ENTRY_PREFIX + number.to_bytes(2, "big")
        key = pc.binary_join_element_wise(pa.scalar(prefix, pa.binary()), body, pa.scalar(b"", pa.binary()))
        if window is not None:
            key = timed_keys(microseconds(table.column(window)), shortened_keys(key), kind=DISTINCT_ENTRY)
        keys.append(key)
        places = pc.index_in(encode_key([table.column(name) for name in by]), value_set=group_keys)
        groups.append(places.to_numpy(zero_copy_only=False).astype(np.int64))
        buffers.append(np.full(table.num_rows, number, np.int64))
    found = DistinctEntries(pa.concat_arrays(keys), np.concatenate(groups), np.concatenate(buffers))
    order = order_of_keys(found.keys)
    if order is None:
        return found
    places = order.to_numpy()
    return DistinctEntries(found.keys.take(order), found.group[places], found.buffer[places])


def with_counters(
    rows: pa.Table, entries: DistinctEntries, is_new: NDArray[np.bool_], kinds: list[DistinctPairs]
) -> pa.Table:
    """Return a micro-batch's groups with the numbers of their new values as counters."""
    for number, kind in enumerate(kinds):
        counts = pa.array(entries.counts(is_new, number, rows.num_rows))
        rows = rows.set_column(rows.schema.get_field_index(kind.buffer.name), kind.buffer.name, counts)
    return rows
