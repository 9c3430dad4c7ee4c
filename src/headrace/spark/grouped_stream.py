"""`GroupedStream` and `StreamTable`: groups of a stream, and what an aggregate keeps per group.

A `StreamTable` is a stream of changes: each row replaces the last one of its key. Its state has a name that follows
from what is computed ("by-origin"), never from its position in the program.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Self

from pyspark.sql import DataFrame
from pyspark.sql.streaming.stateful_processor import StatefulProcessor
from pyspark.sql.types import StructType, _parse_datatype_json_string

from headrace.checked_api import checked_api, unknown_attribute
from headrace.errors import TopologyError
from headrace.spark.analysis.aggregate_split import AggregateSplit, WindowGroup, split_aggregate
from headrace.spark.analysis.event_time import ClosingWindows, RelayedClosing, closing_windows, has_watermark
from headrace.spark.analysis.ranked_windows import find_window_column, window_columns
from headrace.spark.analysis.table_changes import check_invertible, check_repeatable, drops_rows, filter_text, zone_text
from headrace.spark.analysis.table_union import united_tables
from headrace.spark.analysis.time_windows import GroupedWindow, find_window
from headrace.spark.frames import apply_calls, without_hidden
from headrace.spark.keyed_table import KeyedTable
from headrace.spark.refused_methods import REFUSED_GROUPED_METHODS, REFUSED_TABLE_METHODS
from headrace.spark.state_names import checked_state_name, derived_state_name
from headrace.spark.stream_base import StreamBase, StreamSource
from headrace.spark.stream_source import ClosedWindows, TableRows
from headrace.spark.stream_transform import keyed_transform
from headrace.spark.table_join import joined_tables, table_sides
from headrace.spark.topology.nodes import (
    COORDINATES_COLUMN,
    Aggregate,
    NarrowCall,
    OutputMode,
    ProcessorInterface,
    ProjectForGroup,
    SessionWindow,
    TableAggregate,
    TopicSource,
    WindowedAggregate,
    WindowKind,
)
from headrace.spark.unsupported import call_site, needs_exactly_once, refusal, refusing_method, translated

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping, Sequence

    from headrace.spark.sinks.interface import Sink


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyedAggregate:
    """One aggregate of the program: where its rows come from, the user's calls, and how they split."""

    name: str
    origins: tuple[StreamSource, ...]
    split: AggregateSplit
    group: tuple[Any, ...]  # arguments of groupBy
    call: NarrowCall  # agg, count, sum, .. with its arguments
    repartitioned: bool
    where: str
    window: GroupedWindow | None = None
    closing: ClosingWindows | RelayedClosing | None = None  # None: windows, if any, are kept for ever
    tables: tuple[str, ...] = ()  # canonical texts of the tables whose rows it takes; empty: of streams

    noun = "an aggregate"
    naming_call = "agg"

    @property
    def projection(self) -> ProjectForGroup:
        """The grouping values, and the inputs of the buffers."""
        return self.split.projection

    @property
    def key_columns(self) -> tuple[str, ...]:
        """The grouping columns."""
        return tuple(name for name, _ in self.split.group_columns)

    def described_calls(self) -> list[str]:
        """Return the calls that declare it, for notebooks."""
        return [f"groupBy({', '.join(self.key_columns)}).{self.call.method}"]

    @property
    def text(self) -> str:
        """Canonical text of all that its rows depend on, except filters in front of it."""
        split = self.split
        groups = ", ".join(split.projection.expressions[: len(split.group_columns)])
        buffers = ", ".join(f"{one.name} {one.function}({one.argument}) {one.result_type}" for one in split.buffers)
        results = ", ".join(f"{sql} as {name}" for name, sql in split.results)
        of = f" of ({'; '.join(self.tables)})" if self.tables else ""
        return f"{results} from {buffers} by {groups}{of}"

    def node(self, changelog_topic: str) -> Aggregate:
        """Return its compiled form."""
        split = self.split
        aggregate = Aggregate(
            name=self.name,
            group_columns=split.group_columns,
            buffers=split.buffers,
            results=split.results,
            output_schema_json=split.output_schema_json,
            changelog_topic=changelog_topic,
            bare=split.bare,
            group_expressions=split.projection.expressions[: len(split.group_columns)],
            window=None if self.window is None else self.window.window,
            where=self.where,
        )
        of_aggregate = {one.name: getattr(aggregate, one.name) for one in fields(aggregate)}
        if self.tables:
            return TableAggregate(**of_aggregate | {"changes": f"of ({'; '.join(self.tables)})"})
        if self.closing is None:
            return aggregate
        own = "" if self.repartitioned else self.watermark_name
        return WindowedAggregate(**of_aggregate, watermark_sources=self.closing.sources, watermark_store=own)

    @property
    def session_of(self) -> tuple[Any, ...] | None:
        """Return the grouping columns beside a session, as arguments of `groupBy`; None if there is no session."""
        if self.window is None or not isinstance(self.window.window, SessionWindow):
            return None
        return tuple(column for at, column in enumerate(self.group) if at != self.window.position)

    @property
    def time_window(self) -> WindowKind | None:
        """The window that it groups by."""
        return None if self.window is None else self.window.window

    @property
    def watermark_name(self) -> str:
        """Name of the store with the clock in front of windows that close."""
        return f"{self.name}-watermark"

    def as_batch(self, dataframe: DataFrame) -> DataFrame:
        """The same aggregate on a DataFrame without hidden columns: what `verify` compares with."""
        group = self.group
        if self.window is not None and isinstance(self.window.window, SessionWindow):
            # Spark's own sessions. A grouping by `WINDOW_COLUMN` would join none.
            group = tuple(self.window.call.args[0] if at == self.window.position else c for at, c in enumerate(group))
        return getattr(dataframe.groupBy(*group), self.call.method)(*self.call.args)


@checked_api()
class GroupedStream:
    """Groups of a stream, like PySpark's `GroupedData`. Made by `groupBy`."""

    def __init__(self, rows: StreamBase, origins: tuple[StreamSource, ...], cols: tuple[Any, ...], where: str) -> None:
        """`rows` of a stream, and the ways on which they come."""
        self._rows, self._origins, self._where = rows, origins, where
        if len(cols) == 1 and isinstance(cols[0], (list, tuple)):
            cols = tuple(cols[0])
        self._cols = cols
        if not cols:
            raise refusal(
                "needs-shuffle",
                "an aggregate over all rows needs them in one place",
                'name a column: groupBy("c")',
                where,
            )
        with translated(where, rows._template.columns):
            self._grouped_template().select(*cols)  # groupBy itself is analysed only with its aggregate
        self._window = find_window(rows._template, cols, where) or self._window_in_front()
        self._check_sessions(where)
        self._tables = tuple(one.source.text for one in origins if isinstance(one.source, TableRows))
        if self._tables and self._window is not None:
            raise refusal(
                "not-supported-here",
                "F.window over the rows of an aggregate is not supported yet",
                "group by the window in the first groupBy",
                where,
            )

    def agg(self, *exprs: Any, name: str | None = None) -> StreamTable:
        """Aggregate each group, like `GroupedData.agg`.

        Supported are count, count_if, sum, avg, min, max, bool_and, bool_or, max_by, min_by, exact distinct counts,
        standard deviations, variances, covariances, corr, and expressions over them.

        Args:
            *exprs: Aggregate expressions, or one mapping of column → function name.
            name: Name of the state store and its changelog; by default `by-<grouping columns>`.

        Returns:
            A table with one row per group.

        Raises:
            TopologyError: aggregate-not-mergeable, not-supported-here, unresolved-column.
        """
        if not exprs:
            raise refusal("bad-value", "agg needs at least one aggregate", 'F.count("*")', call_site())
        return self._aggregate("agg", exprs, name)

    def count(self) -> StreamTable:
        """As `GroupedData.count`."""
        return self._aggregate("count", (), None)

    def sum(self, *cols: str) -> StreamTable:
        """As `GroupedData.sum`."""
        return self._aggregate("sum", cols, None)

    def avg(self, *cols: str) -> StreamTable:
        """As `GroupedData.avg`."""
        return self._aggregate("avg", cols, None)

    def mean(self, *cols: str) -> StreamTable:
        """As `GroupedData.mean`."""
        return self._aggregate("avg", cols, None)

    def min(self, *cols: str) -> StreamTable:
        """As `GroupedData.min`."""
        return self._aggregate("min", cols, None)

    def max(self, *cols: str) -> StreamTable:
        """As `GroupedData.max`."""
        return self._aggregate("max", cols, None)

    def transformWithState(  # noqa: N802 PySpark's own names
        self,
        statefulProcessor: StatefulProcessor,  # noqa: N803
        outputStructType: StructType | str,  # noqa: N803
        outputMode: str,  # noqa: N803
        timeMode: str,  # noqa: N803
        initialState: Any = None,  # noqa: N803
        eventTimeColumnName: str = "",  # noqa: N803
        *,
        name: str | None = None,
    ) -> Any:
        """As `GroupedData.transformWithState`: a processor written for Spark, with state for each key.

        Rows are repartitioned by the grouping columns. The rows that the processor yields are a stream; their key is
        that of their group, unless the sink names another one.

        Args:
            statefulProcessor: An instance of `pyspark.sql.streaming.StatefulProcessor`. It is pickled, and each
                micro-batch of a task begins with a copy of its own.
            outputStructType: Columns of the rows that it yields.
            outputMode: "Append" or "Update".
            timeMode: "None", "EventTime" behind `withWatermark`, or "ProcessingTime".
            initialState: Rows of a plain DataFrame, grouped by columns of the same types: `df.groupBy("id")`. They are
                read here, and each goes to `handleInitialState` once, before the first rows of its task.
            eventTimeColumnName: Not supported yet.
            name: Name of the state store and its changelog; by default `transformed-by-<grouping columns>`.

        Returns:
            The rows of the processor, as a stream.

        Raises:
            TopologyError: not-supported-here, bad-value, unresolved-column.
            UserCodeError: the processor's `init` raised. It is called once here, to learn its state variables.
        """
        return self._transformed(
            (statefulProcessor, outputStructType, outputMode, timeMode, initialState), eventTimeColumnName, "row", name
        )

    def transformWithStateInPandas(  # noqa: N802 PySpark's own names
        self,
        statefulProcessor: StatefulProcessor,  # noqa: N803
        outputStructType: StructType | str,  # noqa: N803
        outputMode: str,  # noqa: N803
        timeMode: str,  # noqa: N803
        initialState: Any = None,  # noqa: N803
        eventTimeColumnName: str = "",  # noqa: N803
        *,
        name: str | None = None,
    ) -> Any:
        """As `GroupedData.transformWithStateInPandas`: `transformWithState` with DataFrames of pandas instead of rows.

        Args:
            statefulProcessor: As there; its methods take and yield `pandas.DataFrame`.
            outputStructType: As there.
            outputMode: As there.
            timeMode: As there.
            initialState: As there, as DataFrames of pandas.
            eventTimeColumnName: Not supported yet.
            name: As there.
        """
        given = (statefulProcessor, outputStructType, outputMode, timeMode, initialState)
        return self._transformed(given, eventTimeColumnName, "pandas", name)

    def _transformed(
        self,
        given: tuple[StatefulProcessor, StructType | str, str, str, Any],
        event_time: str,
        interface: ProcessorInterface,
        name: str | None,
    ) -> Any:
        where = call_site()
        if event_time:
            raise refusal("not-supported-here", "eventTimeColumnName is not supported yet", "leave it out", where)
        if self._tables:
            raise refusal(
                "not-supported-here",
                "transformWithState takes the rows of a stream: it cannot take back what a row of a table was",
                "group the stream itself, or write the table with to_topic and read that with app.stream",
                where,
            )
        if self._window is not None:
            raise refusal(
                "not-supported-here",
                "transformWithState does not take a window in groupBy",
                'make it a column first: withColumn("start", F.window("time", "1 hour").start)',
                where,
            )
        declared = keyed_transform(
            self._rows._template, self._origins, self._cols, *given, interface=interface, name=name, where=where
        )
        return self._rows._made_by(declared)

    def __getattr__(self, name: str) -> Any:
        if name in REFUSED_GROUPED_METHODS:
            return refusing_method(name, REFUSED_GROUPED_METHODS[name])
        return unknown_attribute(self, name)

    def _is_in_one_partition(self, split: AggregateSplit, closing: ClosingWindows | RelayedClosing | None) -> bool:
        """Whether all rows of a group are in one partition of the source, so that they need no repartition topic.

        They are if the declared key is one of the grouping columns. Windows that close make use of it. Other aggregates
        do so only where they are grouped by the key alone: to change that would change the topology of groups that
        exist, which brokers refuse.
        """
        if len(self._origins) != 1 or self._origins[0].source.key_column is None:
            return False
        key = self._origins[0].source.key_column
        return split.source_keys == (key,) or (closing is not None and key in split.source_keys)

    def _window_in_front(self) -> GroupedWindow | None:
        """Return the window of closed windows among the grouping columns."""
        [origin, *others] = self._origins
        if others or not isinstance(origin.source, ClosedWindows):
            return None
        return find_window_column(
            self._rows._template, self._cols, window_columns(self._rows._app, origin), self._where
        )

    def _closing(self) -> ClosingWindows | RelayedClosing | None:
        """Return how windows close: by the watermark of the rows, or the one that closed windows pass on."""
        if self._window is None:
            return None
        source = self._origins[0].source
        if self._window.is_relayed and isinstance(source, ClosedWindows):
            return RelayedClosing(source=source.name)
        if not has_watermark(self._rows._template):
            return None
        # No watermark comes through a join of two streams, so these rows come from topics.
        ways = [(origin.source, origin.calls) for origin in self._origins if isinstance(origin.source, TopicSource)]
        return closing_windows(self._rows._template, ways, self._where)

    def _grouped_template(self) -> DataFrame:
        """Return the template with `_kafka` (a valid grouping column) but without the runtime's own columns."""
        template = self._rows._template
        if COORDINATES_COLUMN in template.columns:
            return template.select(*self._rows._visible_quoted(), COORDINATES_COLUMN)
        return without_hidden(template)

    def _aggregate(self, method: str, args: tuple[Any, ...], name: str | None) -> StreamTable:
        where = call_site()
        if self._window is None and has_watermark(self._rows._template):
            raise refusal(
                "not-supported-here",
                "groupBy behind withWatermark needs a window: without one, no group is ever complete",
                'group by F.window("time", "10 minutes") as well, or leave withWatermark out',
                self._where,
            )
        before, group = self._grouped_template(), self._cols
        origins, window = self._origins, self._window
        # The window becomes a recorded call and a column, on the template as on every source: the aggregate then groups
        # by a column.
        if window is not None:
            before, group = apply_calls(before, (window.call,)), window.grouped_columns(group)
            origins = tuple(origin.followed_by(window.call) for origin in origins)
        with translated(where, before.columns):
            aggregated = getattr(before.groupBy(*group), method)(*args)
        _check_unique(aggregated.columns, where)
        split = split_aggregate(before, aggregated, where, _window_group(window))
        self._check_distinct(split, where)
        if self._tables:
            check_repeatable(aggregated, where, "an aggregate of a table")
            check_invertible(split, where)
        closing = self._closing()
        aggregate = KeyedAggregate(
            name=_state_name(name, split, where),
            origins=origins,
            split=split,
            group=group,
            call=NarrowCall(method=method, args=args, where=where),
            repartitioned=not self._is_in_one_partition(split, closing),
            where=where,
            window=window,
            closing=closing,
            tables=tuple(f"{text}{zone_text(aggregated)}" for text in self._tables),
        )
        return StreamTable(
            self._rows._app,
            self._rows._app._template_of(StructType.fromJson(_json(split))),
            aggregate,
            (),
        )

    def _check_sessions(self, where: str) -> None:
        """Refuse sessions of all rows: those of one key must come to one task."""
        if self._window is not None and isinstance(self._window.window, SessionWindow) and len(self._cols) == 1:
            raise refusal(
                "needs-shuffle",
                "sessions over all rows need them in one place",
                'name a column as well: groupBy(F.session_window("time", "10 minutes"), "user")',
                where,
            )

    def _check_distinct(self, split: AggregateSplit, where: str) -> None:
        """Refuse exact distinct counts at least once.

        A micro-batch that failed leaves its changes in the changelog. Its values would be taken for counted by the next
        owner of the task, although the counter that had them was replaced: the count would be too low for ever.
        """
        counted = any(buffer.function == "count_distinct" for buffer in split.buffers)
        if counted and self._window is not None and isinstance(self._window.window, SessionWindow):
            raise refusal(
                "not-supported-here",
                "exact distinct counts of sessions are not supported yet",
                "groupBy that column as well, or count in windows: F.window",
                where,
            )
        if counted and self._rows._app.processing_guarantee == "at_least_once":
            raise needs_exactly_once(
                "exact distinct counts need exactly once: after a failure at least once could leave values out", where
            )


@checked_api(unchecked=("join.other", "unionByName.other", "path", "sink", "to_postgres.url"))
class StreamTable(KeyedTable):
    """The newest row per key. `select`, `withColumn`, `where` and `drop` may follow, then `to_topic` or `foreachBatch`.

    A row that does not pass a filter any more is deleted: the topic gets a tombstone of its key.

    Behind windows that close (`withWatermark` and `F.window`), rows are final once their window has closed. Methods
    that need final rows, filters among them, return a `Stream` of them: each row once, when its window closes.
    """

    def groupBy(self, *cols: Any) -> Any:
        """As `DataFrame.groupBy`: group the rows of this table by other columns.

        A row that changes is taken out of the group that it was in, and added to the one that it is in. A group without
        rows is deleted. Rows of closed windows are final: they are grouped as those of a stream.
        """
        if self._aggregate.closing is not None:
            return self._closed_rows("groupBy").groupBy(*cols)
        return self._grouped(cols, call_site())

    groupby = groupBy

    def unionByName(self, other: Any, allowMissingColumns: bool = False) -> Any:  # noqa: N803 PySpark's own
        """As `DataFrame.unionByName`: rows of two tables, to be grouped; of closed windows as those of streams."""
        where = call_site()
        if self._aggregate.closing is not None:
            return self._closed_rows("unionByName").unionByName(_closed(other), allowMissingColumns)
        sides = table_sides(self, other, "unionByName", where)
        return united_tables(self._app, sides, allowMissingColumns, where, GroupedStream)

    def join(self, other: Any, on: Any = None, how: str | None = None, *, name: str | None = None) -> Any:
        """As `DataFrame.join`, with another table of the app, on the keys of both; of closed windows as `Stream.join`.

        The result is a table with the same key. Each change of one side changes the row of its key: it comes, is
        replaced or is deleted.

        Args:
            other: The right side: the table of another aggregate, or a join of two tables.
            on: Names of columns, or a condition. It equates the whole key of both sides: the grouping columns.
            how: inner (the default), left, right, full, left_semi or left_anti.
            name: Name of the state store and its changelog; by default `joined-by-<columns>`.

        Raises:
            TopologyError: needs-shuffle, not-supported-here, duplicate-column, unresolved-column.
        """
        if self._aggregate.closing is not None:
            return self._closed_rows("join").join(_closed(other), on, how, name=name)
        where = call_site()
        sides = table_sides(self, other, "join", where)
        return joined_tables(self._app, sides, on, how, name, where, GroupedStream)

    def to_parquet(
        self,
        path: str | os.PathLike[str],
        *,
        partition_by: str | Sequence[str] | None = None,
        name: str | None = None,
        roll_size_bytes: int | None = None,
        roll_interval_ms: int | None = None,
    ) -> Any:
        """As `Stream.to_parquet`, for the rows of closed windows."""
        return self._closed_rows("to_parquet").to_parquet(
            path,
            partition_by=partition_by,
            name=name,
            roll_size_bytes=roll_size_bytes,
            roll_interval_ms=roll_interval_ms,
        )

    def to_delta(
        self,
        path: str | os.PathLike[str],
        *,
        partition_by: str | Sequence[str] | None = None,
        storage_options: Mapping[str, str] | None = None,
        parts: str | os.PathLike[str] | None = None,
        add_columns: bool = False,
        name: str | None = None,
        roll_size_bytes: int | None = None,
        roll_interval_ms: int | None = None,
    ) -> Any:
        """As `Stream.to_delta`; of windows that close, the rows of closed ones."""
        rows: Any = super() if self._aggregate.closing is None else self._closed_rows("to_delta")
        return rows.to_delta(
            path,
            partition_by=partition_by,
            storage_options=storage_options,
            parts=parts,
            add_columns=add_columns,
            name=name,
            roll_size_bytes=roll_size_bytes,
            roll_interval_ms=roll_interval_ms,
        )

    def to_iceberg(
        self,
        table: str,
        *,
        catalog: str = "default",
        catalog_properties: Mapping[str, str] | None = None,
        parts: str | os.PathLike[str] | None = None,
        add_columns: bool = False,
        name: str | None = None,
        roll_size_bytes: int | None = None,
        roll_interval_ms: int | None = None,
    ) -> Any:
        """As `Stream.to_iceberg`; of windows that close, the rows of closed ones."""
        rows: Any = super() if self._aggregate.closing is None else self._closed_rows("to_iceberg")
        return rows.to_iceberg(
            table,
            catalog=catalog,
            catalog_properties=catalog_properties,
            parts=parts,
            add_columns=add_columns,
            name=name,
            roll_size_bytes=roll_size_bytes,
            roll_interval_ms=roll_interval_ms,
        )

    def to_postgres(self, table: str, *, url: str, name: str | None = None) -> Any:
        """As `Stream.to_postgres`; of windows that close, the rows of closed ones."""
        if self._aggregate.closing is None:
            return super().to_postgres(table, url=url, name=name)
        return self._closed_rows("to_postgres").to_postgres(table, url=url, name=name)

    def to_sqlite(self, path: str | os.PathLike[str], table: str, *, name: str | None = None) -> Any:
        """As `Stream.to_sqlite`; of windows that close, the rows of closed ones."""
        if self._aggregate.closing is None:
            return super().to_sqlite(path, table, name=name)
        return self._closed_rows("to_sqlite").to_sqlite(path, table, name=name)

    def to_sink(self, sink: Sink, *, name: str | None = None) -> Any:
        """As `Stream.to_sink`. A sink that takes no updates gets the rows of closed windows."""
        if self._aggregate.closing is None or getattr(sink, "takes_updates", True):
            return super().to_sink(sink, name=name)
        return self._closed_rows("to_sink").to_sink(sink, name=name)

    def _narrow(self, method: str, *args: Any, **kwargs: Any) -> Self:
        if self._aggregate.closing is not None and method in ("where", "dropna"):
            return self._closed_rows(method)._narrow(method, *args, **kwargs)
        try:
            return super()._narrow(method, *args, **kwargs)
        except TopologyError as error:
            # A rank or explode, which only final rows may have.
            if self._aggregate.closing is None or "node" not in error.facts:
                raise
        return self._closed_rows(method)._narrow(method, *args, **kwargs)

    def _closed_rows(self, method: str) -> Any:
        """Return the rows of closed windows for `method`. Refuse it where no window closes."""
        if self._aggregate.closing is None:
            raise refusal(*REFUSED_TABLE_METHODS[method], call_site())
        schema = StructType.fromJson(_json(self._aggregate.split))
        origin = StreamSource(source=ClosedWindows(state=self._aggregate, schema=schema), calls=self._calls)
        return self._app._stream_of(self._template, (origin,))

    @property
    def _aggregate(self) -> KeyedAggregate:
        assert isinstance(self._state, KeyedAggregate)
        return self._state

    @property
    def _output_modes(self) -> tuple[OutputMode, ...]:
        """A table whose windows close has rows that are final, which no filter takes back."""
        if self._aggregate.closing is None:
            return ("update",)
        return ("append",) if self._drops_rows else ("update", "append")

    def _grouped(self, cols: tuple[Any, ...], where: str) -> GroupedStream:
        return GroupedStream(self, (StreamSource(source=self._table_rows(where, "a second groupBy")),), cols, where)

    def _table_rows(self, where: str, what: str) -> TableRows:
        if self._aggregate.closing is not None:
            raise refusal(
                "not-supported-here",
                f"{what} takes either tables or rows of windows that close, not both",
                'write the rows with to_topic(.., output_mode="append"), and group those of that topic',
                where,
            )
        return self._changed_rows(self._aggregate.text, where, what)

    @property
    def _takes_filters(self) -> bool:
        return True

    @property
    def _drops_rows(self) -> bool:  # type: ignore[override]
        """A filter drops rows, and a group of a table's rows may lose its last one."""
        return bool(self._aggregate.tables) or drops_rows(self._template)

    @property
    def _changes(self) -> str:
        """Canonical text of what decides which keys have a row; empty if all have, or if rows are final."""
        final = self._aggregate.closing is not None
        return "" if final else filter_text(self._template, self._aggregate.split.results)

    def _followed_by(self, call: NarrowCall, template: DataFrame) -> StreamTable:
        if call.method in ("where", "dropna"):
            check_repeatable(template, call.where, f"{call.method} behind an aggregate")
        return super()._followed_by(call, template)


def _closed(other: Any) -> Any:
    """Return the rows of closed windows for a table that has such; `other` itself otherwise."""
    is_closing = isinstance(other, StreamTable) and other._aggregate.closing is not None
    return other._closed_rows("join") if is_closing else other


def _window_group(window: GroupedWindow | None) -> WindowGroup | None:
    if window is None:
        return None
    return WindowGroup(position=window.position, expression=window.expression, sql=window.window.sql)


def _state_name(name: str | None, split: AggregateSplit, where: str) -> str:
    if name is not None:
        return checked_state_name(name, where)
    return derived_state_name("by", [column for column, _ in split.group_columns], where, "agg")


def _check_unique(columns: list[str], where: str) -> None:
    folded = [column.lower() for column in columns]
    twice = next((column for column in columns if folded.count(column.lower()) > 1), None)
    if twice is not None:
        raise refusal(
            "duplicate-column", f'the result has two columns "{twice}"', f'rename one: .alias("{twice}_2")', where
        )


def _json(split: AggregateSplit) -> Any:
    return _parse_datatype_json_string(split.output_schema_json).jsonValue()
