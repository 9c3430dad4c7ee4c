"""`InProcessExecutor`: the stages of a micro-batch in the calling process, without Spark jobs of their own.

Stages, operators, stores and formats are those of an application. What differs is the way of rows between stages: they
stay Arrow tables. Where the user's SQL stands between two stages, the table becomes a DataFrame, the same recorded
calls are applied, and the result is collected. A chain without SQL does not touch the JVM.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from headrace.errors import HeadraceError, UserCodeError
from headrace.spark.frames import empty_frame
from headrace.spark.runtime.batches.bad_record_search import BadRecord
from headrace.spark.runtime.batches.driver_evaluation import DriverRows, failing_rows
from headrace.spark.runtime.batches.job_runner import BatchFailed, batch_number
from headrace.spark.runtime.batches.plan import MicroBatchPlan, StageReport
from headrace.spark.runtime.batches.prepared_plan import fetching_session, static_dataframes
from headrace.spark.runtime.batches.stage_reports import StageReports
from headrace.spark.runtime.batches.stages import REPORT_SCHEMA, PythonStage
from headrace.spark.runtime.chains import ChainBuilder, has_sql_on_records, input_topics
from headrace.spark.runtime.operators.keyed_operators import can_trace
from headrace.spark.runtime.spark_errors import reason_of, user_error
from headrace.spark.runtime.topic_access import TopicAccess
from headrace.spark.spark_internals import collect_arrow
from headrace.spark.topology.nodes import (
    OFFSET_COLUMN,
    TASK_COLUMN,
    TOPIC_COLUMN,
    CompiledSubtopology,
    ForeachBatchSink,
)

if TYPE_CHECKING:
    from headrace.spark.topology.nodes import Branch

__all__ = ["SLOT", "InProcessExecutor", "in_process_session"]

# Spark would evaluate projections over rows in the driver while it optimises the plan, before it moves filters below
# them. A cast behind a filter then fails on rows that the filter drops. Rows of a stage are opaque to it.
_NOT_EARLY = "org.apache.spark.sql.catalyst.optimizer.ConvertToLocalRelation"

SLOT = 0  # the only one: all tasks run in it, one after another


def in_process_session(spark: SparkSession) -> SparkSession:
    """Return a copy of the session that plans SQL between stages as an application does."""
    return fetching_session(spark, {"spark.sql.optimizer.excludedRules": _NOT_EARLY})


class _StageFailed(Exception):
    """A stage failed. It has written its error to the reports."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(str(error))
        self.error = error


class StageRows:
    """Rows of a stage. They become a DataFrame when something asks for one, so chains without SQL need no JVM."""

    def __init__(self, spark: SparkSession, batches: list[pa.RecordBatch], schema: StructType) -> None:
        self._spark, self.batches, self.schema = spark, batches, schema
        self._frame: DataFrame | None = None

    @property
    def columns(self) -> list[str]:
        return self.schema.names

    @property
    def frame(self) -> DataFrame:
        # Built at most once: `createDataFrame` copies all rows into the JVM.
        if self._frame is None:
            if self.batches:
                table = pa.Table.from_batches(self.batches).combine_chunks()
                self._frame = self._spark.createDataFrame(table, self.schema)
            else:
                self._frame = empty_frame(self._spark, self.schema)
        return self._frame

    def __getattr__(self, name: str) -> Any:
        return getattr(self.frame, name)


class _EagerChains(ChainBuilder):
    """The chains of one micro-batch: each stage runs when its rows are asked for. Mutable: reports so far."""

    def __init__(
        self,
        spark: SparkSession,
        subtopology: CompiledSubtopology,
        plan: MicroBatchPlan,
        topics: TopicAccess,
        *,
        traced: bool = False,
    ) -> None:
        super().__init__(spark, subtopology, 1, {}, traced=traced)
        self._plan, self._topics = plan, topics
        self.reports: list[StageReport] = []

    def run_chains(self) -> None:
        """Run all chains that end in topics or tables."""
        for _ in self.chains_to_topics():
            pass

    def from_slots(self, stage: PythonStage, schema: StructType | str = REPORT_SCHEMA) -> DataFrame:
        """Run a stage with a source."""
        return self._run(stage, (), schema)

    def _through(self, frame: DataFrame, stage: PythonStage, schema: StructType | str) -> DataFrame:
        rows: Any = frame  # what `from_slots` returned, or a DataFrame
        batches = rows.batches if isinstance(rows, StageRows) else collect_arrow(frame)
        return self._run(stage, batches, schema)

    def _run(self, stage: PythonStage, batches: Iterable[pa.RecordBatch], schema: StructType | str) -> DataFrame:
        found: list[pa.RecordBatch] = []
        running = stage.run_batch(self._plan, SLOT, batches, self.reports, self._topics)
        try:
            while True:
                found.append(next(running))
        except StopIteration as end:
            self.reports.append(end.value)
        # Wrapped, so that `_collecting_errors` distinguishes errors of stages from Spark's own.
        except Exception as error:
            raise _StageFailed(error) from error
        declared = StructType() if isinstance(schema, str) else schema  # the last stage of a chain has no rows
        return cast("DataFrame", StageRows(self._spark, found, declared))


class InProcessExecutor:
    """Runs the stages of one subtopology in the calling process. See `Executor`."""

    def __init__(self, spark: SparkSession, subtopology: CompiledSubtopology, topics: TopicAccess) -> None:
        """Prepare.

        Args:
            spark: The session for the user's SQL: see `in_process_session`.
            subtopology: Whose stages run.
            topics: What the stages read and write.
        """
        self._spark, self._subtopology, self._topics = spark, subtopology, topics

    def process(self, plan: MicroBatchPlan) -> list[StageReport]:
        # Static sides are read here as between the micro-batches of a real instance.
        for side in static_dataframes(self._subtopology):
            side.hold()
        with self._collecting_errors(plan):
            chains = self._chains(plan)
            chains.run_chains()
            for index, branch in enumerate(self._subtopology.branches):
                if isinstance(branch.sink, ForeachBatchSink):
                    self._call(branch.sink, chains.rows_for_user(branch, index), plan)
            return chains.reports

    def can_guard(self) -> bool:
        """Never: bad records are found in this process anyway, without a Spark job."""
        return False

    def process_guarded(
        self, plan: MicroBatchPlan, *, bad_expected: bool, tick: Callable[[], None] = lambda: None
    ) -> tuple[list[StageReport], list[BadRecord]]:
        raise NotImplementedError("no micro-batch is guarded here")

    def probe(self, plan: MicroBatchPlan) -> str | None:
        try:
            with self._collecting_errors(plan):
                chains = self._chains(plan)
                for branch, index in self._with_sql():
                    collect_arrow(chains.probed(branch, index))
        except BatchFailed as failed:
            return reason_of(failed.error)
        return None

    def find_bad_records(
        self, plan: MicroBatchPlan, *, most: int, thorough: bool, tick: Callable[[], None] = lambda: None
    ) -> list[BadRecord]:
        del thorough  # all rows are tried
        plan = _probing(plan)
        with self._collecting_errors(plan):
            tracer = self._chains(plan, traced=True)
            for branch, index in self._with_sql():
                sql = functools.partial(tracer.sql_on_records, branch)
                if found := self._bad_rows(tracer.fetched(branch, index), sql, most, tick):
                    return found  # what follows the failing SQL has no rows as long as it fails
            for index, branch in enumerate(self._subtopology.branches):
                operator = branch.operator
                if operator is not None and can_trace(operator) and (branch.after or not operator.bare):
                    sql = functools.partial(tracer.sql_on_results, branch, operator)
                    if found := self._bad_rows(tracer.operated(branch, index), sql, most, tick):
                        return found
        return []

    def trace_records(self, plan: MicroBatchPlan, code: str) -> list[BadRecord]:
        plan = _probing(plan)
        with self._collecting_errors(plan) as stage_reports:
            tracer = self._chains(plan, traced=True)
            tracer.run_chains()
            for index, branch in enumerate(self._subtopology.branches):
                operator = branch.operator
                if operator is not None and can_trace(operator) and isinstance(branch.sink, ForeachBatchSink):
                    tracer.operated(branch, index)
            topics = input_topics(self._subtopology)
            return sorted(
                {
                    BadRecord(task=task, topic=topics[topic], partition=task, offset=offset, reason=reason, code=code)
                    for task, topic, offset, reason in stage_reports.bad_records()
                },
                key=_place,
            )

    def restore(self, plan: MicroBatchPlan, *, gives_up: object = None) -> list[StageReport]:  # noqa: ARG002
        with self._collecting_errors(plan):
            chains = self._chains(plan)
            stage = chains.restore_stage()
            assert stage is not None
            chains.from_slots(stage)
            return chains.reports

    def _chains(self, plan: MicroBatchPlan, *, traced: bool = False) -> _EagerChains:
        return _EagerChains(self._spark, self._subtopology, plan, self._topics, traced=traced)

    def _with_sql(self) -> list[tuple[Branch, int]]:
        branches = enumerate(self._subtopology.branches)
        return [(branch, index) for index, branch in branches if has_sql_on_records(branch)]

    def _bad_rows(
        self, fetched: DataFrame, sql: Callable[[DataFrame], DataFrame], most: int, tick: Callable[[], None]
    ) -> list[BadRecord]:
        """Return the rows on which the user's SQL fails, by the records that they come from."""
        rows: Any = fetched  # `StageRows`
        if not rows.batches:
            return []
        table = pa.Table.from_batches(rows.batches)
        failing = failing_rows(DriverRows(self._spark, rows.frame), sql, most=most, tick=tick)
        chosen = table.select([TASK_COLUMN, TOPIC_COLUMN, OFFSET_COLUMN]).take(
            pa.array([row for row, _ in failing], pa.int64())
        )
        topics = input_topics(self._subtopology)
        return sorted(
            (
                BadRecord(task=task, topic=topics[topic], partition=task, offset=offset, reason=reason)
                for task, topic, offset, (_, reason) in zip(*chosen.to_pydict().values(), failing, strict=True)
            ),
            key=_place,
        )

    @contextlib.contextmanager
    def _collecting_errors(self, plan: MicroBatchPlan) -> Iterator[StageReports]:
        """Raise BatchFailed, with the errors that stages reported, for any error of a stage or of Spark."""
        stage_reports = StageReports(plan.state_dir, plan.subtopology_id, plan.batch)
        try:
            yield stage_reports
        except _StageFailed as failed:
            raise BatchFailed(failed.error, stage_reports.errors()) from failed.error
        except HeadraceError:
            raise
        except Exception as error:
            raise BatchFailed(error, stage_reports.errors()) from error
        finally:
            stage_reports.remove()

    @staticmethod
    def _call(sink: ForeachBatchSink, dataframe: DataFrame, plan: MicroBatchPlan) -> None:
        try:
            sink.function(dataframe, batch_number(plan))
        except UserCodeError:
            raise
        except Exception as error:
            if type(error).__module__.startswith(("pyspark", "py4j")):
                raise BatchFailed(error, [], in_function=True) from error
            raise user_error(error, f"the function of {sink.name} raised", where=sink.where) from error


def _place(bad: BadRecord) -> tuple[int, str, int, int]:
    return bad.task, bad.topic, bad.partition, bad.offset


def _probing(plan: MicroBatchPlan) -> MicroBatchPlan:
    """Return the plan of another attempt, which writes nothing."""
    return replace(plan, batch=replace(plan.batch, attempt=plan.batch.attempt + 1), probe=True)
