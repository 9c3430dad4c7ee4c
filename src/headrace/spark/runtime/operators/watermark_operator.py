"""The clock in front of windows and joins: late rows are dropped, and the watermark is sent on.

In front of windows a row is late when its window is closed, in front of a join when it is older than the watermark.

It runs where rows are read, before they are repartitioned, so that whether a row is late depends on the rows before it
in its own source partition and on nothing else: not on the other partitions, not on where micro-batches end, not on
moves or crashes. The newest event time lies in a store of its own, whose changelog moves it with the task.

Rejected: the metadata of committed offsets, where Kafka Streams keeps its stream time. It saves the store, but an
operator would need positions, plans and openings to carry it; a store is undone and restored like any other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from headrace.spark.runtime.operators.event_time_kernels import NO_TIME, find_closed, find_late
from headrace.spark.runtime.operators.out_of_time import find_ahead, without_out_of_time
from headrace.spark.runtime.operators.stateful_operator import NO_KEYS, CollectedRows, RunningOperator, StoreUpdate
from headrace.spark.runtime.rows.row_schema import StoreSpec, store_of_watermark
from headrace.spark.runtime.rows.rows import decode_rows, encode_rows
from headrace.spark.runtime.stores.byte_spans import Positions
from headrace.spark.runtime.stores.store import StoreWrites
from headrace.spark.runtime.stores.time_keys import microseconds
from headrace.spark.topology.nodes import EVENT_TIME_COLUMN, RECORD_COLUMN, TIMESTAMP_COLUMN, Watermark

if TYPE_CHECKING:
    from headrace.spark.runtime.stores.store import StoreReader

__all__ = ["WatermarkOperator"]

_NEWEST_KEY = b"\x00newest event time"


@dataclass(frozen=True, slots=True)
class WatermarkOperator:
    """A `StatefulOperator` with one store: the newest event time of the task."""

    watermark: Watermark

    @property
    def name(self) -> str:
        return "watermark"

    @property
    def stores(self) -> tuple[StoreSpec, ...]:
        return (store_of_watermark(self.watermark),)

    def start(self) -> RunningOperator:
        return _Watermarks(self)


class _Watermarks(CollectedRows):
    def __init__(self, operator: WatermarkOperator) -> None:
        super().__init__()
        self._operator = operator

    def end(self, partition: int) -> _Changes | None:
        tables = self._take_rows(partition)
        return _Changes(self._operator, pa.concat_tables(tables).combine_chunks()) if tables else None


class _Changes:
    """Rows of one task in one micro-batch, judged when the clock is read."""

    def __init__(self, operator: WatermarkOperator, rows: pa.Table) -> None:
        self._watermark, self._rows = operator.watermark, rows
        [self._store] = operator.stores
        self._left_out: NDArray[np.bool_] = np.zeros(rows.num_rows, np.bool_)

    @property
    def stores(self) -> Sequence[StoreUpdate]:
        return (StoreUpdate(store=self._store, update=self._update),)

    def results(self) -> pa.Table:
        hidden = [EVENT_TIME_COLUMN, TIMESTAMP_COLUMN, *([RECORD_COLUMN] if self._watermark.out_of_time.topics else [])]
        rows = self._rows.drop_columns(hidden)
        return rows if not self._left_out.any() else rows.filter(pa.array(~self._left_out))

    def _update(self, reader: StoreReader) -> StoreWrites:
        declared = self._watermark
        stored = reader.values(pa.array([_NEWEST_KEY], pa.binary()))
        before = NO_TIME
        if stored.null_count == 0:
            [found] = decode_rows(stored, [pa.int64()], self._store.rows.fingerprint)
            before = int(found[0].as_py())
        times = microseconds(self._rows.column(EVENT_TIME_COLUMN))
        record_times = self._rows.column(TIMESTAMP_COLUMN).to_numpy()
        record_times = np.where(record_times < 0, record_times, record_times * 1000)
        # Row by row, in the order of the offsets: a row is judged by the rows before it.
        is_late, newest = self._judged(times, record_times, before)
        is_ahead = find_ahead(times, record_times, declared.max_ahead_us)
        self._left_out, dead = without_out_of_time(
            declared.out_of_time, self._rows, times, is_late, is_ahead, declared.name
        )
        late = int(self._left_out.sum())
        if newest == NO_TIME:
            return StoreWrites(keys=NO_KEYS, values=NO_KEYS, late_rows=late, dead_letters=dead)
        watermark_ms = (newest - declared.delay_us) // 1000
        announced = self._announced(before, newest)
        # The clock did not move, so the store does not change. The watermark may have to be sent all the same
        # (`announces_each_batch`).
        if newest == before:
            return StoreWrites(
                keys=NO_KEYS,
                values=NO_KEYS,
                late_rows=late,
                watermark_ms=watermark_ms,
                announced_us=announced,
                dead_letters=dead,
            )
        return StoreWrites(
            keys=pa.array([_NEWEST_KEY], pa.binary()),
            values=encode_rows([pa.array([newest], pa.int64())], self._store.rows.fingerprint),
            late_rows=late,
            watermark_ms=watermark_ms,
            announced_us=announced,
            dead_letters=dead,
        )

    def _judged(self, times: Positions, record_times: Positions, before: int) -> tuple[NDArray[np.bool_], int]:
        """Return the mask of late rows, and the newest event time after them."""
        declared = self._watermark
        limits = declared.delay_us, declared.max_ahead_us
        if declared.window is None:
            late, newest = find_late(times, record_times, before, *limits)
            # A row without an event time has no place in time to be late by; the join sees that it matches nothing.
            return late & (times != NO_TIME), newest
        starts = microseconds(self._rows.column(declared.window.group))
        return find_closed(times, declared.window.late_at(starts), record_times, before, *limits)

    def _announced(self, before: int, newest: int) -> int | None:
        """Return the watermark to send on, if it closes windows that it did not close before.

        It is rounded down to the end of a window, so a task sends one record per slide and partition, not one per
        micro-batch. Sessions end at any time; theirs is not rounded. A first watermark is always sent: readers count
        the tasks that have sent one. In front of a join it is sent as it is, whenever it has moved.
        """
        declared = self._watermark
        if declared.window is None:
            return newest - declared.delay_us if newest > before or declared.announces_each_batch else None
        # Between two window ends a watermark closes nothing, so it need not be sent.
        end = declared.window.last_end(newest - declared.delay_us)
        is_new = before == NO_TIME or end > declared.window.last_end(before - declared.delay_us)
        return end if is_new or declared.announces_each_batch else None
