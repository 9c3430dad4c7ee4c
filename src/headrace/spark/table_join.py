"""Join of two tables: `JoinedTable`, and the kinds and conditions that are accepted.

Both sides have one row per key, so the result has one, too, and is a table of changes with the same key: filters, a
second aggregate and a further join may stand behind it. Columns of the left side that equal the key of the right one
are a foreign key (`foreign_key_join`). Equalities between other columns are refused, but as a filter behind an inner
join.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pyspark.sql import DataFrame

from headrace.checked_api import checked_api
from headrace.spark.analysis.table_changes import check_repeatable, filter_text
from headrace.spark.analysis.table_union import Grouping, united_tables
from headrace.spark.foreign_key_join import ForeignKeyJoinReader
from headrace.spark.frames import apply_calls, without_hidden
from headrace.spark.keyed_table import KeyedTable
from headrace.spark.stream_base import Application, StreamSource
from headrace.spark.stream_join import (
    STREAM_JOINS,
    check_unique_names,
    join_kind,
    no_equality,
)
from headrace.spark.stream_source import TableRows
from headrace.spark.table_join_reader import KeyedTableJoin, TableJoinReader
from headrace.spark.topology.nodes import (
    NarrowCall,
    TableJoinKind,
)
from headrace.spark.unsupported import call_site, refusal, translated

__all__ = ["JoinedTable", "joined_tables", "table_sides"]

_KINDS: Mapping[str, TableJoinKind] = {**STREAM_JOINS, "anti": "left_anti", "leftanti": "left_anti"}


@checked_api(unchecked=("join.other", "unionByName.other"))
class JoinedTable(KeyedTable):
    """The rows of two tables with equal keys. Made by `join` of two tables.

    `select`, `withColumn` and `where` may follow, then `to_topic`, `groupBy` or a further `join`.
    """

    _drops_rows = True  # a row may lose its partner

    def __init__(
        self, app: Application, template: DataFrame, state: KeyedTableJoin, calls: tuple[NarrowCall, ...], group: Any
    ) -> None:
        """`group` makes the groups of rows: `GroupedStream`, whose module imports this one."""
        super().__init__(app, template, state, calls)
        self._group: Grouping = group

    def groupBy(self, *cols: Any) -> Any:
        """As `DataFrame.groupBy`: group the rows of this table by other columns, as `StreamTable.groupBy`."""
        where = call_site()
        return self._group(self, (StreamSource(source=self._table_rows(where, "groupBy")),), cols, where)

    groupby = groupBy

    def unionByName(self, other: Any, allowMissingColumns: bool = False) -> Any:  # noqa: N803 PySpark's own
        """As `StreamTable.unionByName`: rows of two tables, to be grouped."""
        where = call_site()
        sides = table_sides(self, other, "unionByName", where)
        return united_tables(self._app, sides, allowMissingColumns, where, self._group)

    def join(self, other: Any, on: Any = None, how: str | None = None, *, name: str | None = None) -> JoinedTable:
        """As `StreamTable.join`, with a table."""
        where = call_site()
        return joined_tables(self._app, table_sides(self, other, "join", where), on, how, name, where, self._group)

    @property
    def _takes_filters(self) -> bool:
        return True

    @property
    def _join(self) -> KeyedTableJoin:
        assert isinstance(self._state, KeyedTableJoin)
        return self._state

    @property
    def _changes(self) -> str:
        return filter_text(self._template, self._join.results)

    def _check_shows_key(self, where: str) -> None:
        if not self._join.shows_key:
            raise refusal(
                "not-supported-here",
                "the rows of a full join on a condition have their key in either column, so no column is their key",
                f'give both sides of "{self._join.name}" the same names, and join on them: join(other, "id", "full")',
                where,
            )

    def _followed_by(self, call: NarrowCall, template: DataFrame) -> JoinedTable:
        if call.method in ("where", "dropna"):
            check_repeatable(template, call.where, f"{call.method} behind a join of two tables")
        return JoinedTable(self._app, template, self._join, (*self._calls, call), self._group)

    def _table_rows(self, where: str, what: str) -> TableRows:
        return self._changed_rows(self._join.text, where, what)


def table_sides(one: KeyedTable, other: Any, method: str, where: str) -> list[tuple[DataFrame, TableRows]]:
    """Return the templates and the rows of two tables. Raises TopologyError if `other` is no table of this app."""
    if not isinstance(other, KeyedTable) or other._app is not one._app:
        raise refusal(
            "not-supported-here",
            f"{method} behind an aggregate takes a table of the same app: another aggregate, or a join of two",
            "unite or join streams before groupBy, or where you read",
            where,
        )
    return [(side._template, side._table_rows(where, method)) for side in (one, other)]


def joined_tables(
    app: Application,
    sides: Sequence[tuple[DataFrame, TableRows]],
    on: Any,
    how: object,
    name: str | None,
    where: str,
    group: Grouping,
) -> JoinedTable:
    """Return the join of two tables.

    Args:
        app: Their application.
        sides: Template and rows of each.
        on: Condition, as `DataFrame.join` takes it.
        how: Type of the join.
        name: Name of the store; None derives one of the key's columns.
        where: "file:line" of the user's call.
        group: As in `JoinedTable`.

    Raises:
        TopologyError: needs-shuffle, not-supported-here, duplicate-column, unresolved-column.
    """
    kind = join_kind(how, _KINDS, "two tables", where)
    if on is None:
        raise no_equality("a join of two tables without a condition", where)
    frames = [without_hidden(template) for template, _ in sides]
    with translated(where, [*frames[0].columns, *frames[1].columns]):
        joined = frames[0].join(frames[1], on, kind)
    check_unique_names(joined.columns, where)
    check_repeatable(joined, where, "a join of two tables")
    [left, right] = [rows for _, rows in sides]
    by_foreign_key = ForeignKeyJoinReader(joined, kind, frames, (left, right), where).foreign_key_join(on, name)
    state, filters = by_foreign_key or TableJoinReader(joined, kind, frames, (left, right), where).table_join(on, name)
    template = apply_calls(app._template_of(state.schema), filters)
    return JoinedTable(app, template, state, filters, group)
