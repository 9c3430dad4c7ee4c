"""The join of two tables on their keys as an operator with state: newest rows of both sides in, changes out.

Semantics are those of Kafka Streams' KTable-KTable join: the result is a table with the key of both sides, and each
change of one side is at most one change of the result. A record of the repartition topic holds the row that one side
has of a key now, null if it has none. The records of a key and a side come from one task, in the order of its changes,
so the newest one is the row. Keys with a null are only there for one side: the sink has left out the other one.

The store has one entry per key, with the rows of both sides as they came:

    key → left row or null · right row or null

What was published of a key before follows from the stored rows, and what it is now from the new ones, so no result is
stored. Rejected: a store for each side, as Kafka Streams has them in front of the join. A key would be looked up twice,
and each row be written to two changelogs, the table's own and the side's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from headrace.spark.arrow_types import arrow_types, schema_of
from headrace.spark.runtime.operators.stateful_operator import CollectedRows, RunningOperator, StoreChange
from headrace.spark.runtime.rows.row_schema import StoreSpec, store_of
from headrace.spark.runtime.rows.rows import decode_rows, encode_key, encode_rows
from headrace.spark.runtime.stores.bulk_load import order_of_keys
from headrace.spark.topology.nodes import JOIN_COLUMNS, KEY_COLUMN, OLD_COLUMN, TASK_COLUMN, TableJoin, TableJoinSide

__all__ = ["JoinedChanges", "TableJoinOperator", "distinct_groups", "group_schema"]

Mask = NDArray[np.bool_]
Positions = NDArray[np.int64]
_SIDE, _ROW = (name for name, _ in JOIN_COLUMNS)
_STORED = (pa.binary(), pa.binary())


@dataclass(frozen=True, slots=True)
class TableJoinOperator:
    """A `StatefulOperator` with one store: the rows that both sides have of each key."""

    join: TableJoin

    @property
    def name(self) -> str:
        return "join"

    @property
    def stores(self) -> tuple[StoreSpec, ...]:
        return (store_of(self.join),)

    def start(self) -> RunningOperator:
        return _TableJoin(self.join)


class _TableJoin(CollectedRows):
    def __init__(self, join: TableJoin) -> None:
        self._join, self._groups = join, group_schema(join)
        super().__init__([*self._groups.names, _SIDE, _ROW])

    def end(self, partition: int) -> JoinedChanges | None:
        tables = self._take_rows(partition)
        if not tables:
            return None
        rows = pa.concat_tables(tables).combine_chunks()
        distinct, groups, of_row = distinct_groups(rows, self._groups)
        newest = []
        for side in range(2):
            mine = np.flatnonzero(rows.column(_SIDE).to_numpy() == side)
            last = np.full(len(distinct), -1, np.int64)
            np.maximum.at(last, of_row[mine], mine)
            newest.append(_NewRows(rows.column(_ROW).combine_chunks().take(pa.array(last, mask=last < 0)), last >= 0))
        return JoinedChanges(self._join, partition, distinct, groups, newest)


def group_schema(join: TableJoin) -> pa.Schema:
    """Return the columns of the records that are the key of a join of tables: `g0..`."""
    return schema_of(tuple((f"g{at}", kind) for at, (_, kind) in enumerate(join.group_columns)))


def distinct_groups(rows: pa.Table, schema: pa.Schema) -> tuple[pa.Array, pa.Table, Positions]:
    """Return the distinct keys of rows in the store's order, the values of each, and the number of each row's key.

    Args:
        rows: With the columns of `schema`, which are the key.
        schema: As `group_schema` returns it.
    """
    groups = pa.table([rows.column(field.name).cast(field.type) for field in schema], schema=schema)
    keys = encode_key(groups.columns)
    distinct = pc.unique(keys)
    order = order_of_keys(distinct)
    distinct = distinct if order is None else distinct.take(order)
    of_row = pc.index_in(keys, value_set=distinct).to_numpy(zero_copy_only=False).astype(np.int64)
    first = np.zeros(len(distinct), np.int64)
    first[of_row[::-1]] = np.arange(len(keys))[::-1]
    return distinct, groups.take(pa.array(first)), of_row


@dataclass(frozen=True, slots=True)
class _NewRows:
    """Rows of one side in a micro-batch, one for each key."""

    rows: pa.Array  # null: the side has no row any more
    is_new: Mask  # whether the side has changed at all


class JoinedChanges:
    """Keys of one task that a micro-batch has records of."""

    def __init__(
        self, join: TableJoin, partition: int, keys: pa.Array, groups: pa.Table, newest: Sequence[_NewRows]
    ) -> None:
        self._join, self._partition = join, partition
        self._keys, self._groups, self._newest = keys, groups, newest
        self._store = store_of(join)
        self._before = self._after = [pa.nulls(len(keys), pa.binary())] * 2

    @property
    def stores(self) -> Sequence[StoreChange]:
        return (StoreChange(store=self._store, keys=self._keys, merge=self._merge),)

    def results(self) -> pa.Table:
        """Return the changed rows of the result, by key: the old one, where there is one, in front of the new one."""
        was, is_now = (_is_there(self._join, sides) for sides in (self._before, self._after))
        same = _same_results(self._join, self._before, self._after)
        old, new = np.flatnonzero(was & ~(is_now & same)), np.flatnonzero(is_now & ~(was & same))
        # By key, the old one first.
        order = np.lexsort((np.repeat([0, 1], [len(old), len(new)]), np.concatenate([old, new])))
        keys = pa.array(np.concatenate([old, new])[order])
        columns = {name: self._groups.column(name).take(keys) for name in self._groups.column_names}
        for number, side in enumerate(self._join.sides):
            both = pa.concat_arrays([self._before[number].take(pa.array(old)), self._after[number].take(pa.array(new))])
            columns |= self._decoded(side, both.take(pa.array(order)))
        columns[TASK_COLUMN] = pa.array(np.full(len(keys), self._partition, np.int32))
        table = pa.table(columns)
        return table.append_column(KEY_COLUMN, self._record_keys(table)).append_column(
            OLD_COLUMN, pa.array(order < len(old))
        )

    def _merge(self, stored: pa.Array) -> pa.Array:
        fingerprint = self._store.rows.fingerprint
        there = stored.is_valid().to_numpy(zero_copy_only=False)
        places = pa.array(np.cumsum(there) - 1, mask=~there)
        sides = decode_rows(stored.drop_null(), _STORED, fingerprint)
        self._before = [side.take(places) for side in sides]
        self._after = [
            pc.if_else(pa.array(new.is_new), new.rows, before)
            for new, before in zip(self._newest, self._before, strict=True)
        ]
        merged = encode_rows(self._after, fingerprint)
        gone = pc.and_(*(side.is_null() for side in self._after))
        return pc.if_else(gone, pa.scalar(None, pa.binary()), merged)

    def _decoded(self, side: TableJoinSide, rows: pa.Array) -> dict[str, pa.Array]:
        """Return the columns of rows of a side, null where there is no row."""
        there = rows.is_valid().to_numpy(zero_copy_only=False)
        places = pa.array(np.cumsum(there) - 1, mask=~there)
        columns = decode_rows(rows.drop_null(), arrow_types(side.columns), self._store.rows.fingerprint)
        return {name: column.take(places) for (name, _), column in zip(side.columns, columns, strict=True)}

    def _record_keys(self, table: pa.Table) -> pa.Array:
        from headrace.spark.formats import encode_key as encode_sink_key

        names = [name for name, _ in self._join.group_columns]
        keys = pa.RecordBatch.from_arrays(
            [table.column(name).combine_chunks() for name in self._groups.column_names], names=names
        )
        return encode_sink_key(keys, names)


def _is_there(join: TableJoin, sides: Sequence[pa.Array]) -> Mask:
    """Return which keys have a row in the result, by the rows that their sides have."""
    left, right = (np.asarray(side.is_valid().to_numpy(zero_copy_only=False), np.bool_) for side in sides)
    if join.kind == "left_anti":
        return left & ~right
    if not join.preserved:
        return left & right
    found = np.zeros(len(left), np.bool_)
    for side in join.preserved:
        found |= (left, right)[side]
    return found


def _same_results(join: TableJoin, before: Sequence[pa.Array], after: Sequence[pa.Array]) -> Mask:
    """Return which keys have equal rows on each side that the result shows."""
    shown = (0,) if join.kind in ("left_semi", "left_anti") else (0, 1)
    same = np.ones(len(before[0]), np.bool_)
    for side in shown:
        equal = pc.fill_null(pc.equal(before[side], after[side]), False)
        both_null = pc.and_(before[side].is_null(), after[side].is_null())
        same &= pc.or_(equal, both_null).to_numpy(zero_copy_only=False)
    return same
