"""The right side of a foreign-key join as an operator with state: right rows and subscriptions in, answers out.

A task has the right rows of its keys, and the keys of the left rows that refer to each of them. It answers a left row

- when it comes to refer to a key, with the row of this key, or with null if there is none;
- when the row of a key changes, to all that refer to it.

A left row that refers to another key now is forgotten without an answer: the join waits for that of the other key. Left
rows themselves are not stored here; the join has them. The store has two kinds of entries,

    01 · length of the key (2 bytes, big endian) · key → row of the right table
    02 · length of the key (2 bytes, big endian) · key · key of the left row → key of the left row

so what refers to a key is under one prefix, and a changed right row reads only that.

Work of a micro-batch is bounded by its records and by the left rows that refer to the keys whose row changed. Their
keys are read at once, and answers are sent in tables of bounded size.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.spark.arrow_types import arrow_types
from headrace.spark.runtime.batches.foreign_key_sinks import RIGHT_ROW, SUBSCRIBES
from headrace.spark.runtime.operators.join_operator import entry_names, numbered_keys
from headrace.spark.runtime.operators.stateful_operator import NO_KEYS, CollectedRows, RunningOperator, StoreUpdate
from headrace.spark.runtime.rows.row_schema import StoreSpec, store_of_subscriptions
from headrace.spark.runtime.rows.rows import decode_key, decode_rows, encode_rows
from headrace.spark.runtime.stores.bulk_load import order_of_keys
from headrace.spark.runtime.stores.byte_spans import Positions
from headrace.spark.runtime.stores.store import StoreWrites
from headrace.spark.runtime.stores.time_keys import shortened_keys
from headrace.spark.topology.nodes import (
    ANSWER_COLUMNS,
    KEY_COLUMN,
    SUBSCRIPTION_COLUMNS,
    TASK_COLUMN,
    Subscriptions,
)

if TYPE_CHECKING:
    from headrace.spark.runtime.stores.store import StoreReader

__all__ = ["ANSWERS_PER_TABLE", "SubscriptionOperator"]

ANSWERS_PER_TABLE = 50_000
_LONGEST_KEY = 230  # two of them, with what is in front, fit a name of the store; longer ones are digests
_RIGHT, _LEFT_KEY = 1, 2  # first bytes of entries
_SIDE, _LEFT, _ROW = (name for name, _ in SUBSCRIPTION_COLUMNS)
_NOTHING = pa.scalar(b"", pa.binary())


@dataclass(frozen=True, slots=True)
class SubscriptionOperator:
    """A `StatefulOperator` with one store: right rows, and the left keys that refer to each."""

    subscriptions: Subscriptions

    @property
    def name(self) -> str:
        return "join"

    @property
    def stores(self) -> tuple[StoreSpec, ...]:
        return (store_of_subscriptions(self.subscriptions),)

    def start(self) -> RunningOperator:
        return _Subscriptions(self)


class _Subscriptions(CollectedRows):
    def __init__(self, operator: SubscriptionOperator) -> None:
        super().__init__([_SIDE, _LEFT, _ROW, KEY_COLUMN])
        self._operator = operator

    def end(self, partition: int) -> _Changes | None:
        tables = self._take_rows(partition)
        return _Changes(self._operator, partition, pa.concat_tables(tables).combine_chunks()) if tables else None


class _Changes:
    """Records of one task in one micro-batch. What they meet is known when its store is open."""

    def __init__(self, operator: SubscriptionOperator, partition: int, records: pa.Table) -> None:
        self._join, self._partition = operator.subscriptions.join, partition
        [self._store] = operator.stores
        self._side: Positions = records.column(_SIDE).to_numpy().astype(np.int64)
        self._left, self._row, foreign = (records.column(name).combine_chunks() for name in (_LEFT, _ROW, KEY_COLUMN))
        # Keys by number, in the order of their entries; `_foreign` has the whole key of each, also of a long one.
        self._keys, self._key_of_record = numbered_keys(shortened_keys(foreign, _LONGEST_KEY))
        first = np.zeros(len(self._keys), np.int64)
        first[self._key_of_record[::-1]] = np.arange(len(foreign))[::-1]
        self._foreign = foreign.take(pa.array(first))
        self._answers = _Answers(keys=np.empty(0, np.int64), left=NO_KEYS, rows=NO_KEYS)

    @property
    def stores(self) -> Sequence[StoreUpdate]:
        return (StoreUpdate(store=self._store, update=self._update),)

    def results(self) -> Iterator[pa.Table]:
        """Yield the answers, in tables of bounded size: many left rows may refer to one key."""
        groups = tuple((f"g{at}", kind) for at, (_, kind) in enumerate(self._join.group_columns))
        side, foreign, row = (name for name, _ in ANSWER_COLUMNS)
        for first in range(0, len(self._answers.keys), ANSWERS_PER_TABLE):
            answers = self._answers.slice(first, ANSWERS_PER_TABLE)
            keys = pa.array(answers.keys)
            columns = dict(
                zip([name for name, _ in groups], decode_key(answers.left, arrow_types(groups)), strict=True)
            )
            columns[side] = pa.array(np.ones(len(keys), np.int8))
            columns[foreign] = self._foreign.take(keys)
            columns[row] = answers.rows.take(keys)
            columns[TASK_COLUMN] = pa.array(np.full(len(keys), self._partition, np.int32))
            columns[KEY_COLUMN] = pa.nulls(len(keys), pa.binary())
            yield pa.table(columns)

    def _update(self, reader: StoreReader) -> StoreWrites:
        fingerprint = self._store.rows.fingerprint
        # 1. The row of each key, and the keys whose row has changed.
        places = np.arange(len(self._keys))
        names = entry_names(np.full(len(places), _RIGHT, np.uint8), self._keys, places, None)
        stored = _unwrapped(reader.values(names), fingerprint)
        rights = np.flatnonzero(self._side == RIGHT_ROW)
        last = np.full(len(places), -1, np.int64)
        np.maximum.at(last, self._key_of_record[rights], rights)
        rows = pc.if_else(pa.array(last >= 0), self._row.take(pa.array(last, mask=last < 0)), stored)
        same = pc.or_(pc.fill_null(pc.equal(rows, stored), False), pc.and_(rows.is_null(), stored.is_null()))
        changed = np.flatnonzero(~same.to_numpy(zero_copy_only=False).astype(np.bool_))
        # 2. The newest record of each pair of a key and a left row.
        records = np.flatnonzero(self._side != RIGHT_ROW)
        pairs, pair_of_record = _numbered(self._names_of_pairs(records))
        newest = np.zeros(len(pairs), np.int64)
        newest[pair_of_record] = records  # the last one, as numpy assigns in order
        refers = self._side[newest] == SUBSCRIBES
        # 3. Answers to the left rows that refer to a changed row, without those that step 2 decides about, and to those
        #    that have come to refer to a key, whether they were there or not: the join has forgotten an earlier answer.
        found, entries, values = self._referring(reader, changed)
        known = pc.is_in(entries, value_set=pairs).to_numpy(zero_copy_only=False).astype(np.bool_)
        self._answers = _Answers(
            keys=np.concatenate([changed[found[~known]], self._key_of_record[newest[refers]]]),
            left=pa.concat_arrays(
                [_unwrapped(values.filter(pa.array(~known)), fingerprint), self._left.take(pa.array(newest[refers]))]
            ),
            rows=rows,
        )
        # 4. Right rows in front of left keys, by the first byte. Both are in byte order.
        lefts = self._left.take(pa.array(newest, mask=~refers))
        return StoreWrites(
            keys=pa.concat_arrays([names.take(pa.array(changed)), pairs]),
            values=pa.concat_arrays(
                [_wrapped(rows.take(pa.array(changed)), fingerprint), _wrapped(lefts, fingerprint)]
            ),
        )

    def _names_of_pairs(self, records: Positions) -> pa.Array:
        if not len(records):
            return NO_KEYS
        kinds = np.full(len(records), _LEFT_KEY, np.uint8)
        heads = entry_names(kinds, self._keys, self._key_of_record[records], None)
        left = shortened_keys(self._left.take(pa.array(records)), _LONGEST_KEY)
        return pc.binary_join_element_wise(heads, left, _NOTHING)

    def _referring(self, reader: StoreReader, keys: Positions) -> tuple[Positions, pa.Array, pa.Array]:
        """Return the left rows that refer to these keys: number of the key among them, entry, and value of each."""
        if not len(keys):
            return np.empty(0, np.int64), NO_KEYS, NO_KEYS
        return reader.entries_under(entry_names(np.full(len(keys), _LEFT_KEY, np.uint8), self._keys, keys, None))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Answers:
    keys: Positions  # number of the key that each is about
    left: pa.Array  # key of the left row that each is for
    rows: pa.Array  # of each key: its row, null if it has none

    def slice(self, first: int, count: int) -> _Answers:
        return _Answers(keys=self.keys[first : first + count], left=self.left.slice(first, count), rows=self.rows)


def _numbered(names: pa.Array) -> tuple[pa.Array, Positions]:
    """Return the distinct names in byte order, and each one's number."""
    distinct = pc.unique(names)
    order = order_of_keys(distinct)
    distinct = distinct if order is None else distinct.take(order)
    return distinct, pc.index_in(names, value_set=distinct).to_numpy(zero_copy_only=False).astype(np.int64)


def _wrapped(values: pa.Array, fingerprint: bytes) -> pa.Array:
    """Return values as rows of the store, null where they are null: those are deleted."""
    return pc.if_else(values.is_null(), pa.scalar(None, pa.binary()), encode_rows([values], fingerprint))


def _unwrapped(stored: pa.Array, fingerprint: bytes) -> pa.Array:
    there = stored.is_valid().to_numpy(zero_copy_only=False)
    [values] = decode_rows(stored.drop_null(), [pa.binary()], fingerprint)
    return values.take(pa.array(np.cumsum(there) - 1, mask=~there))
