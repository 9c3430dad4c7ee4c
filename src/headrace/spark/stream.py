"""`Stream`: rows as they come from topics, with the methods that a table of aggregates has not.

See `headrace.spark.stream_base` for what both have.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NoReturn, Self, cast

from pyspark.sql import DataFrame

from headrace.checked_api import checked_api
from headrace.errors import TopologyError
from headrace.spark.analysis.event_time import (
    ClosingWindows,
    RelayedClosing,
    check_watermark,
    closing_windows,
    has_watermark,
    keyed_deduplication,
)
from headrace.spark.analysis.over_rows import read_over_rows
from headrace.spark.analysis.plan_reader import check_narrow
from headrace.spark.analysis.ranked_windows import window_columns
from headrace.spark.analysis.ranking import Ranking, is_ranking, read_ranking
from headrace.spark.analysis.static_join import StaticDataFrame, checked_join
from headrace.spark.analysis.stream_union import aligned, common_event_time
from headrace.spark.analysis.unbounded_state import warn_of_unbounded_deduplication, warn_of_unbounded_join
from headrace.spark.frames import apply_calls, quoted, without_hidden
from headrace.spark.grouped_stream import GroupedStream, StreamTable
from headrace.spark.ranked_stream import RankedStream, ranked_stream
from headrace.spark.spark_internals import analysed, sequence
from headrace.spark.state_names import derived_state_name
from headrace.spark.stream_base import Application, StreamBase, StreamSource, described_sources
from headrace.spark.stream_join import STREAM_JOINS, StreamSide, join_kind, keyed_join, without_equal_rows
from headrace.spark.stream_source import ClosedWindows, KeyedJoin, KeyedOverRows, KeyedTransform
from headrace.spark.topology.nodes import EVENT_TIME_COLUMN, HIDDEN_PREFIX, NarrowCall, TopicSource
from headrace.spark.unsupported import (
    call_site,
    refusal,
    translated,
)
from headrace.spark.versioned_join import versioned_join


@checked_api(unchecked=("join.other", "joinAsOf.other", "unionByName.other"))
class Stream(StreamBase):
    """Rows of source topics. Made by `StreamsApp.stream`.

    Example:
        flights = app.stream("flights", schema="origin STRING, delay INT")
        flights.where("delay > 0").groupBy("origin").count().to_topic("delays")
    """

    def __init__(self, app: Application, template: DataFrame, origins: tuple[StreamSource, ...]) -> None:
        super().__init__(app, template)
        self._origins = origins

    def _described_sources(self) -> list[tuple[str, list[str]]]:
        return described_sources(self._origins)

    def _followed_by(self, call: NarrowCall, template: DataFrame) -> Stream:
        return Stream(self._app, template, tuple(origin.followed_by(call) for origin in self._origins))

    def _made_by(self, operator: KeyedTransform) -> Stream:
        template = self._app._template_of(operator.schema)
        return Stream(self._app, template, (StreamSource(source=operator),))

    def _narrow(self, method: str, *args: Any, **kwargs: Any) -> Self:
        try:
            return super()._narrow(method, *args, **kwargs)
        except TopologyError as error:
            if error.facts.get("node") != "Window":
                raise
        # The rows behind a rank are a stream that waits for its filter.
        call = NarrowCall(method=method, args=args, kwargs=tuple(kwargs.items()), where=call_site())
        self._check_not_deduplicated("a window function", call.where)
        functions = self._over_rows(call)
        return cast("Self", self._ranked(call) if functions is None else functions)

    def _over_rows(self, call: NarrowCall) -> Stream | None:
        """Return the rows behind a call with window functions; None for ranks, and without a watermark to follow."""
        origins, before, template = self._origins, without_hidden(self._template), self._template
        calls: tuple[NarrowCall, ...] = (call,)
        ranks = is_ranking(apply_calls(template, calls))
        known = origins[0].source if len(origins) == 1 else None
        # A second call on the same window is computed together with the first one: the rows are in order already.
        if isinstance(known, KeyedOverRows):
            between = origins[0].calls[len(known.rest) :]
            origins, before, calls = known.origins, known.before, (*known.calls, *between, call)
            template = known.template
        elif ranks or not has_watermark(template):
            return None
        try:
            return self._in_event_time(origins, before, template, calls)
        except TopologyError:
            if not ranks:
                raise
            return None  # over another window, with a filter behind it

    def _in_event_time(
        self,
        origins: tuple[StreamSource, ...],
        before: DataFrame,
        template: DataFrame,
        calls: tuple[NarrowCall, ...],
    ) -> Stream:
        """Return the rows behind window functions, which `calls` on `before` add."""
        where = calls[-1].where
        ways = [(origin.source, origin.calls) for origin in origins if isinstance(origin.source, TopicSource)]
        clock = closing_windows(template, ways, where, "window functions")
        windows = read_over_rows(before, apply_calls(before, calls), clock.event_time_expression, where)
        results = tuple(f"{sql} AS {quoted(name)}" for name, sql in windows.results)
        rest = NarrowCall(method="selectExpr", args=results, where=where)
        over = KeyedOverRows(
            name=derived_state_name(
                f"{windows.names[0]}-by", [name for name, _ in windows.group_columns], where, "withColumn"
            ),
            origins=origins,
            windows=windows,
            calls=calls,
            before=before,
            template=template,
            clock=clock,
            schema=windows.schema if windows.bare else windows.made_schema,
            rest=() if windows.bare else (rest,),
            where=where,
        )
        source = StreamSource(source=over, calls=over.rest)
        return Stream(self._app, self._app._template_of(windows.schema), (source,))

    def _ranked(self, call: NarrowCall) -> RankedStream:
        """Return the rows behind a call with a rank over a window. Raises TopologyError for any other window."""
        before = self._template.select(
            *(quoted(name) for name in self._template.columns if not name.startswith(HIDDEN_PREFIX))
        )
        [origin, *others] = self._origins
        # A window closes by the watermark of these rows, or by the one that closed windows pass on.
        closed = origin.source if isinstance(origin.source, ClosedWindows) and not others else None
        closes = has_watermark(self._template) or closed is not None
        windows = window_columns(self._app, origin) if closes else {}
        ranking = read_ranking(before, apply_calls(before, (call,)), call.where, windows)
        if has_watermark(self._template):
            closing: ClosingWindows | RelayedClosing | None = self._rank_closing(ranking, call.where)
        elif closed is not None and ranking.window is not None:
            closing = RelayedClosing(source=closed.name)
        else:
            closing = None
        return ranked_stream(self._app, self._origins, ranking, call, closing)

    def _rank_closing(self, ranking: Ranking, where: str) -> ClosingWindows:
        """Return how the windows of a rank close. Refuse a rank without one, and another time than the watermark's."""
        if ranking.window is None:
            raise refusal(
                "not-supported-here",
                "a rank behind withWatermark needs a window in partitionBy: without one, no rank is ever final",
                'withColumn("window", F.window("time", "10 minutes")), and "window" in partitionBy; or leave '
                "withWatermark out",
                where,
            )
        ways = [(origin.source, origin.calls) for origin in self._origins if isinstance(origin.source, TopicSource)]
        closing = closing_windows(self._template, ways, where)
        if closing.event_time_expression != ranking.time_expression:
            raise refusal(
                "not-supported-here",
                f"the window is over {ranking.time_expression}, the watermark over {closing.event_time_expression}; "
                "no watermark tells when such windows close",
                "name the same column in withWatermark and in F.window",
                where,
            )
        return closing

    def withWatermark(self, eventTime: str, delayThreshold: str) -> Stream:  # noqa: N803 PySpark's own names
        """As `DataFrame.withWatermark`: declare the event time of the rows, and how late they may be.

        The watermark is kept for each partition of the topic by itself. `dropDuplicatesWithinWatermark` and windows in
        `groupBy` use it.
        Raises TopologyError: unresolved-column, refused-by-spark, not-supported-here.
        """
        where = call_site()
        self._check_not_deduplicated("withWatermark", where)
        self._check_not_joined("withWatermark", where)
        check_watermark(self._template, eventTime, delayThreshold, where)
        call = NarrowCall(method="withWatermark", args=(eventTime, delayThreshold), where=where)
        return self._followed_by(call, apply_calls(self._template, (call,)))

    def dropDuplicatesWithinWatermark(
        self, subset: list[str] | tuple[str, ...] | None = None, *, name: str | None = None
    ) -> Stream:
        """As `DataFrame.dropDuplicatesWithinWatermark`: the first row of those whose event times lie within the delay.

        Late rows and rows without an event time are dropped. A key is deleted from the state when every row that could
        be its duplicate would be late.

        Args:
            subset: Columns that are equal in duplicates, the declared key of the stream among them; by default all.
            name: Name of the state store and its changelog; by default `unique-by-<columns>`.

        Returns:
            A stream, for `to_topic`.

        Raises:
            TopologyError: not-supported-here, unresolved-column.
        """
        where = call_site()
        self._check_not_deduplicated("dropDuplicatesWithinWatermark", where)
        self._check_not_joined("dropDuplicatesWithinWatermark", where)
        if not has_watermark(self._template):
            raise refusal(
                "not-supported-here",
                "dropDuplicatesWithinWatermark without a watermark would have to keep every key for ever",
                'write withWatermark("time", "10 minutes") before it, or dropDuplicates',
                where,
            )
        return self._deduplicated(subset, name, where)

    def dropDuplicates(self, subset: list[str] | tuple[str, ...] | None = None, *, name: str | None = None) -> Stream:
        """As `DataFrame.dropDuplicates`: the first row of each key, by the order of the records in their partition.

        Every key is kept for ever, which an `UnboundedStateWarning` says at the line of the call:
        `dropDuplicatesWithinWatermark` forgets old keys.

        Args:
            subset: Columns that are equal in duplicates, the declared key of the stream among them; by default all.
            name: Name of the state store and its changelog; by default `unique-by-<columns>`.

        Returns:
            A stream, for `to_topic`.

        Raises:
            TopologyError: not-supported-here, unresolved-column.
        """
        where = call_site()
        self._check_not_deduplicated("dropDuplicates", where)
        if (
            len(self._origins) == 1
            and isinstance(self._origins[0].source, KeyedJoin)
            and self._origins[0].source.in_event_time
        ):
            return self._joined_once(subset, name, where)
        self._check_not_joined("dropDuplicates", where)
        if has_watermark(self._template):
            raise refusal(
                "not-supported-here",
                "dropDuplicates behind withWatermark would keep every key for ever all the same",
                "write dropDuplicatesWithinWatermark, or leave withWatermark out",
                where,
            )
        call = NarrowCall(method="dropDuplicates", where=where)
        timed = self._followed_by(call, apply_calls(self._template, (call,)))
        found = timed._deduplicated(subset, name, where)
        warn_of_unbounded_deduplication(subset, where)
        return found

    drop_duplicates = dropDuplicates

    def _joined_once(self, subset: list[str] | tuple[str, ...] | None, name: str | None, where: str) -> Stream:
        """Return the distinct rows of a join on windows."""
        [origin] = self._origins
        assert isinstance(origin.source, KeyedJoin)
        with translated(where, self._template.columns):
            visible = without_hidden(self._template)
            visible.select(*map(quoted, subset or ()))
            keys = sequence(analysed(visible.dropDuplicates(None if subset is None else list(subset))).keys())
        has_calls = bool(origin.calls) or len(keys) < len(visible.columns)
        if name is not None:
            raise refusal("bad-value", "dropDuplicates behind a join has no state to name", "leave name= out", where)
        return Stream(
            self._app, self._template, (replace(origin, source=without_equal_rows(origin.source, has_calls, where)),)
        )

    def _deduplicated(self, subset: list[str] | tuple[str, ...] | None, name: str | None, where: str) -> Stream:
        ways = [(origin.source, origin.calls) for origin in self._origins if isinstance(origin.source, TopicSource)]
        found = keyed_deduplication(self._template, ways, subset, name, where)
        [origin] = self._origins
        template = self._template.drop(EVENT_TIME_COLUMN)
        return Stream(self._app, template, (replace(origin, deduplication=found),))

    def _check_not_deduplicated(self, method: str, where: str) -> None:
        naming_call = next(
            (origin.deduplication.naming_call for origin in self._origins if origin.deduplication is not None), None
        )
        if naming_call is not None:
            raise refusal(
                "not-supported-here",
                f"{method} behind {naming_call} is not supported yet",
                "write the rows to a topic with to_topic, and read that with app.stream",
                where,
            )

    def _check_not_joined(self, method: str, where: str) -> None:
        operator = next((one.source for one in self._origins if not isinstance(one.source, TopicSource)), None)
        if operator is not None:
            raise refusal(
                "not-supported-here",
                f"{method} behind {operator.noun} is not supported yet: event time is not carried through it",
                "write the rows to a topic with to_topic, and read that with app.stream",
                where,
            )

    def unionByName(self, other: Stream, allowMissingColumns: bool = False) -> Stream:  # noqa: N803 PySpark's own
        """Return the rows of both streams, like `DataFrame.unionByName`.

        Each side keeps its own order; the order between the two is undefined. Both sides may have a watermark, each
        with its own delay: rows are late by the one of their own side, and windows close by the lesser one.
        """
        where = call_site()
        if not isinstance(other, Stream) or other._app is not self._app:
            raise refusal(
                "not-supported-here",
                "unionByName takes a stream of the same app",
                "bring the rows in through a topic of their own",
                where,
            )
        for side in (self, other):
            side._check_not_deduplicated("unionByName", where)
        # Spark's own union of the empty templates decides names and types, and finds the user's errors.
        with translated(where, self._template.columns):
            union = without_hidden(self._template).unionByName(without_hidden(other._template), allowMissingColumns)
        origins = tuple(
            aligned(origin, side._template, union.schema, where) for side in (self, other) for origin in side._origins
        )
        template = self._app._template_of(union.schema)
        event_time = common_event_time((self._template, other._template), union.columns, where)
        if event_time is not None:
            # Only on the template: each side has its own call, with its own delay.
            template = apply_calls(template, (NarrowCall(method="withWatermark", args=(event_time,), where=where),))
        return Stream(self._app, template, origins)

    def join(
        self, other: DataFrame | Stream, on: Any = None, how: str | None = None, *, name: str | None = None
    ) -> Stream:
        """As `DataFrame.join`, with a plain DataFrame or with another stream on the right.

        A plain DataFrame: inner, left, left_semi, left_anti. It is small: it is read by the driver when the application
        starts, and again when what was read is older than `headrace.join.refresh.ms`, and lies whole in every worker;
        no row moves. Without `F.broadcast(other)` it must be below `spark.sql.autoBroadcastJoinThreshold`.

        A stream of the same application, on columns or on a condition with an equality between both sides. Both sides
        are repartitioned by the values that are equal. Without watermarks: inner, and all rows of both sides are kept
        in the state. With `withWatermark` on both sides and a time range or equal windows in the condition: inner,
        left, right, full and left_semi, and rows are deleted when they can match no more.

        Args:
            other: The right side.
            on: Names of columns, or a condition.
            how: Type of the join; by default inner.
            name: Between streams: name of the state store and its changelog; by default `joined-by-<columns>`.

        Raises:
            TopologyError: needs-shuffle, not-supported-here, duplicate-column, unresolved-column.
        """
        where = call_site()
        if isinstance(other, StreamBase):
            return self._joined(other, on, how, name, where)
        if name is not None:
            raise refusal("bad-value", "a join with a plain DataFrame has no state to name", "leave name= out", where)
        how = checked_join(other, on, how, where)
        with translated(where, [*self._template.columns, *getattr(other, "columns", ())]):
            side = StaticDataFrame(other, refresh_ms=int(self._app.config["headrace.join.refresh.ms"]), where=where)
            call = NarrowCall(method="join", args=(side, on, how), where=where)
            template = apply_calls(self._template, (call,))
            check_narrow(template, where)
        return self._followed_by(call, template)

    def joinAsOf(self, other: Stream, on: Any, how: str | None = None, *, name: str | None = None) -> Stream:  # noqa: N802
        """Join each row with the version of a right row that is valid at its event time.

        Both sides have `withWatermark`. Each right row is a version of its key, valid from its event time until that of
        the next version of the key. A row waits until the watermark of the right side has passed it, and leaves once,
        with the version that is valid at its own event time, whichever arrived first. Versions of one key with equal
        times are all valid. Versions that no row can need any more are deleted.

        A DataFrame has no such method: the same rows are its `join` with this condition, and of each left row's
        partners the one with the latest time.

        Args:
            other: Stream of versions, of the same application.
            on: Condition: equalities between both sides, and the event time of the right side <= that of the left.
            how: inner (the default), or left, which lets rows without a version leave with nulls.
            name: Name of the state store and its changelog; by default `joined-by-<columns>`.

        Raises:
            TopologyError: needs-shuffle, not-supported-here, duplicate-column, unresolved-column.

        Example:
            `orders.joinAsOf(prices, F.expr("item = product AND valid_from <= ordered"), "left")`
        """
        where = call_site()
        self._check_sides(other, "joinAsOf", where)
        join = versioned_join(self._as_side(), other._as_side(), on, how, name, where)
        return Stream(self._app, self._app._template_of(join.schema), (StreamSource(source=join),))

    def _check_sides(self, other: object, method: str, where: str) -> None:
        """Refuse a right side that is no stream of this app, and sides behind dropDuplicatesWithinWatermark."""
        if not isinstance(other, Stream) or other._app is not self._app:
            raise refusal(
                "not-supported-here",
                f"{method} takes a stream of the same app",
                "bring the rows in through a topic of their own: app.stream(..)",
                where,
            )
        for side in (self, other):
            side._check_not_deduplicated(method, where)

    def _joined(self, other: StreamBase, on: Any, how: str | None, name: str | None, where: str) -> Stream:
        """Return the join with another stream, or with the rows of closed windows."""
        if isinstance(other, StreamTable) and other._aggregate.closing is not None:
            other = other._closed_rows("join")
        if not isinstance(other, Stream):
            raise refusal(
                "not-supported-here",
                "a join with the table of an aggregate is not supported yet: its rows replace each other",
                "join the streams before groupBy, or write the table to a topic with to_topic and join where you read",
                where,
            )
        if other._app is not self._app:
            raise refusal(
                "not-supported-here",
                "join takes a stream of the same app",
                "bring the rows in through a topic of their own",
                where,
            )
        kind = join_kind(how, STREAM_JOINS, "two streams", where)
        for side in (self, other):
            side._check_not_deduplicated("a join of two streams", where)
        join = keyed_join(self._as_side(), other._as_side(), on, kind, name, where)
        warn_of_unbounded_join(join)
        # Conjuncts that are no equality are calls on the joined rows. Pairs that they refuse were joined and leave
        # nothing.
        origin = StreamSource(source=join, calls=join.filters)
        return Stream(self._app, apply_calls(self._app._template_of(join.schema), join.filters), (origin,))

    def _as_side(self) -> StreamSide:
        """Return these rows as a side of a join, with the windows that they are of if those have closed."""
        [origin, *others] = self._origins
        is_closed = isinstance(origin.source, ClosedWindows) and not others
        windows = tuple(window_columns(self._app, origin)) if is_closed else ()
        return StreamSide(template=self._template, origins=self._origins, closed_windows=windows)

    def groupBy(self, *cols: Any) -> GroupedStream:
        """Group the rows, like `DataFrame.groupBy`.

        Rows are repartitioned unless they are grouped by the declared key. One of the columns may be
        `F.window("time", "10 minutes")`, tumbling or hopping; behind `withWatermark` such windows close. Or, behind
        `withWatermark`, `F.session_window("time", "10 minutes")`.
        """
        where = call_site()
        self._check_not_deduplicated("groupBy", where)
        return GroupedStream(self, self._origins, cols, where)

    groupby = groupBy

    def agg(self, *_exprs: Any) -> NoReturn:
        """Refused: an aggregate over all rows would need every row in one task."""
        raise refusal(
            "needs-shuffle",
            "an aggregate over all rows needs them in one place",
            'group first: groupBy("c").agg(..)',
            call_site(),
        )
