"""Chains of resident slots as Spark plans: the chains of `chains`, with stages and Spark SQL that never end.

Rows with a marker (`resident_stage`) must pass through the Spark SQL of a chain, whatever the user's filters say about
them. The analysed plan is rewritten for that, node by node; its expressions, their ids and their order stay:

- `Filter(c)` becomes `Filter(is_marker OR c)`.
- An expression of a `Project` that computes something becomes `if(is_marker, null, e)`: on a row of nulls it might
  raise. For all other rows the condition is false, so values and errors are those of `e`.

A plan with any other node has no resident slots, nor has one whose result depends on when it was planned or run
(`current_timestamp()`, `rand()`), or with a function of the user: Python functions have buffers of their own.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import BinaryType, StructField, StructType

from headrace.spark.frames import quoted
from headrace.spark.runtime.chains import ChainBuilder
from headrace.spark.runtime.prepared_plan import PreparedPlan, fetching_session, static_sides
from headrace.spark.runtime.resident_stage import FLUSH_BYTES, ResidentFetch, ResidentSink, ResidentStage, SlotEnd
from headrace.spark.runtime.slot_link import LinkAddress
from headrace.spark.runtime.stages import REPORT_SCHEMA, PythonStage
from headrace.spark.spark_internals import (
    analysed,
    catalyst_expressions,
    class_of,
    contains_current_time,
    frame_of_plan,
    logical_plans,
    scala_sequence,
    sequence,
    walk,
)
from headrace.spark.topology.nodes import MARKER_COLUMN, CompiledSubtopology

__all__ = ["ResidentChain", "ResidentChains", "resident_chains"]

_BYTES_SETTING = "spark.sql.execution.arrow.maxBytesPerBatch"
_OPAQUE = frozenset({"PythonUDF", "ScalaUDF", "HiveSimpleUDF", "HiveGenericUDF"})


@dataclass(frozen=True, slots=True, kw_only=True)
class ResidentChain:
    """One chain of one slot: a job that never ends."""

    plan: PreparedPlan
    is_whole: bool  # a single stage, which takes plans and reports


@dataclass(frozen=True, slots=True, kw_only=True)
class ResidentChains:
    """The chains that each resident slot of a subtopology runs."""

    count: int
    has_sql: bool
    build: Callable[[int, LinkAddress, str], list[ResidentChain]]  # of a slot, an address, and a token


class _Impossible(Exception):
    """The reason why a subtopology cannot have resident slots."""


def resident_chains(
    spark: SparkSession, subtopology: CompiledSubtopology, slots: int, access: Mapping[str, str]
) -> ResidentChains | str:
    """Return the chains that resident slots run; a reason where they are not possible.

    Args: as `build_chains`.
    """

    def build(slot: int, address: LinkAddress, token: str) -> list[ResidentChain]:
        builder = _ResidentBuilder(spark, subtopology, slots, access)
        return builder.build(SlotEnd(chain=0, slot=slot, address=address, token=token))

    if static_sides(subtopology):
        return "it joins a DataFrame, which is read again now and then"
    if ChainBuilder(spark, subtopology, slots, access).hands_over:
        return "a foreachBatch function takes a DataFrame of each micro-batch"
    try:
        # Built once with an address that no slot uses: it shows whether the rewritten plan exists at all.
        first = build(0, ("127.0.0.1", 0), "")
    except _Impossible as reason:
        return str(reason)
    except (Py4JError, PySparkException) as error:  # a Spark with other classes
        return f"this Spark release is not known: {str(error)[:200]}"
    return ResidentChains(count=len(first), has_sql=not all(chain.is_whole for chain in first), build=build)


class _ResidentBuilder(ChainBuilder):
    """Builds chains with resident stages. Mutable: the chain under way."""

    def __init__(
        self, spark: SparkSession, subtopology: CompiledSubtopology, slots: int, access: Mapping[str, str]
    ) -> None:
        super().__init__(spark, subtopology, slots, access)
        self._hidden = (*self._hidden, MARKER_COLUMN)
        self._end: SlotEnd | None = None
        self._start: DataFrame | None = None  # rows of the first stage

    def build(self, end: SlotEnd) -> list[ResidentChain]:
        """Return the chains of one slot. Raises _Impossible."""
        found = []
        self._end = end
        for frame, is_whole in self.chains_to_topics():
            session = None if is_whole else fetching_session(self._spark, {_BYTES_SETTING: str(FLUSH_BYTES)})
            found.append(ResidentChain(plan=_kept_plan(frame, session), is_whole=is_whole))
            self._end = end = replace(end, chain=end.chain + 1)
        return found

    def from_slots(self, stage: PythonStage, schema: StructType | str = REPORT_SCHEMA) -> DataFrame:
        """Return the first stage of a chain, with a single Spark partition."""
        assert self._end is not None
        stage = self._with_access(stage)
        one = self._spark.range(0, 1, 1, 1)
        if isinstance(schema, str):
            return one.mapInArrow(ResidentStage(stage=stage, end=self._end), schema)
        try:
            self._spark.conf.get(_BYTES_SETTING)
        except (Py4JError, PySparkException) as error:
            raise _Impossible(f"this Spark release has no setting {_BYTES_SETTING}") from error
        names = tuple(name for name in stage.output or () if name != MARKER_COLUMN)
        fetch = ResidentFetch(stage=replace(stage, output=names), end=self._end, schema=_arrow_schema(schema))
        self._start = one.mapInArrow(fetch, _marker_last(schema))
        return self._start

    def _through(self, frame: DataFrame, stage: PythonStage, schema: StructType | str) -> DataFrame:
        """Return the stage behind Spark SQL. `frame` is the SQL on the rows of the first stage."""
        assert self._end is not None
        assert self._start is not None
        if stage.output is not None:
            raise _Impossible("it aggregates between two parts of Spark SQL")
        others = [quoted(name) for name in frame.columns if name != MARKER_COLUMN]
        rows = pass_markers(frame.select(*others, quoted(MARKER_COLUMN)), self._start)
        sink = ResidentSink(stage=self._with_access(stage), end=self._end)
        return rows.mapInArrow(sink, schema)

    def _with_hidden(self, schema: StructType) -> StructType:
        return super()._with_hidden(schema).add(StructField(MARKER_COLUMN, BinaryType()))


def _kept_plan(frame: DataFrame, session: SparkSession | None) -> PreparedPlan:
    return PreparedPlan(lambda: frame, session=session)


def _marker_last(schema: StructType) -> StructType:
    fields = [found for found in schema.fields if found.name != MARKER_COLUMN]
    return StructType([*fields, StructField(MARKER_COLUMN, BinaryType())])


def _arrow_schema(schema: StructType) -> pa.Schema:
    # Spark 4.3 asks for the time zone of timestamps. Stages have them in UTC, whatever the session's is.
    zone = {"timezone": "UTC"} if "timezone" in inspect.signature(to_arrow_schema).parameters else {}
    return to_arrow_schema(_marker_last(schema), **zone)


def pass_markers(frame: DataFrame, start: DataFrame) -> DataFrame:
    """Return `frame`, Spark SQL on the rows of `start`, with rows that have a marker passing through it.

    Raises:
        _Impossible: they cannot.
    """
    plan = analysed(frame)
    if not plan.deterministic():
        raise _Impossible("its Spark SQL is not deterministic")
    if contains_current_time(frame):
        raise _Impossible("its Spark SQL tells the time")
    return frame_of_plan(frame.sparkSession, _Rewriting(frame, start).rewritten(plan))


class _Rewriting:
    def __init__(self, frame: DataFrame, start: DataFrame) -> None:
        self._session, self._start = frame.sparkSession, analysed(start)
        self._expressions, self._plans = catalyst_expressions(self._session), logical_plans(self._session)
        [self._marker] = [column for column in sequence(self._start.output()) if column.name() == MARKER_COLUMN]

    def rewritten(self, node: Any) -> Any:
        """Return a plan with all nodes above the rows of the first stage rewritten."""
        if node.fastEquals(self._start):
            return node
        name = class_of(node)
        if any(class_of(part) in _OPAQUE for one in sequence(node.expressions()) for part in walk(one)):
            raise _Impossible("a function of the user stands in its Spark SQL")
        if name == "SubqueryAlias":
            return node.withNewChildren(self._sequence([self.rewritten(node.child())]))
        if name == "Filter":
            # The marker first: `or` evaluates its right side only for other rows, whose condition may raise on a row of
            # nulls.
            passes = self._expressions.Or(self._is_marker(), node.condition())
            return self._plans.Filter(passes, self.rewritten(node.child()))
        if name == "Project":
            columns = [self._column(column) for column in sequence(node.projectList())]
            return self._plans.Project(self._sequence(columns), self.rewritten(node.child()))
        raise _Impossible(f"its Spark SQL has a step of another kind than a projection or filter: {name}")

    def _column(self, column: Any) -> Any:
        if class_of(column) != "Alias" or not column.child().children().size():
            return column  # a reference or a constant
        computed = column.child()
        nothing = self._expressions.Literal(None, computed.dataType())
        # The alias keeps its expression id, so everything above refers to the same column.
        guarded = self._expressions.If(self._is_marker(), nothing, computed)
        return column.withNewChildren(self._sequence([guarded]))

    def _is_marker(self) -> Any:
        return self._expressions.IsNotNull(self._marker)

    def _sequence(self, items: Sequence[Any]) -> Any:
        return scala_sequence(self._session, list(items))
