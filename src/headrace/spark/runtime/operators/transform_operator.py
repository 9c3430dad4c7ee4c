"""`transformWithState`: a stateful processor of the user as an operator with state.

In each micro-batch that has rows or due timers for a task, the processor is unpickled, `init` is called,
`handleInputRows` once for each key with its rows, `handleExpiredTimer` for each timer that is due, and `close`: the
calls of Spark, and in its order. A copy for each micro-batch means that nothing can survive in the processor's own
attributes in a test and be missing in a job, or after a crash.

Initial state. In the first micro-batch of a task, `handleInitialState` is called for each row whose key belongs to the
task, before the rows of the key. That it was done is an entry of the store, so it is undone, restored and moved with
the state that it made.

Keys have their turns in the order of their values, nulls first, as in Spark; rows of a key in the order in which the
task read them. Rows of one upstream task keep their order, those of several interleave.

Time. Timers of event time are due when the least watermark of all upstream tasks has passed them: rows are judged in
front of the repartition topic, by the clock of their own source partition, so no slow task makes rows late here, and
which timers fire depends on no timing, only when they do. Timers of processing time are due by the time of the
micro-batch, which its plan names.

The user's function runs while the store's transaction is open, because what it reads depends on what it has read.
When the store's map was full it runs again, from the same state, as a micro-batch that failed does.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from pyspark.cloudpickle import loads
from pyspark.errors import PySparkTypeError
from pyspark.sql.streaming.stateful_processor import ExpiredTimerInfo, StatefulProcessor, TimerValues
from pyspark.sql.types import Row

from headrace.spark.runtime.operators.event_time_kernels import NO_TIME
from headrace.spark.runtime.operators.processor_frames import frames_of_keys, keys_of_frames, table_of_frame
from headrace.spark.runtime.operators.processor_handle import ProcessorHandle
from headrace.spark.runtime.operators.processor_rows import (
    ROWS_AT_ONCE,
    GroupedRows,
    initial_rows,
    key_values,
    keys_in_order,
    output_schema,
    record_keys,
)
from headrace.spark.runtime.operators.processor_state import ProcessorState
from headrace.spark.runtime.operators.stateful_operator import CollectedClockedRows, RunningOperator, StoreUpdate
from headrace.spark.runtime.operators.upstream_clock import ClockEntries, ClockStep, advance_clocks
from headrace.spark.runtime.operators.watermark_records import UpstreamWatermark
from headrace.spark.runtime.rows.row_schema import StoreSpec, store_of_transform
from headrace.spark.runtime.rows.rows import empty_row
from headrace.spark.runtime.rows.spark_types import struct_of
from headrace.spark.runtime.spark_errors import raised_by_user
from headrace.spark.runtime.stores.store import StoreWrites
from headrace.spark.runtime.stores.store_names import CLOCK, INITIALISED
from headrace.spark.topology.nodes import KEY_COLUMN, TASK_COLUMN, TimeMode, Transform

if TYPE_CHECKING:
    from headrace.spark.runtime.stores.store import StoreReader

__all__ = ["TransformOperator"]


@dataclass(frozen=True, slots=True)
class TransformOperator:
    """A `StatefulOperator` with one store: the variables and timers of the processor."""

    transform: Transform

    @property
    def name(self) -> str:
        return "transform"

    @property
    def stores(self) -> tuple[StoreSpec, ...]:
        return (store_of_transform(self.transform),)

    def start(self) -> RunningOperator:
        return _Transform(self)


class _Transform(CollectedClockedRows):
    def __init__(self, operator: TransformOperator) -> None:
        super().__init__()
        self._operator, self._time_ms = operator, 0
        self._tasks: Callable[[], int] | None = None

    def on_processing_time(self, time_ms: int) -> None:
        self._time_ms = time_ms

    def on_task_count(self, count: Callable[[], int]) -> None:
        self._tasks = count

    def end(self, partition: int) -> _Changes | None:
        tables, upstream = self._take_rows(partition), self._take_watermarks(partition)
        if not tables and not upstream and self._operator.transform.time_mode != "processingTime":
            return None
        rows = pa.concat_tables(tables) if tables else None
        return _Changes(self._operator, partition, rows, upstream, self._time_ms, self._tasks)


class _Changes:
    """Rows and watermarks of one task in one micro-batch. The processor gets them when the store is open."""

    def __init__(
        self,
        operator: TransformOperator,
        partition: int,
        rows: pa.Table | None,
        upstream: Sequence[UpstreamWatermark],
        time_ms: int,
        tasks: Callable[[], int] | None,
    ) -> None:
        self._transform, self._partition, self._tasks = operator.transform, partition, tasks
        [self._store] = operator.stores
        self._groups = None if rows is None else GroupedRows.of(self._transform, rows)
        self._upstream, self._time_ms = upstream, time_ms
        self._made: list[pa.Table] = []

    @property
    def stores(self) -> Sequence[StoreUpdate]:
        return (StoreUpdate(store=self._store, update=self._update),)

    def results(self) -> Iterator[pa.Table]:
        yield from self._made

    def _update(self, reader: StoreReader) -> StoreWrites:
        # 1. The time: of the micro-batch, and of the least watermark, which moves with this micro-batch.
        transform, fingerprint = self._transform, self._store.rows.fingerprint
        clock: ClockStep | None = None
        if transform.time_mode == "eventTime":
            entries_of_clock = ClockEntries(fingerprint, CLOCK)
            clock = advance_clocks(reader, entries_of_clock, transform, (transform.watermark_sources,), self._upstream)
        times = _Times.of(transform.time_mode, self._time_ms, NO_TIME if clock is None else clock.after)
        # 2. The variables as they were, and the user's calls. A store with any entry is that of a task that has begun.
        #    Rows that the calls yield are taken at once: a generator reads and writes state as it runs.
        is_first = transform.initial is not None and not len(reader.keys_between(CLOCK, b"\xff", 1))
        initial = None
        if is_first:
            assert self._tasks is not None
            initial = initial_rows(transform, self._partition, self._tasks())
        keys = [] if self._groups is None else self._groups.keys
        if initial is not None:
            keys = keys_in_order(transform, [*initial.keys, *keys])
        state = ProcessorState(transform.variables, fingerprint, reader, keys, now_ms=self._time_ms)
        made: _Made = (_MadeRows if transform.interface == "row" else _MadeFrames)(transform, self._partition)
        if keys or (times.due_ms is not None and state.timers.is_due(times.due_ms)):
            self._call(_Calls(transform, state, times), state, times, (keys, initial), made)
        # 3. The rows, and what the store keeps. Set here and not added to, since this may be the second run.
        self._made = made.tables()
        entries = state.writes()
        if is_first:
            entries[INITIALISED] = empty_row(fingerprint)
        due_ms = state.timers.next_due_ms(entries) if transform.time_mode == "processingTime" else None
        return _store_writes(entries, clock, due_ms)

    def _call(
        self,
        calls: _Calls,
        state: ProcessorState,
        times: _Times,
        turns: tuple[list[bytes], GroupedRows | None],
        made: _Made,
    ) -> None:
        """Make the calls of one micro-batch, as PySpark's worker makes them.

        Args:
            calls: The processor.
            state: Its variables.
            times: Of the micro-batch.
            turns: Keys in order, and the rows of the initial state if the task begins.
            made: Takes what it yields.
        """
        calls.init()
        keys, initial = turns
        given, rows = _InTurn(self._runs(initial)), _InTurn(self._runs(self._groups))
        for key, key_bytes in zip(self._seen(keys), keys, strict=True) if keys else ():
            state.turn_to(key_bytes)
            calls.handle_initial(key, given.of(key_bytes) or ())
            found = rows.of(key_bytes)
            if found is not None:
                made.take(key, key_bytes, calls.handle_rows(key, found), "handleInputRows")
        calls.rows_are_processed()
        due = [] if times.due_ms is None else state.timers.due(times.due_ms)
        seen = self._seen([key_bytes for _, key_bytes in due]) if due else []
        for key, (time_ms, key_bytes) in zip(seen, due, strict=True):
            state.turn_to(key_bytes)
            # A timer that fired before it in this micro-batch may have deleted it.
            if state.timers.has(time_ms):
                made.take(key, key_bytes, calls.handle_timer(key, time_ms), "handleExpiredTimer")
                # Afterwards, and also if it was registered again meanwhile: so does PySpark.
                state.timers.delete(time_ms)
        state.turn_to(None)
        calls.close()

    def _runs(self, groups: GroupedRows | None) -> Iterator[tuple[bytes, Iterator[Any]]]:
        """Return keys with their rows, in the form that the processor takes."""
        if groups is None:
            return iter(())
        return iter(groups) if self._transform.interface == "row" else frames_of_keys(groups)

    def _seen(self, keys: list[bytes]) -> list[tuple[Any, ...]]:
        """Return keys as the processor sees them."""
        return (key_values if self._transform.interface == "row" else keys_of_frames)(self._transform, keys)


class _InTurn:
    """Rows of keys, asked for in the order in which the keys have their turns. Mutable: what comes next."""

    def __init__(self, runs: Iterator[tuple[bytes, Iterator[Any]]]) -> None:
        self._runs = runs
        self._next = next(runs, None)

    def of(self, key: bytes) -> Iterator[Any] | None:
        """Return the rows of a key; None if it has none."""
        if self._next is None or self._next[0] != key:
            return None
        rows, self._next = self._next[1], next(self._runs, None)
        return rows


@dataclass(frozen=True, slots=True)
class _Times:
    """Times of a micro-batch: those that the processor sees, and the one until which timers are due."""

    values: TimerValues
    due_ms: int | None  # None: there are no timers

    @classmethod
    def of(cls, mode: TimeMode, time_ms: int, watermark_us: int) -> _Times:
        if mode == "none":
            return cls(TimerValues(-1, -1), None)
        if mode == "processingTime":
            return cls(TimerValues(time_ms, -1), time_ms)
        # Without a watermark Spark's is 0, and nothing is due.
        if watermark_us == NO_TIME:
            return cls(TimerValues(time_ms, 0), None)
        return cls(TimerValues(time_ms, watermark_us // 1000), watermark_us // 1000)


def _store_writes(entries: dict[bytes, bytes | None], clock: ClockStep | None, due_ms: int | None) -> StoreWrites:
    keys, values = pa.array(entries.keys(), pa.binary()), pa.array(entries.values(), pa.binary())
    if clock is None:
        writes = StoreWrites.ordered(keys, values)
    else:
        writes = clock.ordered_writes(pa.concat_arrays([keys, clock.keys]), pa.concat_arrays([values, clock.values]))
    return replace(writes, next_due_ms=due_ms)


class _Calls:
    """Calls of one copy of the user's processor. Every error names the processor, the method and the key."""

    def __init__(self, transform: Transform, state: ProcessorState, times: _Times) -> None:
        self._transform, self._times = transform, times
        self._handle = ProcessorHandle(transform.variables, transform.time_mode, state)
        with raised_by_user(_described(transform, "unpickling"), where=transform.where):
            self._processor: StatefulProcessor = loads(transform.processor)

    def init(self) -> None:
        with raised_by_user(_described(self._transform, "init"), where=self._transform.where):
            self._processor.init(self._handle)
        self._handle.state = "INITIALIZED"

    def handle_initial(self, key: tuple[Any, ...], rows: Iterable[Any]) -> None:
        what = _described(self._transform, "handleInitialState", key)
        with raised_by_user(what, where=self._transform.where, key=repr(key)):
            for row in rows:
                self._processor.handleInitialState(key, row, self._times.values)

    def handle_rows(self, key: tuple[Any, ...], rows: Iterator[Any]) -> Callable[[], Iterable[Any]]:
        return lambda: self._processor.handleInputRows(key, rows, self._times.values)

    def rows_are_processed(self) -> None:
        self._handle.state = "DATA_PROCESSED"

    def handle_timer(self, key: tuple[Any, ...], time_ms: int) -> Callable[[], Iterable[Any]]:
        return lambda: self._processor.handleExpiredTimer(key, self._times.values, ExpiredTimerInfo(time_ms))

    def close(self) -> None:
        self._handle.state = "CLOSED"
        with raised_by_user(_described(self._transform, "close"), where=self._transform.where):
            self._processor.close()


class _Made:
    """Tables of the rows that the processor yielded, of all keys."""

    def __init__(self, transform: Transform, partition: int) -> None:
        self._transform, self._partition = transform, partition
        self._schema = output_schema(struct_of(transform.columns))
        self._runs: list[tuple[tuple[Any, ...], bytes, int]] = []  # key, its bytes, number of waiting rows
        self._tables: list[pa.Table] = []

    def take(self, key: tuple[Any, ...], key_bytes: bytes, call: Callable[[], Iterable[Any]], method: str) -> None:
        raise NotImplementedError

    def tables(self) -> list[pa.Table]:
        return self._tables

    def _add(self, table: pa.Table) -> None:
        """Add a table with the rows of all runs."""
        counts = [count for _, _, count in self._runs]
        keys = record_keys(self._transform, [key for _, key, _ in self._runs])
        table = table.append_column(TASK_COLUMN, pa.array(np.full(len(table), self._partition, np.int32)))
        self._tables.append(table.append_column(KEY_COLUMN, keys.take(np.repeat(np.arange(len(counts)), counts))))
        self._runs = []


class _MadeFrames(_Made):
    """DataFrames."""

    def take(self, key: tuple[Any, ...], key_bytes: bytes, call: Callable[[], Iterable[Any]], method: str) -> None:
        with raised_by_user(_described(self._transform, method, key), where=self._transform.where, key=repr(key)):
            for frame in call():
                table = table_of_frame(frame, self._schema, self._transform.time_zone)
                if len(table):
                    self._runs = [(key, key_bytes, len(table))]
                    self._add(table)


class _MadeRows(_Made):
    """Rows. They become Arrow in groups, since each conversion costs."""

    def __init__(self, transform: Transform, partition: int) -> None:
        super().__init__(transform, partition)
        self._waiting: list[dict[str, Any]] = []

    def take(self, key: tuple[Any, ...], key_bytes: bytes, call: Callable[[], Iterable[Any]], method: str) -> None:
        before = len(self._waiting)
        with raised_by_user(_described(self._transform, method, key), where=self._transform.where, key=repr(key)):
            for row in call():
                self._waiting.append(_as_dict(row))
        if len(self._waiting) > before:
            self._runs.append((key, key_bytes, len(self._waiting) - before))
        if len(self._waiting) >= ROWS_AT_ONCE:
            self._convert()

    def tables(self) -> list[pa.Table]:
        if self._waiting:
            self._convert()
        return self._tables

    def _convert(self) -> None:
        try:
            batch = pa.RecordBatch.from_pylist(self._waiting, schema=self._schema)
        except (pa.ArrowException, TypeError, ValueError, OverflowError):
            self._raise_first()
            raise
        self._add(pa.Table.from_batches([batch]))
        self._waiting = []

    def _raise_first(self) -> None:
        """Raise the error of the first row that does not fit the output's types, by its key."""
        rows = iter(self._waiting)
        for key, _, count in self._runs:
            what = _described(self._transform, "the rows that it yields", key)
            with raised_by_user(what, where=self._transform.where, key=repr(key)):
                for row in itertools.islice(rows, count):
                    pa.RecordBatch.from_pylist([row], schema=self._schema)


def _as_dict(row: Any) -> dict[str, Any]:
    if not isinstance(row, Row):
        raise PySparkTypeError(f"transformWithState takes pyspark.sql.Row from a processor, not {type(row).__name__}")
    found: dict[str, Any] = row.asDict(True)
    return found


def _described(transform: Transform, method: str, key: tuple[Any, ...] | None = None) -> str:
    of_key = "" if key is None else f" for the key {key!r}"
    return f"The processor {transform.processor_name} failed in {method}{of_key}"
