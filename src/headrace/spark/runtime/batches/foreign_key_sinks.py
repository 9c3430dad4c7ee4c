"""Sinks in front of a foreign-key join: rows of the left table by their own key and by what they refer to, right rows.

A change of a left row goes to two repartition topics in one transaction:

- to the join, by the key of the left row: the row with its foreign key, or that it is gone;
- to the subscriptions, by the foreign key, and only where that changes: the row refers to this one now, or no more.

The subscriptions read the second one when the transaction is committed, so an answer lies behind the left row in the
partition that the join reads.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from headrace.spark.arrow_types import schema_of
from headrace.spark.runtime.batches.sink_stage import (
    ChangesSink,
    RecordSink,
    RepartitionSinkStep,
    encode_upserts,
    without_nulls,
)
from headrace.spark.runtime.batches.stages import Operator, StageContext, fitted
from headrace.spark.runtime.operators.change_rows import Mask, upserts
from headrace.spark.runtime.operators.table_join_operator import group_schema
from headrace.spark.runtime.rows.row_schema import input_schema, store_of
from headrace.spark.runtime.rows.rows import encode_key, encode_rows
from headrace.spark.topology.nodes import (
    ANSWER_COLUMNS,
    DELETED_COLUMN,
    KEY_COLUMN,
    SUBSCRIPTION_COLUMNS,
    TASK_COLUMN,
    ForeignKeyJoin,
    RepartitionSink,
)

__all__ = ["RIGHT_ROW", "SUBSCRIBES", "UNSUBSCRIBES", "ForeignKeySinkStep", "left_rows", "subscriptions_of"]

SUBSCRIBES, RIGHT_ROW, UNSUBSCRIBES = 0, 1, 2
_FOREIGN = "__headrace_foreign"
_SIDE, _LEFT, _ROW = (name for name, _ in SUBSCRIPTION_COLUMNS)


@dataclass(frozen=True, slots=True)
class ForeignKeySinkStep(RepartitionSinkStep):
    """Step that writes the changes of one side of a foreign-key join."""

    def start(self, context: StageContext) -> Operator:
        join = self.sink.table_join
        assert isinstance(join, ForeignKeyJoin)
        return _RightSink(self, join, context) if self.sink.join_side else _LeftSink(self, join, context)


def left_rows(table: pa.Table, is_old: Mask, is_replaced: Mask, foreign: pa.Array, *, is_preserved: bool) -> pa.Table:
    """Return the newest left rows with their foreign keys, and those that are gone, marked by `DELETED_COLUMN`.

    Args:
        table: Changes of the left table.
        is_old: As `ChangeRows.add` returns it.
        is_replaced: The same.
        foreign: Foreign key of each row, null if it has a null.
        is_preserved: Whether a row without a partner is in the result. Otherwise a row without a foreign key is gone.
    """
    rows = upserts(table.append_column(_FOREIGN, foreign), is_old, is_replaced)
    if is_preserved:
        return rows
    refers = foreign.is_valid().to_numpy(zero_copy_only=False).astype(np.bool_)
    # A row that referred to nothing has never been sent.
    was_sent = refers.copy()
    was_sent[1:] |= is_replaced[:-1] & refers[:-1]
    kept = pa.array((refers | was_sent)[~is_replaced])
    gone = pc.or_(rows.column(DELETED_COLUMN), rows.column(_FOREIGN).is_null())
    return rows.set_column(rows.column_names.index(DELETED_COLUMN), DELETED_COLUMN, gone).filter(kept)


def subscriptions_of(table: pa.Table, is_old: Mask, is_replaced: Mask, foreign: pa.Array, left: pa.Array) -> pa.Table:
    """Return the records for the subscriptions: `KEY_COLUMN`, side, key of the left row, no row.

    Args:
        table: Changes of the left table.
        is_old: As `ChangeRows.add` returns it.
        is_replaced: The same.
        foreign: Foreign key of each row, null if it has a null.
        left: Key of each row.
    """
    same = np.zeros(len(is_old), np.bool_)
    if len(is_old) > 1:
        equal = pc.fill_null(pc.equal(foreign[:-1], foreign[1:]), False).to_numpy(zero_copy_only=False)
        same[:-1] = is_replaced[:-1] & equal
    stays = same.copy()
    stays[1:] |= same[:-1]  # the new row behind an old one with the same foreign key
    refers = foreign.is_valid().to_numpy(zero_copy_only=False).astype(np.bool_)
    places = pa.array(np.flatnonzero(refers & ~stays))
    sides = np.where(is_old, UNSUBSCRIBES, SUBSCRIBES).astype(np.int8)
    return pa.table(
        {
            KEY_COLUMN: foreign.take(places),
            _SIDE: pa.array(sides).take(places),
            _LEFT: left.take(places),
            _ROW: pa.nulls(len(places), pa.binary()),
            TASK_COLUMN: table.column(TASK_COLUMN).combine_chunks().take(places),
        }
    )


class _LeftSink(ChangesSink):
    """Writes the changes of the left table to both topics."""

    def __init__(self, step: RepartitionSinkStep, join: ForeignKeyJoin, context: StageContext) -> None:
        super().__init__(step, context)
        # The projection has the key first, and the foreign key behind it.
        own = len(join.group_columns)
        self._keys = group_schema(join)
        self._foreign = schema_of(tuple((f"g{at}", kind) for at, kind in enumerate(join.foreign_types, own)))
        self._columns = schema_of(join.left.columns)
        self._row_fingerprint = store_of(join).rows.fingerprint
        self._is_preserved = 0 in join.preserved
        self._subscriptions = _SubscriptionSink(step.sink, context)

    def finish(self) -> Iterable[pa.Table]:
        yield from super().finish()
        yield from self._subscriptions.finish()

    def _push_changes(self, changes: tuple[pa.Table, Mask, Mask]) -> Iterable[pa.Table]:
        table, is_old, is_replaced = changes
        if not table.num_rows:
            return ()
        foreign = _key_or_null(_typed(table, self._foreign))
        left = encode_key(_typed(table, self._keys))
        subscriptions = subscriptions_of(table, is_old, is_replaced, foreign, left)
        if subscriptions.num_rows:
            self._subscriptions.push(subscriptions)
        rows = left_rows(table, is_old, is_replaced, foreign, is_preserved=self._is_preserved)
        return super(ChangesSink, self).push(rows) if rows.num_rows else ()

    def encode(self, table: pa.Table) -> tuple[Any, Any]:
        table = table.combine_chunks()
        rows = encode_upserts(table, self._columns, self._row_fingerprint)
        side, foreign, row = (name for name, _ in ANSWER_COLUMNS)
        keys = table.select(self._keys.names).append_column(side, pa.array(np.zeros(table.num_rows, np.int8)))
        return super().encode(keys.append_column(foreign, table.column(_FOREIGN)).append_column(row, rows))


class _RightSink(ChangesSink):
    """Writes the changes of the right table to the subscriptions: the new row of a key, or null where it has none."""

    def __init__(self, step: RepartitionSinkStep, join: ForeignKeyJoin, context: StageContext) -> None:
        super().__init__(step, context)
        self._keys = schema_of(tuple((f"g{at}", kind) for at, kind in enumerate(join.foreign_types)))
        self._columns = schema_of(join.right.columns)
        self._row_fingerprint = store_of(join).rows.fingerprint

    def _records(self, table: pa.Table, is_old: Mask, is_replaced: Mask) -> pa.Table:
        return without_nulls(upserts(table, is_old, is_replaced), self._keys.names)

    def encode(self, table: pa.Table) -> tuple[Any, Any]:
        table = table.combine_chunks()
        rows = encode_upserts(table, self._columns, self._row_fingerprint)
        sides = pa.array(np.full(len(rows), RIGHT_ROW, np.int8))
        values = encode_rows([sides, pa.nulls(len(rows), pa.binary()), rows], self._fingerprint)
        return encode_key(_typed(table, self._keys)), values


class _SubscriptionSink(RecordSink):
    """Writes which left rows refer to a key of the right table."""

    def __init__(self, sink: RepartitionSink, context: StageContext) -> None:
        super().__init__(sink.subscriptions_topic, context)
        self._fingerprint = input_schema(SUBSCRIPTION_COLUMNS, sink.subscription_expressions).fingerprint

    def encode(self, table: pa.Table) -> tuple[Any, Any]:
        columns = [table.column(name).combine_chunks() for name, _ in SUBSCRIPTION_COLUMNS]
        return table.column(KEY_COLUMN).combine_chunks(), encode_rows(columns, self._fingerprint)

    def _count(self, table: pa.Table) -> None:
        """Count nothing: the left row that a record belongs to is counted."""


def _typed(table: pa.Table, schema: pa.Schema) -> list[pa.Array]:
    return [column.combine_chunks() for column in fitted(table.select(schema.names), schema).columns]


def _key_or_null(columns: Sequence[pa.Array]) -> pa.Array:
    """Return the key of each row, null if one of its values is."""
    is_null: NDArray[np.bool_] = np.zeros(len(columns[0]), np.bool_)
    for column in columns:
        is_null |= column.is_null().to_numpy(zero_copy_only=False).astype(np.bool_)
    return pc.if_else(pa.array(is_null), pa.scalar(None, pa.binary()), encode_key(columns))
