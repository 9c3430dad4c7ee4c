"""`KeyedTable`: common base of tables, whose rows are the newest of their keys; `KeyedState`: what declares one.

A kind of operator is a frozen class that satisfies `KeyedState`, and a subclass of `KeyedTable` for its rows.
"""

from __future__ import annotations

from typing import Any, Protocol, Self

from pyspark.sql import DataFrame

from headrace.spark.analysis.plan_reader import ColumnOrigins
from headrace.spark.analysis.table_changes import check_repeatable, columns_behind
from headrace.spark.stream_base import Application, StreamBase, StreamSource, described_sources
from headrace.spark.stream_source import TableRows
from headrace.spark.topology.nodes import KeyedOperator, NarrowCall, ProjectForGroup
from headrace.spark.unsupported import refusal

__all__ = ["KeyedState", "KeyedTable"]


class KeyedState(Protocol):
    """One operator with keys of the program: where its rows come from, and what it keeps of them."""

    @property
    def name(self) -> str:
        """Name of its store."""

    @property
    def origins(self) -> tuple[StreamSource, ...]:
        """The paths of its rows."""

    @property
    def repartitioned(self) -> bool:
        """Whether its rows pass through a repartition topic."""

    @property
    def where(self) -> str:
        """The line of the user's call."""

    @property
    def noun(self) -> str:
        """Kind of operator, for messages, with its article: "an aggregate"."""

    @property
    def naming_call(self) -> str:
        """Method that takes the name of the store, such as "agg"."""

    @property
    def projection(self) -> ProjectForGroup:
        """The rows that it takes."""

    @property
    def key_columns(self) -> tuple[str, ...]:
        """Columns of its rows, by the names of the user, that are the key of their records."""

    def described_calls(self) -> list[str]:
        """Return the calls that declare it, for notebooks."""

    def node(self, changelog_topic: str) -> KeyedOperator:
        """Return its compiled form."""


class KeyedTable(StreamBase):
    """The newest row of each key, behind an operator with keys."""

    _row_for_row = True

    def __init__(self, app: Application, template: DataFrame, state: Any, calls: tuple[NarrowCall, ...]) -> None:
        super().__init__(app, template)
        self._state: KeyedState = state
        self._calls = calls

    def _described_sources(self) -> list[tuple[str, list[str]]]:
        later = [*self._state.described_calls(), *(call.method for call in self._calls)]
        return [(source, [*calls, *later]) for source, calls in described_sources(self._state.origins)]

    @property
    def _changes(self) -> str:
        """Canonical text of what decides which keys have a row; empty: each key that came has one."""
        return ""

    def _followed_by(self, call: NarrowCall, template: DataFrame) -> Self:
        return type(self)(self._app, template, self._state, (*self._calls, call))

    def _table_rows(self, where: str, what: str) -> TableRows:
        """Return the rows of this table in front of another operator, which `what` makes. Raises TopologyError."""
        raise refusal(
            "not-supported-here",
            f"{what} of the first rows of each key is not supported yet",
            "write the rows with to_topic, and read that with app.stream; or F.max_by(x, time) in groupBy",
            where,
        )

    def _changed_rows(self, text: str, where: str, what: str) -> TableRows:
        """Return the rows of a table of changes in front of the operator of `what`.

        Args:
            text: Canonical text of what makes the table, without the filters behind it.
            where: "file:line" of the user's call.
            what: That call, for messages.

        Raises:
            TopologyError: not-supported-here: a column is not the same when it is computed again.
        """
        check_repeatable(self._template, where, what)
        return TableRows(
            state=self._state,
            calls=self._calls,
            text=f"{text} {self._changes}".rstrip(),
            schema=self.schema,
            frame=self._template,
        )

    def _default_key_columns(self) -> tuple[str, ...]:
        return self._state.key_columns

    def _check_key(self, key: list[str], where: str) -> None:
        missing = [name for name in self._default_key_columns() if name not in key]
        if missing:
            raise refusal(
                "not-supported-here",
                f'without "{missing[0]}" in the key, rows of different groups would replace each other',
                f"leave key= out, or take all of: {', '.join(self._default_key_columns())}",
                where,
            )
        self._check_key_is_kept(key, where)

    def _check_key_is_kept(self, key: list[str], where: str) -> None:
        """Refuse a key that a row may change, or that rows of two groups may share: old records would stay, or vanish.

        A filtered table has the grouping columns as its key and no others: a row that is gone has no other columns.
        """
        wanted = self._default_key_columns()
        behind = columns_behind(self._template)
        moving = [name for name in key if not behind[name] <= set(wanted)]
        if moving:
            raise refusal(
                "not-supported-here",
                f'"{moving[0]}" changes with the rows of a group: the record under its old key would stay',
                f"leave key= out, or name columns that only {', '.join(wanted)} decide",
                where,
            )
        now = ColumnOrigins(self._template).by_name()
        changed = next((name for name in wanted if now.get(name) != name), None)
        if changed is not None or (self._drops_rows and tuple(key) != wanted):
            raise refusal(
                "not-supported-here",
                f'"{changed}" is not the grouping column any more: rows of two groups could get one key'
                if changed is not None
                else "behind a filter the key is that of the groups: a row that is gone has no other columns",
                "leave key= out: the records then have the grouping columns as their key",
                where,
            )
