"""`verify`: recomputation of the application as one Spark batch over the same input, compared with its sinks.

The input is everything that the application has committed. It is decoded by Spark's `from_json` (not by Headrace's
decoder) and passes through the user's recorded calls as plain DataFrame operations, `groupBy` included (not through
Headrace's aggregates). Doubles compare within a relative 1e-12, since sums depend on the order of their terms. At least
once may count records again after a crash: such repeats are counted, bounded and shown (`verify_tables`), never hidden;
any loss is a failure.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import reduce
from typing import TYPE_CHECKING, cast

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from headrace.client.admin import Admin
from headrace.client.broker_errors import unknown_topic_error
from headrace.errors import ConfigError
from headrace.spark.analysis.event_time import ClosingWindows, SourceClock
from headrace.spark.analysis.plan_reader import nondeterministic_functions, nondeterministic_functions_of
from headrace.spark.compilation import Output
from headrace.spark.frames import apply_calls
from headrace.spark.grouped_stream import KeyedAggregate, StreamTable
from headrace.spark.keyed_table import KeyedTable
from headrace.spark.ranked_stream import KeyedTopN, RankedTable
from headrace.spark.sinks.database import DatabaseSink
from headrace.spark.sinks.parquet import ParquetSink
from headrace.spark.spark_internals import analysed, class_of, sequence, walk
from headrace.spark.stream import Stream
from headrace.spark.stream_base import StreamBase, StreamSource
from headrace.spark.stream_source import (
    ClosedWindows,
    JoinedSide,
    KeyedJoin,
    KeyedOverRows,
    KeyedTransform,
    TableRows,
)
from headrace.spark.table_join import JoinedTable
from headrace.spark.table_join_reader import KeyedTableJoin
from headrace.spark.topic_frames import (
    BAD_COLUMN,
    TopicPartition,
    decoded_by_spark,
    good_rows,
    keys_as_json,
    scalars_as_json,
    topic_frame,
    values_as_json,
)
from headrace.spark.topology.nodes import (
    COORDINATES_COLUMN,
    EVENT_TIME_COLUMN,
    KEY_COLUMN,
    TIMESTAMP_COLUMN,
    WINDOW_COLUMN,
    Leaving,
    NarrowCall,
    RepartitionSource,
    TableSink,
    TopicSink,
    TopicSource,
)
from headrace.spark.unsupported import is_hidden, shown
from headrace.spark.verification.verdict import SinkVerdict, Verdict
from headrace.spark.verification.verify_deduplication import first_rows, with_places
from headrace.spark.verification.verify_joins import join_rows, least_watermark_us, rows_not_late
from headrace.spark.verification.verify_lists import is_ambiguous, list_columns
from headrace.spark.verification.verify_over_rows import window_functions
from headrace.spark.verification.verify_replaced_rows import (
    as_topic,
    current_records,
    find_recast_columns,
    find_unready,
    with_second_rows,
)
from headrace.spark.verification.verify_streams import (
    JSON_OPTIONS,
    compare_database,
    compare_files,
    compare_stream,
    is_scalar,
    key_of_columns,
)
from headrace.spark.verification.verify_tables import compare_joined, compare_table, rows_to_group
from headrace.spark.verification.verify_top_n import compare_ranked
from headrace.spark.verification.verify_versioned_joins import versioned_rows
from headrace.spark.verification.verify_windows import closed_rows, rows_on_time, watermarks

if TYPE_CHECKING:
    from headrace.spark.application_declaration import ApplicationDeclaration


_EXACT_TYPES = frozenset({'"byte"', '"short"', '"integer"', '"long"'})  # their sums are below 2**53 or overflow


@dataclass(frozen=True, slots=True, kw_only=True)
class _Extent:
    """Range of the topics that is compared."""

    ranges: Mapping[TopicPartition, tuple[int, int]]  # of the sources: what the application has committed
    waiting: int
    undecided: str
    cannot_claim: tuple[str, ...]


def verify(app: ApplicationDeclaration, *, sinks: Sequence[str] | None = None) -> Verdict:
    """Compare sinks with a recomputation.

    Args:
        app: The application.
        sinks: Names of topics and tables; None compares all that the application writes.

    Raises:
        ConfigError, CannotConnect, BrokerError: if the input or a sink cannot be read.
    """
    compiled = app.compile()
    outputs = [output for output in app._outputs if _is_readable(output.sink)]
    chosen = [output for output in outputs if sinks is None or _name(output.sink) in sinks]
    unknown = sorted(set(sinks or ()) - {_name(output.sink) for output in outputs})
    if unknown:
        raise ConfigError(
            "bad-value",
            f'{app.name} does not write to "{unknown[0]}"',
            "name sinks of the application, or none for all",
        )
    # 1. The extent first, in one look: what the application has committed, and the ends of its sinks. Records that
    #    arrive later are on neither side.
    with app.network_client("headrace-verify") as client:
        admin = Admin(client)
        sources = [
            source
            for source in app._sources.values()
            if any(_reads(part.sources, source) for part in compiled.subtopologies)
        ]
        internal = [
            s.topic for part in compiled.subtopologies for s in part.sources if isinstance(s, RepartitionSource)
        ]
        extent = _extent(app, admin, sources, internal)
        topics = [output.sink.topic for output in chosen if isinstance(output.sink, TopicSink)]
        ends = {topic: _log_ranges(admin, topic) for topic in topics}
    # 2. What cannot be compared is named in the verdict.
    claims = list(extent.cannot_claim)
    claims += [
        f"{o.sink.name if isinstance(o.sink, TableSink) else f'foreachBatch({_name(o.sink)})'} "
        "writes where verify cannot look"
        for o in app._outputs
        if not _is_readable(o.sink)
    ]
    with _few_shuffle_partitions(app.spark):
        return _Recomputation(app, extent).compare(sources, chosen, ends, claims)


@contextmanager
def _few_shuffle_partitions(spark: SparkSession) -> Iterator[None]:
    """Reduce Spark's 200 shuffle partitions during the block: their overhead would exceed the comparison itself."""
    name = "spark.sql.shuffle.partitions"
    before = spark.conf.get(name)
    spark.conf.set(name, str(min(int(str(before)), 2 * spark.sparkContext.defaultParallelism)))
    try:
        yield
    finally:
        spark.conf.set(name, str(before))


def _reads(found: Sequence[object], source: TopicSource) -> bool:
    return any(isinstance(one, TopicSource) and one.name == source.name for one in found)


class _Recomputation:
    def __init__(self, app: ApplicationDeclaration, extent: _Extent) -> None:
        self._app = app
        self._extent = extent
        self._frames: dict[str, DataFrame] = {}

    def compare(
        self,
        sources: Sequence[TopicSource],
        chosen: Sequence[Output],
        ends: Mapping[str, Mapping[TopicPartition, tuple[int, int]]],
        claims: list[str],
    ) -> Verdict:
        records = bad = 0
        verdicts: list[SinkVerdict] = []
        try:
            for source in sources:
                counts = self._load(source)
                records, bad = records + counts[0], bad + counts[1]
            by_topic: dict[str, list[Output]] = {}
            for output in chosen:
                by_topic.setdefault(_name(output.sink), []).append(output)
            for topic, outputs in by_topic.items():
                verdicts.append(self._sink(topic, outputs, ends.get(topic, {}), claims))
        finally:
            for frame in self._frames.values():
                frame.unpersist()
        return Verdict(
            app_name=self._app.name,
            guarantee=self._app.processing_guarantee,
            records=records,
            bad_records=bad,
            waiting=self._extent.waiting,
            sinks=tuple(verdicts),
            cannot_claim=tuple(claims),
            undecided=self._extent.undecided,
        )

    def _load(self, source: TopicSource) -> tuple[int, int]:
        ranges = {where: span for where, span in self._extent.ranges.items() if where[0] in source.topics}
        records = topic_frame(self._app.spark, self._app.bootstrap_servers, self._app.security, ranges)
        # Persisted: each sink is recomputed from the same decoded rows, and reading a topic twice could read it
        # differently.
        decoded = decoded_by_spark(records, source).persist()
        self._frames[source.name] = decoded
        counted = decoded.agg(F.count("*"), F.count(BAD_COLUMN)).first()
        assert counted is not None
        return int(counted[0]), int(counted[1])

    def _sink(
        self, topic: str, outputs: list[Output], span: Mapping[TopicPartition, tuple[int, int]], claims: list[str]
    ) -> SinkVerdict:
        kind = "table" if isinstance(outputs[0].rows, KeyedTable) else "stream"
        if len(outputs) > 1 and any(isinstance(output.rows, KeyedTable) for output in outputs):
            return _undecided(topic, "table", "several outputs of this application write to it")
        # Operators in event time depend on every row before a row. Without the first records there is no recomputation.
        gone = next((begin for output in outputs for begin in self._deleted_records(output.rows)), None)
        if gone is not None:
            return _undecided(topic, kind, gone)
        if self._has_idle_timeout(outputs[0].rows):
            return _undecided(
                topic,
                kind,
                "with headrace.watermark.idle.timeout.ms, it depends on the time of day which rows are late",
            )
        in_front = (found for output in outputs for found in _operators_in_front(_origins_of(output.rows)))
        processor = next((found for found in in_front if isinstance(found, KeyedTransform)), None)
        if processor is not None:
            why = f"the processor {processor.processor_name} ({shown(processor.where)}) sees where micro-batches end"
            return _undecided(topic, kind, f"{why}, which a recomputation does not; TopologyTest runs it on rows")
        nondeterministic = [_nondeterministic_columns(output.rows, self._app) for output in outputs]
        for columns, whole in nondeterministic:
            if whole:
                return _undecided(
                    topic, kind, f"{', '.join(whole)} answer differently when asked twice, and rows depend on them"
                )
            claims += [f"{topic}.{name} is not compared: it is computed anew each time" for name in columns]
        ignored = frozenset(name for columns, _ in nondeterministic for name in columns)
        if kind == "table" and isinstance(outputs[0].sink, TableSink):
            recast = find_recast_columns(outputs[0].sink)
            claims += [f"{topic}.{name} is not compared: the table changes its text" for name in recast]
            ignored |= frozenset(recast)
        in_front = (found for output in outputs for found in _operators_in_front(_origins_of(output.rows)))
        if any(isinstance(found, (ClosedWindows, TableRows)) and is_ambiguous(found.state) for found in in_front):
            why = (
                "an operator in front of these rows computes a list, mode(x) or an approximate percentile: the order "
                "of collected values, which of several modes is taken, and which value near the asked rank"
            )
            return _undecided(topic, kind, f"{why}, are not defined in Spark")
        if isinstance(outputs[0].rows, StreamTable):
            _, dependent = list_columns(outputs[0].rows)
            claims += [f"{topic}.{name} is not compared: it may depend on the order of a list" for name in dependent]
            ignored |= frozenset(dependent)
        try:
            return self._compared(topic, outputs, span, ignored)
        except PySparkException as error:
            return _undecided(topic, kind, f"the recomputation fails: {str(error).strip().splitlines()[0]}")
        except OSError as error:
            return _undecided(topic, kind, f"the table cannot be compared: {error.strerror or error}")

    def _compared(
        self, topic: str, outputs: list[Output], span: Mapping[TopicPartition, tuple[int, int]], ignored: frozenset[str]
    ) -> SinkVerdict:
        sink = outputs[0].sink
        if isinstance(sink, TableSink):
            if isinstance(outputs[0].rows, KeyedTable):
                return self._replaced_rows(outputs[0], sink, ignored)
            rows = self._stream_rows(outputs[0])
            if isinstance(sink.sink, DatabaseSink):
                return _judged(compare_database(sink, rows, self._app.name, ignored), outputs)
            _show_committed_rows(sink, self._app.name)
            return _judged(compare_files(sink, rows, ignored), outputs)
        actual = topic_frame(self._app.spark, self._app.bootstrap_servers, self._app.security, span)
        actual, outputs = _as_json(actual, outputs)
        if isinstance(outputs[0].rows, KeyedTable):
            return self._table(outputs[0], actual, ignored)
        expected = [(self._stream_rows(output), output.sink) for output in outputs]
        return _judged(compare_stream(topic, expected, actual, ignored), outputs)  # type: ignore[arg-type]

    def _replaced_rows(self, output: Output, sink: TableSink, ignored: frozenset[str]) -> SinkVerdict:
        key = output.rows._default_key_columns()
        why = find_unready(sink, key, self._app.name)
        if why:
            return _undecided(sink.name, "table", why)
        if isinstance(sink.sink, ParquetSink):
            _show_committed_rows(sink, self._app.name)
        # Read twice, and from a table that others may change.
        records = current_records(self._app.spark, sink, key).persist()
        try:
            verdict = self._table(replace(output, sink=as_topic(sink)), records, ignored)
            return with_second_rows(verdict, records)
        finally:
            records.unpersist()

    def _table(self, output: Output, actual: DataFrame, ignored: frozenset[str]) -> SinkVerdict:
        assert isinstance(output.sink, TopicSink)
        if isinstance(output.rows, RankedTable):
            top, appends = output.rows._top, output.sink.output_mode == "append"
            if isinstance(top.closing, ClosingWindows):
                rows = self._rows_of_windows(top, closed=appends, own_partition=not top.repartitioned)
            else:
                rows = self._rows(top.origins)
            once = appends and top.closing is not None
            return compare_ranked(self._app, output.rows, output.sink, rows, actual, ignored, once=once)
        if isinstance(output.rows, JoinedTable):
            join = output.rows._join
            joined = join.keyed_batch(*map(self._table_rows, join.tables))
            return compare_joined(self._app, output.rows, output.sink, joined, actual, ignored)
        assert isinstance(output.rows, StreamTable)
        aggregate = output.rows._aggregate
        complete = aggregate.closing is not None and output.sink.output_mode == "append"
        if not isinstance(aggregate.closing, ClosingWindows):
            rows = self._rows(aggregate.origins)
        else:
            rows = self._rows_of_windows(aggregate, closed=complete, own_partition=not aggregate.repartitioned)
        return compare_table(self._app, output.rows, output.sink, rows, actual, ignored, once=complete)

    def _closed_windows(self, aggregate: KeyedAggregate) -> DataFrame:
        """Return the rows of closed windows, with the key that their records have."""
        if isinstance(aggregate.closing, ClosingWindows):
            rows = self._rows_of_windows(aggregate, closed=True)
        else:
            rows = self._rows(aggregate.origins)
        kept = (COORDINATES_COLUMN, WINDOW_COLUMN)
        rows = rows.drop(*(name for name in rows.columns if is_hidden(name) and name not in kept))
        found = aggregate.as_batch(rows)
        names = [(name, name) for name in aggregate.key_columns]
        return found.withColumn(KEY_COLUMN, key_of_columns(found, names))

    def _rows_of_windows(
        self, declared: KeyedAggregate | KeyedTopN, *, closed: bool, own_partition: bool = False
    ) -> DataFrame:
        """Return the rows in front of an operator whose windows close: those on time, or those of closed windows."""
        closing = declared.closing
        assert isinstance(closing, ClosingWindows)
        session_of = declared.session_of if isinstance(declared, KeyedAggregate) else None
        frames, clocks = [], []
        # Rows of a union are late by the watermark of their own side.
        for keyed, clock in self._placed_ways(declared.origins, closing):
            if isinstance(declared, KeyedTopN):
                keyed = keyed.withColumn(WINDOW_COLUMN, F.expr(declared.window_sql))
            frames.append(rows_on_time(keyed, clock.delay_us, self._max_ahead_us, session=session_of is not None))
            found = watermarks(keyed, clock.delay_us, self._max_ahead_us) if closed else {}
            clocks.append({partition: found.get(partition) for partition in self._partitions(clock)})
        rows = _united(frames)
        if not closed:
            return rows
        return closed_rows(rows, clocks, own_partition=own_partition, session_of=session_of)

    def _partitions(self, clock: SourceClock) -> list[int]:
        return [partition for topic, partition in self._extent.ranges if topic in clock.topics]

    def _placed_ways(
        self, origins: Sequence[StreamSource], closing: ClosingWindows
    ) -> Iterator[tuple[DataFrame, SourceClock]]:
        """Yield the rows of each source with their places, and its clock."""
        for origin, clock in zip(origins, closing.clocks, strict=True):
            assert isinstance(origin.source, TopicSource)
            yield self._placed_rows(origin.source, origin.calls), clock

    def _placed_rows(self, source: TopicSource, calls: Sequence[NarrowCall]) -> DataFrame:
        """Return rows with the places of their records, without those that `on_ahead` leaves out."""
        rows = apply_calls(with_places(good_rows(self._frames[source.name]), source), calls)
        if source.on_ahead == "keep" or EVENT_TIME_COLUMN not in rows.columns:
            return rows
        time, recorded = F.unix_micros(EVENT_TIME_COLUMN), F.col(TIMESTAMP_COLUMN)
        # A comparison with null is null, and such a row is not ahead.
        ahead = (recorded >= 0) & (time > recorded * 1000 + self._max_ahead_us)
        return rows.where(~F.coalesce(ahead, F.lit(False)))

    @property
    def _max_ahead_us(self) -> int:
        return int(self._app.config["headrace.event.time.max.ahead.ms"]) * 1000

    def _origin_rows(self, origin: StreamSource) -> DataFrame:
        if isinstance(origin.source, KeyedJoin) and origin.source.in_event_time:
            return apply_calls(self._join_in_event_time(origin.source), origin.calls)
        if isinstance(origin.source, TableRows):
            rows = self._table_rows(origin.source).withColumn(KEY_COLUMN, F.lit(None).cast("binary"))
            return apply_calls(rows, origin.calls)
        if isinstance(origin.source, KeyedJoin):
            sides = [self._rows(side.origins) for side in (origin.source.left, origin.source.right)]
            return apply_calls(origin.source.as_batch(*sides), origin.calls)
        if isinstance(origin.source, ClosedWindows):
            return apply_calls(self._closed_windows(origin.source.state), origin.calls)
        if isinstance(origin.source, KeyedOverRows):
            return apply_calls(self._over_rows(origin.source), origin.calls)
        assert isinstance(origin.source, TopicSource)  # rows of processors are not recomputed
        if origin.deduplication is None:
            return apply_calls(good_rows(self._frames[origin.source.name]), origin.calls)
        keyed = self._placed_rows(origin.source, origin.calls)
        return apply_calls(first_rows(keyed, origin.deduplication, self._max_ahead_us), origin.later)

    def _table_rows(self, rows: TableRows) -> DataFrame:
        """Return the rows of a table in front of another operator, without hidden columns."""
        state = rows.state
        if isinstance(state, KeyedTableJoin):
            return rows.as_batch(state.as_batch(*map(self._table_rows, state.tables)))
        return rows.as_batch(state.as_batch(rows_to_group(self._rows(state.origins))))

    def _join_in_event_time(self, join: KeyedJoin) -> DataFrame:
        left, right = (self._side_on_time(side) for side in join.sides)
        if join.is_versioned:
            return versioned_rows(join, left[0], right[0], right[1])
        return join_rows(join, (left[0], right[0]), (left[1], right[1]))

    def _side_on_time(self, side: JoinedSide) -> tuple[DataFrame, int | None]:
        """Return the rows of a side that are not late, and the watermark that all of its tasks have sent."""
        [origin, *_], closing = side.origins, side.clock
        if isinstance(origin.source, ClosedWindows):
            rows = apply_calls(self._closed_windows(origin.source.state), origin.calls)
            return rows, self._relayed_watermark(origin.source.state)
        assert isinstance(closing, ClosingWindows)
        return self._rows_on_time(side.origins, closing)

    def _rows_on_time(self, origins: Sequence[StreamSource], closing: ClosingWindows) -> tuple[DataFrame, int | None]:
        """Return the rows of all ways that are not late, and the least watermark of their sources."""
        frames, passed = [], []
        for rows, clock in self._placed_ways(origins, closing):
            frames.append(rows_not_late(rows, clock.delay_us, self._max_ahead_us))
            passed.append(self._least_watermark(clock, rows))
        return _united(frames), _least(passed)

    def _over_rows(self, over: KeyedOverRows) -> DataFrame:
        """Return the rows of window functions that have left: those that all watermarks have passed."""
        rows, watermark = self._rows_on_time(over.origins, over.clock)
        # A null is not less than anything: rows without an event time are left out.
        left = F.unix_micros(EVENT_TIME_COLUMN) < watermark if watermark is not None else F.lit(False)
        return window_functions(rows.where(left), over)

    def _least_watermark(self, clock: SourceClock, rows: DataFrame) -> int | None:
        return least_watermark_us(rows, clock.delay_us, self._max_ahead_us, self._partitions(clock))

    def _relayed_watermark(self, aggregate: KeyedAggregate) -> int | None:
        """Return the watermark that all tasks of an operator that closes windows have sent on."""
        [origin, *_], closing = aggregate.origins, aggregate.closing
        if isinstance(closing, ClosingWindows):
            ways = self._placed_ways(aggregate.origins, closing)
            passed = _least([self._least_watermark(clock, rows) for rows, clock in ways])
        else:
            assert isinstance(origin.source, ClosedWindows)
            passed = self._relayed_watermark(origin.source.state)
        assert aggregate.time_window is not None
        return None if passed is None else aggregate.time_window.last_end(passed)

    def _deleted_records(self, rows: StreamBase) -> Iterator[str]:
        """Yield a sentence for each partition whose deleted first records decide about other rows."""
        topics: dict[str, str] = {}  # → what is decided
        for state in _closing_states(rows):
            assert isinstance(state.closing, ClosingWindows)
            topics.update(dict.fromkeys(state.closing.topics, "which ones are late"))
        for origin in _origins_of(rows):
            if isinstance(rows, RankedTable):
                topics.update(dict.fromkeys(origin.source.topics, "which are the first ones"))
            elif origin.deduplication is not None:
                topics.update(dict.fromkeys(origin.source.topics, "which ones are duplicates or late"))
            elif isinstance(origin.source, KeyedJoin):
                topics.update(dict.fromkeys(origin.source.topics, "how often later ones are joined"))
            elif isinstance(origin.source, KeyedOverRows):
                topics.update(dict.fromkeys(origin.source.topics, "the values of window functions at later ones"))
        for (topic, partition), (start, _) in sorted(self._extent.ranges.items()):
            if topic in topics and start > 0:
                yield f"{topic}-{partition} begins at offset {start:,}, and rows before it decide {topics[topic]}"

    def _has_idle_timeout(self, rows: StreamBase) -> bool:
        timeout_ms = int(self._app.config["headrace.watermark.idle.timeout.ms"])
        in_front = _operators_in_front(_origins_of(rows))
        timed = any(
            isinstance(found, KeyedOverRows) or (isinstance(found, KeyedJoin) and found.in_event_time)
            for found in in_front
        )
        return timeout_ms > 0 and (timed or any(True for _ in _closing_states(rows)))

    def _rows(self, origins: Sequence[StreamSource]) -> DataFrame:
        """Return the rows of all origins; with several origins, the columns that they share."""
        return _united([self._origin_rows(origin) for origin in origins])

    def _stream_rows(self, output: Output) -> DataFrame:
        assert isinstance(output.rows, Stream)
        return self._rows(output.rows._origins)


def _united(frames: Sequence[DataFrame]) -> DataFrame:
    return reduce(lambda one, other: one.unionByName(other), frames)


def _least(watermarks_us: Sequence[int | None]) -> int | None:
    """Return the least of the watermarks of several sources; None while one has none."""
    known = [one for one in watermarks_us if one is not None]
    return min(known) if len(known) == len(watermarks_us) else None


def _as_json(actual: DataFrame, outputs: list[Output]) -> tuple[DataFrame, list[Output]]:
    """Return records and outputs as of a JSON topic where values are compared so: formats with a schema, and tables.

    Numbers of tables are compared as numbers: sums of doubles depend on the order of their terms.
    """
    sink = outputs[0].sink
    if not isinstance(sink, TopicSink):
        return actual, outputs
    if sink.typed_key is not None and sink.typed_key.serde is not None:
        kind = outputs[0].rows.schema[sink.typed_key.columns[0]].dataType
        names = kind.names if isinstance(kind, StructType) else ()
        actual = keys_as_json(actual, sink.typed_key, names, JSON_OPTIONS)
    if sink.serde is not None:
        actual = values_as_json(actual, sink.serde, JSON_OPTIONS)
    elif isinstance(outputs[0].rows, KeyedTable) and is_scalar(sink.value_format):
        actual = scalars_as_json(actual, sink.value_format, sink.value_columns[0], JSON_OPTIONS)
    else:
        return actual, outputs
    sinks = [replace(cast("TopicSink", output.sink), value_format="json", serde=None) for output in outputs]
    return actual, [replace(output, sink=sink) for output, sink in zip(outputs, sinks, strict=True)]


def _extent(
    app: ApplicationDeclaration, admin: Admin, sources: Sequence[TopicSource], internal: Sequence[str]
) -> _Extent:
    topics = [topic for source in sources for topic in source.topics]
    known = admin.list_topics()
    for topic in topics:
        if topic not in known:
            raise unknown_topic_error(topic, known, app.bootstrap_servers)
    where = [(topic, partition) for topic in topics for partition in known[topic].partitions]
    first, last = (
        admin.list_offsets(dict.fromkeys(where, "earliest")),
        admin.list_offsets(dict.fromkeys(where, "latest"), isolation_level="read_committed"),
    )
    committed = admin.committed_offsets(app.name)
    ranges: dict[TopicPartition, tuple[int, int]] = {}
    claims: list[str] = []
    waiting = 0
    for place in where:
        start, end = first[place].offset, last[place].offset
        # A committed offset may lie before the log's start (retention) or behind its end (a topic that was created
        # again).
        reached = max(start, min(end, committed.get(place, start)))
        ranges[place] = (start, reached)
        waiting += end - reached
        if start > 0:
            claims.append(
                f"{place[0]}-{place[1]} begins at offset {start:,}: what stood before is gone and was not recomputed"
            )
    if app.auto_offset_reset != "earliest":
        claims.append(
            f'auto_offset_reset="{app.auto_offset_reset}": the application may have begun behind the first records'
        )
    undecided = ""
    if not any(place in committed for place in where):
        undecided = f"{app.name} has committed nothing yet"
    # Rows in a repartition topic are committed by the first subtopology and not yet in any sink.
    behind = _behind(admin, internal, committed)
    if behind:
        undecided = (
            f"{app.name} has {behind:,} records on the way in its internal topics; ask again when it has caught up"
        )
    return _Extent(ranges=ranges, waiting=waiting, undecided=undecided, cannot_claim=tuple(claims))


def _behind(admin: Admin, internal: Sequence[str], committed: Mapping[TopicPartition, int]) -> int:
    known = admin.list_topics()
    places = [(topic, partition) for topic in internal if topic in known for partition in known[topic].partitions]
    if not places:
        return 0
    first, last = (
        admin.list_offsets(dict.fromkeys(places, "earliest")),
        admin.list_offsets(dict.fromkeys(places, "latest")),
    )
    return sum(last[place].offset - max(first[place].offset, committed.get(place, 0)) for place in places)


def _log_ranges(admin: Admin, topic: str) -> dict[TopicPartition, tuple[int, int]]:
    known = admin.list_topics()
    if topic not in known:
        return {}
    places = [(topic, partition) for partition in known[topic].partitions]
    first, last = (
        admin.list_offsets(dict.fromkeys(places, "earliest")),
        admin.list_offsets(dict.fromkeys(places, "latest")),
    )
    return {place: (first[place].offset, last[place].offset) for place in places}


def _show_committed_rows(sink: TableSink, group_id: str) -> None:
    """Publish committed rows that are still waiting for a file, so that the comparison sees them."""
    sink.sink.roll(sink.sink.tasks_of(group_id), int(time.time() * 1000), everything=True)


def _is_readable(sink: Leaving) -> bool:
    if not isinstance(sink, TableSink):
        return isinstance(sink, TopicSink)
    return isinstance(sink.sink, (DatabaseSink, ParquetSink))


def _name(sink: Leaving) -> str:
    return sink.topic if isinstance(sink, TopicSink) else sink.name


def _judged(verdict: SinkVerdict, outputs: Sequence[Output]) -> SinkVerdict:
    """Return the verdict on rows of streams, which compare as texts.

    Sums of doubles depend on the order of their terms. Tables compare within a tolerance; rows that went on as a stream
    cannot, so a difference behind such a sum shows nothing.
    """
    sums = {"sum", "avg", "corr", "stddev_pop", "stddev_samp", "var_pop", "var_samp", "covar_pop", "covar_samp"}
    inexact = any(
        buffer.function in sums and buffer.result_type == '"double"' and buffer.input_type not in _EXACT_TYPES
        for output in outputs
        for state in _closing_states(output.rows)
        if isinstance(state, KeyedAggregate)
        for buffer in state.split.buffers
    )
    if not inexact or verdict.expected != verdict.found or verdict.equal == verdict.expected:
        return verdict
    why = "sums of doubles in closed windows depend on the order of their terms, and some of these rows differ"
    return _undecided(verdict.topic, "stream", why)


def _undecided(topic: str, kind: str, why: str) -> SinkVerdict:
    return SinkVerdict(
        topic=topic, kind="table" if kind == "table" else "stream", expected=0, found=0, equal=0, undecided=why
    )


def _nondeterministic_columns(rows: StreamBase, app: ApplicationDeclaration) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Find the nondeterministic columns of `rows`, which cannot be recomputed.

    Returns:
        The columns that are nondeterministic themselves, and the functions on which more than such a column depends.
    """
    columns: set[str] = set()
    whole: set[str] = set()
    final = set(rows.columns)
    for frame in _frames_of_joins(_origins_of(rows), app):  # which rows meet, and how often, depends on them
        whole |= nondeterministic_functions_of(analysed(frame))
    if isinstance(rows, KeyedTable):
        for origin in rows._state.origins:
            frame = apply_calls(app._template_of_source(origin.source), origin.calls)
            whole |= nondeterministic_functions_of(analysed(frame))
        rows_frames = [rows._template]
    else:
        assert isinstance(rows, Stream)
        for origin in rows._origins:
            if origin.deduplication is not None:  # which rows are duplicates depends on their columns
                whole |= nondeterministic_functions_of(
                    analysed(apply_calls(app._template_of_source(origin.source), origin.calls))
                )
        rows_frames = [origin.apply(app._template_of_source(origin.source)) for origin in rows._origins]
    for frame in rows_frames:
        top = analysed(frame)
        for node in walk(top):
            for expression in sequence(node.expressions()):
                found = nondeterministic_functions(expression)
                if not found:
                    continue
                # Only what the last call itself computes is surely used by nothing else.
                # `withColumn("at", current_timestamp())` as the last call changes one column. Anywhere else a filter or
                # a key may depend on it.
                if node.equals(top) and class_of(expression) == "Alias" and str(expression.name()) in final:
                    columns.add(str(expression.name()))
                else:
                    whole |= found
    return tuple(sorted(columns)), tuple(sorted(whole))


def _origins_of(rows: StreamBase) -> tuple[StreamSource, ...]:
    """Return the ways on which rows come into a stream, or into the aggregate of a table."""
    if isinstance(rows, KeyedTable):
        return rows._state.origins
    assert isinstance(rows, Stream)
    return rows._origins


def _closing_states(rows: StreamBase) -> Iterator[KeyedAggregate | KeyedTopN]:
    """Yield the operators in front of which rows may be late, of those that decide about `rows`."""
    if isinstance(rows, (StreamTable, RankedTable)):
        state = rows._state
        if isinstance(state, (KeyedAggregate, KeyedTopN)) and isinstance(state.closing, ClosingWindows):
            yield state
    for source in _operators_in_front(_origins_of(rows)):
        if isinstance(source, ClosedWindows) and isinstance(source.state.closing, ClosingWindows):
            yield source.state


def _operators_in_front(
    origins: Sequence[StreamSource],
) -> Iterator[KeyedJoin | KeyedOverRows | KeyedTransform | ClosedWindows | TableRows]:
    """Yield what stands between the topics and `origins`, over all levels."""
    for origin in origins:
        if not isinstance(origin.source, TopicSource):
            yield origin.source
            yield from _operators_in_front(origin.source.origins)


def _frames_of_joins(origins: Sequence[StreamSource], app: ApplicationDeclaration) -> Iterator[DataFrame]:
    """Yield a frame of each join, table and closed windows that `origins` come from, and of each way into them."""
    for origin in origins:
        if isinstance(origin.source, (KeyedJoin, TableRows)):
            yield origin.source.frame
        if isinstance(origin.source, (KeyedJoin, KeyedOverRows, TableRows, ClosedWindows)):
            ways = origin.source.origins
            yield from (apply_calls(app._template_of_source(one.source), one.calls) for one in ways)
            yield from _frames_of_joins(ways, app)
