"""Steps between fetch and sink that need no Spark SQL: bare projections, keyed aggregates, bare results."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.errors import HeadraceError
from headrace.spark.arrow_types import arrow_types
from headrace.spark.runtime.aggregate import AggregateFunctions
from headrace.spark.runtime.bulk_load import order_of_keys
from headrace.spark.runtime.fetch_stage import input_name, name_of
from headrace.spark.runtime.open_batch import OpenBatch
from headrace.spark.runtime.plan import TaskPlan
from headrace.spark.runtime.row_schema import state_schema
from headrace.spark.runtime.rows import decode_rows, encode_key, encode_rows
from headrace.spark.runtime.sink_stage import now_ms, producer_for
from headrace.spark.runtime.stages import Operator, StageContext, fitted
from headrace.spark.runtime.store import StoreIdentity, StorePosition, TaskStore
from headrace.spark.runtime.worker_process import schema_hash, store_for, store_path
from headrace.spark.topology.nodes import (
    KEY_COLUMN,
    OFFSET_COLUMN,
    TASK_COLUMN,
    TOPIC_COLUMN,
    Aggregate,
    ProjectForGroup,
)

__all__ = ["AggregateStep", "BareProjection", "BareResults", "GuardedRowsStep", "RowMerging", "by_task", "open_store"]

_ROW = "__headrace_row"
MOST_FAILED_ROWS = 5000  # of a slot: each of them is evaluated in the driver while the transaction is open
NO_KEYS = pa.array([], pa.binary())
ENOUGH_OPEN = 250_000  # keys in stores that are merged and not prepared: their pages lie in memory, 4 KB a key at worst
ENOUGH = 1_000_000  # partials of a task that wait to be combined with those before them
WORTHWHILE = 0.5  # partials per row below which a table's rows are combined as they come


@dataclass(frozen=True, slots=True)
class GuardedRowsStep:
    """Forward the rows of a guarded plan, and keep the input rows that Spark could not evaluate for the driver."""

    columns: tuple[str, ...]  # of the plan's result
    inputs: tuple[str, ...]  # of its input

    def start(self, context: StageContext) -> Operator:
        return _GuardedRows(self, context)


class _GuardedRows:
    def __init__(self, step: GuardedRowsStep, context: StageContext) -> None:
        self._step, self._context = step, context
        self._count = 0

    def push(self, table: pa.Table) -> Iterable[pa.Table]:
        rows, failed = (column.combine_chunks() for column in table.columns)
        if failed.null_count < len(failed):
            found = failed.drop_null()
            self._count += len(found)
            if self._count > MOST_FAILED_ROWS:
                raise HeadraceError(
                    "too-many-bad-rows",
                    f"Spark could not evaluate more than {MOST_FAILED_ROWS} rows of a micro-batch.",
                    "Nothing: the micro-batch runs again after a search for its bad records.",
                )
            self._context.failed_rows.append(pa.Table.from_arrays(found.flatten(), names=self._step.inputs))
            rows = rows.drop_null()
        if len(rows):
            yield pa.Table.from_arrays(rows.flatten(), names=self._step.columns)

    def finish(self) -> Iterable[pa.Table]:
        return ()


@dataclass(frozen=True, slots=True)
class BareProjection:
    """Projection to `g0.., i0..` that only renames columns of the source."""

    projection: ProjectForGroup
    traced: bool = False  # whether rows carry the coordinates of their records

    def start(self, context: StageContext) -> Operator:
        del context
        hidden = [(TASK_COLUMN, pa.int32())]
        if self.traced:
            hidden += [(TOPIC_COLUMN, pa.int32()), (OFFSET_COLUMN, pa.int64())]
        pairs = [*self.projection.source_columns, *[(name, name) for name, _ in hidden]]
        types = zip([name for name, _ in self.projection.columns], arrow_types(self.projection.columns), strict=True)
        return _Renamed(pairs, pa.schema([*types, *hidden]))


@dataclass(frozen=True, slots=True)
class BareResults:
    """Results of an aggregate that only rename its `g0.., b0..`."""

    aggregate: Aggregate
    with_key: bool
    traced: bool = False

    def start(self, context: StageContext) -> Operator:
        del context
        pairs = [(name, sql.strip("`")) for name, sql in self.aggregate.results]
        hidden = [TASK_COLUMN, KEY_COLUMN] if self.with_key else [TASK_COLUMN]
        hidden += [TOPIC_COLUMN, OFFSET_COLUMN] if self.traced else []
        return _Renamed([*pairs, *[(name, name) for name in hidden]], None)


class _Renamed:
    def __init__(self, pairs: Sequence[tuple[str, str]], schema: pa.Schema | None) -> None:
        self._pairs, self._schema = pairs, schema

    def push(self, table: pa.Table) -> Iterable[pa.Table]:
        names = [name for name, _ in self._pairs]
        renamed = pa.Table.from_arrays([table.column(source) for _, source in self._pairs], names=names)
        yield renamed if self._schema is None else fitted(renamed, self._schema)

    def finish(self) -> Iterable[pa.Table]:
        return ()


@dataclass(frozen=True, slots=True)
class AggregateStep:
    """Keyed aggregate: rows `g0.., i0..` in, one row `g0.., b0..` per changed key out. Leaves the store prepared."""

    aggregate: Aggregate
    fetch_stage: str  # whose report says how far the input was read
    key_names: tuple[str, ...] | None = None  # names under which the sink's key shows the groups; None: no key column

    def start(self, context: StageContext) -> Operator:
        return _Aggregate(self, context)


class RowMerging:
    """Merge of an aggregate's input rows with its stored values."""

    def __init__(self, step: AggregateStep, context: StageContext) -> None:
        self.aggregate = step.aggregate
        self.functions = AggregateFunctions(step.aggregate)
        self.fingerprint = state_schema(step.aggregate).fingerprint
        self._step, self._context = step, context
        self._columns = pa.schema(list(zip(self.functions.group_names, self.functions.group_types, strict=True)))

    def grouped(self, rows: pa.Table) -> pa.Table:
        """Rows with groups in the types that keys are encoded with."""
        return _grouped_as(rows, self._columns)

    def with_hidden(self, finished: pa.Table, partition: int) -> pa.Table:
        """Finished rows with the columns that later steps need."""
        finished = finished.append_column(TASK_COLUMN, pa.array(np.full(finished.num_rows, partition, np.int32)))
        if self._step.key_names is not None:
            from headrace.spark.formats import encode_key as encode_sink_key

            groups = pa.Table.from_arrays(
                [finished.column(name) for name in self.functions.group_names], names=list(self._step.key_names)
            )
            [batch] = groups.combine_chunks().to_batches()
            finished = finished.append_column(KEY_COLUMN, encode_sink_key(batch, self._step.key_names))
        return finished


class _Aggregate:
    def __init__(self, step: AggregateStep, context: StageContext) -> None:
        self._step, self._context = step, context
        self._merging = RowMerging(step, context)
        self._functions, self._fingerprint = self._merging.functions, self._merging.fingerprint
        self._partials: dict[int, _Partials] = {}

    def push(self, table: pa.Table) -> Iterable[pa.Table]:
        started = time.perf_counter()
        for task, rows in by_task(table):
            partials = self._partials.setdefault(task, _Partials(self._functions))
            partials.add(self._merging.grouped(rows))
        self._context.timed("aggregate", started)
        return ()

    def finish(self) -> Iterable[pa.Table]:
        partials, self._partials = self._partials, {}
        reached = self._reached()
        merged: list[_Merged] = []
        try:
            for task in self._context.slot.tasks:
                started = time.perf_counter()
                mine = partials.pop(task.partition, None)
                rows = mine.combined() if mine is not None else None
                self._context.timed("aggregate", started)
                started = time.perf_counter()
                merged.append(self._merge(task, rows, reached[task.partition]))
                self._send(merged[-1])
                self._context.timed("state", started)
                if sum(one.rows for one in merged) >= ENOUGH_OPEN:
                    yield from self._prepare(merged)
            yield from self._prepare(merged)
        finally:
            for one in merged:
                one.batch.abandon()

    def _reached(self) -> dict[int, dict[str, int]]:
        """Return how far each task's input was read.

        A task without this report has a cut-off input: its fetch stage died.
        """
        if self._context.fetches:
            return {task.partition: self._context.report(task.partition).reached for task in self._context.slot.tasks}
        for report in self._context.side_path.reports():
            if report.stage == self._step.fetch_stage and report.slot == self._context.slot.slot:
                return {task.partition: task.reached for task in report.tasks}
        raise HeadraceError("upstream-died", "the fetch stage of this slot did not finish; its batch is not prepared")

    def _merge(self, task: TaskPlan, rows: pa.Table | None, reached: dict[str, int]) -> _Merged:
        """Merge rows into the task's store. The store transaction stays open."""
        context, aggregate, functions = self._context, self._step.aggregate, self._functions
        store = open_store(context, aggregate, task.partition)
        position = StorePosition(
            batch=context.plan.batch, input_offsets=_with_topic_ids(reached, task), changelog_offset=0
        )
        if rows is None or rows.num_rows == 0:
            return _Merged(task.partition, store.merge(task.committed, position, NO_KEYS, lambda old: old), None)
        keys = encode_key([rows.column(name) for name in functions.group_names])
        order = order_of_keys(keys)
        if order is not None:
            rows, keys = rows.take(order), keys.take(order)
        merger = _Merger(functions, rows, keys, self._fingerprint)
        return _Merged(task.partition, store.merge(task.committed, position, keys, merger), merger)

    def _send(self, merged: _Merged) -> None:
        """Send the changed rows to the changelog."""
        if merged.merger is not None:
            topic, keys, values = self._step.aggregate.changelog_topic, merged.merger.keys, merged.merger.encoded
            producer_for(self._context).send(topic, merged.partition, keys, values, timestamps_ms=now_ms())

    def _prepare(self, merged: list[_Merged]) -> Iterable[pa.Table]:
        """Wait for all changelog writes, prepare the stores, and yield the changed rows. No transaction stays open."""
        context, topic = self._context, self._step.aggregate.changelog_topic
        started = time.perf_counter()
        written = producer_for(context).flush() if any(one.rows for one in merged) else {}
        for one in merged:
            report = context.report(one.partition)
            one.batch.prepare(written[topic, one.partition] + 1 if one.rows else None)
            report.state_updates += one.rows
            report.changelog_records += one.rows
            report.state_keys += one.batch.keys
            report.state_bytes += one.batch.size_bytes
        prepared = list(merged)
        merged.clear()
        context.timed("state", started)
        for one in prepared:
            if one.merger is not None:
                yield self._merging.with_hidden(self._functions.finish(one.merger.merged), one.partition)


class _Merger:
    """Merge function of a store: stored values and the micro-batch's partials become new values."""

    def __init__(self, functions: AggregateFunctions, rows: pa.Table, keys: pa.Array, fingerprint: bytes) -> None:
        self._functions, self._rows, self.keys = functions, rows, keys
        self._fingerprint = fingerprint
        self.merged: pa.Table = rows
        self.encoded: pa.Array = pa.array([], pa.binary())

    def __call__(self, old: pa.Array) -> pa.Array:
        self.merged = self._rows if old.null_count == len(old) else self._with(old)
        columns = [self.merged.column(column.name) for column in self._functions.state]
        self.encoded = encode_rows(columns, self._fingerprint)
        return self.encoded

    def _with(self, values: pa.Array) -> pa.Table:
        """The rows, each merged with the stored value beside it."""
        rows, names = self._rows, [column.name for column in self._functions.state]
        types = [column.type for column in self._functions.state]
        stored = pa.table(decode_rows(values.drop_null(), types, self._fingerprint), names=names)
        stored = stored.append_column(_ROW, pa.array(np.flatnonzero(values.is_valid().to_numpy(zero_copy_only=False))))
        numbered = rows.select(names).append_column(_ROW, pa.array(np.arange(rows.num_rows, dtype=np.int64)))
        # Every row comes first in `numbered`, so the order stays.
        merged = self._functions.combine(pa.concat_tables([numbered, stored]), by=(_ROW,))
        columns = {name: rows.column(name) for name in self._functions.group_names}
        return pa.table(columns | {name: merged.column(name) for name in names})


@dataclass(frozen=True, slots=True)
class _Merged:
    """A task whose store is merged but not prepared."""

    partition: int
    batch: OpenBatch
    merger: _Merger | None  # None: the micro-batch has no rows for it

    @property
    def rows(self) -> int:
        return self.merger.merged.num_rows if self.merger is not None else 0


class _Partials:
    """The micro-batch's rows of one task as few tables of partials. Mutable."""

    def __init__(self, functions: AggregateFunctions) -> None:
        self._functions, self._by = functions, functions.group_names
        self._tables: list[pa.Table] = []
        self._waiting, self._least = 0, 0
        self._helps = True  # whether rows of one table share groups, so that it pays to combine them at once

    def add(self, rows: pa.Table) -> None:
        table = self._functions.lifted(rows, by=self._by)
        if self._helps:
            table = self._functions.combine(table, by=self._by)
            self._helps = table.num_rows <= WORTHWHILE * rows.num_rows
        self._tables.append(table)
        self._waiting += table.num_rows
        if self._waiting > 4 * self._least + ENOUGH:
            self._tables = [self.combined()]
            self._waiting = self._least = self._tables[0].num_rows

    def combined(self) -> pa.Table:
        if len(self._tables) == 1 and self._helps:
            return self._tables[0]
        return self._functions.combine(pa.concat_tables(self._tables), by=self._by)


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


def open_store(context: StageContext, aggregate: Aggregate, partition: int) -> TaskStore:
    """Return the open store of one aggregate of one task."""
    plan = context.plan
    identity = StoreIdentity(
        changelog_topic_id=plan.topic_ids.get(aggregate.changelog_topic, ""),
        schema_hash=schema_hash(aggregate),
        boot_id=plan.boot_id,
    )
    return store_for(store_path(plan.state_dir, plan.subtopology_id, partition, aggregate), identity)


def _with_topic_ids(reached: Mapping[str, int], task: TaskPlan) -> dict[str, int]:
    """Return what a fetch stage reached, under the names that the positions of stores have."""
    names = {
        name_of(found.topic, found.partition): input_name(found.topic, found.partition, found.topic_id)
        for found in task.ranges
    }
    return {names[name]: offset for name, offset in reached.items()}


def _grouped_as(table: pa.Table, columns: pa.Schema) -> pa.Table:
    """Cast groups to the types that keys are encoded with, whatever time zone or width Spark used."""
    for wanted in columns:
        index = table.schema.get_field_index(wanted.name)
        if table.schema.field(index).type != wanted.type:
            table = table.set_column(index, wanted.name, table.column(index).cast(wanted.type))
    return table
