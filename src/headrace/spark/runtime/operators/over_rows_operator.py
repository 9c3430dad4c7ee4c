"""Window functions in event time as an operator with state: `avg(x) OVER (PARTITION BY k ORDER BY time ..)`.

1. *A row leaves when the watermark has passed its event time.* Then all rows before it are known, and no later row can
   come between. Until then it waits in the store. Rows are judged late in front of the repartition topic, by the clock
   of their own source partition, so no slow task makes rows late here. A row without an event time has no place in the
   order and counts as late.
2. *Order.* By event time, then by what else the program orders by, then by all other columns, so that results depend
   on the rows and neither on their arrival, nor on cuts, moves and restarts.
3. *Store.* What waits is under `01 · time · number`, so rows that leave are the first ones, found by one range scan. Of
   rows that have left the store has what the functions still read: the last rows of each key under
   `02 · length · key · number`, as far as frames of so many rows or of a range of time reach back; and under
   `03 · length · key` the values so far of functions whose frames begin with the first row of the key. Numbers of
   waiting rows are drawn from a counter in the store.

Sums are added in the order of the rows, each frame from its first row, as Spark does (`over_rows_kernels`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from headrace.spark.arrow_types import arrow_type
from headrace.spark.runtime.operators.event_time_kernels import NO_TIME
from headrace.spark.runtime.operators.join_operator import entry_names, numbered_keys, read_counter
from headrace.spark.runtime.operators.over_rows_functions import Frames, Running, RunningFunction, running_functions
from headrace.spark.runtime.operators.stateful_operator import (
    NO_KEYS,
    CollectedClockedRows,
    RunningOperator,
    StoreUpdate,
)
from headrace.spark.runtime.operators.top_n_operator import RowOrder
from headrace.spark.runtime.operators.upstream_clock import ALL, ClockEntries, CollectedWrites, advance_clocks
from headrace.spark.runtime.operators.watermark_records import UpstreamWatermark
from headrace.spark.runtime.rows.row_schema import StoreSpec, store_of_over
from headrace.spark.runtime.rows.rows import decode_rows, encode_key, encode_rows
from headrace.spark.runtime.stores.byte_spans import Positions, array_of_spans, spans_of
from headrace.spark.runtime.stores.time_keys import ENTRY, first_key_at, microseconds, shortened_keys, timed_keys
from headrace.spark.topology.nodes import KEY_COLUMN, TASK_COLUMN, OverRows

if TYPE_CHECKING:
    from headrace.spark.runtime.stores.store import StoreReader, StoreWrites

__all__ = ["OverRowsOperator"]

_HISTORY, _RUNNING = 2, 3
_COUNTER_KEY = b"\x04"
_NUMBER_BYTES = 8
Mask = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class OverRowsOperator:
    """A `StatefulOperator` with one store: waiting rows, and what is read of those that have left."""

    over: OverRows

    @property
    def name(self) -> str:
        return "over"

    @property
    def stores(self) -> tuple[StoreSpec, ...]:
        return (store_of_over(self.over),)

    def start(self) -> RunningOperator:
        return _RunningOverRows(self)


class _RunningOverRows(CollectedClockedRows):
    def __init__(self, operator: OverRowsOperator) -> None:
        super().__init__()
        self._operator, self._order = operator, RowOrder(operator.over)
        self._functions = running_functions(operator.over)

    def on_rows(self, partition: int, rows: pa.Table) -> None:
        if rows.num_rows:
            super().on_rows(partition, self._order.fitted(rows))

    def end(self, partition: int) -> _Changes | None:
        tables, upstream = self._take_rows(partition), self._take_watermarks(partition)
        if not tables and not upstream:
            return None
        rows = pa.concat_tables(tables).combine_chunks() if tables else self._order.kept.empty_table()
        return _Changes(self._operator, self._order, self._functions, partition, rows, upstream)


@dataclass(frozen=True, slots=True)
class _Earlier:
    """Stored rows that have left, of the keys of those that leave now."""

    inputs: pa.Table  # what frames and functions read of each row
    names: pa.Array  # under which it is stored
    key: Positions  # ascending; rows of a key are in their order
    running: list[Running]  # of each function that runs on
    next_numbers: Positions  # of each key: for the next row


class _Changes:
    """Rows and watermarks of one task in one micro-batch. Which rows leave is known when the store is open."""

    def __init__(
        self,
        operator: OverRowsOperator,
        order: RowOrder,
        functions: Sequence[RunningFunction],
        partition: int,
        rows: pa.Table,
        upstream: Sequence[UpstreamWatermark],
    ) -> None:
        self._over, self._order, self._functions = operator.over, order, functions
        self._partition, self._rows, self._upstream = partition, rows, upstream
        [self._store] = operator.stores
        self._fingerprint = self._store.rows.fingerprint
        self._time_column = operator.over.order[0].column
        # Columns of the rows that frames and functions read, each once: these are kept of rows that have left.
        read = (self._time_column, *(one.column for one in functions if one.column is not None))
        self._read = list(dict.fromkeys(read))
        self._results: list[pa.Table] = []

    @property
    def stores(self) -> Sequence[StoreUpdate]:
        return (StoreUpdate(store=self._store, update=self._update),)

    def results(self) -> Sequence[pa.Table]:
        return self._results

    def _update(self, reader: StoreReader) -> StoreWrites:
        # 1. The clock. Rows before it are late: it has only passed them if a silent task was passed over.
        clock = advance_clocks(
            reader, ClockEntries(self._fingerprint), self._over, (self._over.watermark_sources,), self._upstream
        )
        times = microseconds(self._rows.column(self._time_column))
        late = (times == NO_TIME) | (times < clock.before)
        # 2. New rows that leave at once and those that wait, and waiting rows that leave.
        leaves = ~late & (times < clock.after)
        waits = np.flatnonzero(~late & ~leaves)
        writes = CollectedWrites()
        passed = self._passed(reader, clock.after)
        writes.delete(passed)
        self._keep_waiting(reader, waits, times[waits], writes)
        # 3. The results of those that leave.
        leaving = [self._rows.filter(pa.array(leaves))]
        if len(passed):
            leaving.append(self._decoded(reader.values(passed), self._order.kept))
        rows = pa.concat_tables(leaving).combine_chunks()
        self._results = [self._computed(reader, rows, clock.after, writes)] if rows.num_rows else []
        return writes.finished(clock, late_rows=int(late.sum()))

    # -- rows that wait -----------------------------------------------------------------------------------------------

    def _passed(self, reader: StoreReader, watermark_us: int) -> pa.Array:
        """Return the entries of waiting rows that the watermark has passed."""
        return NO_KEYS if watermark_us == NO_TIME else reader.keys_between(ENTRY, first_key_at(watermark_us), ALL)

    def _keep_waiting(self, reader: StoreReader, waits: Positions, times: Positions, writes: CollectedWrites) -> None:
        if not len(waits):
            return
        first = read_counter(reader, _COUNTER_KEY, self._fingerprint)
        rows = self._rows.take(pa.array(waits))
        columns = [rows.column(name).combine_chunks() for name in self._order.kept.names]
        names = timed_keys(times, _number_bytes(np.arange(first, first + len(waits), dtype=np.int64)))
        writes.put(names, encode_rows(columns, self._fingerprint))
        counter = encode_rows([pa.array([first + len(waits)], pa.int64())], self._fingerprint)
        writes.put(pa.array([_COUNTER_KEY], pa.binary()), counter)

    # -- rows that leave ----------------------------------------------------------------------------------------------

    def _computed(self, reader: StoreReader, rows: pa.Table, watermark_us: int, writes: CollectedWrites) -> pa.Table:
        """Return rows with the values of the functions, and write what later rows read of them."""
        # 1. Rows in order, behind what is stored of earlier ones: `group` numbers the keys of both.
        found = shortened_keys(encode_key([rows.column(name) for name in self._order.groups.names]))
        keys, group = numbered_keys(found)
        ordered = self._order.sort(rows, group)
        rows, group = rows.take(pa.array(ordered.rows)), ordered.group
        earlier = self._earlier(reader, keys)
        both = np.concatenate([earlier.key, group])
        # Stable: of a key the stored rows are first, and each part stays in its order.
        places = np.argsort(both, kind="stable")
        is_new = places >= len(earlier.key)
        inputs = pa.concat_tables([earlier.inputs, rows.select(self._read)]).take(pa.array(places)).combine_chunks()
        frames = Frames.of(
            group=both[places],
            is_new=is_new,
            times=microseconds(inputs.column(self._time_column)),
            starts_tie=np.concatenate([np.ones(len(earlier.key), np.bool_), ordered.starts_tie])[places],
        )
        # 2. Each function.
        results: dict[str, pa.Array] = {}
        running: list[Running] = []
        stored = iter(earlier.running)
        for number, function in enumerate(self._functions):
            results[f"f{number}"], after = function.compute(inputs, frames, next(stored) if function.runs else None)
            if after is not None:
                running.append(after)
        # 3. The state of the keys.
        self._keep_history(earlier, keys, inputs, frames, watermark_us, writes)
        if running:
            names = entry_names(np.full(len(keys), _RUNNING, np.uint8), keys, np.arange(len(keys)), None)
            columns = [column for one in running for column in (one.values, one.counts)]
            writes.put(names, encode_rows(columns, self._fingerprint))
        return self._table(rows, results)

    def _earlier(self, reader: StoreReader, keys: pa.Array) -> _Earlier:
        numbers = np.arange(len(keys), dtype=np.int64)
        kept = pa.schema([self._order.kept.field(name) for name in self._read])
        if self._over.history_rows or self._over.history_us >= 0:
            prefixes = entry_names(np.full(len(keys), _HISTORY, np.uint8), keys, numbers, None)
            key, names, values = reader.entries_under(prefixes)
        else:
            key, names, values = np.empty(0, np.int64), NO_KEYS, NO_KEYS
        next_numbers = np.zeros(len(keys), np.int64)
        # Entries of a key are in the order of their numbers, so the last one stays.
        next_numbers[key] = _numbers_of(names) + 1
        return _Earlier(
            inputs=self._decoded(values, kept),
            names=names,
            key=key,
            running=self._running(reader, keys),
            next_numbers=next_numbers,
        )

    def _running(self, reader: StoreReader, keys: pa.Array) -> list[Running]:
        """Return the stored values of the functions that run on, null for keys without an entry."""
        types = [kind for one in self._functions if one.runs for kind in one.running_types]
        if not types:
            return []
        names = entry_names(np.full(len(keys), _RUNNING, np.uint8), keys, np.arange(len(keys)), None)
        stored = reader.values(names)
        there = stored.is_valid().to_numpy(zero_copy_only=False)
        places = pa.array(np.maximum(np.cumsum(there) - 1, 0), mask=~there)
        columns = [column.take(places) for column in decode_rows(stored.drop_null(), types, self._fingerprint)]
        return [Running(values, counts) for values, counts in zip(columns[::2], columns[1::2], strict=True)]

    def _keep_history(
        self,
        earlier: _Earlier,
        keys: pa.Array,
        inputs: pa.Table,
        frames: Frames,
        watermark_us: int,
        writes: CollectedWrites,
    ) -> None:
        """Write what functions will read of the rows that leave, and delete what none reads any more."""
        if not self._over.history_rows and self._over.history_us < 0:
            return
        # A row that leaves later has a time of at least the watermark, and its frame begins so far before it.
        kept = frames.from_end() < self._over.history_rows
        if self._over.history_us >= 0:
            kept |= frames.times >= watermark_us - self._over.history_us
        gone = ~kept[~frames.is_new]
        writes.delete(earlier.names.filter(pa.array(gone)))
        new = kept & frames.is_new
        numbers = earlier.next_numbers[frames.group] + frames.new_positions()
        rows = inputs.filter(pa.array(new))
        columns = [rows.column(name).combine_chunks() for name in self._read]
        places = entry_names(np.full(int(new.sum()), _HISTORY, np.uint8), keys, frames.group[new], numbers[new])
        writes.put(places, encode_rows(columns, self._fingerprint))

    def _table(self, rows: pa.Table, results: Mapping[str, pa.Array]) -> pa.Table:
        """Return the operator's rows, with the hidden columns."""
        from headrace.spark import formats

        columns = [
            (results[origin] if origin in results else rows.column(origin)).cast(arrow_type(kind))
            for (_, kind), origin in zip(self._over.columns, self._over.origins, strict=True)
        ]
        table = pa.Table.from_arrays(columns, names=[name for name, _ in self._over.columns])
        names = [name for name, _ in self._over.group_columns]
        groups = [rows.column(name).combine_chunks() for name in self._order.groups.names]
        keys = formats.encode_key(pa.RecordBatch.from_arrays(groups, names=names), names)
        table = table.append_column(TASK_COLUMN, pa.array(np.full(table.num_rows, self._partition, np.int32)))
        return table.append_column(KEY_COLUMN, keys)

    def _decoded(self, values: pa.Array, schema: pa.Schema) -> pa.Table:
        return pa.Table.from_arrays(decode_rows(values, schema.types, self._fingerprint), schema=schema)


def _number_bytes(numbers: Positions) -> pa.Array:
    """Return numbers as binaries in their order."""
    data = numbers.astype(">u8").view(np.uint8)
    starts = np.arange(len(numbers), dtype=np.int64) * _NUMBER_BYTES
    sizes = np.full(len(numbers), _NUMBER_BYTES, np.int64)
    return array_of_spans(data, starts, sizes, pa.binary(), np.zeros(len(numbers), np.bool_))


def _numbers_of(names: pa.Array) -> Positions:
    """Return the numbers at the end of names."""
    data, starts, sizes = spans_of(names)
    at = (starts + sizes - _NUMBER_BYTES)[:, None] + np.arange(_NUMBER_BYTES)
    return np.ascontiguousarray(data[at]).view(">u8").reshape(-1).astype(np.int64)
