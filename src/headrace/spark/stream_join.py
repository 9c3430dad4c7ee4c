"""Join of two streams: what `Stream.join` accepts, and what it declares.

The condition is read from Spark's analysed plan. Conjuncts that equate a value of one side with a value of the other
are the key, by which both sides are repartitioned. The others are a filter on the joined rows, which Spark SQL
evaluates behind the operator.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame

from headrace.spark.aggregate_split import is_groupable, is_number
from headrace.spark.canonical_expressions import CanonicalExpressions, calls_user_function
from headrace.spark.frames import without_hidden
from headrace.spark.spark_internals import (
    analysed,
    class_of,
    expression_id,
    frame_of_plan,
    is_instance,
    parse_expression,
    sequence,
    unresolved_column,
    walk,
    with_children,
)
from headrace.spark.state_names import checked_state_name, derived_state_name
from headrace.spark.stream_source import JoinedSide, KeyedJoin, StreamSource
from headrace.spark.topology.nodes import NarrowCall
from headrace.spark.unsupported import refusal, translated

__all__ = ["check_inner", "keyed_join"]

_INHERITS = "org.apache.spark.sql.catalyst.expressions.InheritAnalysisRules"
_INNER = frozenset({"inner"})
_OUTER = frozenset({"left", "leftouter", "right", "rightouter", "outer", "full", "fullouter"})


def check_inner(how: object, where: str) -> None:
    """Refuse every join of two streams but the inner one. Raises TopologyError("not-supported-here")."""
    kind = str("inner" if how is None else how).lower().replace("_", "")
    if kind in _INNER:
        return
    if kind in _OUTER:
        raise refusal(
            "not-supported-here",
            f"a {how} join of two streams is not supported yet: a row without a partner would leave when none can "
            "come any more, and nothing says when that is",
            'how="inner"; rows without a partner are found where you read',
            where,
        )
    raise refusal(
        "not-supported-here",
        f"how={how!r} of two streams is not supported yet",
        'how="inner"',
        where,
    )


def keyed_join(
    left: tuple[DataFrame, tuple[StreamSource, ...]],
    right: tuple[DataFrame, tuple[StreamSource, ...]],
    on: Any,
    name: str | None,
    where: str,
) -> KeyedJoin:
    """Return the declaration of an inner join.

    Args:
        left: Template and ways of the rows on the left.
        right: The same on the right.
        on: Condition, as `DataFrame.join` takes it.
        name: Name of the store; None derives one of the key's columns.
        where: "file:line" of the user's call.

    Raises:
        TopologyError: needs-shuffle, not-supported-here, duplicate-column, unresolved-column.
    """
    if on is None:
        raise _no_equality("a join of two streams without a condition", where)
    sides = [without_hidden(frame) for frame, _ in (left, right)]
    with translated(where, [*sides[0].columns, *sides[1].columns]):
        joined = sides[0].join(sides[1], on, "inner")
    _check_names(joined.columns, where)
    return _Reader(joined, where).declared((left[1], right[1]), sides, on, name)


class _Reader:
    """Reads the analysed plan of a join."""

    def __init__(self, joined: DataFrame, where: str) -> None:
        self._joined, self._where = joined, where
        self._session = joined.sparkSession
        self._plan = analysed(joined)
        # `on="id"` puts a projection around the join, which leaves out the second column of this name.
        self._join = self._plan if class_of(self._plan) == "Join" else self._plan.child()
        self._sides = (self._join.left(), self._join.right())

    def declared(
        self,
        origins: tuple[tuple[StreamSource, ...], ...],
        templates: Sequence[DataFrame],
        on: Any,
        name: str | None,
    ) -> KeyedJoin:
        if self._join.subqueries().size():
            raise self._refuse(
                "a subquery in the condition would be read again, or not, with every micro-batch",
                "read it beforehand and put the value in with F.lit",
            )
        condition = self._join.condition()
        conjuncts = _conjuncts(condition.get()) if condition.isDefined() else []
        self._check_no_user_function(conjuncts)
        pairs = [(one, self._equated(one)) for one in conjuncts]
        keys = [pair for _, pair in pairs if pair is not None]
        if not keys:
            raise _no_equality("this condition has no equality between a value of each stream", self._where)
        for pair in keys:
            self._check_key(pair)
        left, right = (
            self._side(number, origins[number], templates[number], [pair[number] for pair in keys])
            for number in range(2)
        )
        return KeyedJoin(
            name=self._name(name, [pair[0] for pair in keys]),
            left=left,
            right=right,
            key_types=tuple(str(one.dataType().json()) for one, _ in keys),
            filters=tuple(self._filter(one) for one, pair in pairs if pair is None),
            schema=self._joined.schema,
            on=on,
            where=self._where,
            frame=self._joined,
        )

    def _side(
        self, number: int, origins: tuple[StreamSource, ...], template: DataFrame, keys: Sequence[Any]
    ) -> JoinedSide:
        plan = self._sides[number]
        # With the plan of the join: Spark gives the right side of a self-join other expression ids.
        canonical = CanonicalExpressions(frame_of_plan(self._session, plan))
        ids = {expression_id(column) for column in sequence(plan.output())}
        # By expression id and not by name: with `on="id"` the plan's output has one `id`, which is the left side's.
        columns = [column for column in sequence(self._plan.output()) if expression_id(column) in ids]
        for column in columns:
            self._check_stored(column)
        key_sql = tuple(str(key.sql()) for key in keys)
        self._check_sql(template, key_sql, keys)
        return JoinedSide(
            origins=origins,
            key_sql=key_sql,
            key_columns=tuple(str(key.name()) if class_of(key) == "AttributeReference" else None for key in keys),
            key_expressions=tuple(canonical.text(key) for key in keys),
            columns=tuple((str(column.name()), str(column.dataType().json())) for column in columns),
            expressions=tuple(canonical.text(column) for column in columns),
        )

    def _equated(self, conjunct: Any) -> tuple[Any, Any] | None:
        """Return the values of the left and the right side that a conjunct equates; None for another condition."""
        if class_of(conjunct) != "EqualTo":
            return None
        # The user may write the sides in either order. A conjunct over one side alone, or over both in one operand, is
        # a filter.
        one, other = conjunct.left(), conjunct.right()
        if self._is_of(0, one) and self._is_of(1, other):
            return one, other
        return (other, one) if self._is_of(0, other) and self._is_of(1, one) else None

    def _is_of(self, side: int, expression: Any) -> bool:
        """Whether a value is computed from columns of one side alone, and from one at least."""
        references = expression.references()
        return not references.isEmpty() and bool(references.subsetOf(self._sides[side].outputSet()))

    def _filter(self, conjunct: Any) -> NarrowCall:
        """Return a conjunct as a call on the joined rows."""
        try:
            text = str(self._by_name(conjunct).sql())
        except Py4JError as error:
            raise self._refuse(
                "this condition cannot be taken apart",
                'join by the equality alone, and write the rest behind it: .where("..")',
            ) from error
        return NarrowCall(method="where", args=(text,), where=self._where)

    def _by_name(self, expression: Any) -> Any:
        """Return an expression with columns by their names alone: the joined rows have no aliases."""
        if class_of(expression) == "AttributeReference":
            return unresolved_column(self._session, str(expression.name()))
        # Its `parameters` are the arguments as they were written; the child is what Spark's analysis made of the call.
        if is_instance(self._session, expression, _INHERITS):  # a function that stands for others, its only child
            return parse_expression(self._session, self._call_text(expression))
        children = sequence(expression.children())
        if not children:
            return expression
        return with_children(self._session, expression, [self._by_name(child) for child in children])

    def _call_text(self, expression: Any) -> str:
        given = [str(self._by_name(one).sql()) for one in sequence(expression.parameters())]
        return f"{expression.prettyName()}({', '.join(given)})"

    def _name(self, name: str | None, keys: Sequence[Any]) -> str:
        if name is not None:
            return checked_state_name(name, self._where)
        columns = [str(one.name()) for key in keys for one in walk(key) if class_of(one) == "AttributeReference"]
        return derived_state_name("joined-by", list(dict.fromkeys(columns)), self._where, "join")

    def _check_no_user_function(self, conjuncts: Sequence[Any]) -> None:
        """Refuse functions that are no SQL text."""
        if any(calls_user_function(one) for one in conjuncts):
            raise self._refuse(
                "a function of the user in the condition of a join of two streams is not supported yet",
                "make its result a column of one side first (withColumn), or filter behind the join (where)",
            )

    def _check_key(self, pair: tuple[Any, Any]) -> None:
        for value in pair:
            if not is_groupable(value):
                raise self._refuse(
                    f"{value.sql()} is of type {value.dataType().simpleString()}; that is no key of a join",
                    "equate values of another type: cast both to string, decimal or bigint",
                )

    def _check_stored(self, column: Any) -> None:
        if is_groupable(column) or is_number(str(column.dataType().json())):
            return
        name = str(column.name())
        raise self._refuse(
            f'"{name}" is of type {column.dataType().simpleString()}; the state of a join cannot keep it yet',
            f'leave it out before the join: drop("{name}"), or make it a string: F.to_json("{name}"), a cast',
        )

    def _check_sql(self, template: DataFrame, texts: Sequence[str], keys: Sequence[Any]) -> None:
        """Check the keys' SQL text: parsed again it must have the types of the whole."""
        try:
            again = template.selectExpr(*(f"{sql} as g{at}" for at, sql in enumerate(texts))).schema
        except PySparkException as error:
            raise self._refuse(
                "a value of this condition has no form in SQL",
                "make it a column first: withColumn",
            ) from error
        if [one.dataType.json() for one in again] != [str(key.dataType().json()) for key in keys]:
            raise self._refuse("a value of this condition changes its type", "make it a column first: withColumn")

    def _refuse(self, message: str, fix: str) -> Exception:
        return refusal("not-supported-here", message, fix, self._where)


def _conjuncts(condition: Any) -> list[Any]:
    if class_of(condition) == "And":
        return [*_conjuncts(condition.left()), *_conjuncts(condition.right())]
    return [condition]


def _no_equality(what: str, where: str) -> Exception:
    return refusal(
        "needs-shuffle",
        f"{what}: each row would have to meet the rows of all tasks",
        'equate a column of each: join(other, "id"), or F.expr("seller = person_id AND price > 10")',
        where,
    )


def _check_names(names: list[str], where: str) -> None:
    folded = [name.lower() for name in names]
    twice = next((name for name in names if folded.count(name.lower()) > 1), None)
    if twice is not None:
        raise refusal(
            "duplicate-column",
            f'the join yields two columns "{twice}"; a record has each name once',
            f'join on its name, join(other, "{twice}"), or rename one before: '
            f'withColumnRenamed("{twice}", "{twice}_2")',
            where,
        )
