"""Chains of resident slots as Spark plans: the chains of `chains`, with stages and Spark SQL that never end.

Between two stages Spark SQL runs as it runs in a job: the same plan, with the rows of many micro-batches. Rows with a
marker are led around it (`marker_bypass`). Three kinds of plans have no resident slots:

- A plan with another node than projections, filters and generators (`explode`). These pass on all that they have when
  their input pauses.
- A plan whose result depends on when it was planned or run (`current_timestamp()`, `rand()`).
- A plan with a function of the user. Python functions have buffers of their own, and any function may keep state from
  row to row, which would last for a micro-batch in a job and for ever in a slot.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import BinaryType, StructField, StructType

from headrace.spark.runtime.batches.prepared_plan import PreparedPlan, fetching_session, static_dataframes
from headrace.spark.runtime.batches.stages import REPORT_SCHEMA, PythonStage
from headrace.spark.runtime.chains import ChainBuilder
from headrace.spark.runtime.slots.marker_bypass import MarkerBypass
from headrace.spark.runtime.slots.resident_stage import FLUSH_BYTES, ResidentFetch, ResidentSink, ResidentStage, SlotEnd
from headrace.spark.spark_internals import analysed, class_of, contains_current_time, has_user_function, sequence
from headrace.spark.topology.nodes import MARKER_COLUMN, CompiledSubtopology

__all__ = ["BYTES_SETTING", "ResidentChain", "ResidentChains", "resident_chains"]

BYTES_SETTING = "spark.sql.execution.arrow.maxBytesPerBatch"
_PASSING = frozenset({"Filter", "Generate", "Project", "SubqueryAlias"})


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
    is_demanded: bool = False  # by `headrace.execution`: no job is to take their place
    restore: PythonStage | None = None  # brings the stores of tasks to their positions, on a cluster
    build: Callable[[SlotEnd], list[ResidentChain]]  # of a slot: the end of its first chain


class _Impossible(Exception):
    """The reason why a subtopology cannot have resident slots."""


def resident_chains(
    spark: SparkSession, subtopology: CompiledSubtopology, slots: int, access: Mapping[str, str]
) -> ResidentChains | str:
    """Return the chains that resident slots run; a reason where they are not possible.

    Args: as `build_chains`.
    """

    def build(end: SlotEnd) -> list[ResidentChain]:
        return _ResidentBuilder(spark, subtopology, slots, access).build(end)

    if static_dataframes(subtopology):
        return "it joins a DataFrame, which is read again now and then"
    if ChainBuilder(spark, subtopology, slots, access).has_foreach_batch:
        return "a foreachBatch function takes a DataFrame of each micro-batch"
    try:
        # Built once with an address that no slot uses: it shows whether there is such a plan at all.
        first = build(SlotEnd(chain=0, slot=0, address=("127.0.0.1", 0), token=""))
    except _Impossible as reason:
        return str(reason)
    except (Py4JError, PySparkException) as error:  # a Spark with other classes
        return f"this Spark release is not known: {str(error)[:200]}"
    return ResidentChains(
        count=len(first),
        has_sql=not all(chain.is_whole for chain in first),
        restore=_ResidentBuilder(spark, subtopology, slots, access).restore_stage(),
        build=build,
    )


class _ResidentBuilder(ChainBuilder):
    """Builds chains with resident stages. Mutable: the chain under way."""

    def __init__(
        self, spark: SparkSession, subtopology: CompiledSubtopology, slots: int, access: Mapping[str, str]
    ) -> None:
        super().__init__(spark, subtopology, slots, access)
        self._end: SlotEnd | None = None
        self._bypass: MarkerBypass | None = None  # behind the first stage
        self._session: SparkSession | None = None  # of Spark SQL and the stages around it

    def build(self, end: SlotEnd) -> list[ResidentChain]:
        """Return the chains of one slot. Raises _Impossible."""
        found = []
        self._end = end
        for frame, is_whole in self.chains_to_topics():
            session = None if is_whole else self._never_ending_session()
            found.append(ResidentChain(plan=_kept_plan(frame, session), is_whole=is_whole))
            self._end = end = replace(end, chain=end.chain + 1)
        return found

    def _never_ending_session(self) -> SparkSession:
        if self._session is None:
            self._session = fetching_session(self._spark, {BYTES_SETTING: str(FLUSH_BYTES)})
        return self._session

    def from_slots(self, stage: PythonStage, schema: StructType | str = REPORT_SCHEMA) -> DataFrame:
        """Return the first stage of a chain, with a single Spark partition."""
        assert self._end is not None
        stage = self._with_access(stage)
        one = self._spark.range(0, 1, 1, 1)
        if isinstance(schema, str):
            return one.mapInArrow(ResidentStage(stage=stage, end=self._end), schema)
        try:
            self._spark.conf.get(BYTES_SETTING)
        except (Py4JError, PySparkException) as error:
            raise _Impossible(f"this Spark release has no setting {BYTES_SETTING}") from error
        schema = StructType([*schema.fields, StructField(MARKER_COLUMN, BinaryType())])
        fetch = ResidentFetch(stage=stage, end=self._end, schema=_arrow_schema(schema))
        self._bypass = MarkerBypass(one.mapInArrow(fetch, schema))
        return self._bypass.rows

    def _through(self, frame: DataFrame, stage: PythonStage, schema: StructType | str) -> DataFrame:
        """Return the stage behind Spark SQL. `frame` is the SQL on the rows of the first stage."""
        assert self._end is not None
        assert self._bypass is not None
        if stage.output is not None:
            raise _Impossible("it keeps state between two parts of Spark SQL")
        _check_passes(frame, self._bypass.rows)
        rows = self._bypass.merged(frame, self._never_ending_session())
        sink = ResidentSink(stage=self._with_access(stage), end=self._end)
        return rows.mapInArrow(sink, schema)


def _kept_plan(frame: DataFrame, session: SparkSession | None) -> PreparedPlan:
    return PreparedPlan(lambda: frame, session=session)


def _arrow_schema(schema: StructType) -> pa.Schema:
    # Spark 4.3 asks for the time zone of timestamps. Stages have them in UTC, whatever the session's is.
    zone = {"timezone": "UTC"} if "timezone" in inspect.signature(to_arrow_schema).parameters else {}
    return to_arrow_schema(schema, **zone)


def _check_passes(frame: DataFrame, start: DataFrame) -> None:
    """Check that Spark SQL on the rows of `start` may run from micro-batch to micro-batch. Raises _Impossible."""
    plan, first = analysed(frame), analysed(start)
    if not plan.deterministic():
        raise _Impossible("its Spark SQL is not deterministic")
    if contains_current_time(frame):
        raise _Impossible("its Spark SQL tells the time")
    node = plan
    while not node.fastEquals(first):
        name = class_of(node)
        if name not in _PASSING:
            raise _Impossible(
                f"its Spark SQL has a step of another kind than a projection, filter or generator: {name}"
            )
        if has_user_function(frame.sparkSession, sequence(node.expressions())):
            raise _Impossible("a function of the user stands in its Spark SQL")
        node = node.child()
