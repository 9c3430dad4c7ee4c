"""`RankedStream` and `RankedTable`: a stream with a rank, and the first rows of each key that a filter on it leaves.

A rank alone changes with every row that comes, for all rows behind it; so a `RankedStream` waits for its filter and has
no sinks. With it, `RankedTable` is a table of changes by key and position (`headrace.spark.analysis.ranking` has the
example).
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

from pyspark.sql import Column, DataFrame
from pyspark.sql.types import StructType, _parse_datatype_json_string

from headrace.checked_api import checked_api
from headrace.spark.analysis.event_time import ClosingWindows, RelayedClosing
from headrace.spark.analysis.plan_reader import ColumnOrigins
from headrace.spark.analysis.ranking import Ranking, limit_of
from headrace.spark.analysis.unbounded_state import warn_of_unbounded_rank
from headrace.spark.keyed_table import KeyedTable
from headrace.spark.refused_methods import REFUSED_RANKED_METHODS, REFUSED_RANKED_TABLE_METHODS
from headrace.spark.state_names import checked_state_name, derived_state_name
from headrace.spark.stream_base import Application, StreamBase, StreamSource, described_sources
from headrace.spark.topology.nodes import NarrowCall, OutputMode, ProjectForGroup, TimeWindow, TopN, WindowedTopN
from headrace.spark.unsupported import call_site, refusal, refusing_method

__all__ = ["KeyedTopN", "RankedStream", "RankedTable", "ranked_stream"]


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyedTopN:
    """One top-N of the program: where its rows come from, the rank, and the limit."""

    name: str
    origins: tuple[StreamSource, ...]
    ranking: Ranking
    limit: int
    call: NarrowCall  # withColumn, select, .. that adds the rank
    repartitioned: bool
    where: str
    closing: ClosingWindows | RelayedClosing | None = None  # None: the first rows of each key are kept for ever
    noun = "a top-N"
    naming_call = "where"

    @property
    def projection(self) -> ProjectForGroup:
        """The values that rows are partitioned by, and the columns that are kept."""
        return self.ranking.projection

    @property
    def position_name(self) -> str | None:
        """Name of the position in the record's key; None if a key has one row."""
        names = [name for name, _ in self.ranking.group_columns]
        if self.ranking.function == "row_number":
            if self.limit == 1:
                return None
            name = self.ranking.rank_column
        else:
            name = "row_number"  # ranks repeat, positions do not
        # The key's columns need distinct names; the user may have a column of this name.
        while name in names:
            name += "_"
        return name

    @property
    def key_columns(self) -> tuple[str, ...]:
        """The columns that rows are partitioned by, and the position."""
        names = tuple(name for name, _ in self.ranking.group_columns)
        return names if self.position_name is None else (*names, self.position_name)

    def described_calls(self) -> list[str]:
        """Return the calls that declare it, for notebooks."""
        return [self.call.method, f"where({self.ranking.rank_column} <= {self.limit})"]

    def node(self, changelog_topic: str) -> TopN:
        """Return its compiled form."""
        ranking, groups = self.ranking, len(self.ranking.group_columns)
        top = TopN(
            name=self.name,
            function=ranking.function,
            limit=self.limit,
            group_columns=ranking.group_columns,
            inputs=ranking.inputs,
            order=ranking.order,
            key_name=self.position_name,
            results=ranking.results,
            output_schema_json=ranking.output_schema_json,
            changelog_topic=changelog_topic,
            bare=ranking.bare,
            group_expressions=ranking.projection.expressions[:groups],
            input_expressions=ranking.projection.expressions[groups:],
            where=self.where,
        )
        if self.closing is None or self.time_window is None:
            return top
        own = "" if self.repartitioned else self.watermark_name
        of_top = {one.name: getattr(top, one.name) for one in fields(top)}
        return WindowedTopN(
            **of_top, window=self.time_window, watermark_sources=self.closing.sources, watermark_store=own
        )

    @property
    def time_window(self) -> TimeWindow | None:
        """The window that it is partitioned by, if that closes."""
        return self.ranking.window

    @property
    def window_sql(self) -> str:
        """The window as SQL over the columns in front of the rank."""
        window = self.ranking.window
        assert window is not None
        start = dict(self.projection.key_sql)[window.group]
        return replace(window, group=f"({start})").sql

    @property
    def watermark_name(self) -> str:
        """Name of the store with the clock in front of windows that close."""
        return f"{self.name}-watermark"


def ranked_stream(
    app: Application,
    origins: tuple[StreamSource, ...],
    ranking: Ranking,
    call: NarrowCall,
    closing: ClosingWindows | RelayedClosing | None = None,
) -> RankedStream:
    """Return the rows of `origins` behind `call`, which adds the rank."""
    source = origins[0].source if len(origins) == 1 else None
    # Rows of one key lie in one partition if the key of the records is one of the columns that they are ranked by.
    # Otherwise rows are repartitioned by the partitioning columns.
    keyed = source is not None and source.key_column is not None and source.key_column in ranking.source_keys
    state = KeyedTopN(
        name="",
        origins=origins,
        ranking=ranking,
        limit=0,
        call=call,
        repartitioned=not keyed,
        where=call.where,
        closing=closing,
    )
    template = app._template_of(
        StructType.fromJson(_parse_datatype_json_string(ranking.output_schema_json).jsonValue())
    )
    return RankedStream(app, template, state, ())


@checked_api()
class RankedStream(StreamBase):
    """Rows of a stream with their rank, in front of the filter on it."""

    _row_for_row = True
    groupBy = groupby = refusing_method("groupBy", REFUSED_RANKED_METHODS["groupBy"])
    unionByName = refusing_method("unionByName", REFUSED_RANKED_METHODS["unionByName"])
    join = refusing_method("join", REFUSED_RANKED_METHODS["join"])
    dropna = refusing_method("dropna", REFUSED_RANKED_METHODS["dropna"])
    to_topic = refusing_method("to_topic", REFUSED_RANKED_METHODS["to_topic"])
    to_parquet = refusing_method("to_parquet", REFUSED_RANKED_METHODS["to_parquet"])
    to_delta = refusing_method("to_delta", REFUSED_RANKED_METHODS["to_delta"])
    to_iceberg = refusing_method("to_iceberg", REFUSED_RANKED_METHODS["to_iceberg"])
    to_postgres = refusing_method("to_postgres", REFUSED_RANKED_METHODS["to_postgres"])
    to_sqlite = refusing_method("to_sqlite", REFUSED_RANKED_METHODS["to_sqlite"])
    to_sink = refusing_method("to_sink", REFUSED_RANKED_METHODS["to_sink"])
    foreachBatch = refusing_method("foreachBatch", REFUSED_RANKED_METHODS["foreachBatch"])

    def __init__(self, app: Application, template: DataFrame, state: KeyedTopN, calls: tuple[NarrowCall, ...]) -> None:
        super().__init__(app, template)
        self._state, self._calls = state, calls

    def _described_sources(self) -> list[tuple[str, list[str]]]:
        later = [self._state.call.method, *(call.method for call in self._calls)]
        return [(source, [*calls, *later]) for source, calls in described_sources(self._state.origins)]

    def _followed_by(self, call: NarrowCall, template: DataFrame) -> RankedStream:
        return RankedStream(self._app, template, self._state, (*self._calls, call))

    def where(self, condition: Column | str, *, name: str | None = None) -> RankedTable:  # type: ignore[override]
        """As `DataFrame.where`, for a condition on the rank alone: `rn <= 10`, `rn < 10`, `rn = 1`.

        Args:
            condition: The condition.
            name: Name of the state store and its changelog; by default `top-<N>-by-<columns of partitionBy>`.

        Returns:
            A table with the first rows of each key.

        Raises:
            TopologyError: needs-shuffle, bad-value, unresolved-column.
        """
        return self._first_rows(condition, name, call_site())

    def filter(self, condition: Column | str, *, name: str | None = None) -> RankedTable:  # type: ignore[override]
        """As `where`."""
        return self._first_rows(condition, name, call_site())

    def _first_rows(self, condition: Column | str, name: str | None, where: str) -> RankedTable:
        state = self._state
        limit = limit_of(self._template, state.ranking.rank_column, condition, where)
        columns = [column for column, _ in state.ranking.group_columns]
        if name is None:
            name = derived_state_name(f"top-{limit}-by", columns, where, "where")
        else:
            name = checked_state_name(name, where)
        found = replace(state, name=name, limit=limit, where=where)
        if found.time_window is None:
            warn_of_unbounded_rank(name, limit, state.ranking, state.origins, where)
        return RankedTable(self._app, self._template, found, self._calls)


@checked_api()
class RankedTable(KeyedTable):
    """The first rows of each key. `select`, `withColumn` and `drop` may follow, then a sink that replaces rows."""

    groupBy = groupby = refusing_method("groupBy", REFUSED_RANKED_TABLE_METHODS["groupBy"])
    unionByName = refusing_method("unionByName", REFUSED_RANKED_TABLE_METHODS["unionByName"])
    join = refusing_method("join", REFUSED_RANKED_TABLE_METHODS["join"])
    where = refusing_method("where", REFUSED_RANKED_TABLE_METHODS["where"])
    filter = refusing_method("filter", REFUSED_RANKED_TABLE_METHODS["filter"])
    dropna = refusing_method("dropna", REFUSED_RANKED_TABLE_METHODS["dropna"])
    to_parquet = refusing_method("to_parquet", REFUSED_RANKED_TABLE_METHODS["to_parquet"])
    foreachBatch = refusing_method("foreachBatch", REFUSED_RANKED_TABLE_METHODS["foreachBatch"])

    @property
    def _top(self) -> KeyedTopN:
        assert isinstance(self._state, KeyedTopN)
        return self._state

    @property
    def _output_modes(self) -> tuple[OutputMode, ...]:
        """The first rows of a window that has closed are final."""
        return ("update",) if self._top.closing is None else ("update", "append")

    def _check_shows_key(self, where: str) -> None:
        # Two rows of a key may have the same rank. Their records have the position as well, which is no column.
        function = self._top.ranking.function
        if function != "row_number":
            raise refusal(
                "not-supported-here",
                f"rows that are equal in their order share a {function}, so no columns are the key of these rows",
                "rank them by F.row_number(), or write them with to_topic",
                where,
            )

    def _check_key(self, key: list[str], where: str) -> None:
        """Refuse another key than that of the table: a row that moves would leave its old record behind."""
        top, wanted = self._top, self._default_key_columns()
        # With `rank` two rows of a key may have the same rank, so only the position identifies a record.
        if top.ranking.function != "row_number" or set(key) != set(wanted) or not self._key_is_unchanged():
            raise refusal(
                "not-supported-here",
                f"the rows of this table have the key {', '.join(wanted)}; under another one, records of rows "
                "that left would stay",
                "leave these columns as they are, and key= out",
                where,
            )

    def _key_is_unchanged(self) -> bool:
        """Whether the key's columns show the values that rows are partitioned by, and the rank."""
        ranking = self._top.ranking
        values = {name: f"g{at}" for at, (name, _) in enumerate(ranking.group_columns)}
        if self._top.limit > 1:
            values[ranking.rank_column] = "r"
        results = {name: sql.strip("`") for name, sql in ranking.results}
        now = ColumnOrigins(self._template).by_name()
        return all(results.get(name) == value and now.get(name) == name for name, value in values.items())
