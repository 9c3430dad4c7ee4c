"""The declaration of a join of two tables, read from Spark's analysed plan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from headrace.spark.analysis.canonical_expressions import CanonicalExpressions
from headrace.spark.analysis.plan_reader import ColumnOrigins, only_projects
from headrace.spark.analysis.table_changes import zone_text
from headrace.spark.frames import quoted
from headrace.spark.spark_internals import analysed, class_of, expression_id, not_null_columns, sequence
from headrace.spark.stream_base import StreamSource
from headrace.spark.stream_join import (
    JoinReader,
    conditions_of,
)
from headrace.spark.stream_source import TableRows
from headrace.spark.topology.nodes import (
    HIDDEN_PREFIX,
    JOIN_SIDES,
    NarrowCall,
    ProjectForGroup,
    TableJoin,
    TableJoinKind,
    TableJoinSide,
)

__all__ = ["INTEGERS", "KeyedTableJoin", "TableJoinReader", "key_column_of"]

INTEGERS = ("tinyint", "smallint", "int", "bigint")  # each holds all values of those before it


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class KeyedTableJoin:
    """One join of two tables of the program: where its rows come from, and the rows it makes."""

    name: str
    origins: tuple[StreamSource, StreamSource]  # the rows of both tables
    projections: tuple[ProjectForGroup, ProjectForGroup]
    kind: TableJoinKind
    group_columns: tuple[tuple[str, str], ...]  # (name, type JSON)
    results: tuple[tuple[str, str], ...]
    schema: StructType  # of the joined rows
    on: Any  # as the user wrote it
    where: str
    shows_key: bool  # whether the columns that name the key have its value in every row
    noun = "a join of two tables"
    naming_call = "join"
    repartitioned = True

    @property
    def projection(self) -> ProjectForGroup:
        """The rows that it takes of the left side."""
        return self.projections[0]

    @property
    def tables(self) -> tuple[TableRows, TableRows]:
        """The rows of both sides."""
        left, right = (origin.source for origin in self.origins)
        assert isinstance(left, TableRows)
        assert isinstance(right, TableRows)
        return left, right

    @property
    def key_columns(self) -> tuple[str, ...]:
        """The columns that name the key: those of the side whose rows are all there, or of the left one."""
        return tuple(name for name, _ in self.group_columns)

    @property
    def text(self) -> str:
        """Canonical text of all that its rows depend on, except filters in front of it."""
        groups = len(self.group_columns)
        left, right = (one.expressions[:groups] for one in self.projections)
        keys = ", ".join(f"{one} = {other}" for one, other in zip(left, right, strict=True))
        tables = " and ".join(f"({table.text}{zone_text(table.frame)})" for table in self.tables)
        inputs = "; ".join(", ".join(one.expressions[groups:]) for one in self.projections)
        results = ", ".join(f"{sql} as {name}" for name, sql in self.results)
        return f"{results} of {inputs} from {self.kind} join of {tables} on {keys}"

    def described_calls(self) -> list[str]:
        """Return the calls that declare it, for notebooks."""
        return [f"join({', '.join(self.key_columns)})"]

    def node(self, changelog_topic: str) -> TableJoin:
        """Return its compiled form."""
        groups = len(self.group_columns)
        left, right = (
            TableJoinSide(
                columns=one.columns[groups:],
                expressions=one.expressions[groups:],
                key_expressions=one.expressions[:groups],
            )
            for one in self.projections
        )
        return TableJoin(
            name=self.name,
            kind=self.kind,
            group_columns=self.group_columns,
            left=left,
            right=right,
            results=self.results,
            output_schema_json=self.schema.json(),
            changelog_topic=changelog_topic,
            changes=self.text,
            where=self.where,
        )

    def as_batch(self, left: DataFrame, right: DataFrame) -> DataFrame:
        """The same join of two DataFrames by Spark: what `verify` compares with."""
        return left.join(right, self.on, self.kind)

    def keyed_batch(self, left: DataFrame, right: DataFrame) -> DataFrame:
        """The same, with the key of each row in the columns `key_column_of`."""
        count = len(self.group_columns)
        frames = []
        for role, frame, one in zip(JOIN_SIDES, (left, right), self.projections, strict=True):
            copies = [F.expr(sql).alias(f"{HIDDEN_PREFIX}{role}{at}") for at, (_, sql) in enumerate(one.key_sql)]
            frames.append(frame.select("*", *copies))
        joined = self.as_batch(*frames)
        shown = [name for name in joined.columns if not name.startswith(HIDDEN_PREFIX)]
        have = set(joined.columns)
        keys = []
        for at in range(count):
            copies = [name for role in JOIN_SIDES if (name := f"{HIDDEN_PREFIX}{role}{at}") in have]
            keys.append(F.coalesce(*copies).alias(key_column_of(at)))
        return joined.select(*map(quoted, shown), *keys)


def key_column_of(position: int) -> str:
    """Return the hidden column with a value of the key."""
    return f"{HIDDEN_PREFIX}g{position}"


class TableJoinReader(JoinReader):
    """Reads the analysed plan of a join of two tables."""

    _noun = "a join of two tables"

    def __init__(
        self,
        joined: DataFrame,
        kind: TableJoinKind,
        frames: Sequence[DataFrame],
        tables: tuple[TableRows, TableRows],
        where: str,
    ) -> None:
        super().__init__(joined, "inner", None, (), where)
        self._how, self._frames, self._tables = kind, frames, tables
        self._texts = [CanonicalExpressions(frame) for frame in frames]
        self._origins = [ColumnOrigins(frame) for frame in frames]

    def table_join(self, on: Any, name: str | None) -> tuple[KeyedTableJoin, tuple[NarrowCall, ...]]:
        """Return the join, and the rest of its condition as calls on the joined rows."""
        pairs, filters = self._keys_and_filters(self._conjuncts())
        self._check_null_keys(pairs)
        kinds = tuple(str(left.dataType().json()) for left, _ in pairs)
        stored = [self._stored_columns(side) for side in range(2)]
        names = {0: [str(_column(left).name()) for left, _ in pairs], 1: [str(_column(one).name()) for _, one in pairs]}
        projections, first = [], 0
        for side in range(2):
            projections.append(self._projection(side, [pair[side] for pair in pairs], kinds, stored[side], first))
            first += len(projections[side].input_sql)
        named = names[1 if self._how == "right" else 0]
        results = self._results(stored, projections, dict(zip(names[0], kinds, strict=True)))
        join = KeyedTableJoin(
            name=self._name(name, [left for left, _ in pairs]),
            origins=(StreamSource(source=self._tables[0]), StreamSource(source=self._tables[1])),
            projections=(projections[0], projections[1]),
            kind=self._how,
            group_columns=tuple(zip(named, kinds, strict=True)),
            results=results,
            schema=self._joined.schema,
            on=on,
            where=self._where,
            shows_key=self._how != "full" or class_of(self._plan) != "Join",
        )
        return join, tuple(map(self._filter, filters))

    def _conjuncts(self) -> list[Any]:
        """Return the expressions that the condition connects by AND."""
        conjuncts = conditions_of(self._join, self._refuse)
        self._check_no_user_function(conjuncts)
        return conjuncts

    def _keys_and_filters(self, conjuncts: Sequence[Any]) -> tuple[list[tuple[Any, Any]], list[Any]]:
        """Return the pairs of values that are the keys of both tables, and all other conjuncts.

        Raises TopologyError if they are not the whole keys.
        """
        wanted = [self._key_of(side) for side in range(2)]
        pairs: list[tuple[Any, Any]] = []
        taken: list[list[str]] = [[], []]
        filters = []
        for conjunct in conjuncts:
            pair = self._equated(conjunct)
            columns = [] if pair is None else [self._key_column(side, value) for side, value in enumerate(pair)]
            is_key = pair is not None and all(
                column in wanted[side] and column not in taken[side] for side, column in enumerate(columns)
            )
            if pair is not None and is_key:
                self._check_key(pair)
                pairs.append(pair)
                for side, column in enumerate(columns):
                    taken[side].append(str(column))
            else:
                filters.append(conjunct)
        for side, role in enumerate(JOIN_SIDES):
            missing = [column for column in wanted[side] if column not in taken[side]]
            if missing or not pairs:
                raise self._refuse(
                    f"the key of the {role} table is {', '.join(wanted[side])}, and this condition does not equate "
                    f'"{(missing or wanted[side])[0]}" with a key column of the other one: a row could meet many',
                    "equate the whole key of the right table with columns of the left one (a foreign key); or group "
                    "both sides by the columns that they are joined on, and equate all of them: "
                    f"join(other, {wanted[side]})",
                )
        if filters and self._how != "inner":
            raise self._refuse(
                f"the condition of a {self._how} join of two tables may have equalities of their keys, and not: "
                f"{filters[0].sql()}",
                "filter the sides before the join (where), or the joined rows of an inner join",
            )
        return pairs, filters

    def _key_of(self, side: int) -> tuple[str, ...]:
        """Return the key of a table, as columns of what makes it."""
        state = self._tables[side].state
        if not getattr(state, "shows_key", True):
            raise self._refuse(
                "the rows of a full join on a condition have their key in either column, so no column is their key",
                f'give both sides of "{state.name}" the same names, and join on them: join(other, "id", "full")',
            )
        found: tuple[str, ...] = state.key_columns
        return found

    def _key_column(self, side: int, value: Any) -> str | None:
        """Return the column of what makes a table that a value of the condition equals; None if it is computed.

        A cast to a longer integer is no computation: different values stay different.
        """
        if class_of(value) == "Cast":
            before, behind = (str(one.dataType().simpleString()) for one in (value.child(), value))
            if behind not in INTEGERS or before not in INTEGERS[: INTEGERS.index(behind)]:
                return None
            value = value.child()
        if class_of(value) != "AttributeReference":
            return None
        return self._origins[side].column_of(self._attribute(side, str(value.name())))

    def _attribute(self, side: int, name: str) -> Any:
        return next(one for one in sequence(analysed(self._frames[side]).output()) if str(one.name()) == name)

    def _check_null_keys(self, pairs: Sequence[tuple[Any, Any]]) -> None:
        """Refuse a full join in which a row of each side may have a null key.

        Null equals nothing, so both would be in the result, under one key.
        """
        if self._how != "full":
            return
        for side, frame in enumerate(self._frames):
            if {str(_column(pair[side]).name()) for pair in pairs} <= not_null_columns(frame):
                return
        names = [str(_column(left).name()) for left, _ in pairs]
        condition = " AND ".join(f"{name} IS NOT NULL" for name in names)
        raise self._refuse(
            "rows with a null in the key match nothing, so a full join may have two of them under one key, and a topic "
            "holds one",
            f'leave them out on one side at least, behind its groupBy: where("{condition}")',
        )

    def _stored_columns(self, side: int) -> list[Any]:
        """Return the columns of a side in the result, in the order of their canonical texts."""
        ids = {expression_id(column) for column in sequence(self._sides[side].output())}
        columns = [column for column in sequence(self._plan.output()) if expression_id(column) in ids]
        for column in columns:
            self._check_stored(side, column)
        return sorted(columns, key=lambda column: (self._text(side, column), str(column.name())))

    def _text(self, side: int, column: Any) -> str:
        return self._texts[side].text(self._attribute(side, str(column.name())))

    def _projection(
        self, side: int, keys: Sequence[Any], kinds: Sequence[str], stored: Sequence[Any], first: int
    ) -> ProjectForGroup:
        """Return the projection of a table's rows to its key and the columns that are kept.

        Args:
            side: 0 for the left side, 1 for the right one.
            keys: Its values that the condition equates.
            kinds: Their types.
            stored: Its columns in the result.
            first: Number of its first column.
        """
        frame = self._frames[side]
        key_sql = tuple((f"g{at}", _sql(key)) for at, key in enumerate(keys))
        for (_, sql), kind in zip(key_sql, kinds, strict=True):
            self._check_sql(frame, sql, kind)
        inputs = [(quoted(str(one.name())), str(one.dataType().json()), self._text(side, one)) for one in stored]
        columns = [self._attribute(side, str(_column(one).name())) for one in (*keys, *stored)]
        sources = [self._origins[side].column_of(one) for one in columns]
        texts = tuple(
            f"{self._text(side, _column(key))}{'' if class_of(key) != 'Cast' else f' as {kind}'}"
            for key, kind in zip(keys, kinds, strict=True)
        )
        if not inputs:  # a row has to have a column
            inputs, sources = [(key_sql[0][1], kinds[0], texts[0])], [*sources, sources[0]]
        names = [f"g{at}" for at in range(len(keys))] + [f"i{first + at}" for at in range(len(inputs))]
        bare = only_projects(frame) and None not in sources and not any(class_of(key) == "Cast" for key in keys)
        return ProjectForGroup(
            key_sql=key_sql,
            input_sql=tuple(zip(names[len(keys) :], (sql for sql, _, _ in inputs), strict=True)),
            columns=tuple(zip(names, (*kinds, *(kind for _, kind, _ in inputs)), strict=True)),
            bare=bare,
            source_columns=tuple((n, s) for n, s in zip(names, sources, strict=True) if s is not None) if bare else (),
            expressions=(*texts, *(text for _, _, text in inputs)),
        )

    def _results(
        self, stored: Sequence[Sequence[Any]], projections: Sequence[ProjectForGroup], keys: Mapping[str, str]
    ) -> tuple[tuple[str, str], ...]:
        """Return the columns of the result, each a stored column of a side, or the key of a full join on names."""
        names = {
            expression_id(column): name
            for columns, one in zip(stored, projections, strict=True)
            for column, (name, _) in zip(columns, one.input_sql, strict=False)
        }
        results = []
        for column in sequence(self._plan.output()):
            shown = str(column.name())
            name = names.get(expression_id(column))
            if name is None:
                at = next((at for at, key in enumerate(keys) if key.lower() == shown.lower()), None)
                if at is None or list(keys.values())[at] != str(column.dataType().json()):
                    raise self._refuse(f'the key "{shown}" has other types on both sides', "cast it before groupBy")
                name = f"g{at}"
            results.append((shown, name))
        return tuple(results)


def _column(value: Any) -> Any:
    """Return the column that a key is, or is cast from."""
    return value.child() if class_of(value) == "Cast" else value


def _sql(key: Any) -> str:
    name = quoted(str(_column(key).name()))
    return f"CAST({name} AS {key.dataType().simpleString()})" if class_of(key) == "Cast" else name
