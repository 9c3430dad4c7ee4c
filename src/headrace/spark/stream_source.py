"""Sources of a stream's rows: topics, or a join of two streams, and the calls made on the rows since."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from headrace.spark.event_time import KeyedDeduplication
from headrace.spark.frames import apply_calls, without_hidden
from headrace.spark.topology.nodes import EVENT_TIME_COLUMN, KEY_COLUMN, NarrowCall, TopicSource

__all__ = ["JoinedSide", "KeyedJoin", "StreamSource"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamSource:
    """One origin of the rows of a stream: a topic or a join, and the calls made on its rows. A union has several."""

    source: TopicSource | KeyedJoin
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
    noun = "a join"
    naming_call = "join"
    key_column = None  # no column equals the key of an input record

    @property
    def topics(self) -> tuple[str, ...]:
        """The topics that its rows come from."""
        found = [topic for side in (self.left, self.right) for origin in side.origins for topic in origin.source.topics]
        return tuple(dict.fromkeys(found))

    def as_batch(self, left: DataFrame, right: DataFrame) -> DataFrame:
        """The same join of two DataFrames by Spark: what `verify` compares with."""
        joined = without_hidden(left).join(without_hidden(right), self.on, "inner")
        return joined.withColumn(KEY_COLUMN, F.lit(None).cast("binary"))
