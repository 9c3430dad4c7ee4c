"""Sources of rows: topics, a join, a stateful processor, closed windows or a table, and the calls made since."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructField, StructType, _parse_datatype_json_string

from headrace.spark.analysis.event_time import ClosingWindows, KeyedDeduplication, RelayedClosing
from headrace.spark.analysis.join_times import Operand
from headrace.spark.frames import apply_calls, without_hidden
from headrace.spark.topology.nodes import (
    EVENT_TIME_COLUMN,
    KEY_COLUMN,
    InitialState,
    JoinKind,
    NarrowCall,
    OverFunction,
    OverRows,
    ProcessorInterface,
    ProjectForGroup,
    SortColumn,
    StateVariable,
    TimeMode,
    TopicSource,
    Transform,
)

__all__ = [
    "ClosedWindows",
    "JoinedSide",
    "KeyedJoin",
    "KeyedOverRows",
    "KeyedTransform",
    "OverWindows",
    "RowSource",
    "StreamSource",
    "TableRows",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamSource:
    """One origin of the rows of a stream, a topic or an operator, and the calls made on them. A union has several."""

    source: RowSource
    calls: tuple[NarrowCall, ...] = ()
    deduplication: KeyedDeduplication | None = None
    later: tuple[NarrowCall, ...] = ()  # behind the deduplication

    def followed_by(self, call: NarrowCall) -> StreamSource:
        if self.deduplication is None:
            return replace(self, calls=(*self.calls, call))
        return replace(self, later=(*self.later, call))

    def apply(self, dataframe: DataFrame) -> DataFrame:
        """Return rows of the source with all calls, as if none were a duplicate: columns and their types."""
        if self.deduplication is None:
            return apply_calls(dataframe, self.calls)
        return apply_calls(apply_calls(dataframe, self.calls).drop(EVENT_TIME_COLUMN), self.later)


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinedSide:
    """One side of a join: where its rows come from, the values that the join equates, and the columns it adds."""

    origins: tuple[StreamSource, ...]
    key_sql: tuple[str, ...]  # over the columns of the side
    key_columns: tuple[str | None, ...]  # the column that each is, None for a computed value
    key_expressions: tuple[str, ...]  # canonical text of each
    columns: tuple[tuple[str, str], ...]  # (name, type JSON) of those in the result
    expressions: tuple[str, ...]  # canonical text of each
    clock: ClosingWindows | RelayedClosing | None = None  # None: rows of this side are kept for ever
    operands: tuple[Operand, ...] = ()  # timestamps that the condition compares
    bounds: tuple[tuple[int, int], ...] = ()  # (operand, shift in µs), as in `TimeBound`


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class KeyedJoin:
    """One join of the program: its sides, and the rows it makes. Each has a store of its own."""

    name: str
    left: JoinedSide
    right: JoinedSide
    key_types: tuple[str, ...]  # Spark types as JSON
    filters: tuple[NarrowCall, ...]  # the rest of the condition, on the joined rows
    schema: StructType  # of the joined rows
    on: Any  # as the user wrote it
    where: str
    frame: DataFrame = field(repr=False)  # the join of the templates of both sides
    kind: JoinKind = "inner"
    # (side of the earlier one, operands, whether they must differ), as in `TimeOrder`
    orders: tuple[tuple[int, int, int, bool], ...] = ()
    is_distinct: bool = False  # `dropDuplicates` stands behind it
    is_versioned: bool = False  # right rows are versions of their key, as in `Join`
    noun = "a join of two streams"
    naming_call = "join"
    key_column = None  # no column equals the key of an input record

    @property
    def in_event_time(self) -> bool:
        """Whether rows are deleted by watermarks."""
        return self.left.clock is not None

    @property
    def sides(self) -> tuple[JoinedSide, JoinedSide]:
        return self.left, self.right

    @property
    def topics(self) -> tuple[str, ...]:
        """The topics that its rows come from."""
        return _topics_of(self.origins)

    @property
    def origins(self) -> tuple[StreamSource, ...]:
        """The ways on which its rows come."""
        return (*self.left.origins, *self.right.origins)

    def as_batch(self, left: DataFrame, right: DataFrame) -> DataFrame:
        """The same join of two DataFrames by Spark: what `verify` compares with."""
        joined = without_hidden(left).join(without_hidden(right), self.on, self.kind)
        if self.is_distinct:
            joined = joined.dropDuplicates()
        return joined.withColumn(KEY_COLUMN, F.lit(None).cast("binary"))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class KeyedTransform:
    """One stateful processor of the program: where its rows come from, and the rows that it makes."""

    name: str
    origins: tuple[StreamSource, ...]
    processor: bytes = field(repr=False)  # pickled
    processor_name: str
    interface: ProcessorInterface
    time_mode: TimeMode
    projection: ProjectForGroup  # the grouping values, and the other columns of the rows
    group_columns: tuple[tuple[str, str], ...]  # (name, type JSON)
    row_columns: tuple[tuple[str, str], ...]  # as in `Transform`
    variables: tuple[StateVariable, ...]
    schema: StructType  # of the processor's rows
    time_zone: str
    clock: ClosingWindows | None  # by whose watermark timers of event time are due
    initial: InitialState | None = field(repr=False)
    where: str
    noun = "a stateful processor"
    key_column = None  # no column equals the key of an input record

    @property
    def naming_call(self) -> str:
        """Method that takes the name of the store."""
        return "transformWithState" if self.interface == "row" else "transformWithStateInPandas"

    @property
    def topics(self) -> tuple[str, ...]:
        """The topics that its rows come from."""
        return _topics_of(self.origins)

    def node(self, changelog_topic: str, idle_timeout_ms: int) -> Transform:
        """Return its compiled form. `idle_timeout_ms`: as in `WindowedAggregate`."""
        groups = len(self.group_columns)
        return Transform(
            name=self.name,
            processor=self.processor,
            processor_name=self.processor_name,
            interface=self.interface,
            time_mode=self.time_mode,
            group_columns=self.group_columns,
            inputs=self.projection.columns[groups:],
            row_columns=self.row_columns,
            variables=self.variables,
            columns=tuple((field.name, field.dataType.json()) for field in self.schema),
            changelog_topic=changelog_topic,
            time_zone=self.time_zone,
            group_expressions=self.projection.expressions[:groups],
            watermark_sources=() if self.clock is None else self.clock.sources,
            idle_timeout_ms=0 if self.clock is None else idle_timeout_ms,
            initial=self.initial,
            where=self.where,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class OverWindows:
    """Window functions over the rows of a key, in SQL over the columns in front of them."""

    group_columns: tuple[tuple[str, str], ...]  # (name, type JSON) of g0, g1, ..
    order: tuple[SortColumn, ...]  # the event time first
    functions: tuple[OverFunction, ...]  # f0, f1, ..
    projection: ProjectForGroup  # g0.. and i0..; these are in the order in which they break ties
    results: tuple[tuple[str, str], ...]  # (output column, SQL over g0.., i0.. and f0..)
    names: tuple[str, ...]  # output columns that functions decide about
    schema: StructType  # of the results

    @property
    def inputs(self) -> tuple[tuple[str, str], ...]:
        """Return (name, type JSON) of i0, i1, .."""
        return self.projection.columns[len(self.group_columns) :]

    @property
    def made(self) -> tuple[tuple[str, str], ...]:
        """Return (name, type JSON) of f0, f1, .."""
        return tuple((f"f{at}", one.result_type) for at, one in enumerate(self.functions))

    @property
    def made_schema(self) -> StructType:
        """Return the columns g0.., i0.. and f0.."""
        groups = [(f"g{at}", kind) for at, (_, kind) in enumerate(self.group_columns)]
        columns = (*groups, *self.inputs, *self.made)
        return StructType([StructField(name, _parse_datatype_json_string(kind)) for name, kind in columns])

    @property
    def bare(self) -> bool:
        """Whether every result is a g, an i or an f as it is."""
        own = {name for name, _ in (*self.projection.columns, *self.made)}
        return all(sql.strip("`") in own for _, sql in self.results)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class KeyedOverRows:
    """Window functions in event time: where their rows come from, and what they add to them."""

    name: str
    origins: tuple[StreamSource, ...]
    windows: OverWindows
    calls: tuple[NarrowCall, ...]  # that add the functions, and those between them
    before: DataFrame = field(repr=False)  # the rows in front of them, without hidden columns
    template: DataFrame = field(repr=False)  # the template of these rows
    clock: ClosingWindows  # by whose watermark rows leave
    schema: StructType  # of its rows: the results, or g0.., i0.., f0.. where `rest` computes them
    rest: tuple[NarrowCall, ...]  # makes the results of these rows, if they are more than renamed
    where: str
    noun = "a window function"
    naming_call = "withColumn"
    key_column = None  # no column equals the key of an input record

    @property
    def topics(self) -> tuple[str, ...]:
        """The topics that its rows come from."""
        return _topics_of(self.origins)

    def node(self, changelog_topic: str, idle_timeout_ms: int) -> OverRows:
        """Return its compiled form. `idle_timeout_ms`: as in `WindowedAggregate`."""
        windows, groups = self.windows, len(self.windows.group_columns)
        names = [field.name for field in self.schema]
        origins = [sql.strip("`") for _, sql in windows.results] if windows.bare else names
        return OverRows(
            name=self.name,
            group_columns=windows.group_columns,
            inputs=windows.inputs,
            order=windows.order,
            functions=windows.functions,
            columns=tuple((field.name, field.dataType.json()) for field in self.schema),
            origins=tuple(origins),
            changelog_topic=changelog_topic,
            group_expressions=windows.projection.expressions[:groups],
            input_expressions=windows.projection.expressions[groups:],
            watermark_sources=self.clock.sources,
            idle_timeout_ms=idle_timeout_ms,
            where=self.where,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ClosedWindows:
    """The rows of an aggregate whose windows close, each once: when its window has closed."""

    state: Any  # `KeyedAggregate`
    schema: StructType  # of the rows
    noun = "windows that close"
    key_column = None  # no column equals the key of an input record

    @property
    def name(self) -> str:
        """Name of the aggregate's store."""
        return str(self.state.name)

    @property
    def origins(self) -> tuple[StreamSource, ...]:
        """The origins of the rows that are grouped."""
        found: tuple[StreamSource, ...] = self.state.origins
        return found

    @property
    def topics(self) -> tuple[str, ...]:
        """The topics that its rows come from."""
        return _topics_of(self.origins)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TableRows:
    """The rows of a table in front of another operator: each change takes an old row back and adds a new one."""

    state: Any  # `KeyedAggregate` or `KeyedTableJoin`, whose modules import this one
    calls: tuple[NarrowCall, ...]  # behind it
    text: str  # canonical: all that the rows depend on
    schema: StructType
    frame: DataFrame = field(repr=False)  # the template of the rows
    noun = "a table"
    key_column = None  # no column equals the key of an input record

    @property
    def origins(self) -> tuple[StreamSource, ...]:
        """The origins of the rows that the table was made of."""
        origins: tuple[StreamSource, ...] = self.state.origins
        return origins

    @property
    def topics(self) -> tuple[str, ...]:
        """The topics that its rows come from."""
        return _topics_of(self.origins)

    def as_batch(self, table: DataFrame) -> DataFrame:
        """The same rows, of the table by Spark: what `verify` compares with."""
        return apply_calls(table, self.calls)


RowSource: TypeAlias = TopicSource | KeyedJoin | KeyedTransform | KeyedOverRows | ClosedWindows | TableRows


def _topics_of(origins: Sequence[StreamSource]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(topic for one in origins for topic in one.source.topics))
