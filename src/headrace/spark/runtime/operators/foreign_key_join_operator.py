"""The join of two tables by a foreign key as an operator with state: left rows and answers in, changes out.

Semantics are those of Kafka Streams' foreign-key join of two `KTable`s (KIP-213): the result is a table with the key of
the left side. A record of the repartition topic is a left row with its foreign key, or an answer of the subscriptions:
a foreign key, and the row that the right table has of it, null if none.

The store has one entry per left key:

    key → foreign key · left row · right row · waiting left row

**An answer counts if its foreign key is that of the newest left row.** All others are answers to an earlier row. The
answer to a row lies behind it in the partition, so none is dropped that counts later. Until it is there, what was shown
before stays, and the row waits. Left rows of a key come in the order of their changes, and answers of a foreign key in
the order of its right rows, each from one task. So what is shown never goes back to an earlier row of either side, and
the last one is the row of the final tables.

Rejected: a number of each subscription, which its answers repeat, or a hash of the left row as Kafka Streams sends it.
They would also drop answers of the same foreign key from before a left row came back to it. Such an answer shows a
right row that was replaced meanwhile, as if that change came a moment later, and the next answer shows it. Both tables
change independently, so either order is right.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from headrace.spark.runtime.operators.stateful_operator import CollectedRows, RunningOperator
from headrace.spark.runtime.operators.table_join_operator import JoinedChanges, distinct_groups, group_schema
from headrace.spark.runtime.rows.row_schema import StoreSpec, store_of
from headrace.spark.runtime.rows.rows import decode_rows, encode_rows
from headrace.spark.topology.nodes import ANSWER_COLUMNS, ForeignKeyJoin

__all__ = ["ForeignKeyJoinOperator"]

Positions = NDArray[np.int64]
_SIDE, _FOREIGN, _ROW = (name for name, _ in ANSWER_COLUMNS)
_LEFT_ROW, _ANSWER = 0, 1
_STORED = (pa.binary(),) * 4  # foreign key, left row, right row, waiting left row


@dataclass(frozen=True, slots=True)
class ForeignKeyJoinOperator:
    """A `StatefulOperator` with one store: the left rows, and the right row of each."""

    join: ForeignKeyJoin

    @property
    def name(self) -> str:
        return "join"

    @property
    def stores(self) -> tuple[StoreSpec, ...]:
        return (store_of(self.join),)

    def start(self) -> RunningOperator:
        return _ForeignKeyJoin(self.join)


class _ForeignKeyJoin(CollectedRows):
    def __init__(self, join: ForeignKeyJoin) -> None:
        self._join, self._groups = join, group_schema(join)
        super().__init__([*self._groups.names, _SIDE, _FOREIGN, _ROW])

    def end(self, partition: int) -> _ForeignKeyChanges | None:
        tables = self._take_rows(partition)
        if not tables:
            return None
        rows = pa.concat_tables(tables).combine_chunks()
        distinct, groups, key_of_row = distinct_groups(rows, self._groups)
        return _ForeignKeyChanges(self._join, partition, distinct, groups, rows, key_of_row)


class _ForeignKeyChanges(JoinedChanges):
    """Left keys of one task that a micro-batch has records of."""

    def __init__(
        self,
        join: ForeignKeyJoin,
        partition: int,
        keys: pa.Array,
        groups: pa.Table,
        records: pa.Table,
        key_of_record: Positions,
    ) -> None:
        super().__init__(join, partition, keys, groups, ())
        self._side: Positions = records.column(_SIDE).to_numpy().astype(np.int64)
        self._foreign, self._row = (records.column(name).combine_chunks() for name in (_FOREIGN, _ROW))
        self._key_of_record = key_of_record

    def _merge(self, stored: pa.Array) -> pa.Array:
        fingerprint = self._store.rows.fingerprint
        there = stored.is_valid().to_numpy(zero_copy_only=False)
        places = pa.array(np.cumsum(there) - 1, mask=~there)
        foreign, left, right, waiting = (
            column.take(places) for column in decode_rows(stored.drop_null(), _STORED, fingerprint)
        )
        was_waiting = waiting.is_valid()
        # 1. The newest left row of each key, and what it refers to.
        last = self._last_of(np.flatnonzero(self._side == _LEFT_ROW))
        new = pa.array(last, mask=last < 0)
        is_new = pa.array(last >= 0)
        newest = pc.if_else(is_new, self._row.take(new), pc.if_else(was_waiting, waiting, left))
        refers_to = pc.if_else(is_new, self._foreign.take(new), foreign)
        # 2. The newest answer to it: the last one with its foreign key.
        answers = np.flatnonzero(self._side == _ANSWER)
        asked = refers_to.take(pa.array(self._key_of_record[answers]))
        counts = pc.fill_null(pc.equal(self._foreign.take(pa.array(answers)), asked), False)
        last = self._last_of(answers[counts.to_numpy(zero_copy_only=False).astype(np.bool_)])
        is_answered = pa.array(last >= 0)
        # 3. An answer stays known while the left row refers to the same key. A row that refers to nothing has none.
        is_known = pc.and_(pc.fill_null(pc.equal(foreign, refers_to), False), pc.invert(was_waiting))
        is_complete = pc.or_(pc.or_(is_answered, is_known), refers_to.is_null())
        none = pa.scalar(None, pa.binary())
        answer = pc.if_else(
            is_answered, self._row.take(pa.array(last, mask=last < 0)), pc.if_else(is_known, right, none)
        )
        # 4. What is shown before and now. Until the answer is there, both are the same; a row that is gone has none.
        is_gone = newest.is_null()
        shows = pc.or_(is_complete, is_gone)
        self._before = [left, right]
        self._after = [
            pc.if_else(shows, newest, left),
            pc.if_else(is_gone, none, pc.if_else(is_complete, answer, right)),
        ]
        waits = pc.if_else(shows, none, newest)
        merged = encode_rows([refers_to, *self._after, waits], fingerprint)
        return pc.if_else(is_gone, none, merged)

    def _last_of(self, records: Positions) -> Positions:
        """Return the last of these records of each key, -1 where there is none."""
        last = np.full(len(self._keys), -1, np.int64)
        np.maximum.at(last, self._key_of_record[records], records)
        return last
