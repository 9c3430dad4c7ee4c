"""Event time of a stream: what `withWatermark` and the operators behind it accept, and what they declare.

Deduplication. Rows that have the same key must come to one task, in an order that is the same in every run. That holds
for the records of one partition, so the key of the records has to be part of the deduplication key. A repartition topic
in front of the operator would break it: its records come from several upstream tasks, and how these interleave, and
with it which rows are late, would depend on timing.

Windows. Whether a row is late is decided in front of the repartition topic, by the watermark of the row's own source
partition. So a slow upstream task makes no record of the others late. For the same reason the sources of a union need
no common order: each has its own clock, and windows close by the least watermark of all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import TimestampType

from headrace.errors import TopologyError
from headrace.spark.analysis.aggregate_split import is_groupable
from headrace.spark.analysis.canonical_expressions import CanonicalExpressions
from headrace.spark.analysis.plan_reader import ColumnOrigins
from headrace.spark.frames import quoted, without_hidden
from headrace.spark.spark_internals import analysed, interval_microseconds, sequence
from headrace.spark.state_names import checked_state_name, derived_state_name
from headrace.spark.topology.nodes import (
    EVENT_TIME_COLUMN,
    Branch,
    DeadLetter,
    NarrowCall,
    OutOfTime,
    TopicSource,
)
from headrace.spark.unsupported import refusal, translated

__all__ = [
    "ClosingWindows",
    "KeyedDeduplication",
    "RelayedClosing",
    "SourceClock",
    "check_out_of_time",
    "check_watermark",
    "closing_windows",
    "event_time_text",
    "has_watermark",
    "keyed_deduplication",
    "without_watermark",
]

LONGEST_DELAY_US = 1000 * 366 * 86_400_000_000  # a thousand years: twice of it fits into Spark's timestamps
_DECLARE_THE_KEY = 'declare the column that equals the key of the records: app.stream(.., key="{}")'


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyedDeduplication:
    """One deduplication of the program."""

    name: str
    key_columns: tuple[tuple[str, str], ...]  # (column, type JSON), by their canonical texts
    key_expressions: tuple[str, ...]
    event_time_expression: str  # empty without a watermark: then all rows have the same time, and keys stay for ever
    delay_us: int
    out_of_time: OutOfTime = field(default_factory=OutOfTime)
    where: str
    noun = "a deduplication"

    @property
    def naming_call(self) -> str:
        """Method that takes the name of the store."""
        return "dropDuplicatesWithinWatermark" if self.event_time_expression else "dropDuplicates"


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceClock:
    """The watermark of one source, which each of its partitions keeps by itself."""

    source: str
    topics: tuple[str, ...]
    delay_us: int
    out_of_time: OutOfTime = field(default_factory=OutOfTime)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClosingWindows:
    """How the windows of one aggregate close, or rows of one side of a join expire: by the watermarks of its sources.

    The rows of a union have several sources, and the least watermark of all their partitions counts.
    """

    clocks: tuple[SourceClock, ...]
    event_time_expression: str  # canonical text over the rows; behind a union, over the columns of the union

    @property
    def sources(self) -> tuple[str, ...]:
        """Return the names of the sources."""
        return tuple(clock.source for clock in self.clocks)

    @property
    def topics(self) -> tuple[str, ...]:
        """Return the topics of all sources."""
        return tuple(topic for clock in self.clocks for topic in clock.topics)


@dataclass(frozen=True, slots=True, kw_only=True)
class RelayedClosing:
    """How windows close behind closed windows: by the watermark that the operator in front sends on."""

    source: str  # name of that operator's store

    @property
    def sources(self) -> tuple[str, ...]:
        """Return the name of the operator, as `ClosingWindows` does those of its sources."""
        return (self.source,)


def has_watermark(dataframe: DataFrame) -> bool:
    """Whether rows of `dataframe` carry their event time."""
    return EVENT_TIME_COLUMN in dataframe.columns


def without_watermark(calls: Sequence[NarrowCall]) -> tuple[NarrowCall, ...]:
    """Return `calls` for rows that no operator asks for their event time, which saves a projection."""
    return tuple(call for call in calls if call.method != "withWatermark")


def check_watermark(template: DataFrame, event_time: str, delay: str, where: str) -> None:
    """Refuse a watermark that Spark would refuse for a stream. For DataFrames it does not check the column.

    Raises:
        TopologyError: unresolved-column, refused-by-spark, not-supported-here.
    """
    if has_watermark(template):
        raise refusal(
            "not-supported-here",
            "this stream has a watermark already",
            "call withWatermark once, with the longer delay",
            where,
        )
    # Spark checks the delay here, and the column only when a streaming query starts; hence the `select`.
    with translated(where, template.columns):
        template.withWatermark(event_time, delay)
        kind = template.select(F.col(event_time).alias("event time")).schema[0].dataType
    if not isinstance(kind, TimestampType):
        raise refusal(
            "not-supported-here",
            f'the event time "{event_time}" is of type {kind.simpleString()}, expected timestamp',
            f'cast it first: withColumn("{event_time}", F.col("{event_time}").cast("timestamp"))',
            where,
        )
    if interval_microseconds(template.sparkSession, delay) > LONGEST_DELAY_US:
        raise refusal("bad-value", f"the delay {delay!r} is longer than a thousand years", '"10 minutes"', where)


def keyed_deduplication(
    template: DataFrame,
    ways: Sequence[tuple[TopicSource, Sequence[NarrowCall]]],
    subset: Sequence[str] | None,
    name: str | None,
    where: str,
) -> KeyedDeduplication:
    """Return the declaration of `dropDuplicatesWithinWatermark`, or of `dropDuplicates` for rows without a watermark.

    Args:
        template: An empty frame with the columns of the rows, the event time among them.
        ways: The sources of the rows, and the calls on them.
        subset: Columns of the key; None for all columns.
        name: Name of the store; None derives it from the key.
        where: "file:line" of the user's call.

    Raises:
        TopologyError: unresolved-column, refused-by-spark, not-supported-here, bad-value.
    """
    source, delay = _only_source(ways, where)
    _check_no_skips(source, "a deduplication", where)
    with translated(where, template.columns):
        visible = without_hidden(template)
        # Releases word an unknown name of dropDuplicates differently, and one of select alike.
        # A select first, for one wording of unknown names in all releases.
        visible.select(*map(quoted, subset or ()))
        plan = analysed(visible.dropDuplicates(None if subset is None else list(subset)))
    canonical = CanonicalExpressions(template)
    # In the order of canonical texts: two programs that name the columns in another order keep the same store.
    keys = sorted((canonical.text(key), str(key.name()), key) for key in sequence(plan.keys()))
    _check_key(template, source, [key for _, _, key in keys], where)
    [event_time] = [one for one in sequence(analysed(template).output()) if one.name() == EVENT_TIME_COLUMN]
    names = [column for _, column, _ in keys]
    return KeyedDeduplication(
        name=derived_state_name("unique-by", names, where, "dropDuplicates")
        if name is None
        else checked_state_name(name, where),
        key_columns=tuple((column, str(key.dataType().json())) for _, column, key in keys),
        key_expressions=tuple(text for text, _, _ in keys),
        event_time_expression="" if delay is None else canonical.text(event_time),
        delay_us=0 if delay is None else interval_microseconds(template.sparkSession, delay),
        out_of_time=OutOfTime() if delay is None else _out_of_time(source),
        where=where,
    )


def closing_windows(
    template: DataFrame,
    ways: Sequence[tuple[TopicSource, Sequence[NarrowCall]]],
    where: str,
    operator: str = "windows that close",
) -> ClosingWindows:
    """Return how windows over rows with a watermark close, and how rows of a join expire.

    Args:
        template: An empty frame with the columns of the rows.
        ways: The sources of the rows, and the calls on them.
        where: "file:line" of the user's call.
        operator: What needs the watermark, for messages.

    Raises:
        TopologyError: not-supported-here.
    """
    names = [source.name for source, _ in ways]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise refusal(
            "not-supported-here",
            f'the rows of "{twice}" come twice into {operator}, and each way would have a watermark of its own',
            f'read its topic a second time: app.stream(.., name="{twice}-2")',
            where,
        )
    clocks = []
    for source, calls in ways:
        if len(source.topics) > 1:
            raise refusal(
                "not-supported-here",
                f"records of several topics ({', '.join(source.topics)}) have no common order, and {operator} follows "
                "from it",
                "read each topic with app.stream and withWatermark, and unite the rows with unionByName",
                where,
            )
        _check_no_skips(source, operator, where)
        delay = _delay(calls)
        assert delay is not None
        clocks.append(
            SourceClock(
                source=source.name,
                topics=source.topics,
                delay_us=interval_microseconds(template.sparkSession, delay),
                out_of_time=_out_of_time(source),
            )
        )
    return ClosingWindows(clocks=tuple(clocks), event_time_expression=event_time_text(template))


def event_time_text(template: DataFrame) -> str:
    """Return the canonical text of the event time of rows that have a watermark."""
    [event_time] = [one for one in sequence(analysed(template).output()) if one.name() == EVENT_TIME_COLUMN]
    return CanonicalExpressions(template).text(event_time)


def check_out_of_time(source: TopicSource, branches: Sequence[Branch], *, idle_timeout_ms: int) -> None:
    """Refuse policies for event times that would have no effect, or that some late rows would escape.

    Args:
        source: The source that has the policies.
        branches: What its rows are used for.
        idle_timeout_ms: Time after which a silent partition is passed over; 0: never.

    Raises:
        TopologyError: not-supported-here.
    """
    if source.on_late == "drop" and source.on_ahead == "keep":
        return
    argument = "on_late" if source.on_late != "drop" else "on_ahead"
    if all(branch.out_of_time == OutOfTime() for branch in branches):
        raise refusal(
            "not-supported-here",
            f"no operator compares event times of this stream, so {argument} has no effect",
            f'call withWatermark("ts", "10 minutes") before a window, join or deduplication, or leave {argument} out',
            source.where,
        )
    # Behind a repartition topic a row of a partition that was passed over is dropped as well. Its record is not known
    # there.
    if idle_timeout_ms > 0 and isinstance(source.on_late, DeadLetter) and any(one.watermark for one in branches):
        raise refusal(
            "not-supported-here",
            "with headrace.watermark.idle.timeout.ms rows may be late behind the repartition topic, where their "
            "records are not known",
            "leave on_late out, or set headrace.watermark.idle.timeout.ms to 0",
            source.where,
        )


def _out_of_time(source: TopicSource) -> OutOfTime:
    if source.on_late == "drop" and source.on_ahead == "keep":
        return OutOfTime()
    return OutOfTime(topic=source.topics[0], late=source.on_late, ahead=source.on_ahead)


def _only_source(
    ways: Sequence[tuple[TopicSource, Sequence[NarrowCall]]], where: str
) -> tuple[TopicSource, str | None]:
    """Return the source of a deduplication, and the delay of its watermark; None without one."""
    topics = [topic for source, _ in ways for topic in source.topics]
    if len(topics) > 1:
        raise refusal(
            "not-supported-here",
            f"rows of several topics ({', '.join(topics)}) have no common order, and a deduplication follows from it",
            "write them to one topic with to_topic, and read that topic",
            where,
        )
    [(source, calls)] = ways
    return source, _delay(calls)


def _delay(calls: Sequence[NarrowCall]) -> str | None:
    return next((str(call.args[1]) for call in calls if call.method == "withWatermark"), None)


def _check_no_skips(source: TopicSource, operator: str, where: str) -> None:
    if source.on_error != "fail":
        raise refusal(
            "not-supported-here",
            f"records that are passed over by on_error are not supported yet in front of {operator}",
            f'app.stream("{source.topics[0]}", .., on_error="fail"), and try_cast in the calls before it',
            where,
        )


def _check_key(template: DataFrame, source: TopicSource, keys: Sequence[Any], where: str) -> None:
    """Refuse a key whose equal values may lie in different partitions, and types that are no key."""
    for key in keys:
        if not is_groupable(key):
            raise refusal(
                "not-supported-here",
                f'"{key.name()}" is of type {key.dataType().simpleString()}; that is no key',
                f'cast it first: withColumn("{key.name()}", F.col("{key.name()}").cast("string"))',
                where,
            )
    if source.key_column is None:
        raise _not_in_one_partition("the key of its records is not declared", _DECLARE_THE_KEY.format("id"), where)
    # The key column may have been renamed; a column that was computed under its name does not count.
    if source.key_column not in map(ColumnOrigins(template).column_of, keys):
        raise _not_in_one_partition(
            f'"{source.key_column}", the key of its records, is not among the columns as it was read',
            f'name "{source.key_column}" as well, or write the rows to a topic with these columns as its key first',
            where,
        )


def _not_in_one_partition(message: str, fix: str, where: str) -> TopologyError:
    return refusal("not-supported-here", f"duplicates may lie in different partitions: {message}", fix, where)
