"""Compilation of the declared streams into the `CompiledTopology` that the runtime executes.

There is one subtopology per source, and one per repartitioned aggregate behind it. Sources that share an aggregate
always repartition: a union has no common partitioning otherwise.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias, TypeVar

from pyspark.sql import DataFrame

from headrace.errors import TopologyError
from headrace.spark.analysis.event_time import (
    ClosingWindows,
    KeyedDeduplication,
    RelayedClosing,
    check_out_of_time,
    event_time_text,
    without_watermark,
)
from headrace.spark.analysis.plan_reader import columns_read
from headrace.spark.analysis.session_settings import holds_timestamps, zone_of
from headrace.spark.analysis.stream_union import union_text
from headrace.spark.foreign_key_join import ForeignKeyTopics, KeyedForeignKeyJoin
from headrace.spark.frames import apply_calls, quoted
from headrace.spark.grouped_stream import KeyedAggregate
from headrace.spark.keyed_table import KeyedState, KeyedTable
from headrace.spark.ranked_stream import KeyedTopN
from headrace.spark.runtime.operators.partial_results import merges_partials, partial_columns
from headrace.spark.stream import Stream
from headrace.spark.stream_base import StreamBase, StreamSource
from headrace.spark.stream_source import (
    ClosedWindows,
    JoinedSide,
    KeyedJoin,
    KeyedOverRows,
    KeyedTransform,
    RowSource,
    TableRows,
)
from headrace.spark.table_join_reader import KeyedTableJoin
from headrace.spark.topology.nodes import (
    CHANGE_COLUMN,
    EVENT_TIME_COLUMN,
    HIDDEN_PREFIX,
    JOIN_COLUMNS,
    JOIN_SIDES,
    WINDOW_TYPE,
    Aggregate,
    Branch,
    CompiledSubtopology,
    CompiledTopology,
    Deduplication,
    ErrorPolicy,
    ForeignKeyJoin,
    Join,
    JoinSide,
    Leaving,
    ProjectForGroup,
    RelayedWatermark,
    RepartitionSink,
    RepartitionSource,
    SessionWindow,
    Subscriptions,
    TableAggregate,
    TableJoin,
    TableSink,
    TimeBound,
    TimeOrder,
    TopicSink,
    TopicSource,
    Watermark,
    WindowedAggregate,
    WindowedTopN,
    WindowKind,
    window_parts,
)
from headrace.spark.unsupported import needs_exactly_once, refusal

_KEY, _TIME = f"{HIDDEN_PREFIX}key_value", f"{HIDDEN_PREFIX}operand"  # stored columns of a join that no result has

Closing = TypeVar("Closing", bound="WindowedAggregate | WindowedTopN")
StoredState: TypeAlias = KeyedState | KeyedDeduplication | KeyedJoin | KeyedOverRows | KeyedTransform


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """One sink together with the rows that are written to it."""

    rows: StreamBase
    sink: Leaving


def _common_policy(policies: list[ErrorPolicy]) -> ErrorPolicy:
    """Return the `on_error` policy for a topic that several streams write: the common one, or the strictest of them."""
    return policies[0] if all(policy == policies[0] for policy in policies) else "fail"


def _with_partials(
    carried: RepartitionSink, behind: Branch, projection: ProjectForGroup, on_error: ErrorPolicy
) -> tuple[RepartitionSink, Branch]:
    """Return the sink with partial results in place of rows, and the branch that reads them, if they can be merged.

    The format of the topic does not depend on `on_error`, so that a policy can be changed without another topic. Where
    bad records are passed over one by one, each record is made of one row.
    """
    aggregate = behind.operator if behind.closed is None else behind.closed
    if not merges_partials(aggregate):
        return carried, behind
    columns, expressions = partial_columns(aggregate, projection, carried.expressions)
    sink = replace(
        carried,
        columns=columns,
        expressions=expressions,
        partials_of=aggregate,
        row_columns=projection.columns,
        combines=on_error == "fail",
    )
    merging = replace(aggregate, takes_partials=True)
    if behind.closed is None:
        return sink, replace(behind, operator=merging)
    assert isinstance(merging, WindowedAggregate)
    return sink, replace(behind, closed=merging)


def _policy(source: RowSource) -> ErrorPolicy:
    """Return the `on_error` policy for rows of a source. A row of an operator is no single record to pass over."""
    return source.on_error if isinstance(source, TopicSource) else "fail"


def check_new_output(outputs: Sequence[Output], new: Output) -> None:
    """Refuse outputs that conflict within one application.

    Raises:
        TopologyError: if a sink or state name is used twice, or a table would have a second output.
    """
    if isinstance(new.sink, TableSink):
        _check_new_table(outputs, new.sink)
    states = list(_states(new.rows))
    for at, state in enumerate(states):
        if state in states[:at]:
            raise refusal(
                "not-supported-here",
                f'the rows of "{state.name}" come twice into these rows; a second way is not supported yet',
                "write the rows to a topic with to_topic, and read that with app.stream",
                new.sink.where,
            )
        twin = next((other for other in states[:at] if other.name == state.name), None)
        if twin is not None:
            raise _state_twice(twin, new.sink, state, new.sink)
        if isinstance(state, KeyedDeduplication) and not isinstance(new.sink, TopicSink):
            raise refusal(
                "not-supported-here",
                "dropDuplicatesWithinWatermark in front of anything but a topic is not supported yet",
                "write the rows to a topic with to_topic, and read that with app.stream",
                new.sink.where,
            )
        for known in outputs:
            for other in _states(known.rows):
                if other.name == state.name:
                    raise _state_twice(state, new.sink, other, known.sink)


def check_guarantee(new: Output) -> None:
    """Refuse operators that could lose rows at least once, where a micro-batch that failed leaves its changes behind.

    When the driver dies, the changelog may hold changes whose results were not written yet. Records that are processed
    again then look like duplicates, like rows of a closed window, or like rows that are among the first ones already:
    their results would never be written. What a processor of the user makes of them is not known. A plain aggregate
    counts such records twice, a join repeats its pairs.

    Raises:
        TopologyError: not-supported-here.
    """
    if isinstance(new.rows, KeyedTable) and new.rows._changes:
        raise needs_exactly_once(
            f'a filter behind "{new.rows._state.name}" needs exactly once: after a failure, at least once could leave '
            "rows in the topic that do not pass it",
            new.sink.where,
        )
    for state in _states(new.rows):
        if isinstance(state, KeyedAggregate) and state.tables:
            raise needs_exactly_once(
                f'an aggregate of a table needs exactly once ("{state.name}"): after a failure, at least once could '
                "take a row back twice",
                state.where,
            )
        if isinstance(state, KeyedTableJoin):
            raise needs_exactly_once(
                f'{state.noun} needs exactly once ("{state.name}"): after a failure, at least once could leave rows in '
                "the topic whose deletion was lost",
                state.where,
            )
        if isinstance(state, KeyedJoin) and not state.in_event_time:
            continue
        if isinstance(state, KeyedAggregate) and state.closing is None:
            continue
        what = "windows that close need" if isinstance(state, KeyedAggregate) else f"{state.noun} needs"
        if isinstance(state, KeyedJoin):
            what = "a join in event time needs"
        raise needs_exactly_once(
            f'{what} exactly once ("{state.name}"): after a failure, at least once could lose rows',
            state.where,
        )


def _states(rows: StreamBase) -> Iterator[StoredState]:
    """Yield what `rows` keep in stores, those of the joins that they come from included."""
    if isinstance(rows, KeyedTable):
        yield rows._state
        yield from _states_of_origins(rows._state.origins)
    else:
        assert isinstance(rows, Stream)
        yield from _states_of_origins(rows._origins)


def _states_of_origins(origins: Sequence[StreamSource]) -> Iterator[StoredState]:
    for origin in origins:
        if origin.deduplication is not None:
            yield origin.deduplication
        if not isinstance(origin.source, TopicSource):
            # An operator that feeds another one has a store as well, so names are compared over all levels.
            yield origin.source.state if isinstance(origin.source, (ClosedWindows, TableRows)) else origin.source
            yield from _states_of_origins(origin.source.origins)


def _state_twice(state: StoredState, sink: Leaving, other: StoredState, other_sink: Leaving) -> TopologyError:
    """Return the refusal of two stores of one name."""
    if state is other:
        rows = (
            "stream" if isinstance(state, (KeyedDeduplication, KeyedJoin, KeyedOverRows, KeyedTransform)) else "table"
        )
        return refusal(
            "not-supported-here",
            f'the {rows} "{state.name}" already leaves at {other_sink.where.rpartition("/")[2]}; '
            "a second way out comes in a later release",
            f"write {_naming(state, '..')} once more for the second topic, or read the first topic",
            sink.where,
        )
    noun = state.noun.partition(" ")[2].removesuffix(" of two streams")
    both = (
        f"two {noun}s" if type(state) is type(other) else " and ".join(sorted((state.noun, other.noun), key=_noun_only))
    )
    return refusal(
        "state-name-taken",
        f'{both} are called "{state.name}"; their state would share one store and one changelog',
        f"name one of them: {_naming(state, f'{state.name}-2')}",
        state.where,
        why=f"the other: {other.where}",
    )


def _naming(state: StoredState, name: str) -> str:
    """Return the call that gives a store a name."""
    # The store of window functions is called after their first column.
    if isinstance(state, KeyedOverRows):
        return f"{state.naming_call}('{state.windows.names[0]}2', ..)"
    return f"{state.naming_call}(.., name='{name}')"


def _noun_only(text: str) -> str:
    return text.rpartition(" ")[2]


def _check_new_table(outputs: Sequence[Output], new: TableSink) -> None:
    for known in outputs:
        if not isinstance(known.sink, TableSink):
            continue
        # A place has its own name besides the one that the user may give the sink.
        if {new.name, str(new.sink.name)} & {known.sink.name, str(known.sink.sink.name)}:
            raise refusal(
                "sink-name-taken",
                f'two outputs write to "{new.name}"; their positions would be mixed up',
                "unionByName the two streams, or write to two places",
                new.where,
                why=f"the other: {known.sink.where}",
            )


def compile_outputs(
    app_name: str,
    outputs: Sequence[Output],
    template_of_source: Callable[[RowSource], DataFrame],
    *,
    where: str,
    max_ahead_ms: int,
    idle_timeout_ms: int = 0,
) -> CompiledTopology:
    """Return the topology of an application with these outputs.

    Args:
        app_name: prefix of the internal topics.
        outputs: what leaves the application, in the order of the program.
        template_of_source: an empty frame with the columns that a source's rows have.
        where: the line of the user's program that an error without a better place names.
        max_ahead_ms: by how much an event time may exceed its record's timestamp and still move the watermark.
        idle_timeout_ms: after which a silent upstream task does not hold back windows any more; 0: never.

    Raises:
        TopologyError: nothing leaves the application, or two of its parts share a name.
    """
    if not outputs:
        raise refusal(
            "nothing-to-do",
            f"{app_name} writes nowhere",
            "end a stream with .to_topic(..), .to_parquet(..) or .foreachBatch(..)",
            where,
        )
    # Plain data from here on: nothing behind this function knows a Stream.
    building = _Building(app_name, template_of_source, max_ahead_ms, idle_timeout_ms)
    for output in outputs:
        building.add(output)
    return building.finished()


class _Building:
    def __init__(
        self,
        app_name: str,
        template_of_source: Callable[[RowSource], DataFrame],
        max_ahead_ms: int,
        idle_timeout_ms: int,
    ) -> None:
        self._app_name, self._template_of_source = app_name, template_of_source
        self._max_ahead_ms, self._idle_timeout_ms = max_ahead_ms, idle_timeout_ms
        self._sources: dict[str, TopicSource] = {}
        self._needed: dict[str, dict[str, None]] = {}
        self._branches: dict[str, list[Branch]] = {}
        self._behind: dict[str, CompiledSubtopology] = {}
        self._subscriptions: list[Subscriptions] = []

    def add(self, output: Output) -> None:
        if isinstance(output.rows, KeyedTable):
            self._add_table(output.rows, output.sink)
            return
        assert isinstance(output.rows, Stream)
        for origin in output.rows._origins:
            branch = Branch(
                source_index=0,
                # The event time is a column that only operators read; without one it would be carried through every
                # stage for nothing.
                before=origin.calls if origin.deduplication is not None else without_watermark(origin.calls),
                deduplication=None if origin.deduplication is None else self._deduplication(origin.deduplication),
                between=origin.later,
                sink=output.sink,
            )
            self._add_branch(origin, branch, self._hidden_columns_read(origin, output))

    def _add_table(self, table: KeyedTable, sink: Leaving) -> None:
        if table._drops_rows and isinstance(sink, TopicSink):
            # The key is that of the groups (`_check_key_is_kept`), and a row that is gone has no other columns.
            sink = replace(sink, key_columns=None)
        branch = Branch(source_index=0, after=table._calls, sink=sink)
        self._add_operator(table._state, table._changes, branch)

    def _add_operator(self, declared: KeyedState, changes: str, behind: Branch) -> None:
        """Add an operator with keys, and what its rows come from.

        Args:
            declared: The operator.
            changes: Canonical text of what is done with rows of changes; empty: rows are the newest of their keys.
            behind: The way of its rows, without the operator.
        """
        operator = declared.node(self._internal(declared.name, "changelog"))
        if changes and isinstance(operator, (Aggregate, TableJoin)):
            operator = replace(operator, changes=f"{operator.changes} {changes}".lstrip())
        if isinstance(operator, (WindowedAggregate, WindowedTopN)):
            # A session that grows has another key. Only the records of a topic can say that the one before is gone, so
            # any other sink gets sessions that have closed.
            only_closed = isinstance(operator.window, SessionWindow)
            appends = behind.sink.output_mode == "append" if isinstance(behind.sink, TopicSink) else only_closed
            operator = self._closing(operator, appends=appends)
        branch = replace(behind, operator=operator)
        if isinstance(declared, KeyedForeignKeyJoin):
            self._add_foreign_key_join(declared, branch)
        elif isinstance(declared, KeyedTableJoin):
            self._add_table_join(declared, branch)
        else:
            self._add_keyed(declared, branch)

    def _add_closed(self, declared: ClosedWindows, branch: Branch) -> None:
        """Add the subtopologies of an aggregate whose closed windows are the source of `branch`."""
        # Always behind a repartition topic: an operator with keys that follows is then the only one of its task.
        aggregate = replace(declared.state, repartitioned=True)
        operator = aggregate.node(self._internal(aggregate.name, "changelog"))
        assert isinstance(operator, WindowedAggregate)
        self._add_keyed(aggregate, replace(branch, closed=self._closing(operator, appends=True)))

    def _add_keyed(self, declared: KeyedState, behind: Branch) -> None:
        """Add the branches that lead to an operator with keys, and the branch `behind`, which begins with it."""
        name, projection = declared.name, _group_projection(declared.origins, declared.projection)
        texts = self._texts_behind_union(declared.origins, projection, getattr(declared, "closing", None))
        has_watermarks = False
        on_error = _common_policy([_policy(origin.source) for origin in declared.origins])
        carried = RepartitionSink(
            topic=self._internal(name, "repartition"), columns=projection.columns, expressions=texts
        )
        if declared.repartitioned:
            carried, behind = _with_partials(carried, behind, projection, on_error)
        for origin in declared.origins:
            if isinstance(origin.source, TableRows):
                self._add_table_rows(declared, origin)
                continue
            # The columns that the grouping reads are found on the template of each source by itself: Spark's optimiser
            # drops the others.
            frame = apply_calls(self._template_of_source(origin.source), origin.calls)
            watermark = self._watermark(declared, origin)
            has_watermarks = has_watermarks or watermark is not None
            # Not one of the columns of `projection`, but the clock behind it reads it.
            clock = watermark if isinstance(watermark, Watermark) else None
            event_time = (EVENT_TIME_COLUMN,) if clock is not None else ()
            projected = frame.selectExpr(
                *(f"{sql} as {column}" for column, sql in projection.key_sql + projection.input_sql), *event_time
            )
            needed = columns_read(projected)
            before = origin.calls if clock is not None else without_watermark(origin.calls)
            if declared.repartitioned:
                topics = self._upstream_topics(watermark, origin)
                leaving = replace(carried, watermark=watermark, source_topics=topics)
                branch = Branch(source_index=0, before=before, projection=projection, watermark=clock, sink=leaving)
            else:
                branch = replace(behind, before=before, projection=projection, watermark=clock)
            self._add_branch(origin, branch, needed)
        # Two subtopologies: the one of the source ends in the repartition topic, the one behind it has the store.
        if declared.repartitioned:
            of_table = behind.closed is None and isinstance(behind.operator, TableAggregate)
            source = RepartitionSource(
                topic=carried.topic,
                columns=_change_columns(projection) if of_table else carried.columns,
                expressions=_change_texts(projection) if of_table else carried.expressions,
                on_error=on_error,
                origins=tuple(sorted({topic for origin in declared.origins for topic in origin.source.topics})),
                has_watermarks=has_watermarks,
            )
            self._behind[name] = CompiledSubtopology(subtopology_id=name, sources=(source,), branches=(behind,))

    def _add_table_join(self, declared: KeyedTableJoin, behind: Branch) -> None:
        """Add the subtopology of a join of two tables, which begins with its operator, and both tables."""
        join = behind.operator
        assert isinstance(join, TableJoin)
        topic = self._internal(declared.name, "repartition")
        groups = tuple((f"g{at}", kind) for at, (_, kind) in enumerate(join.group_columns))
        columns = (*groups, *JOIN_COLUMNS)
        keys = zip(join.left.key_expressions, join.right.key_expressions, strict=True)
        # The bytes of a row are those of the store, so all that the store is identified by belongs to its text.
        rows = (
            f"row of ({', '.join(join.left.expressions)}) or ({', '.join(join.right.expressions)}) by {declared.text}"
        )
        expressions = (*(f"{left} = {right}" for left, right in keys), "side", rows)
        for number, (origin, projection) in enumerate(zip(declared.origins, declared.projections, strict=True)):
            sink = RepartitionSink(
                topic=topic,
                columns=columns,
                expressions=expressions,
                takes_changes=True,
                table_join=join,
                join_side=number,
            )
            self._add_changes(declared, origin, projection, sink)
        source = RepartitionSource(
            topic=topic,
            columns=columns,
            expressions=expressions,
            origins=tuple(sorted({name for origin in declared.origins for name in origin.source.topics})),
        )
        self._behind[declared.name] = CompiledSubtopology(
            subtopology_id=declared.name, sources=(source,), branches=(behind,)
        )

    def _add_foreign_key_join(self, declared: KeyedForeignKeyJoin, behind: Branch) -> None:
        """Add the subtopologies of a foreign-key join, of which the last begins with its operator, and both tables."""
        join = behind.operator
        assert isinstance(join, ForeignKeyJoin)
        topics = ForeignKeyTopics(declared, join, self._internal)
        for origin, projection, sink in zip(declared.origins, declared.projections, topics.sinks(), strict=True):
            self._add_changes(declared, origin, projection, sink)
        for part in topics.subtopologies(behind):
            self._behind[part.subtopology_id] = part
        self._subscriptions.append(topics.subscriptions)

    def _add_table_rows(self, declared: KeyedState, origin: StreamSource) -> None:
        """Add the table that an aggregate takes the rows of: it writes the aggregate's repartition topic."""
        projection = _group_projection(declared.origins, declared.projection)
        sink = RepartitionSink(
            topic=self._internal(declared.name, "repartition"),
            columns=_change_columns(projection),
            expressions=_change_texts(projection),
            takes_changes=True,
        )
        self._add_changes(declared, origin, projection, sink)

    def _add_changes(
        self, declared: KeyedState, origin: StreamSource, projection: ProjectForGroup, sink: RepartitionSink
    ) -> None:
        """Add the table whose changes go to `sink` by `projection`."""
        rows = origin.source
        assert isinstance(rows, TableRows)
        # The same expressions take back the values that a row added. They belong to the identity of the table's own
        # rows as well: the state of another aggregate behind it lacks what these rows have added.
        changes = f"to {declared.name}: {', '.join(projection.expressions)} of {rows.text}"
        # Projections that only rename are done without Spark SQL, and then the calls in front of them are not needed.
        after = () if projection.bare else (*rows.calls, *origin.calls)
        branch = Branch(source_index=0, after=after, onward=projection, sink=sink)
        self._add_operator(rows.state, changes, branch)

    def _upstream_topics(self, watermark: Watermark | RelayedWatermark | None, origin: StreamSource) -> tuple[str, ...]:
        """Return the topics whose partitions are the tasks that send `watermark`."""
        if watermark is None:
            return ()
        if isinstance(watermark, RelayedWatermark):
            return (self._internal(watermark.name, "repartition"),)
        return origin.source.topics

    def _closing(self, node: Closing, *, appends: bool) -> Closing:
        """Return an operator whose windows close with what its output and the settings say about closing."""
        return replace(node, output_mode="append" if appends else "update", idle_timeout_ms=self._idle_timeout_ms)

    def _watermark(self, declared: KeyedState, origin: StreamSource) -> Watermark | RelayedWatermark | None:
        """Return the clock on a way into an operator whose windows close, or the one that its source has."""
        # Windows without a watermark never close, and need no clock.
        if not isinstance(declared, (KeyedAggregate, KeyedTopN)) or declared.closing is None:
            return None
        closing, window = declared.closing, declared.time_window
        if isinstance(closing, RelayedClosing):
            return RelayedWatermark(name=closing.source)
        assert window is not None
        return self._clock(declared.watermark_name, closing, origin, window, declared.where)

    def _clock(
        self,
        name: str,
        closing: ClosingWindows,
        origin: StreamSource,
        window: WindowKind | None,
        where: str,
        side: str = "",
    ) -> Watermark:
        """Return the clock on a way into an operator.

        Args:
            name: Of its store, without the source's name, which the ways of a union add.
            closing: What the program declared.
            origin: The way.
            window: That rows are late for; None: rows older than the watermark are late.
            where: "file:line" of the operator.
            side: Of a join that the way leads into.
        """
        assert isinstance(origin.source, TopicSource)  # no watermark comes through an operator
        [clock] = [one for one in closing.clocks if one.source == origin.source.name]
        event_time = closing.event_time_expression
        if len(closing.clocks) > 1:
            name = f"{name}-{clock.source}"
            event_time = event_time_text(apply_calls(self._template_of_source(origin.source), origin.calls))
        return Watermark(
            name=name,
            source=_clock_name(closing, clock.source, side),
            window=window,
            event_time_expression=event_time,
            delay_us=clock.delay_us,
            max_ahead_us=self._max_ahead_ms * 1000,
            announces_each_batch=self._idle_timeout_ms > 0,
            out_of_time=clock.out_of_time,
            changelog_topic=self._internal(name, "changelog"),
            where=where,
        )

    def _texts_behind_union(
        self,
        origins: Sequence[StreamSource],
        projection: ProjectForGroup,
        closing: ClosingWindows | RelayedClosing | None,
    ) -> tuple[str, ...]:
        """Return the canonical texts of a projection. Behind a union in event time, the first one names the union."""
        texts = projection.expressions
        if not isinstance(closing, ClosingWindows) or len(closing.clocks) == 1:
            return texts
        return (f"{texts[0]} of a {union_text(origins, projection, self._template_of_source)}", *texts[1:])

    def _deduplication(self, declared: KeyedDeduplication) -> Deduplication:
        return Deduplication(
            name=declared.name,
            key_columns=declared.key_columns,
            key_expressions=declared.key_expressions,
            event_time_expression=declared.event_time_expression,
            delay_us=declared.delay_us,
            max_ahead_us=self._max_ahead_ms * 1000,
            out_of_time=declared.out_of_time,
            changelog_topic=self._internal(declared.name, "changelog"),
            where=declared.where,
        )

    def _internal(self, name: str, kind: str) -> str:
        return f"{self._app_name}-{name}-{kind}"

    def _hidden_columns_read(self, origin: StreamSource, output: Output) -> tuple[str, ...]:
        """Return the hidden columns that the sink reads.

        `_kafka` is one of them only if the user's own columns are computed from it.
        """
        template = self._template_of_source(origin.source)
        wanted = columns_read(origin.apply(template).select(*map(quoted, output.rows.columns)))
        if origin.deduplication is None:
            return wanted
        keys = [quoted(name) for name, _ in origin.deduplication.key_columns]
        return (*wanted, *columns_read(apply_calls(template, origin.calls).select(*keys, EVENT_TIME_COLUMN)))

    def _add_branch(self, origin: StreamSource, branch: Branch, needed: tuple[str, ...]) -> None:
        if isinstance(origin.source, KeyedJoin):
            self._add_join(origin.source, branch, needed)
            return
        if isinstance(origin.source, KeyedTransform):
            self._add_transform(origin.source, branch)
            return
        if isinstance(origin.source, KeyedOverRows):
            self._add_over_rows(origin.source, branch)
            return
        if isinstance(origin.source, ClosedWindows):
            self._add_closed(origin.source, branch)
            return
        assert isinstance(origin.source, TopicSource)  # a table has no branch in front of it: see `_add_changes`
        name = origin.source.name
        self._check_zone(origin.source)
        self._sources[name] = origin.source
        self._branches.setdefault(name, []).append(branch)
        self._needed.setdefault(name, {}).update(dict.fromkeys(c for c in needed if not c.startswith(HIDDEN_PREFIX)))

    def _check_zone(self, source: TopicSource) -> None:
        """Refuse a time zone that was set behind `app.stream`: identities of stored times would name the wrong one."""
        if not holds_timestamps(source.schema_json):
            return
        zone = zone_of(self._template_of_source(source).sparkSession)
        if zone != source.time_zone:
            raise refusal(
                "not-supported-here",
                f'timestamps of "{source.name}" are read in {source.time_zone}, but the session is in {zone} now',
                "set spark.sql.session.timeZone in front of app.stream, and leave it",
                source.where,
            )

    def _add_join(self, declared: KeyedJoin, branch: Branch, needed: tuple[str, ...]) -> None:
        """Add the subtopology of a join that ends in `branch`, which reads the columns `needed`, and both sides."""
        if declared.is_distinct:  # rows are compared by all columns, whether they are needed later or not
            needed = tuple(field.name for field in declared.schema)
        left, right = (_join_side(side, needed, declared.key_types) for side in declared.sides)
        join = Join(
            name=declared.name,
            key_types=declared.key_types,
            left=left,
            right=right,
            columns=tuple((field.name, field.dataType.json()) for field in declared.schema),
            changelog_topic=self._internal(declared.name, "changelog"),
            kind=declared.kind,
            in_event_time=declared.in_event_time,
            watermark_sources=(_sources_of_side(declared, 0), _sources_of_side(declared, 1)),
            orders=tuple(_order(declared, (left, right), *order) for order in declared.orders),
            is_distinct=declared.is_distinct,
            is_versioned=declared.is_versioned,
            idle_timeout_ms=self._idle_timeout_ms if declared.in_event_time else 0,
            where=declared.where,
        )
        topic, projections = self._internal(declared.name, "repartition"), []
        text = _text_of(join)
        for number, side in enumerate(declared.sides):
            projections.append(_side_projection(side, join, number, bare=all(not one.calls for one in side.origins)))
            if isinstance(side.clock, ClosingWindows) and len(side.clock.clocks) > 1:
                union = union_text(side.origins, projections[-1], self._template_of_source)
                text += f", {JOIN_SIDES[number]} a {union}"
        expressions = ("side", text)
        for number, (side, projection) in enumerate(zip(declared.sides, projections, strict=True)):
            # Each stream of a side ends in the join's topic. A side may itself be a join, hence the recursion of
            # `_add_branch`.
            for origin in side.origins:
                watermark = self._watermark_of_side(declared, number, origin)
                clock = watermark if isinstance(watermark, Watermark) else None
                sink = RepartitionSink(
                    topic=topic,
                    columns=JOIN_COLUMNS,
                    expressions=expressions,
                    watermark=watermark,
                    source_topics=self._upstream_topics(watermark, origin),
                    join=join,
                    join_side=number,
                )
                frame = apply_calls(self._template_of_source(origin.source), origin.calls)
                event_time = (EVENT_TIME_COLUMN,) if clock is not None else ()
                projected = frame.selectExpr(
                    *(f"{sql} as {column}" for column, sql in projection.key_sql + projection.input_sql), *event_time
                )
                into_join = Branch(
                    source_index=0, before=origin.calls, projection=projection, watermark=clock, sink=sink
                )
                self._add_branch(origin, into_join, columns_read(projected))
        source = RepartitionSource(
            topic=topic,
            columns=JOIN_COLUMNS,
            expressions=expressions,
            on_error="fail",
            origins=declared.topics,
            has_watermarks=declared.in_event_time,
        )
        self._behind[declared.name] = CompiledSubtopology(
            subtopology_id=declared.name, sources=(source,), branches=(replace(branch, join=join),)
        )

    def _add_transform(self, declared: KeyedTransform, branch: Branch) -> None:
        """Add the subtopology of a processor that ends in `branch`, and the branches that feed it."""
        source = self._repartitioned(declared, _group_projection(declared.origins, declared.projection))
        transform = declared.node(self._internal(declared.name, "changelog"), self._idle_timeout_ms)
        self._behind[declared.name] = CompiledSubtopology(
            subtopology_id=declared.name, sources=(source,), branches=(replace(branch, transform=transform),)
        )

    def _add_over_rows(self, declared: KeyedOverRows, branch: Branch) -> None:
        """Add the subtopology of window functions that ends in `branch`, and the branches that feed it."""
        source = self._repartitioned(declared, _group_projection(declared.origins, declared.windows.projection))
        over = declared.node(self._internal(declared.name, "changelog"), self._idle_timeout_ms)
        self._behind[declared.name] = CompiledSubtopology(
            subtopology_id=declared.name, sources=(source,), branches=(replace(branch, over=over),)
        )

    def _repartitioned(
        self, declared: KeyedTransform | KeyedOverRows, projection: ProjectForGroup
    ) -> RepartitionSource:
        """Add the branches that feed an operator on rows, and return the source that it reads them from."""
        topic = self._internal(declared.name, "repartition")
        texts = self._texts_behind_union(declared.origins, projection, declared.clock)
        event_time = (EVENT_TIME_COLUMN,) if declared.clock is not None else ()
        for origin in declared.origins:
            watermark = self._watermark_in_front(declared, origin)
            sink = RepartitionSink(
                topic=topic,
                columns=projection.columns,
                expressions=texts,
                watermark=watermark,
                source_topics=self._upstream_topics(watermark, origin),
            )
            frame = apply_calls(self._template_of_source(origin.source), origin.calls)
            projected = frame.selectExpr(
                *(f"{sql} as {column}" for column, sql in projection.key_sql + projection.input_sql), *event_time
            )
            before = origin.calls if watermark is not None else without_watermark(origin.calls)
            feeding = Branch(source_index=0, before=before, projection=projection, watermark=watermark, sink=sink)
            self._add_branch(origin, feeding, columns_read(projected))
        return RepartitionSource(
            topic=topic,
            columns=projection.columns,
            expressions=texts,
            on_error="fail",
            origins=declared.topics,
            # Records that start a micro-batch for timers of processing time look like watermarks.
            has_watermarks=declared.clock is not None
            or (isinstance(declared, KeyedTransform) and declared.time_mode == "processingTime"),
        )

    def _watermark_of_side(
        self, declared: KeyedJoin, number: int, origin: StreamSource
    ) -> Watermark | RelayedWatermark | None:
        """Return the clock on a way into one side of a join, or the one that its closed windows have."""
        clock, side = declared.sides[number].clock, JOIN_SIDES[number]
        if clock is None:
            return None
        if isinstance(clock, RelayedClosing):
            return RelayedWatermark(name=clock.source, side=side)
        return self._clock(f"{declared.name}-{side}-watermark", clock, origin, None, declared.where, side)

    def _watermark_in_front(self, declared: KeyedTransform | KeyedOverRows, origin: StreamSource) -> Watermark | None:
        """Return the clock on a way into a processor with timers of event time, or into window functions."""
        if declared.clock is None:
            return None
        return self._clock(f"{declared.name}-watermark", declared.clock, origin, None, declared.where)

    def finished(self) -> CompiledTopology:
        parts: dict[str, CompiledSubtopology] = {}
        for name, source in self._sources.items():
            # In the order of the source's columns, not of their use, so that a reordered program compiles to the same
            # topology.
            order = [*self._template_of_source(source).columns]
            needed = tuple(column for column in order if column in self._needed[name])
            check_out_of_time(source, self._branches[name], idle_timeout_ms=self._idle_timeout_ms)
            parts[name] = CompiledSubtopology(
                subtopology_id=name,
                sources=(replace(source, columns_needed=needed),),
                branches=tuple(self._branches[name]),
            )
        for name, part in self._behind.items():
            if name in parts:
                state = part.branches[0].head or part.operators[0]
                raise refusal(
                    "state-name-taken",
                    f'a source and the state of an operator are both called "{name}"',
                    "name the source: app.stream(.., name='..'), or the state: agg(.., name='..'), join(.., name='..')",
                    state.where,
                )
            parts[name] = part
        self._check_subscriptions(list(parts.values()))
        return CompiledTopology(app_name=self._app_name, subtopologies=tuple(parts[name] for name in sorted(parts)))

    def _check_subscriptions(self, parts: Sequence[CompiledSubtopology]) -> None:
        """Refuse a state of the user with the name of the second store of a foreign-key join."""
        for mine in self._subscriptions:
            topics = [topic for part in parts for topic in part.changelog_topics if topic == mine.changelog_topic]
            found = [part for part in parts if part.subtopology_id == mine.name and part.branches[0].head == mine]
            if len(topics) != 1 or not found:
                raise refusal(
                    "state-name-taken",
                    f'a source or the state of another operator is called "{mine.name}", as the second store of the '
                    f'join "{mine.join.name}"',
                    "name one of them: join(.., name='..')",
                    mine.where,
                )


def _clock_name(closing: ClosingWindows, source: str, side: str) -> str:
    """Return the name by which the operator behind a clock knows its watermarks."""
    if not side:
        return source
    return side if len(closing.clocks) == 1 else f"{side} {source}"


def _sources_of_side(declared: KeyedJoin, number: int) -> tuple[str, ...]:
    """Return by whose watermarks the rows of a side are known to be complete."""
    clock, side = declared.sides[number].clock, JOIN_SIDES[number]
    if not isinstance(clock, ClosingWindows):
        return (side,)
    return tuple(_clock_name(clock, source, side) for source in clock.sources)


def _change_columns(projection: ProjectForGroup) -> tuple[tuple[str, str], ...]:
    """Return the columns of changes in a repartition topic: groups, inputs of the new row and of the old one."""
    inputs = [(name, kind) for name, kind in projection.columns if name.startswith("i")]
    return (*projection.columns, *((f"o{name[1:]}", kind) for name, kind in inputs), CHANGE_COLUMN)


def _change_texts(projection: ProjectForGroup) -> tuple[str, ...]:
    """Return the canonical text of each of these columns."""
    inputs = projection.expressions[len(projection.key_sql) :]
    return (*projection.expressions, *(f"old {text}" for text in inputs), CHANGE_COLUMN[0])


def _group_projection(origins: Sequence[StreamSource], projection: ProjectForGroup) -> ProjectForGroup:
    """Return the projection in front of an operator behind these ways."""
    # A union's template has a leaf of its own: its columns are no source's, so every origin goes through Spark SQL.
    return projection if len(origins) == 1 else replace(projection, bare=False, source_columns=())


def _join_side(side: JoinedSide, needed: Sequence[str], key_types: Sequence[str]) -> JoinSide:
    """Return the columns of a side that are kept: those needed, and one at least, since a row has to have one.

    They are ordered by their canonical text, so that no order of the program is stored.
    """
    columns = sorted(zip(side.columns, side.expressions, strict=True), key=lambda pair: (pair[1], pair[0]))
    kept = [pair for pair in columns if pair[0][0] in needed]
    if not kept and not side.operands:
        # A side of which the result has no column, as a right side that consists of the names it is joined on, keeps
        # its key.
        kept = columns[:1] or [((_KEY, key_types[0]), side.key_expressions[0])]
    of_columns = JoinSide(
        columns=tuple(column for column, _ in kept),
        expressions=tuple(text for _, text in kept),
        key_expressions=side.key_expressions,
    )
    names = [_stored_name(side, of_columns, at) for at in range(len(side.operands))]
    return replace(
        of_columns,
        times=tuple(
            (names[at], operand.text) for at, operand in enumerate(side.operands) if names[at] == f"{_TIME}{at}"
        ),
        bounds=tuple(TimeBound(column=names[at], shift_us=shift_us) for at, shift_us in side.bounds),
    )


def _stored_name(side: JoinedSide, kept: JoinSide, operand: int) -> str:
    """Return the stored column that is an operand of the condition: one of the kept columns, or a column of its own."""
    column = side.operands[operand].column
    return column if column in dict(kept.stored_columns) and column is not None else f"{_TIME}{operand}"


def _order(
    declared: KeyedJoin, sides: tuple[JoinSide, JoinSide], side: int, earlier: int, later: int, is_strict: bool
) -> TimeOrder:
    names = [
        _stored_name(declared.sides[number], sides[number], operand)
        for number, operand in ((side, earlier), (1 - side, later))
    ]
    return TimeOrder(side=side, earlier=names[0], later=names[1], is_strict=is_strict)


def _side_projection(side: JoinedSide, join: Join, number: int, *, bare: bool) -> ProjectForGroup:
    """Return the projection of a side's rows to its keys and the columns that are kept.

    Args:
        side: The side.
        join: The compiled join.
        number: 0 for the left side, 1 for the right one.
        bare: Whether no call stands between the source and the join.
    """
    kept = join.sides[number].stored_columns
    sql_of = {name: quoted(name) for name, _ in side.columns}
    for name, kind in side.columns:
        if kind == WINDOW_TYPE:
            parts = zip(window_parts(name), ("start", "end"), strict=True)
            sql_of.update((part, f"{quoted(name)}.`{field}`") for part, field in parts)
    sql_of.update((f"{_TIME}{at}", operand.sql) for at, operand in enumerate(side.operands))
    sql_of[_KEY] = side.key_sql[0]
    key_sql = tuple((f"g{at}", sql) for at, sql in enumerate(side.key_sql))
    input_sql = tuple((f"i{at}", sql_of[name]) for at, (name, _) in enumerate(kept))
    columns = tuple((f"g{at}", kind) for at, kind in enumerate(join.key_types))
    columns += tuple((f"i{at}", kind) for at, (_, kind) in enumerate(kept))
    keys = tuple((f"g{at}", column) for at, column in enumerate(side.key_columns) if column is not None)
    bare = bare and len(keys) == len(key_sql)
    inputs = [(f"i{at}", side.key_columns[0] if name == _KEY else name) for at, (name, _) in enumerate(kept)]
    return ProjectForGroup(
        key_sql=key_sql,
        input_sql=input_sql,
        columns=columns,
        bare=bare,
        source_columns=(*keys, *((name, column) for name, column in inputs if column is not None)) if bare else (),
    )


def _text_of(join: Join) -> str:
    """Return what the rows of a join's repartition topic are identified by: all that their bytes depend on."""
    sides = [", ".join(f"{text} {kind}" for _, kind, text in side.stored) for side in join.sides]
    keys = ", ".join(
        f"{left} = {right} {kind}"
        for left, right, kind in zip(join.left.key_expressions, join.right.key_expressions, join.key_types, strict=True)
    )
    return f"row by {keys} of ({sides[0]}) or ({sides[1]})"


def source_name(topics: Sequence[str]) -> str:
    """Return the default name of a source: its topics joined by hyphens, at most 120 characters."""
    return re.sub(r"[^a-zA-Z0-9._-]+", "-", "-".join(topics))[:120]
