"""Steps between fetch and sink that need no Spark SQL: bare projections, keyed aggregates, bare results."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import PenstockError
from penstock.spark.arrow_types import arrow_types
from penstock.spark.runtime.aggregate import AggregateFunctions
from penstock.spark.runtime.plan import TaskPlan
from penstock.spark.runtime.rows import decode_rows, encode_key, encode_rows
from penstock.spark.runtime.sink_stage import producer_for
from penstock.spark.runtime.stages import Operator, StageContext, fitted
from penstock.spark.runtime.store import StoreIdentity, StorePosition, TaskStore
from penstock.spark.runtime.worker_process import schema_hash, store_for, store_path
from penstock.spark.topology.nodes import KEY_COLUMN, TASK_COLUMN, Aggregate, ProjectForGroup

__all__ = ["AggregateStep", "BareProjection", "BareResults", "open_store"]

_ROW = "__penstock_row"


@dataclass(frozen=True, slots=True)
class BareProjection:
    """`g0.., i0..` are columns of the source as they are."""

    projection: ProjectForGroup

    def start(self, context: StageContext) -> Operator:
        del context
        pairs = [*self.projection.source_columns, (TASK_COLUMN, TASK_COLUMN)]
        types = zip([name for name, _ in self.projection.columns], arrow_types(self.projection.columns), strict=True)
        return _Renamed(pairs, pa.schema([*types, (TASK_COLUMN, pa.int32())]))


@dataclass(frozen=True, slots=True)
class BareResults:
    """The columns of an aggregate's output are its `g0.., b0..` as they are."""

    aggregate: Aggregate
    with_key: bool

    def start(self, context: StageContext) -> Operator:
        del context
        pairs = [(name, sql.strip("`")) for name, sql in self.aggregate.results]
        hidden = [TASK_COLUMN, KEY_COLUMN] if self.with_key else [TASK_COLUMN]
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
    """Rows `g0.., i0..` in, one row `g0.., b0..` per key that changed out; the store is left prepared."""

    aggregate: Aggregate
    fetch_stage: str  # whose report says how far the input was read
    key_names: tuple[str, ...] | None = None  # names under which the sink's key shows the groups; None: no key column

    def start(self, context: StageContext) -> Operator:
        return _Aggregate(self, context)


class _Aggregate:
    def __init__(self, step: AggregateStep, context: StageContext) -> None:
        self._step, self._context = step, context
        self._functions = AggregateFunctions(step.aggregate)
        self._columns = pa.schema(
            [
                (TASK_COLUMN, pa.int32()),
                *zip(self._functions.group_names, self._functions.group_types, strict=True),
            ]
        )
        self._by = (TASK_COLUMN, *self._functions.group_names)
        self._partials: list[pa.Table] = []
        self._waiting = 0

    def push(self, table: pa.Table) -> Iterable[pa.Table]:
        started = time.perf_counter()
        self._partials.append(self._functions.partial(_grouped_as(table, self._columns), by=self._by))
        self._waiting += self._partials[-1].num_rows
        if len(self._partials) > 1 and self._waiting > 4 * self._partials[0].num_rows + 100_000:
            self._partials = [self._combined()]
            self._waiting = self._partials[0].num_rows
        self._context.timed("aggregate", started)
        return ()

    def finish(self) -> Iterable[pa.Table]:
        started = time.perf_counter()
        partials = self._combined() if self._partials else None
        self._partials, self._waiting = [], 0
        reached = self._reached()
        for task in self._context.slot.tasks:
            mine = None
            if partials is not None:
                mine = partials.filter(pc.equal(partials.column(TASK_COLUMN), pa.scalar(task.partition, pa.int32())))
            changed = self._merge(task, mine, reached[task.partition])
            if changed is not None:
                yield changed
        self._context.timed("state", started)

    def _combined(self) -> pa.Table:
        return self._functions.combine(pa.concat_tables(self._partials), by=self._by)

    def _reached(self) -> dict[int, dict[str, int]]:
        """How far each task's input was read. No such report: the fetch stage died, and this input is a part."""
        if self._context.fetches:
            return {task.partition: self._context.report(task.partition).reached for task in self._context.slot.tasks}
        for report in self._context.side_path.reports():
            if report.stage == self._step.fetch_stage and report.slot == self._context.slot.slot:
                return {task.partition: task.reached for task in report.tasks}
        raise PenstockError("upstream-died", "the fetch stage of this slot did not finish; its batch is not prepared")

    def _merge(self, task: TaskPlan, rows: pa.Table | None, reached: dict[str, int]) -> pa.Table | None:
        context, aggregate, functions = self._context, self._step.aggregate, self._functions
        store = open_store(context, aggregate, task.partition)
        report = context.report(task.partition)
        before = store.settle(task.committed)
        position = StorePosition(
            batch=context.plan.batch, input_offsets=reached, changelog_offset=before.changelog_offset if before else 0
        )
        if rows is None or rows.num_rows == 0:
            store.prepare(task.committed, position, [], lambda old: old, lambda: position.changelog_offset)
            merged = None
        else:
            rows = rows.drop_columns([TASK_COLUMN])
            keys = encode_key([rows.column(name) for name in functions.group_names])
            merger = _Merger(functions, rows)

            def publish() -> int:
                return _publish(context, aggregate, task.partition, keys, merger.encoded)

            store.prepare(task.committed, position, keys.to_pylist(), merger, publish)
            merged = merger.merged
            report.state_updates += rows.num_rows
            report.changelog_records += rows.num_rows
        report.state_keys += store.count()
        report.state_bytes += store.size_bytes()
        if merged is None:
            return None
        return self._with_hidden(functions.finish(merged), task.partition)

    def _with_hidden(self, finished: pa.Table, partition: int) -> pa.Table:
        finished = finished.append_column(TASK_COLUMN, pa.array(np.full(finished.num_rows, partition, np.int32)))
        if self._step.key_names is not None:
            from penstock.spark.formats import encode_key as encode_sink_key

            groups = pa.Table.from_arrays(
                [finished.column(name) for name in self._functions.group_names], names=list(self._step.key_names)
            )
            [batch] = groups.combine_chunks().to_batches()
            finished = finished.append_column(KEY_COLUMN, encode_sink_key(batch, self._step.key_names))
        return finished


class _Merger:
    """Stored values and the micro-batch's partials become the new values, in the order of the partials."""

    def __init__(self, functions: AggregateFunctions, rows: pa.Table) -> None:
        self._functions, self._rows = functions, rows
        self.merged: pa.Table = rows
        self.encoded: pa.Array = pa.array([], pa.binary())

    def __call__(self, old: list[bytes | None]) -> Sequence[bytes | None]:
        known = [index for index, value in enumerate(old) if value is not None]
        merged = self._rows
        if known:
            stored = decode_rows(
                pa.array([old[index] for index in known], pa.binary()),
                [column.type for column in self._functions.state],
            )
            at = pa.array(known, pa.int64())
            columns = {name: merged.column(name).take(at) for name in self._functions.group_names}
            columns |= {column.name: values for column, values in zip(self._functions.state, stored, strict=True)}
            behind = pa.table(columns).append_column(_ROW, at).select([*merged.column_names, _ROW])
            numbered = merged.append_column(_ROW, pa.array(np.arange(merged.num_rows, dtype=np.int64)))
            both = pa.concat_tables([numbered, behind])
            merged = self._functions.combine(both, by=(_ROW, *self._functions.group_names)).sort_by(_ROW)
            merged = merged.drop_columns([_ROW])
        self.merged = merged
        self.encoded = encode_rows([merged.column(column.name) for column in self._functions.state])
        return list(self.encoded.to_pylist())


def open_store(context: StageContext, aggregate: Aggregate, partition: int) -> TaskStore:
    """The store of one aggregate of one task, as the plan wants it."""
    plan = context.plan
    identity = StoreIdentity(
        changelog_topic_id=plan.topic_ids.get(aggregate.changelog_topic, ""),
        schema_hash=schema_hash(aggregate),
        boot_id=plan.boot_id,
    )
    return store_for(store_path(plan.state_dir, plan.subtopology_id, partition, aggregate), identity)


def _publish(context: StageContext, aggregate: Aggregate, partition: int, keys: pa.Array, values: pa.Array) -> int:
    producer = producer_for(context)
    producer.send(aggregate.changelog_topic, partition, keys, values, timestamps_ms=int(time.time() * 1000))
    return int(producer.flush()[aggregate.changelog_topic, partition]) + 1


def _grouped_as(table: pa.Table, columns: pa.Schema) -> pa.Table:
    """Groups in the types that keys are encoded with, whatever time zone or width Spark handed over."""
    for wanted in columns:
        index = table.schema.get_field_index(wanted.name)
        if table.schema.field(index).type != wanted.type:
            table = table.set_column(index, wanted.name, table.column(index).cast(wanted.type))
    return table
