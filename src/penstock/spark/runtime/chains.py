"""Branches of a subtopology as Spark plans: where Python stages meet Spark SQL, and where they fuse.

A *chain* is one DataFrame of P partitions (slots). Branches of one source that need no Spark SQL at all become one
chain of a single Python stage, so the topic is read once. Every other branch is a chain of its own:

    fetch [bare projection, aggregate] → SQL of the user → [aggregate] → SQL of the results → sink

Chains that end in a topic run together as one Spark job (a union of their reports). A chain that ends in the user's
`foreachBatch` is handed to that function. Kept is the *logical* plan: it is planned anew for each micro-batch, or
`uuid()`, `current_timestamp()` and `rand()` would answer the same for ever.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import BinaryType, IntegerType, StructField, StructType

from penstock.spark.frames import apply_calls, quoted, without_hidden
from penstock.spark.runtime.fetch_stage import FetchStep
from penstock.spark.runtime.operator_stage import AggregateStep, BareProjection, BareResults
from penstock.spark.runtime.restore_stage import RestoreStep
from penstock.spark.runtime.sink_stage import RepartitionSinkStep, TopicSinkStep
from penstock.spark.runtime.stages import REPORT_SCHEMA, FanOut, PythonStage, Step
from penstock.spark.topology.nodes import (
    KEY_COLUMN,
    TASK_COLUMN,
    Aggregate,
    Branch,
    CompiledSubtopology,
    ForeachBatchSink,
    RepartitionSink,
    RepartitionSource,
    Source,
    TopicSink,
)

__all__ = ["Chains", "ForeachBatchChain", "PreparedPlan", "build_chains", "source_topics"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedPlan:
    """A logical plan that can be run again and again, each time planned anew."""

    session: SparkSession
    logical: Any

    @classmethod
    def of(cls, dataframe: DataFrame) -> PreparedPlan:
        return cls(session=dataframe.sparkSession, logical=dataframe._jdf.queryExecution().logical())

    def dataframe(self) -> DataFrame:
        jvm = self.session.sparkContext._jvm
        dataset = jvm.org.apache.spark.sql.classic.Dataset.ofRows(self.session._jsparkSession, self.logical)
        return DataFrame(dataset, self.session)

    def collect(self) -> list[Any]:
        return list(self.dataframe().collect())

    def run(self) -> None:
        """Run it for its errors only."""
        self.dataframe()._jdf.queryExecution().toRdd().count()


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeachBatchChain:
    """What the user's function gets, and the function."""

    sink: ForeachBatchSink
    plan: PreparedPlan
    stateful: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Chains:
    """All plans of one subtopology in one session."""

    main: PreparedPlan | None  # chains that end in topics; collects their reports
    foreach: tuple[ForeachBatchChain, ...]
    probes: tuple[PreparedPlan, ...]  # every chain up to where Spark SQL on records ends, nothing written
    restore: PreparedPlan | None
    count: int
    slots: int


def source_topics(source: Source) -> tuple[str, ...]:
    """The topics a source reads."""
    return (source.topic,) if isinstance(source, RepartitionSource) else source.topics


def build_chains(spark: SparkSession, subtopology: CompiledSubtopology, slots: int) -> Chains:
    """Plan every branch; done once per application, whatever the assignment."""
    builder = _Builder(spark, slots)
    fused: dict[int, list[Branch]] = {}
    ends: list[DataFrame] = []
    foreach: list[ForeachBatchChain] = []
    for index, branch in enumerate(subtopology.branches):
        if _is_fused(branch):
            fused.setdefault(branch.source_index, []).append(branch)
        elif isinstance(branch.sink, ForeachBatchSink):
            frame = builder.rows(subtopology, branch, index)
            plan = PreparedPlan.of(without_hidden(frame))
            stateful = branch.aggregate is not None
            foreach.append(ForeachBatchChain(sink=branch.sink, plan=plan, stateful=stateful))
        else:
            ends.append(builder.sunk(subtopology, branch, index))
    for source_index, branches in fused.items():
        ends.append(builder.fused(subtopology.sources[source_index], branches, source_index))
    return Chains(
        main=PreparedPlan.of(functools.reduce(DataFrame.unionAll, ends)) if ends else None,
        foreach=tuple(foreach),
        probes=tuple(builder.probes),
        restore=builder.restore(subtopology),
        count=len(ends) + len(foreach),
        slots=slots,
    )


def _is_fused(branch: Branch) -> bool:
    """Whether no Spark SQL stands between the source and a topic."""
    if branch.before or branch.after or isinstance(branch.sink, ForeachBatchSink):
        return False
    projected = branch.projection is None or branch.projection.bare
    return projected and (branch.aggregate is None or branch.aggregate.bare)


class _Builder:
    def __init__(self, spark: SparkSession, slots: int) -> None:
        self._spark, self._slots = spark, slots
        self.probes: list[PreparedPlan] = []

    def fused(self, source: Source, branches: list[Branch], index: int) -> DataFrame:
        """One stage, read once."""
        fetch = f"fetch-all-{index}"
        steps = [tuple(self._arrow_steps(branch, fetch) + _sink_steps(branch)) for branch in branches]
        with_key = any(_needs_input_key(branch) for branch in branches)
        source_step = FetchStep(source, source_topics(source), with_key)
        stage = PythonStage(name=fetch, slots=self._slots, steps=(FanOut(tuple(steps)),), source=source_step)
        return self._from_slots(stage)

    def sunk(self, subtopology: CompiledSubtopology, branch: Branch, index: int) -> DataFrame:
        """A chain that ends in a topic."""
        rows = self.rows(subtopology, branch, index)
        stage = PythonStage(name=f"sink-{index}", slots=self._slots, steps=tuple(_sink_steps(branch)))
        return rows.mapInArrow(stage, REPORT_SCHEMA)

    def rows(self, subtopology: CompiledSubtopology, branch: Branch, index: int) -> DataFrame:
        """The rows of a branch as its sink gets them, hidden columns included."""
        source = subtopology.sources[branch.source_index]
        frame = self._fetched(source, branch, f"fetch-{index}")
        if branch.before or (branch.projection is not None and not self._projected_in_arrow(branch)):
            frame = apply_calls(frame, branch.before)
            if branch.projection is not None:
                wanted = [*branch.projection.key_sql, *branch.projection.input_sql, (TASK_COLUMN, TASK_COLUMN)]
                frame = frame.selectExpr(*[f"{sql} AS {quoted(name)}" for name, sql in wanted])
            self.probes.append(PreparedPlan.of(frame))
        if branch.aggregate is not None:
            frame = self._aggregated(frame, branch, branch.aggregate, index)
        if branch.after:
            frame = apply_calls(frame, branch.after)
            if branch.aggregate is None:
                self.probes.append(PreparedPlan.of(frame))
        return frame

    def restore(self, subtopology: CompiledSubtopology) -> PreparedPlan | None:
        pairs = [
            (branch.aggregate, source_topics(subtopology.sources[branch.source_index]))
            for branch in subtopology.branches
            if branch.aggregate is not None
        ]
        if not pairs:
            return None
        stage = PythonStage(name="restore", slots=self._slots, steps=(), source=RestoreStep(aggregates=tuple(pairs)))
        return PreparedPlan.of(self._from_slots(stage))

    def _from_slots(self, stage: PythonStage, schema: StructType | str = REPORT_SCHEMA) -> DataFrame:
        return self._spark.range(0, self._slots, 1, self._slots).mapInArrow(stage, schema)

    def _fetched(self, source: Source, branch: Branch, name: str) -> DataFrame:
        with_key = _needs_input_key(branch)
        schema = source_schema(source)
        schema = StructType([*schema.fields, *([StructField(KEY_COLUMN, BinaryType())] if with_key else [])])
        schema = schema.add(StructField(TASK_COLUMN, IntegerType()))
        steps: list[Step] = []
        if self._projected_in_arrow(branch) and branch.projection is not None:
            steps.append(BareProjection(branch.projection))
            schema = _projected_schema(branch.projection.columns)
        stage = PythonStage(
            name=name,
            slots=self._slots,
            steps=tuple(steps),
            source=FetchStep(source, source_topics(source), with_key),
            output=tuple(schema.names),
        )
        return self._from_slots(stage, schema)

    @staticmethod
    def _projected_in_arrow(branch: Branch) -> bool:
        return branch.projection is not None and branch.projection.bare and not branch.before

    def _aggregated(self, frame: DataFrame, branch: Branch, aggregate: Aggregate, index: int) -> DataFrame:
        step = _aggregate_step(branch, aggregate, f"fetch-{index}")
        columns = [(f"g{at}", kind) for at, (_name, kind) in enumerate(aggregate.group_columns)]
        columns += [(buffer.name, buffer.result_type) for buffer in aggregate.buffers]
        schema = _projected_schema(tuple(columns))
        hidden = [TASK_COLUMN]
        if step.key_names is not None:
            schema = schema.add(StructField(KEY_COLUMN, BinaryType()))
            hidden.append(KEY_COLUMN)
        stage = PythonStage(name=f"aggregate-{index}", slots=self._slots, steps=(step,), output=tuple(schema.names))
        frame = frame.mapInArrow(stage, schema)
        results = [f"{sql} AS {quoted(name)}" for name, sql in aggregate.results]
        return frame.selectExpr(*results, *[quoted(name) for name in hidden])

    def _arrow_steps(self, branch: Branch, fetch: str) -> list[Step]:
        steps: list[Step] = []
        if branch.projection is not None:
            steps.append(BareProjection(branch.projection))
        if branch.aggregate is not None:
            step = _aggregate_step(branch, branch.aggregate, fetch)
            steps += [step, BareResults(branch.aggregate, step.key_names is not None)]
        return steps


def source_schema(source: Source) -> StructType:
    """The Spark columns of a source as the fetch stage yields them, hidden ones aside."""
    from penstock.spark import formats
    from penstock.spark.runtime.spark_types import struct_of

    if isinstance(source, RepartitionSource):
        return struct_of(source.columns)
    return formats.source_schema(source)


def _projected_schema(columns: tuple[tuple[str, str], ...]) -> StructType:
    from penstock.spark.runtime.spark_types import struct_of

    return struct_of(columns).add(StructField(TASK_COLUMN, IntegerType()))


def _aggregate_step(branch: Branch, aggregate: Aggregate, fetch: str) -> AggregateStep:
    keyed = isinstance(branch.sink, TopicSink) and branch.sink.key_columns is None
    names = tuple(name for name, _ in aggregate.group_columns) if keyed else None
    return AggregateStep(aggregate, fetch, names)


def _sink_steps(branch: Branch) -> list[Step]:
    sink = branch.sink
    if isinstance(sink, RepartitionSink):
        return [RepartitionSinkStep(sink)]
    if isinstance(sink, TopicSink):
        return [TopicSinkStep(sink, sink.value_columns)]
    return []


def _needs_input_key(branch: Branch) -> bool:
    return branch.aggregate is None and isinstance(branch.sink, TopicSink) and branch.sink.key_columns is None
