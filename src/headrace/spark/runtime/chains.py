"""Branches of a subtopology as Spark plans: where Python stages meet Spark SQL, and where they fuse.

A *chain* is one DataFrame of P partitions (slots). Branches of one source that need no Spark SQL at all become one
chain of a single Python stage, so the topic is read once. Every other branch is a chain of its own:

    fetch [bare projection, aggregate] → SQL of the user → [aggregate] → SQL of the results → sink

Chains that end in a topic run together as one Spark job (a union of their reports). A chain that ends in the user's
`foreachBatch` is handed to that function. How a plan is run again and again is `prepared_plan`'s affair.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import cast

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import BinaryType, BooleanType, IntegerType, LongType, StructField, StructType

from headrace.spark.analysis.static_join import StaticDataFrame
from headrace.spark.frames import apply_calls, quoted, without_hidden
from headrace.spark.runtime.batches.fetch_stage import FetchStep
from headrace.spark.runtime.batches.foreign_key_sinks import ForeignKeySinkStep
from headrace.spark.runtime.batches.prepared_plan import PreparedPlan, fetching_session, static_dataframes
from headrace.spark.runtime.batches.sink_stage import RepartitionSinkStep, TopicSinkStep
from headrace.spark.runtime.batches.stages import REPORT_SCHEMA, FanOut, PythonStage, Step
from headrace.spark.runtime.batches.suspect_rows import GUARDING, guarded_rows
from headrace.spark.runtime.batches.table_sink_stage import TableSinkStep
from headrace.spark.runtime.operators.deduplicate_operator import DeduplicateOperator
from headrace.spark.runtime.operators.event_time_join_operator import EventTimeJoinOperator
from headrace.spark.runtime.operators.join_operator import JoinOperator
from headrace.spark.runtime.operators.keyed_operators import can_trace, stateful_operator, traced_step
from headrace.spark.runtime.operators.operator_stage import (
    BareChanges,
    BareProjection,
    BareResults,
    GuardedRowsStep,
    WithoutTraces,
)
from headrace.spark.runtime.operators.over_rows_operator import OverRowsOperator
from headrace.spark.runtime.operators.stateful_operator import StatefulStep
from headrace.spark.runtime.operators.subscription_operator import SubscriptionOperator
from headrace.spark.runtime.operators.transform_operator import TransformOperator
from headrace.spark.runtime.operators.versioned_join_operator import VersionedJoinOperator
from headrace.spark.runtime.operators.watermark_operator import WatermarkOperator
from headrace.spark.runtime.record_tracing import TRACE_COLUMNS, TracedSinkStep
from headrace.spark.runtime.rows.row_schema import stores_of_branch
from headrace.spark.runtime.rows.spark_types import struct_of
from headrace.spark.runtime.stores.restore_stage import RestoreStep
from headrace.spark.topology.nodes import (
    COORDINATES_COLUMN,
    DELETED_COLUMN,
    EVENT_TIME_COLUMN,
    HIDDEN_PREFIX,
    KEY_COLUMN,
    OFFSET_COLUMN,
    OLD_COLUMN,
    RECORD_COLUMN,
    TASK_COLUMN,
    TIMESTAMP_COLUMN,
    TOPIC_COLUMN,
    TRACE_COLUMN,
    Branch,
    CompiledSubtopology,
    DeadLetter,
    Deduplication,
    ForeachBatchSink,
    ForeignKeyJoin,
    Join,
    KeyedOperator,
    RepartitionSink,
    RepartitionSource,
    Source,
    TableSink,
    TopicSink,
    Watermark,
)

__all__ = [
    "ChainBuilder",
    "Chains",
    "ForeachBatchChain",
    "GuardedChain",
    "GuardedMain",
    "PreparedPlan",
    "Probe",
    "build_chains",
    "has_sql_on_records",
    "input_topics",
    "output_topics",
    "shared_topics",
    "source_topics",
]


_RECORD_TYPE = StructType().add("offset", LongType()).add("key", BinaryType()).add("value", BinaryType())


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeachBatchChain:
    """Input of a user's `foreachBatch` function, and the function."""

    sink: ForeachBatchSink
    plan: PreparedPlan
    stateful: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """Plan of one chain up to the end of its Spark SQL on records, or behind an aggregate. Writes nothing."""

    plan: PreparedPlan | None  # None behind an aggregate: rows of its own are what it would have
    rows: Callable[[], DataFrame]  # what SQL gets, with task, topic and offset of each row
    sql: Callable[[DataFrame], DataFrame]


@dataclass(frozen=True, slots=True, kw_only=True)
class GuardedChain:
    """A chain whose Spark SQL does not fail the job on a bad record: its stage reports the input rows instead."""

    stage: str  # the one that reports
    rows: DataFrame  # what SQL gets, with task, topic and offset of each row
    sql: Callable[[DataFrame], DataFrame]


@dataclass(frozen=True, slots=True, kw_only=True)
class GuardedMain:
    """The main plan with guarded chains."""

    plan: PreparedPlan
    chains: tuple[GuardedChain, ...]
    dead_letters: PreparedPlan | None  # writes records that its plan skips to their dead-letter topics


@dataclass(frozen=True, slots=True, kw_only=True)
class Chains:
    """All plans of one subtopology in one session."""

    main: PreparedPlan | None  # chains that end in topics; collects their reports
    foreach: tuple[ForeachBatchChain, ...]
    topics: tuple[str, ...]  # of all sources, as TOPIC_COLUMN counts them
    skips: bool  # whether all sources may pass over records
    dead_letter_topics: Mapping[str, str]  # by topic of a source
    guarded: Callable[[], GuardedMain | None]  # `main` with Spark SQL on records guarded; None where it cannot be
    probes: tuple[Probe, ...]  # of every chain with Spark SQL on records, or on what an aggregate makes of them
    traced: tuple[Callable[[], DataFrame], ...]  # with steps that find bad records and write nothing
    restore: PreparedPlan | None
    count: int  # chains, each of which fetches for itself


def source_topics(source: Source) -> tuple[str, ...]:
    """Return the topics that a source reads."""
    return (source.topic,) if isinstance(source, RepartitionSource) else source.topics


def input_topics(subtopology: CompiledSubtopology) -> list[str]:
    """Return the topics of all sources of a subtopology, in order."""
    return [topic for source in subtopology.sources for topic in source_topics(source)]


def shared_topics(subtopology: CompiledSubtopology) -> tuple[str, ...]:
    """Return topics that more than one stage of a slot may write during a micro-batch."""
    # Such a topic is written at the flush, one stage after the other, with continued sequence numbers
    # (`slot_producer`).
    writers = _written(subtopology)
    return tuple(sorted({topic for topic in writers if writers.count(topic) > 1}))


def _written(subtopology: CompiledSubtopology) -> list[str]:
    """Return sinks, repartition topics and dead-letter topics, each once per stage of a slot that may write it.

    A `foreachBatch` function may run its frame several times, and each time the source's stage may write dead letters.
    """
    sinks = [branch.sink for branch in subtopology.branches]
    writers = [sink.topic for sink in sinks if isinstance(sink, TopicSink)]
    writers += [topic for sink in sinks if isinstance(sink, RepartitionSink) for topic in sink.topics]
    for branch in subtopology.branches:
        # Each branch judges its rows in a stage of its own.
        again = isinstance(branch.sink, ForeachBatchSink)
        writers += [topic for topic in branch.out_of_time.topics for _ in range(2 if again else 1)]
    for index, source in enumerate(subtopology.sources):
        if isinstance(source.on_error, DeadLetter):
            again = any(b.source_index == index and isinstance(b.sink, ForeachBatchSink) for b in subtopology.branches)
            writers += [source.on_error.topic] * (2 if again else 1)
    return writers


def output_topics(subtopology: CompiledSubtopology) -> tuple[str, ...]:
    """All topics that its stages write: sinks, repartition topics, changelogs, dead letters."""
    return tuple(sorted({*subtopology.changelog_topics, *_written(subtopology)}))


def build_chains(
    spark: SparkSession, subtopology: CompiledSubtopology, slots: int, access: Mapping[str, str] | None = None
) -> Chains:
    """Plan every branch of a subtopology. Done once per application, independent of the assignment.

    Args:
        spark: The session.
        subtopology: The branches to plan.
        slots: Number of slots, which is the number of Spark partitions of every plan.
        access: Client settings for the brokers.
    """
    builder = ChainBuilder(spark, subtopology, slots, access or {})
    sides = static_dataframes(subtopology)
    foreach = tuple(
        ForeachBatchChain(
            sink=branch.sink,
            plan=PreparedPlan(functools.partial(builder.rows_for_user, branch, index), sides),
            stateful=branch.operator is not None or branch.head is not None,
        )
        for index, branch in enumerate(subtopology.branches)
        if isinstance(branch.sink, ForeachBatchSink)
    )
    tracer = ChainBuilder(spark, subtopology, slots, access or {}, traced=True)
    # 1. Probes: a chain up to the end of its SQL on records. Rows come from the tracer's chains, which carry topic and
    #    offset; SQL is the plain one, so that it fails as the micro-batch did.
    probes = tuple(
        Probe(
            plan=PreparedPlan(functools.partial(builder.probed, branch, index), sides),
            rows=functools.partial(tracer.fetched, branch, index),
            sql=functools.partial(builder.sql_on_records, branch),
        )
        for index, branch in enumerate(subtopology.branches)
        if has_sql_on_records(branch)
    )
    # 2. SQL on the results of an operator: its rows depend on the store, so there is no plan to run, only rows to
    #    evaluate.
    probes += tuple(
        Probe(
            plan=None,
            rows=functools.partial(tracer.operated, branch, index),
            sql=functools.partial(builder.sql_on_results, branch, branch.operator),
        )
        for index, branch in enumerate(subtopology.branches)
        if branch.operator is not None and can_trace(branch.operator) and (branch.after or not branch.operator.bare)
    )
    handed = (  # a `foreachBatch` function takes rows as they are, its aggregate may not
        functools.partial(tracer.operated, branch, index)
        for index, branch in enumerate(subtopology.branches)
        if branch.operator is not None and can_trace(branch.operator) and isinstance(branch.sink, ForeachBatchSink)
    )
    restore = builder.restore_stage()
    return Chains(
        # 3. Built once. Assignments change the plan row only, so a rebalance plans nothing.
        main=PreparedPlan(builder.main, sides) if builder.main_count else None,
        foreach=foreach,
        topics=tuple(input_topics(subtopology)),
        skips=all(source.on_error != "fail" for source in subtopology.sources),
        dead_letter_topics={
            topic: source.on_error.topic
            for source in subtopology.sources
            if isinstance(source.on_error, DeadLetter)
            for topic in source_topics(source)
        },
        guarded=functools.partial(_guarded_main, builder, tracer, sides),
        probes=probes,
        traced=(*((tracer.main,) if tracer.main_count else ()), *handed),
        restore=PreparedPlan(functools.partial(builder.from_slots, restore)) if restore is not None else None,
        count=builder.count,
    )


def _guarded_main(builder: ChainBuilder, tracer: ChainBuilder, sides: Sequence[StaticDataFrame]) -> GuardedMain | None:
    """Return the main plan with guarded chains; None if one of them cannot be guarded."""
    if not builder.can_guard:
        return None
    chains: list[GuardedChain] = []

    def build() -> DataFrame | None:
        # A plan that is built again (random numbers, a static side that was read again) has other guarded chains.
        chains.clear()
        return builder.guarded_main(tracer, chains)

    first = build()
    if first is None or not chains:
        return None
    # The first build was needed to find out whether guarding is possible; it is used once instead of being planned
    # twice.
    built = [first]
    session = fetching_session(first.sparkSession, GUARDING)
    dead_letters = builder.dead_letters()
    return GuardedMain(
        plan=PreparedPlan(lambda: built.pop() if built else cast("DataFrame", build()), sides, session=session),
        chains=tuple(chains),
        dead_letters=PreparedPlan(lambda: dead_letters) if dead_letters is not None else None,
    )


def has_sql_on_records(branch: Branch) -> bool:
    """Whether a record can make Spark SQL fail. SQL behind an operator works on keys, not on records."""
    # A probe must not run a join or close windows; prefixes of the micro-batch find the record.
    if branch.head is not None:
        return False
    projected = branch.projection is not None and not branch.projection.bare
    return bool(branch.before) or projected or (branch.operator is None and bool(branch.after))


def _is_fused(branch: Branch) -> bool:
    """Whether no Spark SQL is needed between the source and a topic."""
    if branch.before or branch.after or branch.deduplication or isinstance(branch.sink, ForeachBatchSink):
        return False
    if branch.closed is not None:
        return False
    projected = all(one is None or one.bare for one in (branch.projection, branch.onward))
    return projected and (branch.operator is None or branch.operator.bare)


class ChainBuilder:
    """The DataFrames of a subtopology's chains, built as they are asked for."""

    def __init__(
        self,
        spark: SparkSession,
        subtopology: CompiledSubtopology,
        slots: int,
        access: Mapping[str, str],
        *,
        traced: bool = False,
    ) -> None:
        """`traced`: rows carry the coordinates of their records, and steps find bad ones instead of writing."""
        self._spark, self._subtopology, self._slots, self._access = spark, subtopology, slots, access
        self._hidden: tuple[str, ...] = (TASK_COLUMN, *TRACE_COLUMNS) if traced else (TASK_COLUMN,)
        self._traced = traced
        self._fused: dict[int, list[Branch]] = {}
        self._to_topics: list[tuple[Branch, int]] = []
        self._to_functions: list[tuple[Branch, int]] = []
        for index, branch in enumerate(subtopology.branches):
            if traced and not _is_traceable(branch):
                # A record that only the sink refuses may be a duplicate, late, or not among the first ones of its key,
                # and never get there, or may get there in pairs with others: the search by prefixes, which processes
                # them, tells.
                continue
            if _is_fused(branch):
                self._fused.setdefault(branch.source_index, []).append(branch)
            elif isinstance(branch.sink, ForeachBatchSink):
                self._to_functions.append((branch, index))
            else:
                self._to_topics.append((branch, index))
        self._accounting = self._accounting_branches()

    @property
    def main_count(self) -> int:
        return len(self._fused) + len(self._to_topics)

    @property
    def count(self) -> int:
        """Chains, each of which fetches for itself."""
        return self.main_count + len(self._to_functions)

    def _accounting_branches(self) -> set[int]:
        """Return, for each source that several chains fetch, the one branch that counts its records and writes dead
        letters.

        Chains that end in topics come first: a `foreachBatch` function may run its frame any number of times.
        """
        # A record that is fetched by two chains is one record in the figures, and one dead letter.
        seen, found = set(self._fused), set()
        for branch, index in (*self._to_topics, *self._to_functions):
            if branch.source_index not in seen:
                seen.add(branch.source_index)
                found.add(index)
        return found

    def main(self) -> DataFrame:
        """Return the union of all chains that end in a topic, as one job."""
        # A union has the partitions of all its inputs: slot s of chain c is partition c * slots + s, hence `index %
        # slots` in `PythonStage`.
        return functools.reduce(DataFrame.unionAll, (chain for chain, _ in self.chains_to_topics()))

    @property
    def can_guard(self) -> bool:
        """Whether no record can fail in one chain and pass in another: all chains must skip the same records."""
        # Several chains on one source each fetch its records. One could skip a record that another one processes, and
        # the offset that is committed for both would be wrong for one of them.
        branches = self._subtopology.branches
        read = [branch.source_index for branch in branches]
        return not self._to_functions and len(set(read)) == len(read) and all(map(_is_traceable, branches))

    def guarded_main(self, tracer: ChainBuilder, chains: list[GuardedChain]) -> DataFrame | None:
        """As `main`; the chains that can fail on a record are guarded and added to `chains`. None if one cannot be."""
        ends = [self._read_once(index, branches) for index, branches in self._fused.items()]
        for branch, index in self._to_topics:
            end = (
                self._guarded(
                    branch, index, tracer.fetched(branch, index, with_trace=self._carries_traces(branch)), chains
                )
                if has_sql_on_records(branch)
                else self._ending_in_topic(branch, index)
            )
            if end is None:
                return None
            ends.append(end)
        return functools.reduce(DataFrame.unionAll, ends)

    def _guarded(self, branch: Branch, index: int, fetched: DataFrame, chains: list[GuardedChain]) -> DataFrame | None:
        sql = functools.partial(self.sql_on_records, branch)
        guarded = guarded_rows(fetched, sql, leave_out=TRACE_COLUMNS)
        if guarded is None:
            return None
        step = GuardedRowsStep(guarded.columns, guarded.inputs)
        if branch.operator is None:
            chains.append(GuardedChain(stage=f"sink-{index}", rows=fetched, sql=sql))
            return self._with_sink_stage(guarded.frame, branch, index, step)
        chains.append(GuardedChain(stage=_stage_name(branch.operator, index), rows=fetched, sql=sql))
        results = self._operated(guarded.frame, branch, branch.operator, index, step)
        return self._with_sink_stage(self.sql_on_results(branch, branch.operator, results), branch, index)

    def dead_letters(self) -> DataFrame | None:
        """Return a stage for each source with a dead-letter topic, which writes only the skipped records."""
        stages = [
            PythonStage(
                name=f"dead-letters-{index}",
                slots=self._slots,
                steps=(),
                source=replace(self._fetch_step(source, with_key=False, accounts=True), only_dead_letters=True),
            )
            for index, source in enumerate(self._subtopology.sources)
            if isinstance(source.on_error, DeadLetter)
        ]
        return functools.reduce(DataFrame.unionAll, map(self.from_slots, stages)) if stages else None

    def probed(self, branch: Branch, index: int) -> DataFrame:
        """Return the records of a branch up to the end of its Spark SQL on records."""
        return self.sql_on_records(branch, self.fetched(branch, index))

    def sql_on_records(self, branch: Branch, fetched: DataFrame) -> DataFrame:
        """Apply the Spark SQL between fetched rows and an operator or sink."""
        frame = self._project(branch, fetched)
        return frame if branch.operator is not None else apply_calls(frame, branch.after)

    def operated(self, branch: Branch, index: int) -> DataFrame:
        """Return the rows of an operator, as input of the SQL on its results."""
        assert branch.operator is not None
        before = () if branch.watermark is None else (self._clock(branch.watermark, index),)
        if not self._traced and (self._projected_in_arrow(branch) or not (branch.projection or branch.before)):
            # No Spark SQL lies in front of it: one stage less.
            schema = self._schema_of_operator(branch, branch.operator)
            fetch = self._fetch_stage(branch, index)[0]
            steps = (*fetch.steps, *before, self._stateful(branch.operator, _with_key(branch), fetch.name))
            return self.from_slots(replace(fetch, steps=steps, output=tuple(schema.names)), schema)
        return self._operated(self._projected(branch, index), branch, branch.operator, index, *before)

    def sql_on_results(self, branch: Branch, operator: KeyedOperator, operated: DataFrame) -> DataFrame:
        """Apply the Spark SQL on the rows of an operator."""
        frame = apply_calls(self._results(operator, operated), branch.after)
        if branch.onward is None:
            return frame
        hidden = [name for name in frame.columns if name.startswith(HIDDEN_PREFIX)]
        wanted = [*branch.onward.key_sql, *branch.onward.input_sql]
        return frame.selectExpr(*[f"{sql} AS {quoted(name)}" for name, sql in wanted], *map(quoted, hidden))

    @staticmethod
    def _results(operator: KeyedOperator, operated: DataFrame) -> DataFrame:
        results = [f"{sql} AS {quoted(name)}" for name, sql in operator.results]
        hidden = [name for name in operated.columns if name.startswith(HIDDEN_PREFIX)]
        return operated.selectExpr(*results, *map(quoted, hidden))

    def rows_for_user(self, branch: Branch, index: int) -> DataFrame:
        return without_hidden(self._rows(branch, index))

    def from_slots(self, stage: PythonStage, schema: StructType | str = REPORT_SCHEMA) -> DataFrame:
        return self._through(self._spark.range(0, self._slots, 1, self._slots), stage, schema)

    def _through(self, frame: DataFrame, stage: PythonStage, schema: StructType | str) -> DataFrame:
        return frame.mapInArrow(self._with_access(stage), schema)

    def _with_access(self, stage: PythonStage) -> PythonStage:
        return replace(stage, access=self._access)

    def restore_stage(self) -> PythonStage | None:
        pairs = [
            (spec, source_topics(self._subtopology.sources[branch.source_index]))
            for branch in self._subtopology.branches
            for spec in stores_of_branch(branch)
        ]
        if not pairs:
            return None
        stage = PythonStage(name="restore", slots=self._slots, steps=(), source=RestoreStep(stores=tuple(pairs)))
        return self._with_access(stage)

    def chains_to_topics(self) -> Iterator[tuple[DataFrame, bool]]:
        """Yield the chains that end in topics, and whether each is a single stage."""
        for branch, index in self._to_topics:
            yield self._ending_in_topic(branch, index), False
        for index, branches in self._fused.items():
            yield self._read_once(index, branches), True

    @property
    def has_foreach_batch(self) -> bool:
        """Whether a chain ends in a `foreachBatch` function."""
        return bool(self._to_functions)

    def _read_once(self, index: int, branches: list[Branch]) -> DataFrame:
        return self.from_slots(self._fused_stage(index, branches))

    def _fused_stage(self, index: int, branches: list[Branch]) -> PythonStage:
        fetch = f"fetch-all-{index}"
        source = self._subtopology.sources[index]
        steps = [tuple(self._arrow_steps(branch, fetch) + self._sink_steps(branch)) for branch in branches]
        with_key = any(_needs_input_key(branch) or branch.head is not None for branch in branches)
        source_step = self._fetch_step(source, with_key=with_key, accounts=True)
        if any(map(self._carries_traces, branches)):
            source_step = replace(source_step, with_trace=True)
            steps = [
                branch_steps if self._carries_traces(branch) else (WithoutTraces(), *branch_steps)
                for branch, branch_steps in zip(branches, steps, strict=True)
            ]
        return PythonStage(name=fetch, slots=self._slots, steps=(FanOut(tuple(steps)),), source=source_step)

    def _carries_traces(self, branch: Branch) -> bool:
        """Whether each row of the branch's sink comes from one record, whose trace context it carries on.

        Behind an operator with state a row has many origins, or one of another micro-batch.
        """
        if not self._subtopology.follows_traces or self._traced or branch.head is not None:
            return False
        stateless = branch.operator is None and branch.deduplication is None and branch.watermark is None
        return stateless and isinstance(branch.sink, (TopicSink, RepartitionSink))

    def _ending_in_topic(self, branch: Branch, index: int) -> DataFrame:
        if branch.deduplication is not None and not branch.between:  # one stage less
            step = self._deduplicating(branch.deduplication, index)
            return self._with_sink_stage(self._projected(branch, index), branch, index, step)
        if (branch.watermark is not None or branch.operator is not None) and _is_fused_behind(branch):
            # A repartition sink sends on what the clock found, so both must be in one stage. An operator whose results
            # need no SQL saves two crossings there.
            clock = [] if branch.watermark is None else [self._clock(branch.watermark, index)]
            steps = [*clock, *self._operator_steps(branch, f"fetch-{index}")]
            return self._with_sink_stage(self._projected(branch, index), branch, index, *steps)
        return self._with_sink_stage(self._rows(branch, index), branch, index)

    def _with_sink_stage(self, rows: DataFrame, branch: Branch, index: int, *before: Step) -> DataFrame:
        stage = PythonStage(name=f"sink-{index}", slots=self._slots, steps=(*before, *self._sink_steps(branch)))
        return self._through(rows, stage, REPORT_SCHEMA)

    def _rows(self, branch: Branch, index: int) -> DataFrame:
        """Return the rows of a branch in the form that its sink takes, hidden columns included."""
        if branch.operator is not None:
            return self.sql_on_results(branch, branch.operator, self.operated(branch, index))
        frame = self._projected(branch, index)
        if branch.deduplication is not None:
            frame = apply_calls(self._deduplicated(frame, branch.deduplication, index), branch.between)
        return apply_calls(frame, branch.after)

    def _deduplicated(self, frame: DataFrame, deduplication: Deduplication, index: int) -> DataFrame:
        schema = frame.drop(EVENT_TIME_COLUMN, TIMESTAMP_COLUMN, RECORD_COLUMN).schema
        steps = (self._deduplicating(deduplication, index),)
        stage = PythonStage(name=f"deduplicate-{index}", slots=self._slots, steps=steps, output=tuple(schema.names))
        return self._through(frame, stage, schema)

    @staticmethod
    def _clock(watermark: Watermark, index: int) -> Step:
        return StatefulStep(WatermarkOperator(watermark), f"fetch-{index}")

    @staticmethod
    def _deduplicating(deduplication: Deduplication, index: int) -> Step:
        return StatefulStep(DeduplicateOperator(deduplication), f"fetch-{index}")

    def _projected(self, branch: Branch, index: int) -> DataFrame:
        return self._project(branch, self.fetched(branch, index))

    def _project(self, branch: Branch, fetched: DataFrame) -> DataFrame:
        frame = self._called(branch, fetched)
        if branch.projection is None or self._projected_in_arrow(branch):
            return frame
        carried = self._hidden
        if branch.watermark is not None:
            carried = (*carried, EVENT_TIME_COLUMN, TIMESTAMP_COLUMN, RECORD_COLUMN)
        carried = (*carried, TRACE_COLUMN)
        hidden = [(name, name) for name in carried if name in frame.columns]
        wanted = [*branch.projection.key_sql, *branch.projection.input_sql, *hidden]
        return frame.selectExpr(*[f"{sql} AS {quoted(name)}" for name, sql in wanted])

    def _called(self, branch: Branch, fetched: DataFrame) -> DataFrame:
        """Return fetched rows behind the calls on them."""
        if branch.closed is not None:
            return apply_calls(self._results(branch.closed, fetched), branch.before)
        if not branch.before:
            return fetched
        source = self._subtopology.sources[branch.source_index]
        head = branch.row_operator
        columns = _columns_of_source(source) if head is None else struct_of(head.columns).fields
        # Recorded calls name all columns of the source; the fetch stage yields only those that a result depends on.
        frame = apply_calls(_with_unread_columns(fetched, columns), branch.before)
        return frame if COORDINATES_COLUMN in fetched.columns else frame.drop(COORDINATES_COLUMN)

    def fetched(self, branch: Branch, index: int, *, with_trace: bool | None = None) -> DataFrame:
        """Return the rows of a branch's source. `with_trace`: with trace contexts; None: if the branch carries them."""
        return self.from_slots(*self._fetch_stage(branch, index, with_trace=with_trace))

    def _fetch_stage(
        self, branch: Branch, index: int, *, with_trace: bool | None = None
    ) -> tuple[PythonStage, StructType]:
        """Return the stage that fetches a branch's source, and the schema of its rows."""
        source = self._subtopology.sources[branch.source_index]
        with_key = _needs_input_key(branch)
        schema = self._fetched_schema(source, branch)
        schema = StructType([*schema.fields, *([StructField(KEY_COLUMN, BinaryType())] if with_key else [])])
        if _needs_timestamp(branch):
            schema = schema.add(TIMESTAMP_COLUMN, LongType())
        with_record = bool(branch.out_of_time.topics) and not self._traced
        if with_record:
            schema = schema.add(RECORD_COLUMN, _RECORD_TYPE)
        with_trace = self._carries_traces(branch) if with_trace is None else with_trace
        schema = self._with_hidden(schema)
        if with_trace:
            schema = schema.add(TRACE_COLUMN, BinaryType())
        steps: list[Step] = []
        steps += _head_steps(branch, f"fetch-{index}", with_key=with_key)
        if branch.closed is not None:
            # The key of a closed row's record is made of its groups; that of the repartition topic is not read.
            with_key = False
        if self._projected_in_arrow(branch) and branch.projection is not None:
            steps.append(BareProjection(branch.projection, traced=self._traced, with_trace=with_trace))
            schema = self._schema(branch.projection.columns)
            if with_trace:
                schema = schema.add(TRACE_COLUMN, BinaryType())
        with_key = with_key or branch.head is not None
        fetch = self._fetch_step(source, with_key=with_key, accounts=index in self._accounting)
        stage = PythonStage(
            name=f"fetch-{index}",
            slots=self._slots,
            steps=tuple(steps),
            source=replace(
                fetch, with_timestamp=_needs_timestamp(branch), with_record=with_record, with_trace=with_trace
            ),
            output=tuple(schema.names),
        )
        return stage, schema

    @staticmethod
    def _fetched_schema(source: Source, branch: Branch) -> StructType:
        """Return the columns of the rows of a source, behind the operator that takes them first."""
        if branch.closed is not None:
            return struct_of(branch.closed.output_columns)
        head = branch.row_operator
        return source_schema(source) if head is None else struct_of(head.kept_columns)

    def _fetch_step(self, source: Source, *, with_key: bool, accounts: bool) -> FetchStep:
        topics = source_topics(source)
        first = input_topics(self._subtopology).index(topics[0])
        return FetchStep(source, topics, with_key=with_key, accounts=accounts, first_topic=first, traced=self._traced)

    def _schema(self, columns: tuple[tuple[str, str], ...]) -> StructType:
        return self._with_hidden(struct_of(columns))

    def _with_hidden(self, schema: StructType) -> StructType:
        schema = schema.add(StructField(TASK_COLUMN, IntegerType()))
        return schema.add(TOPIC_COLUMN, IntegerType()).add(OFFSET_COLUMN, LongType()) if self._traced else schema

    @staticmethod
    def _projected_in_arrow(branch: Branch) -> bool:
        if branch.projection is None or branch.closed is not None:
            return False
        return branch.projection.bare and not branch.before

    def _operated(
        self, frame: DataFrame, branch: Branch, operator: KeyedOperator, index: int, *before: Step
    ) -> DataFrame:
        schema = self._schema_of_operator(branch, operator)
        steps = (*before, self._stateful(operator, _with_key(branch), f"fetch-{index}"))
        name = _stage_name(operator, index)
        stage = PythonStage(name=name, slots=self._slots, steps=steps, output=tuple(schema.names))
        return self._through(frame, stage, schema)

    def _schema_of_operator(self, branch: Branch, operator: KeyedOperator) -> StructType:
        schema = self._schema(operator.output_columns)
        if _with_key(branch):
            schema = schema.add(StructField(KEY_COLUMN, BinaryType()))
        if operator.deletes:
            schema = schema.add(StructField(DELETED_COLUMN, BooleanType()))
        if operator.emits_changes:
            schema = schema.add(StructField(OLD_COLUMN, BooleanType()))
        return schema

    def _sink_steps(self, branch: Branch) -> list[Step]:
        sink = branch.sink
        if isinstance(sink, TableSink):  # a table takes columns as they are
            return [] if self._traced else [TableSinkStep(sink)]
        step: Step
        if isinstance(sink, RepartitionSink):
            by_foreign_key = isinstance(sink.table_join, ForeignKeyJoin)
            step = ForeignKeySinkStep(sink) if by_foreign_key else RepartitionSinkStep(sink)
        elif isinstance(sink, TopicSink):
            step = TopicSinkStep(sink, sink.value_columns)
        else:
            return []
        return [TracedSinkStep(step) if self._traced else step]

    def _arrow_steps(self, branch: Branch, fetch: str) -> list[Step]:
        steps = _head_steps(branch, fetch)
        if branch.projection is not None:
            with_trace = self._carries_traces(branch)
            steps.append(BareProjection(branch.projection, traced=self._traced, with_trace=with_trace))
        return [*steps, *self._operator_steps(branch, fetch)]

    def _operator_steps(self, branch: Branch, fetch: str) -> list[Step]:
        """Return the operator of a branch, if it has one, and its results without Spark SQL."""
        if branch.operator is None:
            return []
        with_key = _with_key(branch)
        steps = [
            self._stateful(branch.operator, with_key, fetch),
            BareResults(branch.operator, with_key, traced=self._traced),
        ]
        return [*steps, BareChanges(branch.onward)] if branch.onward is not None else steps

    def _stateful(self, operator: KeyedOperator, with_key: bool, fetch: str) -> Step:
        if self._traced:
            return traced_step(operator, with_key)
        return StatefulStep(stateful_operator(operator, with_key), fetch)


def _joining(join: Join, fetch: str) -> Step:
    """Return the step of a join of two streams."""
    if join.is_versioned:
        return StatefulStep(VersionedJoinOperator(join), fetch)
    return StatefulStep(EventTimeJoinOperator(join) if join.in_event_time else JoinOperator(join), fetch)


def source_schema(source: Source) -> StructType:
    """Return the Spark columns of a source as the fetch stage yields them, without hidden ones."""
    from headrace.spark import formats

    if isinstance(source, RepartitionSource):
        return struct_of(source.columns)
    return formats.source_schema(source)


def _columns_of_source(source: Source) -> Sequence[StructField]:
    """Return all columns of a source, also those that no result depends on."""
    if isinstance(source, RepartitionSource) or source.columns_needed is None:
        return source_schema(source).fields
    return source_schema(replace(source, columns_needed=None)).fields


def _with_unread_columns(fetched: DataFrame, columns: Sequence[StructField]) -> DataFrame:
    """Return fetched rows with null in the columns that no result depends on.

    Recorded calls may name them all the same, as `select("a", "b").select("a")` does, and Spark resolves every name.
    Its optimiser then drops them, so they cost nothing. Their place counts, too: `toDF` names columns by position.
    """
    read = set(fetched.columns)
    if read.issuperset(field.name for field in columns):
        return fetched
    own = read - {field.name for field in columns}
    whole = [
        F.col(quoted(field.name)) if field.name in read else F.lit(None).cast(field.dataType).alias(field.name)
        for field in columns
    ]
    return fetched.select(*whole, *(quoted(name) for name in fetched.columns if name in own))


def _head_steps(branch: Branch, fetch: str, *, with_key: bool = False) -> list[Step]:
    """Return the operator on the rows of the source, if there is one."""
    if branch.closed is not None:
        return [StatefulStep(stateful_operator(branch.closed, with_key), fetch)]
    if branch.join is not None:
        return [_joining(branch.join, fetch)]
    if branch.over is not None:
        return [StatefulStep(OverRowsOperator(branch.over), fetch)]
    if branch.subscriptions is not None:
        return [StatefulStep(SubscriptionOperator(branch.subscriptions), fetch)]
    return [StatefulStep(TransformOperator(branch.transform), fetch)] if branch.transform is not None else []


def _stage_name(operator: KeyedOperator, index: int) -> str:
    return f"{stateful_operator(operator, with_key=False).name}-{index}"


def _is_traceable(branch: Branch) -> bool:
    """Whether what follows an operator of the branch can be traced to single records."""
    if branch.head is not None or _needs_timestamp(branch):
        return False
    return branch.operator is None or can_trace(branch.operator)


def _is_fused_behind(branch: Branch) -> bool:
    """Whether no Spark SQL is needed between the projection and a topic."""
    if isinstance(branch.sink, ForeachBatchSink) or branch.after or not (branch.onward is None or branch.onward.bare):
        return False
    return branch.operator is None or branch.operator.bare


def _needs_timestamp(branch: Branch) -> bool:
    """Whether an operator compares event times with the timestamps of the records."""
    return branch.deduplication is not None or branch.watermark is not None


def _with_key(branch: Branch) -> bool:
    """Whether the rows of the branch's operator carry the key that their records will have."""
    if branch.operator is not None and branch.operator.emits_changes:  # by which old and new rows belong together
        return True
    return isinstance(branch.sink, TopicSink) and branch.sink.key_columns is None


def _needs_input_key(branch: Branch) -> bool:
    return branch.operator is None and isinstance(branch.sink, TopicSink) and branch.sink.key_columns is None
