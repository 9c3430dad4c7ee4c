"""Operators with state: what one declares (`StoreSpec`), what it computes, and the step that runs it in a worker.

A `StatefulOperator` is pure computation over Arrow tables: it never opens a store, knows no offsets and sends nothing.
`StatefulStep` does all of that, for every operator alike: it passes the rows of each task, merges what changed into
the task's stores, sends the changes to the changelogs, and leaves the stores prepared for the driver's decision.
A micro-batch is bracketed by `begin` and one `end` per task; nothing of it is bound at construction.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar, runtime_checkable

import pyarrow as pa
import pyarrow.compute as pc

from headrace.errors import HeadraceError
from headrace.spark.runtime.batches.fetch_stage import input_name, name_of
from headrace.spark.runtime.batches.plan import TaskPlan, TaskReport
from headrace.spark.runtime.batches.sink_stage import producer_for
from headrace.spark.runtime.batches.stages import Operator, StageContext
from headrace.spark.runtime.dead_letters import remember_dead_letters, send_dead_letters
from headrace.spark.runtime.operators.out_of_time import DeadRecords
from headrace.spark.runtime.operators.watermark_records import UpstreamWatermark
from headrace.spark.runtime.rows.row_schema import StoreSpec
from headrace.spark.runtime.stores.store import (
    BatchKey,
    StoreIdentity,
    StorePosition,
    StoreReader,
    StoreWrites,
    TaskStore,
)
from headrace.spark.runtime.stores.store_transaction import StoreTransaction
from headrace.spark.runtime.worker_process import store_for, store_path
from headrace.spark.topology.nodes import TASK_COLUMN

__all__ = [
    "NO_KEYS",
    "CollectedClockedRows",
    "CollectedRows",
    "RunningOperator",
    "StatefulOperator",
    "StatefulStep",
    "StoreChange",
    "StoreUpdate",
    "TakesProcessingTime",
    "TakesWatermarks",
    "TaskChanges",
    "by_task",
    "open_store",
]

NO_KEYS = pa.array([], pa.binary())
Read = TypeVar("Read")
Written = TypeVar("Written")
ENOUGH_OPEN = 250_000  # keys in stores that are merged and not prepared: their pages lie in memory, 4 KB a key at worst


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreChange:
    """Changes of a micro-batch in one store of one task.

    `keys` are distinct and in byte order. `merge` gets the stored value of each, null where there is none, and returns
    the new values, null to delete. It is called again when the store's map was full.
    """

    store: StoreSpec
    keys: pa.Array
    merge: Callable[[pa.Array], pa.Array]


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreUpdate:
    """Changes of a micro-batch in one store of one task, where what to read depends on what was read.

    `update` gets a reader of the stored values and returns what changes. It is called again when the store's map was
    full. An operator that works in event time keeps its clock in its store and reads it here: so the clock is undone,
    restored and moved together with the values.
    """

    store: StoreSpec
    update: Callable[[StoreReader], StoreWrites]


class TaskChanges(Protocol):
    """Changes of a micro-batch in the stores of one task, and the rows that follow from them."""

    @property
    def stores(self) -> Sequence[StoreChange | StoreUpdate]:
        """The stores that change; the others of the operator move on to the position of the batch unchanged."""

    def results(self) -> pa.Table:
        """Rows for the next step, asked for once, when every store is prepared: a table, or an iterator of tables."""


class RunningOperator(Protocol):
    """An operator in a worker, for all tasks of a slot. Mutable."""

    def begin(self, batch: BatchKey) -> None:
        """Begin a micro-batch, and forget whatever is left of an earlier one."""

    def on_rows(self, partition: int, rows: pa.Table) -> None:
        """Take rows of one task, in the order of its input."""

    def end(self, partition: int) -> TaskChanges | None:
        """End the micro-batch of one task. None: its stores do not change, and no row follows."""


@runtime_checkable
class TakesWatermarks(Protocol):
    """A running operator that closes windows: behind a repartition topic, or behind the clock of its own task."""

    def on_watermarks(self, partition: int, upstream: Sequence[UpstreamWatermark], own: Mapping[str, int]) -> None:
        """Take the watermarks of one task's rows, before its micro-batch ends.

        Args:
            partition: Of the task.
            upstream: Watermarks that came through a repartition topic.
            own: Watermarks in µs of the clocks in this very task that moved on, by their stores.
        """


@runtime_checkable
class TakesProcessingTime(Protocol):
    """A running operator that needs to know what time it is."""

    def on_processing_time(self, time_ms: int) -> None:
        """Take the time of the micro-batch, which its plan names: all tasks and attempts have the same."""


@runtime_checkable
class TakesTaskCount(Protocol):
    """A running operator that divides rows of its own among tasks."""

    def on_task_count(self, count: Callable[[], int]) -> None:
        """Take a function that returns the number of tasks. It may ask a broker."""


class CollectedRows:
    """Base of running operators that look at the rows of a task when its micro-batch ends. Mutable."""

    def __init__(self, columns: Sequence[str] | None = None) -> None:
        """`columns`: names of those that the operator reads; None: all."""
        self._columns = None if columns is None else list(columns)
        self._rows: dict[int, list[pa.Table]] = {}

    def begin(self, batch: BatchKey) -> None:
        del batch
        self._rows = {}

    def on_rows(self, partition: int, rows: pa.Table) -> None:
        self._rows.setdefault(partition, []).append(rows if self._columns is None else rows.select(self._columns))

    def _take_rows(self, partition: int) -> list[pa.Table]:
        """Return the rows of a task, and forget them."""
        return self._rows.pop(partition, [])


class CollectedClockedRows(CollectedRows):
    """The same behind a repartition topic, with the watermarks that come through it."""

    def __init__(self, columns: Sequence[str] | None = None) -> None:
        super().__init__(columns)
        self._upstream: dict[int, list[UpstreamWatermark]] = {}

    def begin(self, batch: BatchKey) -> None:
        super().begin(batch)
        self._upstream = {}

    def on_watermarks(self, partition: int, upstream: Sequence[UpstreamWatermark], own: Mapping[str, int]) -> None:
        """Take the watermarks that came with the rows of a task. There is always a repartition topic in front."""
        del own
        self._upstream.setdefault(partition, []).extend(upstream)

    def _take_watermarks(self, partition: int) -> list[UpstreamWatermark]:
        """Return the watermarks of a task, and forget them."""
        return self._upstream.pop(partition, [])


class StatefulOperator(Protocol):
    """The pickled description of an operator with state."""

    @property
    def name(self) -> str:
        """Kind of operator: under this name its time is reported."""

    @property
    def stores(self) -> tuple[StoreSpec, ...]:
        """The stores of each task."""

    def start(self) -> RunningOperator: ...


@dataclass(frozen=True, slots=True)
class StatefulStep:
    """A step that runs an operator with state. Leaves its stores prepared."""

    operator: StatefulOperator
    fetch_stage: str  # whose report says how far the input was read

    def start(self, context: StageContext) -> Operator:
        return _Stateful(self, context)


class _Stateful:
    def __init__(self, step: StatefulStep, context: StageContext) -> None:
        self._step, self._context = step, context
        self._kind, self._stores = step.operator.name, step.operator.stores
        self._operator = step.operator.start()
        self._operator.begin(context.plan.batch)
        if isinstance(self._operator, TakesProcessingTime):
            self._operator.on_processing_time(context.plan.time_ms)
        if isinstance(self._operator, TakesTaskCount):
            changelog = self._stores[0].changelog_topic
            self._operator.on_task_count(lambda: context.topics.partition_count(changelog))

    def push(self, table: pa.Table) -> Iterable[pa.Table]:
        started = time.perf_counter()
        for partition, rows in by_task(table):
            self._operator.on_rows(partition, rows)
        self._context.timed(self._kind, started)
        return ()

    def finish(self) -> Iterable[pa.Table]:
        # 1. First of all, because it fails if the fetch stage did not finish: PySpark ends the input of this stage
        #    without an error then, and half a micro-batch would be prepared.
        fetched = self._fetched()
        merged: list[_Merged] = []
        try:
            # 2. Merge task by task. Their changes are sent at once, so the network works while the next task is merged.
            for task in self._context.slot.tasks:
                started = time.perf_counter()
                report = fetched[task.partition]
                if isinstance(self._operator, TakesWatermarks):
                    upstream = [UpstreamWatermark.from_report(one) for one in report.upstream]
                    own = self._context.report(task.partition).announced
                    self._operator.on_watermarks(task.partition, upstream, own)
                changes = self._operator.end(task.partition)
                self._context.timed(self._kind, started)
                started = time.perf_counter()
                one = _Merged(task.partition, changes, [])
                merged.append(one)
                self._merge(one, task, report.reached)
                self._context.timed("state", started)
                # 3. Open transactions hold their dirty pages in memory.
                if sum(one.changed for one in merged) >= ENOUGH_OPEN:
                    yield from self._prepare(merged)
            yield from self._prepare(merged)
        # 4. After an error every store is left as it was. For prepared ones this does nothing.
        finally:
            for one in merged:
                for store in one.stores:
                    store.batch.abandon()

    def _fetched(self) -> dict[int, TaskReport]:
        """Return the fetch stage's report of each task: how far its input was read, and upstream watermarks.

        A task without this report has a cut-off input: its fetch stage died.
        """
        if self._context.fetches:
            return {task.partition: self._context.report(task.partition) for task in self._context.slot.tasks}
        for report in self._context.upstream_reports():
            if report.stage == self._step.fetch_stage and report.slot == self._context.slot.slot:
                return {task.partition: task for task in report.tasks}
        raise HeadraceError("upstream-died", "the fetch stage of this slot did not finish; its batch is not prepared")

    def _merge(self, one: _Merged, task: TaskPlan, reached: dict[str, int]) -> None:
        """Merge a task's changes into its stores and send them. The stores' transactions stay open."""
        context = self._context
        position = StorePosition(
            batch=context.plan.batch, input_offsets=_with_topic_ids(reached, task), changelog_offset=0
        )
        changes = {change.store: change for change in one.changes.stores} if one.changes is not None else {}
        for spec in self._stores:
            change = changes.get(spec)
            store = open_store(context, spec, task.partition)
            if isinstance(change, StoreUpdate):
                one.stores.append(self._update(store, change, task, position))
                continue
            # A store without changes is prepared as well: all stores of a task stand at the same batch, or the next
            # micro-batch would find this one behind.
            if change is None or not len(change.keys):
                one.stores.append(_MergedStore(spec, store.merge(task.committed, position, NO_KEYS, _unchanged), 0))
                continue
            values = _Newest(change.merge, NO_KEYS)
            batch = store.merge(task.committed, position, change.keys, values)
            one.stores.append(_MergedStore(spec, batch, len(change.keys)))
            producer_for(context).send(
                spec.changelog_topic,
                task.partition,
                change.keys,
                values.newest,
                timestamps_ms=context.topics.now_ms(),
            )

    def _update(self, store: TaskStore, change: StoreUpdate, task: TaskPlan, position: StorePosition) -> _MergedStore:
        """Update one of a task's stores and send its changes. The store's transaction stays open."""
        update = _Newest(change.update, StoreWrites(keys=NO_KEYS, values=NO_KEYS))
        batch = store.update(task.committed, position, update)
        writes = update.newest
        report = self._context.report(task.partition)
        report.late_rows += writes.late_rows
        if writes.watermark_ms is not None:
            report.watermarks_ms[change.store.name] = writes.watermark_ms
        if writes.next_due_ms is not None:
            report.next_due_ms = writes.next_due_ms
        if writes.announced_us is not None:
            report.announced[change.store.name] = writes.announced_us
        report.silent += [list(one) for one in writes.silent]
        if len(writes.keys):
            producer_for(self._context).send(
                change.store.changelog_topic,
                task.partition,
                writes.keys,
                writes.values,
                timestamps_ms=self._context.topics.now_ms(),
            )
        letters = self._send_dead_letters(task.partition, writes.dead_letters)
        return _MergedStore(change.store, batch, len(writes.keys), letters)

    def _send_dead_letters(self, partition: int, found: Sequence[DeadRecords]) -> tuple[str, ...]:
        """Send the records that an operator left out. Return names of those sent."""
        names: list[str] = []
        if self._context.plan.probe:
            return ()
        for dead in found:
            self._context.report(partition).dead += len(dead.records)
            columns = {name: dead.records.field(name) for name in ("offset", "key", "value")}
            # Partition p of a source belongs to task p.
            where = dead.source_topic, partition
            names += send_dead_letters(self._context, dead.topic, where, pa.table(columns), dead.reasons)
        return tuple(names)

    def _prepare(self, merged: list[_Merged]) -> Iterable[pa.Table]:
        """Wait for all changelog writes, prepare the stores, and yield the changed rows. No transaction stays open."""
        context = self._context
        started = time.perf_counter()
        # 1. One wait for the acknowledgements of all tasks.
        letters = [name for one in merged for store in one.stores for name in store.letters]
        written = producer_for(context).flush() if letters or any(one.changed for one in merged) else {}
        if letters:
            remember_dead_letters(context, letters)
        # 2. Stores after their changelogs: a store is never ahead of its topic, or a replay elsewhere would miss what
        #    this one has. The other order of a crash is harmless: records without a prepared store belong to a
        #    transaction that is aborted, or are written again with the repeated batch.
        for one in merged:
            report = context.report(one.partition)
            for store in one.stores:
                where = store.spec.changelog_topic, one.partition
                store.batch.prepare(written[where] + 1 if store.changed else None)
                report.state_updates += store.changed
                report.changelog_records += store.changed
                report.state_keys += store.batch.keys
                report.state_bytes += store.batch.size_bytes
        # 3. Cleared before rows are yielded, so that an error further on does not touch prepared stores.
        prepared = list(merged)
        merged.clear()
        context.timed("state", started)
        for one in prepared:
            results = one.changes.results() if one.changes is not None else ()
            for rows in (results,) if isinstance(results, pa.Table) else results:
                if rows.num_rows:
                    yield rows


class _Newest(Generic[Read, Written]):
    """Function wrapper that keeps its last result, because the changelog gets exactly the values of the store."""

    def __init__(self, function: Callable[[Read], Written], first: Written) -> None:
        self._function, self.newest = function, first

    def __call__(self, read: Read) -> Written:
        self.newest = self._function(read)
        return self.newest


@dataclass(frozen=True, slots=True)
class _MergedStore:
    spec: StoreSpec
    batch: StoreTransaction
    changed: int  # keys
    letters: tuple[str, ...] = ()  # names of dead letters that were sent


@dataclass(frozen=True, slots=True)
class _Merged:
    """A task whose stores are merged but not prepared."""

    partition: int
    changes: TaskChanges | None
    stores: list[_MergedStore]

    @property
    def changed(self) -> int:
        return sum(store.changed for store in self.stores)


def _unchanged(old: pa.Array) -> pa.Array:
    return old


def by_task(table: pa.Table) -> Iterator[tuple[int, pa.Table]]:
    """Yield (task, its rows). A fetched table belongs to one task; one from Spark may hold rows of several."""
    tasks = table.column(TASK_COLUMN)
    ends = pc.min_max(tasks).as_py()
    if ends["min"] is None:
        return
    if ends["min"] == ends["max"]:
        yield ends["min"], table
        return
    for task in pc.unique(tasks).to_pylist():
        yield task, table.filter(pc.equal(tasks, pa.scalar(task, pa.int32())))


def open_store(context: StageContext, spec: StoreSpec, partition: int) -> TaskStore:
    """Return one of the open stores of one task."""
    plan = context.plan
    identity = StoreIdentity(
        changelog_topic_id=plan.topic_ids.get(spec.changelog_topic, ""),
        schema_hash=spec.rows.hash,
        boot_id=plan.boot_id,
    )
    return store_for(store_path(plan.state_dir, plan.subtopology_id, partition, spec), identity)


def _with_topic_ids(reached: Mapping[str, int], task: TaskPlan) -> dict[str, int]:
    """Return what a fetch stage reached, under the names that the positions of stores have."""
    names = {
        name_of(found.topic, found.partition): input_name(found.topic, found.partition, found.topic_id)
        for found in task.ranges
    }
    return {names[name]: offset for name, offset in reached.items()}
