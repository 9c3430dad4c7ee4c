"""Deduplication in event time as an operator with state: `dropDuplicatesWithinWatermark`.

Semantics, for the rows of one task, which are those of one source partition, in the order of their offsets:

1. *The watermark before a row* is the newest event time of the rows before it, less the delay. A row with an older
   event time is late and is dropped; so is a row without an event time. Spark and Kafka Streams decide by a watermark
   of the whole micro-batch or task; here only offsets count.
2. *A row is a duplicate* if a kept row with the same key has an event time at most the delay away. Spark keeps a key
   until the watermark passes its event time and the delay; so it drops the same rows, and in addition some that are
   further away, depending on where its micro-batches end.

`dropDuplicates` without a watermark is the same with one event time for all rows and a delay of zero: no row is late,
and no key expires.

Neither rule mentions a micro-batch, so results do not depend on how the input is cut, on moves, or on crashes. Expiry
cannot change a result: a key is deleted when every row that could be its duplicate is late.

The store has one entry per kept row, key `01 · span of event time · key of the row`, value its event time; and the
newest event time under `CLOCK_KEY`. A span is as long as the delay, so the duplicates of a row lie in its own span and
in the two beside it: three look-ups by key. Entries are in the order of time (`time_keys`), so expired ones are found
by a range scan.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from headrace.spark.arrow_types import arrow_type
from headrace.spark.runtime.operators.event_time_kernels import NO_TIME, find_duplicates, find_late
from headrace.spark.runtime.operators.out_of_time import find_ahead, without_out_of_time
from headrace.spark.runtime.operators.stateful_operator import CollectedRows, RunningOperator, StoreUpdate
from headrace.spark.runtime.rows.row_schema import StoreSpec, store_of_deduplication
from headrace.spark.runtime.rows.rows import decode_rows, encode_key, encode_rows
from headrace.spark.runtime.stores.bulk_load import order_of_keys
from headrace.spark.runtime.stores.byte_spans import Positions
from headrace.spark.runtime.stores.store import StoreWrites
from headrace.spark.runtime.stores.time_keys import ENTRY, first_key_at, microseconds, shortened_keys, timed_keys
from headrace.spark.topology.nodes import EVENT_TIME_COLUMN, RECORD_COLUMN, TIMESTAMP_COLUMN, Deduplication

if TYPE_CHECKING:
    from headrace.spark.runtime.stores.store import StoreReader

__all__ = ["CLOCK_KEY", "MOST_EXPIRED", "DeduplicateOperator"]

CLOCK_KEY = b"\x00newest event time"
MOST_EXPIRED = 100_000  # keys that one micro-batch of a task deletes; the rest follows with the next ones


@dataclass(frozen=True, slots=True)
class DeduplicateOperator:
    """A `StatefulOperator` with one store: the kept rows' keys and event times, and the clock."""

    deduplication: Deduplication

    @property
    def name(self) -> str:
        return "deduplicate" if self.deduplication.event_time_expression else "dedupe"

    @property
    def stores(self) -> tuple[StoreSpec, ...]:
        return (store_of_deduplication(self.deduplication),)

    def start(self) -> RunningOperator:
        return _Deduplicate(self)


class _Deduplicate(CollectedRows):
    def __init__(self, operator: DeduplicateOperator) -> None:
        super().__init__()
        self._operator = operator

    def end(self, partition: int) -> _Changes | None:
        tables = self._take_rows(partition)
        if not tables:
            return None
        return _Changes(self._operator, pa.concat_tables(tables).combine_chunks())


class _Changes:
    """Rows of one task in one micro-batch, decided when its store is open."""

    def __init__(self, operator: DeduplicateOperator, rows: pa.Table) -> None:
        self._deduplication = operator.deduplication
        [self._store] = operator.stores
        self._rows = rows
        self._kept: NDArray[np.bool_] = np.zeros(rows.num_rows, np.bool_)

    @property
    def stores(self) -> Sequence[StoreUpdate]:
        return (StoreUpdate(store=self._store, update=self._update),)

    def results(self) -> pa.Table:
        carried = [RECORD_COLUMN] if self._deduplication.out_of_time.topics else []
        rows = self._rows.drop_columns([EVENT_TIME_COLUMN, TIMESTAMP_COLUMN, *carried])
        return rows.filter(pa.array(self._kept))

    def _update(self, reader: StoreReader) -> StoreWrites:
        declared = self._deduplication
        # 1. The clock, and which rows are late by it.
        stored = self._decoded(reader.values(pa.array([CLOCK_KEY], pa.binary())))
        times = microseconds(self._rows.column(EVENT_TIME_COLUMN))
        record_times = self._rows.column(TIMESTAMP_COLUMN).to_numpy()
        # Kafka's timestamps are milliseconds; -1 stands for none and stays negative.
        record_times = np.where(record_times < 0, record_times, record_times * 1000)
        is_late, newest = find_late(times, record_times, int(stored[0]), declared.delay_us, declared.max_ahead_us)
        is_ahead = find_ahead(times, record_times, declared.max_ahead_us)
        late, dead = without_out_of_time(declared.out_of_time, self._rows, times, is_late, is_ahead, declared.name)
        # 2. The other rows' places in the store, and what is kept there.
        on_time = np.flatnonzero(~late)
        places = _Places.of(self._keys(on_time), times[on_time], _width(declared.delay_us))
        kept = self._decoded(reader.values(places.names))
        duplicate, placed = find_duplicates(
            times[on_time], places.before, places.own, places.after, kept, declared.delay_us
        )
        self._kept = np.zeros(len(times), np.bool_)
        self._kept[on_time[~duplicate]] = True
        # 3. New entries, expired ones, and the clock. They are disjoint: a row in the place of an entry is a duplicate.
        new = np.flatnonzero(placed)
        expired = self._expired(reader, newest)
        keys, event_times = [places.names.take(pa.array(new)), expired], [kept[new], np.full(len(expired), NO_TIME)]
        if newest != stored[0]:
            keys.append(pa.array([CLOCK_KEY], pa.binary()))
            event_times.append(np.array([newest], np.int64))
        writes = self._writes(pa.concat_arrays(keys), np.concatenate(event_times), int(late.sum()), newest)
        return replace(writes, dead_letters=dead)

    def _writes(self, keys: pa.Array, event_times: Positions, late_rows: int, newest: int) -> StoreWrites:
        values = encode_rows([pa.array(event_times)], self._store.rows.fingerprint)
        deleted = event_times == NO_TIME
        if deleted.any():
            values = pc.if_else(pa.array(deleted), pa.scalar(None, pa.binary()), values)
        has_clock = bool(self._deduplication.event_time_expression)
        watermark_ms = (newest - self._deduplication.delay_us) // 1000 if has_clock and newest != NO_TIME else None
        return replace(StoreWrites.ordered(keys, values), late_rows=late_rows, watermark_ms=watermark_ms)

    def _keys(self, rows: Positions) -> pa.Array:
        columns = [
            self._rows.column(name).combine_chunks().take(pa.array(rows)).cast(arrow_type(kind))
            for name, kind in self._deduplication.key_columns
        ]
        return shortened_keys(encode_key(columns))

    def _expired(self, reader: StoreReader, newest: int) -> pa.Array:
        """Return expired entries: those of all spans that end at least two delays before the newest event time."""
        delay, width = self._deduplication.delay_us, _width(self._deduplication.delay_us)
        # A row that is not late has an event time of at least `newest - delay`, and a duplicate of it at most one delay
        # less. Spans that end before that cannot matter. Whole spans only, because the keys of a span are contiguous.
        first_live = (newest - 2 * delay) // width
        if newest == NO_TIME or first_live < -(1 << 62):
            return pa.array([], pa.binary())
        return reader.keys_between(ENTRY, first_key_at(first_live), MOST_EXPIRED)

    def _decoded(self, values: pa.Array) -> Positions:
        """Return event times, `NO_TIME` where there is no value."""
        times = np.full(len(values), NO_TIME, np.int64)
        if values.null_count < len(values):
            [found] = decode_rows(values.drop_null(), [pa.int64()], self._store.rows.fingerprint)
            times[values.is_valid().to_numpy(zero_copy_only=False)] = found.to_numpy()
        return times


@dataclass(frozen=True, slots=True)
class _Places:
    """Places in the store that rows may have duplicates in: names in byte order, and each row's three of them."""

    names: pa.Array
    before: Positions
    own: Positions
    after: Positions

    @classmethod
    def of(cls, keys: pa.Array, times: Positions, width: int) -> _Places:
        # 1. Keys are numbered in byte order.
        distinct = pc.unique(keys)
        order = order_of_keys(distinct)
        if order is not None:
            distinct = distinct.take(order)
        key_of_row = pc.index_in(keys, value_set=distinct).to_numpy(zero_copy_only=False).astype(np.int64)
        # 2. Each row has three places: its span, and the spans before and after it, with its key. A span is as long as
        #    the delay, so no duplicate lies further away.
        spans = times // width
        # Numbers that are in the order of the names: by span, then by key.
        found_spans, span_numbers = np.unique(np.concatenate([spans - 1, spans, spans + 1]), return_inverse=True)
        numbers = span_numbers.reshape(-1) * max(1, len(distinct)) + np.tile(key_of_row, 3)
        # 3. Equal places of different rows are looked up once; `places` leads each row to its own three.
        found, places = np.unique(numbers, return_inverse=True)
        before, own, after = places.reshape(3, -1).astype(np.int64)
        names = timed_keys(found_spans[found // max(1, len(distinct))], distinct, found % max(1, len(distinct)))
        return cls(names, before, own, after)


def _width(delay_us: int) -> int:
    """Return how long a span of event time is: as the delay, and at least a microsecond."""
    return max(1, delay_us)
