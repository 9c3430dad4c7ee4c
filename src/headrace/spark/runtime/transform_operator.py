"""`transformWithState`: a stateful processor of the user as an operator with state.

In each micro-batch that has rows for a task, the processor is unpickled, `init` is called, `handleInputRows` once for
each key with its rows, and `close`: the calls of Spark, and in its order, by key. A copy for each micro-batch means
that nothing can survive in the processor's own attributes in a test and be missing in a job, or after a crash.

Keys have their turns in the order of their values, nulls first, as in Spark; rows of a key in the order in which the
task read them. Rows of one upstream task keep their order, those of several interleave.

The user's function runs while the store's transaction is open, because what it reads depends on what it has read.
When the store's map was full it runs again, from the same state, as a micro-batch that failed does.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from pyspark.cloudpickle import loads
from pyspark.errors import PySparkTypeError
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, TimerValues
from pyspark.sql.types import Row

from headrace.spark.runtime.bulk_load import order_of_keys
from headrace.spark.runtime.processor_handle import ProcessorHandle
from headrace.spark.runtime.processor_rows import ROWS_AT_ONCE, GroupedRows, key_values, output_schema
from headrace.spark.runtime.processor_state import ProcessorState
from headrace.spark.runtime.row_schema import StoreSpec, store_of_transform
from headrace.spark.runtime.spark_errors import raised_by_user
from headrace.spark.runtime.spark_types import struct_of
from headrace.spark.runtime.stateful_operator import RunningOperator, StoreUpdate
from headrace.spark.runtime.store import StoreWrites
from headrace.spark.topology.nodes import KEY_COLUMN, TASK_COLUMN, Transform

if TYPE_CHECKING:
    from headrace.spark.runtime.store import BatchKey, StoreReader

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


class _Transform:
    def __init__(self, operator: TransformOperator) -> None:
        self._operator = operator
        self._rows: dict[int, list[pa.Table]] = {}

    def begin(self, batch: BatchKey) -> None:
        del batch
        self._rows = {}

    def on_rows(self, partition: int, rows: pa.Table) -> None:
        self._rows.setdefault(partition, []).append(rows)

    def end(self, partition: int) -> _Changes | None:
        tables = self._rows.pop(partition, [])
        return _Changes(self._operator, partition, pa.concat_tables(tables)) if tables else None


class _Changes:
    """Rows of one task in one micro-batch. The processor gets them when the store is open."""

    def __init__(self, operator: TransformOperator, partition: int, rows: pa.Table) -> None:
        self._transform, self._partition = operator.transform, partition
        [self._store] = operator.stores
        self._groups = GroupedRows.of(self._transform, rows)
        self._made: list[pa.Table] = []

    @property
    def stores(self) -> Sequence[StoreUpdate]:
        return (StoreUpdate(store=self._store, update=self._update),)

    def results(self) -> Iterator[pa.Table]:
        yield from self._made

    def _update(self, reader: StoreReader) -> StoreWrites:
        # 1. The variables as they were, and a processor that knows nothing of earlier micro-batches.
        transform, fingerprint = self._transform, self._store.rows.fingerprint
        state = ProcessorState(transform.variables, fingerprint, reader, self._groups.keys, now_ms=0)
        calls = _Calls(transform, state)
        made = _MadeRows(transform, self._partition)
        # 2. The user's calls. Rows that they yield are taken at once: a generator reads and writes state as it runs.
        calls.init()
        seen = key_values(transform, self._groups.keys)
        for key, (key_bytes, rows) in zip(seen, self._groups, strict=True):
            state.turn_to(key_bytes)
            made.take(key, key_bytes, calls.handle_rows(key, rows), "handleInputRows")
        state.turn_to(None)
        calls.close()
        # 3. The rows, and what the store keeps. Set here and not added to, since this may be the second run.
        self._made = made.tables()
        return _store_writes(state.writes())


def _store_writes(entries: dict[bytes, bytes | None]) -> StoreWrites:
    keys, values = pa.array(entries.keys(), pa.binary()), pa.array(entries.values(), pa.binary())
    order = order_of_keys(keys)
    if order is not None:
        keys, values = keys.take(order), values.take(order)
    return StoreWrites(keys=keys, values=values)


class _Calls:
    """Calls of one copy of the user's processor. Every error names the processor, the method and the key."""

    def __init__(self, transform: Transform, state: ProcessorState) -> None:
        self._transform, self._state = transform, state
        self._handle = ProcessorHandle(transform.variables, transform.time_mode, state)
        with raised_by_user(_described(transform, "unpickling"), where=transform.where):
            self._processor: StatefulProcessor = loads(transform.processor)

    def init(self) -> None:
        with raised_by_user(_described(self._transform, "init"), where=self._transform.where):
            self._processor.init(self._handle)
        self._handle.state = "INITIALIZED"

    def handle_rows(self, key: tuple[Any, ...], rows: Iterator[Row]) -> Callable[[], Iterable[Any]]:
        return lambda: self._processor.handleInputRows(key, rows, TimerValues(-1, -1))

    def close(self) -> None:
        self._handle.state = "CLOSED"
        with raised_by_user(_described(self._transform, "close"), where=self._transform.where):
            self._processor.close()


class _MadeRows:
    """Rows that the processor made, of all keys. They become Arrow in groups, since each conversion costs."""

    def __init__(self, transform: Transform, partition: int) -> None:
        self._transform, self._partition = transform, partition
        self._schema = output_schema(struct_of(transform.columns))
        self._waiting: list[dict[str, Any]] = []
        self._runs: list[tuple[tuple[Any, ...], bytes, int]] = []  # key, its bytes, number of waiting rows
        self._tables: list[pa.Table] = []

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
        table = pa.Table.from_batches([batch])
        counts = [count for _, _, count in self._runs]
        keys = pa.array([key for _, key, _ in self._runs], pa.binary()).take(np.repeat(np.arange(len(counts)), counts))
        table = table.append_column(TASK_COLUMN, pa.array(np.full(len(table), self._partition, np.int32)))
        self._tables.append(table.append_column(KEY_COLUMN, keys))
        self._waiting, self._runs = [], []

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
