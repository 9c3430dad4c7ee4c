"""Stages: the functions that run inside Python workers. One call is one stage of one slot of one micro-batch.

A stage is a source of tables (the fetch step, or Spark's input) and a chain of operators, each with
`push(table)` and `finish()`. Nothing here commits: PySpark tells a stage nothing when something upstream died, its
input just ends. So sinks flush, stores are prepared, and the driver decides when the whole job has succeeded.

Operators do not assume that one call is one micro-batch: `finish` ends a batch, and could be called again.
"""

from __future__ import annotations

import contextlib
import gc
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa

from headrace.errors import HeadraceError
from headrace.spark.runtime.batches.plan import PLAN_PROPERTY, MicroBatchPlan, SlotPlan, StageReport, TaskReport
from headrace.spark.runtime.batches.stage_reports import StageReports
from headrace.spark.runtime.topic_access import BrokerTopics, TopicAccess
from headrace.spark.runtime.worker_process import set_connection

if TYPE_CHECKING:
    from headrace.spark.runtime.topic_access import RecordWriter

__all__ = ["REPORT_SCHEMA", "FanOut", "Operator", "PythonStage", "StageContext", "Step", "attempt_of_task"]

REPORT_SCHEMA = "slot int, report string"
TABLE_ROWS = 50_000
TABLE_BYTES = 8 * 1024 * 1024
_REPORT_ARROW = pa.schema([("slot", pa.int32()), ("report", pa.string())])


@dataclass(slots=True, kw_only=True)
class StageContext:
    """Context that the steps of one stage share during one call."""

    plan: MicroBatchPlan
    slot: SlotPlan
    stage_reports: StageReports
    reports: dict[int, TaskReport] = field(default_factory=dict)
    timings_ms: dict[str, float] = field(default_factory=dict)
    intervals: dict[str, tuple[float, float]] = field(default_factory=dict)  # first begin, last end; where traced
    fetches: bool = False  # the fetch step runs in this very stage
    upstream: Sequence[StageReport] | None = None  # in a resident chain: reports of the stages before this one
    bad_records: list[tuple[int, int, int, str]] = field(default_factory=list)  # of a traced run: task, topic, offset
    failed_rows: list[pa.Table] = field(default_factory=list)  # of a guarded run: what Spark could not evaluate
    producer: RecordWriter | None = None  # of all steps; see `sink_stage.producer_for`
    access: TopicAccess | None = None  # None: the brokers of the plan

    @property
    def topics(self) -> TopicAccess:
        """The topics that the steps read and write."""
        if self.access is None:
            self.access = BrokerTopics(self.plan.bootstrap_servers)
        return self.access

    def report(self, partition: int) -> TaskReport:
        return self.reports.setdefault(partition, TaskReport(partition=partition))

    def upstream_reports(self) -> Sequence[StageReport]:
        """Return the reports of the stages before this one that have finished."""
        return self.stage_reports.reports() if self.upstream is None else self.upstream

    def timed(self, name: str, started: float) -> None:
        ended = time.perf_counter()
        self.timings_ms[name] = self.timings_ms.get(name, 0.0) + (ended - started) * 1000
        if self.plan.follows_traces:
            self.intervals[name] = (self.intervals[name][0] if name in self.intervals else started, ended)

    def intervals_ms(self) -> dict[str, tuple[float, float]]:
        """Return the time from the first begin to the last end of each step, in milliseconds since 1970."""
        shift = time.time() - time.perf_counter()
        return {
            name: ((began + shift) * 1000, (ended + shift) * 1000) for name, (began, ended) in self.intervals.items()
        }


class Operator(Protocol):
    """A running step: tables in, tables out."""

    def push(self, table: pa.Table) -> Iterable[pa.Table]: ...
    def finish(self) -> Iterable[pa.Table]: ...


class Step(Protocol):
    """The pickled description of an operator."""

    def start(self, context: StageContext) -> Operator: ...


class SourceStep(Protocol):
    """A step that yields tables from its plan alone."""

    def tables(self, context: StageContext) -> Iterator[pa.Table]: ...


def feed(table: pa.Table, operators: Sequence[Operator]) -> Iterator[pa.Table]:
    """Push a table through the chain, and yield what the last operator returns."""
    if not operators:
        yield table
        return
    for following in operators[0].push(table):
        yield from feed(following, operators[1:])


def finish(operators: Sequence[Operator]) -> Iterator[pa.Table]:
    """End the chain from front to back."""
    # What an operator returns at its end still passes through those behind it, before they end themselves.
    for index, operator in enumerate(operators):
        for table in operator.finish():
            yield from feed(table, operators[index + 1 :])


@dataclass(frozen=True, slots=True)
class FanOut:
    """Several branches of fused steps read the same tables: the topic is fetched once."""

    branches: tuple[tuple[Step, ...], ...]

    def start(self, context: StageContext) -> Operator:
        return _FanOut([[step.start(context) for step in branch] for branch in self.branches])


class _FanOut:
    def __init__(self, branches: list[list[Operator]]) -> None:
        self._branches = branches

    def push(self, table: pa.Table) -> Iterable[pa.Table]:
        for operators in self._branches:
            yield from feed(table, operators)

    def finish(self) -> Iterable[pa.Table]:
        for operators in self._branches:
            yield from finish(operators)


@dataclass(frozen=True, slots=True, kw_only=True)
class PythonStage:
    """The function passed to `mapInArrow`: pickled once per assignment, called once per slot and micro-batch."""

    name: str
    slots: int
    steps: tuple[Step, ...]
    source: SourceStep | None = None
    output: tuple[str, ...] | None = (
        None  # columns that go on to Spark; None: the last stage, which answers with its report
    )
    # How brokers are reached. It travels with the pickled function, never in the plan: Spark's UI shows that.
    access: Mapping[str, str] = field(default_factory=dict, repr=False)

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        index, attempt, text = _task_context()
        slot = index % self.slots  # chains side by side are one Spark job: its partitions run through all of them
        plan = MicroBatchPlan.from_json(text)
        context = self._context(plan, slot)
        with self._errors_written(context):
            # Spark repeats a failed task (`spark.task.maxFailures`). The first attempt may still run and hold the
            # slot's producer identity, so the second one refuses, and the driver repeats the micro-batch under a new
            # attempt.
            if attempt > 0 and not plan.probe:  # a probe leaves nothing behind
                raise HeadraceError("second-attempt", f"Spark ran slot {slot} of batch {plan.batch} a second time")
            report = yield from self._run(batches, context)
            if self.output is None:
                yield pa.record_batch([[slot], [report.to_json()]], schema=_REPORT_ARROW)
            else:
                context.stage_reports.write_report(report)
        _freeze_once()

    def run_batch(
        self,
        plan: MicroBatchPlan,
        slot: int,
        batches: Iterable[pa.RecordBatch] = (),
        upstream: Sequence[StageReport] = (),
        access: TopicAccess | None = None,
    ) -> Generator[pa.RecordBatch, None, StageReport]:
        """Run one micro-batch of one slot, outside a Spark job of its own: yield its rows, return its report.

        Args:
            plan: of the micro-batch.
            slot: whose tasks of the plan run here.
            batches: rows of the stage before this one; none if this one has a source.
            upstream: reports of the stages before this one.
            access: the topics; None: the brokers of the plan.

        Raises:
            Exception: any error of a step; it is written to the side path of the micro-batch, too.
        """
        context = self._context(plan, slot, access)
        context.upstream = upstream
        with self._errors_written(context):
            return (yield from self._run(iter(batches), context))

    def _context(self, plan: MicroBatchPlan, slot: int, access: TopicAccess | None = None) -> StageContext:
        if access is None:
            set_connection(plan.bootstrap_servers, self.access)
        stage_reports = StageReports(plan.state_dir, plan.subtopology_id, plan.batch)
        return StageContext(
            plan=plan,
            slot=plan.slot(slot),
            stage_reports=stage_reports,
            fetches=self.source is not None,
            access=access,
        )

    @contextlib.contextmanager
    def _errors_written(self, context: StageContext) -> Iterator[None]:
        """Write the error that ends the block to the side path, since Spark passes it on as text."""
        try:
            yield
        # Spark stopped reading (a limit, a cancelled job): no error of this stage.
        except GeneratorExit:
            raise
        except BaseException as error:
            context.stage_reports.write_error(self.name, context.slot.slot, error)
            raise

    def _run(
        self, batches: Iterator[pa.RecordBatch], context: StageContext
    ) -> Generator[pa.RecordBatch, None, StageReport]:
        started = time.perf_counter()
        # The client outlives micro-batches. Its count of lost connections is compared, so that the driver learns of a
        # broker that went away during this one.
        reconnects = context.topics.reconnects
        operators = [step.start(context) for step in self.steps]
        for table in self._tables(batches, context):
            yield from self._out(feed(table, operators))
        yield from self._out(finish(operators))
        context.timed(self.name, started)
        if context.failed_rows:
            rows = pa.concat_tables(context.failed_rows)
            context.stage_reports.write_failed_rows(self.name, context.slot.slot, rows)
        if context.bad_records:
            context.stage_reports.write_bad_records(self.name, context.slot.slot, context.bad_records)
        return StageReport(
            stage=self.name,
            slot=context.slot.slot,
            batch=context.plan.batch,
            tasks=tuple(context.reports.values()),
            timings_ms=context.timings_ms,
            intervals_ms=context.intervals_ms(),
            reconnects=context.topics.reconnects - reconnects,
        )

    def _tables(self, batches: Iterator[pa.RecordBatch], context: StageContext) -> Iterator[pa.Table]:
        if self.source is None:
            yield from _gathered(batches)
            return
        for _nothing in batches:  # the row of `spark.range` that makes this slot a Spark partition
            pass
        yield from self.source.tables(context)

    def _out(self, tables: Iterable[pa.Table]) -> Iterator[pa.RecordBatch]:
        for table in tables:
            if self.output is not None and table.num_rows:
                yield from table.select(self.output).to_batches()


def _gathered(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Spark's record batches as tables of at least `TABLE_ROWS` rows or `TABLE_BYTES`, except the last one.

    Operators work a table at a time, and what that costs for each table outweighs its rows when they are few.
    """
    waiting: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        if not batch.num_rows:
            continue
        waiting.append(batch)
        rows += batch.num_rows
        size += batch.nbytes
        if rows >= TABLE_ROWS or size >= TABLE_BYTES:
            yield pa.Table.from_batches(waiting).combine_chunks()
            waiting, rows, size = [], 0, 0
    if waiting:
        yield pa.Table.from_batches(waiting).combine_chunks()


def fitted(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """`table` with the columns of `schema`, in its order and types."""
    if table.schema == schema:
        return table
    columns = [_cast(table.column(field.name), field.type) for field in schema]
    return pa.Table.from_arrays(columns, schema=schema)


def _cast(column: Any, wanted: pa.DataType) -> Any:
    return column if column.type == wanted else column.cast(wanted)


def _task_context() -> tuple[int, int, str]:
    """Return (Spark partition, attempt, plan) of the running task."""
    from pyspark import TaskContext

    context = TaskContext.get()
    text = context.getLocalProperty(PLAN_PROPERTY) if context is not None else None
    if context is None or not text:
        raise HeadraceError("no-plan", "a stage of the runtime ran outside a micro-batch")
    return context.partitionId(), context.attemptNumber(), text


def attempt_of_task() -> int:
    """Return how often Spark has tried the running task before."""
    from pyspark import TaskContext

    context = TaskContext.get()
    return context.attemptNumber() if context is not None else 0


_frozen: list[bool] = []


def _freeze_once(freeze: Callable[[], None] = gc.freeze) -> None:
    """Exclude imported objects from garbage collection, which PySpark runs after each task (44 ms each time)."""
    # At the end of the first micro-batch: imports and compiled code are complete, and no record is held.
    if not _frozen:
        _frozen.append(True)
        gc.collect()
        freeze()
