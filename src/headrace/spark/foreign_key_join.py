"""Join of two tables by a foreign key: which conditions are one, what it declares, and its subtopologies.

The condition equates the whole key of the right table with columns of the left one that are not its whole key. A left
row meets one right row at most, so the result is a table with the key of the left side.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from headrace.spark.frames import quoted
from headrace.spark.spark_internals import class_of, sequence
from headrace.spark.stream_base import StreamSource
from headrace.spark.table_join_reader import INTEGERS, KeyedTableJoin, TableJoinReader, key_column_of
from headrace.spark.topology.nodes import (
    HIDDEN_PREFIX,
    SUBSCRIPTION_COLUMNS,
    Branch,
    CompiledSubtopology,
    ForeignKeyJoin,
    NarrowCall,
    RepartitionSink,
    RepartitionSource,
    Subscriptions,
    TableJoinSide,
)

__all__ = ["ForeignKeyJoinReader", "ForeignKeyTopics", "KeyedForeignKeyJoin"]

_KINDS = ("inner", "left", "left_semi", "left_anti")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class KeyedForeignKeyJoin(KeyedTableJoin):
    """One foreign-key join of the program. Its left projection has the key first, and the foreign key behind it."""

    noun = "a foreign-key join"

    @property
    def text(self) -> str:
        """Canonical text of all that its rows depend on, except filters in front of it."""
        return f"{super(KeyedForeignKeyJoin, self).text}, foreign key {' = '.join(map(', '.join, self._foreign_key))}"

    @property
    def _foreign_key(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Return the canonical texts of the foreign key, and of the right table's key."""
        left, right = self.projections
        return left.expressions[len(self.group_columns) : len(left.key_sql)], right.expressions[: len(right.key_sql)]

    def node(self, changelog_topic: str) -> ForeignKeyJoin:
        """Return its compiled form."""
        count = len(self.group_columns)
        left, right = self.projections
        sides = [
            TableJoinSide(
                columns=one.columns[len(one.key_sql) :],
                expressions=one.expressions[len(one.key_sql) :],
                key_expressions=keys,
            )
            for one, keys in zip((left, right), self._foreign_key, strict=True)
        ]
        return ForeignKeyJoin(
            name=self.name,
            kind=self.kind,
            group_columns=self.group_columns,
            left=sides[0],
            right=sides[1],
            results=self.results,
            output_schema_json=self.schema.json(),
            changelog_topic=changelog_topic,
            changes=self.text,
            foreign_types=tuple(kind for _, kind in right.columns[: len(right.key_sql)]),
            left_key_expressions=left.expressions[:count],
            where=self.where,
        )

    def keyed_batch(self, left: DataFrame, right: DataFrame) -> DataFrame:
        """As `as_batch`, with the key of each row in the columns `key_column_of`."""
        keys = self.projections[0].key_sql[: len(self.group_columns)]
        copies = [F.expr(sql).alias(f"{HIDDEN_PREFIX}left{at}") for at, (_, sql) in enumerate(keys)]
        joined = self.as_batch(left.select("*", *copies), right)
        shown = [name for name in joined.columns if not name.startswith(HIDDEN_PREFIX)]
        named = [F.col(f"{HIDDEN_PREFIX}left{at}").alias(key_column_of(at)) for at in range(len(keys))]
        return joined.select(*map(quoted, shown), *named)


@dataclass(frozen=True, slots=True)
class ForeignKeyTopics:
    """The internal topics of a compiled foreign-key join, with what writes and reads them."""

    declared: KeyedForeignKeyJoin
    join: ForeignKeyJoin  # with what is behind it in `changes`
    internal: Callable[[str, str], str]  # name of an internal topic, of a store's name and the kind of topic

    @property
    def subscriptions(self) -> Subscriptions:
        name = f"{self.join.name}-subscriptions"
        return Subscriptions(join=self.join, name=name, changelog_topic=self.internal(name, "changelog"))

    def sinks(self) -> tuple[RepartitionSink, RepartitionSink]:
        """Return the sinks of the left and of the right table."""
        subscriptions = self._subscriptions_source
        left = RepartitionSink(
            topic=self._answers_source.topic,
            columns=self._answers_source.columns,
            expressions=self._answers_source.expressions,
            takes_changes=True,
            table_join=self.join,
            subscriptions_topic=subscriptions.topic,
            subscription_expressions=subscriptions.expressions,
        )
        right = RepartitionSink(
            topic=subscriptions.topic,
            columns=subscriptions.columns,
            expressions=subscriptions.expressions,
            takes_changes=True,
            table_join=self.join,
            join_side=1,
        )
        return left, right

    def subtopologies(self, behind: Branch) -> tuple[CompiledSubtopology, CompiledSubtopology]:
        """Return the subtopology of the subscriptions, and that of the join, which ends as `behind` does."""
        answers = RepartitionSink(
            topic=self._answers_source.topic,
            columns=self._answers_source.columns,
            expressions=self._answers_source.expressions,
        )
        subscriptions = self.subscriptions
        return (
            CompiledSubtopology(
                subtopology_id=subscriptions.name,
                sources=(self._subscriptions_source,),
                branches=(Branch(source_index=0, subscriptions=subscriptions, sink=answers),),
            ),
            CompiledSubtopology(subtopology_id=self.join.name, sources=(self._answers_source,), branches=(behind,)),
        )

    @property
    def _subscriptions_source(self) -> RepartitionSource:
        return RepartitionSource(
            topic=self.internal(self.subscriptions.name, "repartition"),
            columns=SUBSCRIPTION_COLUMNS,
            expressions=("side", "left key", f"row of {self._text}"),
            origins=self._origins,
        )

    @property
    def _answers_source(self) -> RepartitionSource:
        return RepartitionSource(
            topic=self.internal(self.join.name, "repartition"),
            columns=self.join.answer_columns,
            expressions=(*self.join.left_key_expressions, "side", "foreign key", f"row of {self._text}"),
            origins=self._origins,
        )

    @property
    def _text(self) -> str:
        # The bytes of a row are those of the store, so all that the store is identified by belongs to its text.
        sides = " or ".join(f"({', '.join(side.expressions)})" for side in self.join.sides)
        return f"{sides} by {self.declared.text}"

    @property
    def _origins(self) -> tuple[str, ...]:
        return tuple(sorted({name for origin in self.declared.origins for name in origin.source.topics}))


class ForeignKeyJoinReader(TableJoinReader):
    """Reads the analysed plan of a join of two tables if that is one by a foreign key."""

    _noun = "a foreign-key join"

    def foreign_key_join(self, on: Any, name: str | None) -> tuple[KeyedForeignKeyJoin, tuple[NarrowCall, ...]] | None:
        """Return the join, and the rest of its condition as calls on the joined rows; None if it is another join.

        Args:
            on: The condition as the user wrote it.
            name: Name of the store; None derives one of the foreign key's columns.

        Raises:
            TopologyError: not-supported-here: the condition is one of a foreign key, but the result cannot be right.
        """
        conjuncts = self._conjuncts()
        pairs, filters = self._pairs_and_filters(conjuncts)
        own = [self._key_column(0, pair[0]) for pair in pairs]
        key, of_right = self._key_of(0), self._key_of(1)
        if len(pairs) < len(of_right):
            self._check_other_side(conjuncts, key, of_right)
            return None
        if set(key) <= set(own):
            return None
        self._check_pairs(pairs, filters)
        return self._declared(pairs, on, name), tuple(map(self._filter, filters))

    def _pairs_and_filters(self, conjuncts: Sequence[Any]) -> tuple[list[tuple[Any, Any]], list[Any]]:
        """Return the pairs of a value of the left side and a key column of the right one, and all other conjuncts."""
        wanted = list(self._key_of(1))
        pairs, filters = [], []
        for conjunct in conjuncts:
            pair = self._equated(conjunct)
            column = None if pair is None else self._key_column(1, pair[1])
            if pair is not None and column in wanted:
                pairs.append(pair)
                wanted.remove(column)
            else:
                filters.append(conjunct)
        return pairs, filters

    def _check_other_side(self, conjuncts: Sequence[Any], key: Sequence[str], of_right: Sequence[str]) -> None:
        """Refuse a condition that equates the whole key of the left table: the foreign key is on the right then."""
        equated = [pair for conjunct in conjuncts if (pair := self._equated(conjunct)) is not None]
        found = {self._key_column(0, left) for left, right in equated if _is_column(right)}
        if not set(key) <= found:
            return
        raise self._refuse(
            f"the key of the right table is {', '.join(of_right)}, and this condition equates the key of the left one "
            "with other columns: a left row could meet many",
            "join from the side that has the foreign key: right.join(left, ..); its rows have that side's key",
        )

    def _check_pairs(self, pairs: Sequence[tuple[Any, Any]], filters: Sequence[Any]) -> None:
        if self._how not in _KINDS:
            raise self._refuse(
                f"how={self._how!r} of a foreign-key join would have rows of the right table that no left row refers "
                "to, and those have no key of the left table",
                f"how={', '.join(map(repr, _KINDS[:-1]))} or {_KINDS[-1]!r}",
            )
        for pair in pairs:
            self._check_key(pair)
            if not _is_column(pair[0]):
                raise self._refuse(
                    f"the foreign key {pair[0].sql()} is no column of the left table",
                    "make it a column of the type of the right key first: withColumn",
                )
        if filters and self._how != "inner":
            raise self._refuse(
                f"the condition of a {self._how} join of two tables may have equalities of the foreign key, and not: "
                f"{filters[0].sql()}",
                "filter the sides before the join (where), or the joined rows of an inner join",
            )

    def _declared(self, pairs: Sequence[tuple[Any, Any]], on: Any, name: str | None) -> KeyedForeignKeyJoin:
        keys = self._left_key_columns()
        kinds = [str(key.dataType().json()) for key in keys]
        foreign = [str(left.dataType().json()) for left, _ in pairs]
        stored = [self._stored_columns(side) for side in range(2)]
        left = self._projection(0, [*keys, *(one for one, _ in pairs)], [*kinds, *foreign], stored[0], 0)
        right = self._projection(1, [one for _, one in pairs], foreign, stored[1], len(left.input_sql))
        results = self._results(stored, (left, right), {})
        return KeyedForeignKeyJoin(
            name=self._name(name, [one for one, _ in pairs]),
            origins=(StreamSource(source=self._tables[0]), StreamSource(source=self._tables[1])),
            projections=(left, right),
            kind=self._how,
            group_columns=tuple(zip((str(key.name()) for key in keys), kinds, strict=True)),
            results=results,
            schema=self._joined.schema,
            on=on,
            where=self._where,
            shows_key=True,
        )

    def _left_key_columns(self) -> list[Any]:
        """Return the columns of the left side that are the key of its rows."""
        columns = list(sequence(self._sides[0].output()))
        found = []
        for wanted in self._key_of(0):
            column = next((one for one in columns if self._key_column(0, one) == wanted), None)
            if column is None:
                raise self._refuse(
                    f'the key "{wanted}" of the left table is not among its columns, so the result would have none',
                    f'keep it in front of the join: select("{wanted}", ..)',
                )
            found.append(column)
        return found


def _is_column(value: Any) -> bool:
    """Whether a value is a column, or an integer that Spark made longer for the comparison."""
    if class_of(value) == "Cast":
        before, behind = (str(one.dataType().simpleString()) for one in (value.child(), value))
        return behind in INTEGERS and before in INTEGERS and class_of(value.child()) == "AttributeReference"
    return bool(class_of(value) == "AttributeReference")
