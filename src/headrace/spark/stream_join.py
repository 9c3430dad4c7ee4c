"""Join of two streams: what `Stream.join` accepts, and what it declares.

The condition is read from Spark's analysed plan. Conjuncts that equate a value of one side with a value of the other
are the key, by which both sides are repartitioned. If both sides have a watermark, comparisons of timestamps say until
when a row can match (`join_times`), and the operator compares them. Everything else is a filter on the joined rows,
which Spark SQL evaluates behind the operator.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias, TypeVar

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame

from headrace.spark.analysis.aggregate_split import is_groupable, is_number
from headrace.spark.analysis.canonical_expressions import CanonicalExpressions
from headrace.spark.analysis.event_time import ClosingWindows, RelayedClosing, closing_windows, has_watermark
from headrace.spark.analysis.join_times import ConditionTimes, JoinKey, is_window
from headrace.spark.frames import without_hidden
from headrace.spark.spark_internals import (
    analysed,
    class_of,
    expression_id,
    frame_of_plan,
    has_user_function,
    is_instance,
    parse_expression,
    sequence,
    unresolved_column,
    walk,
    with_children,
)
from headrace.spark.state_names import checked_state_name, derived_state_name
from headrace.spark.stream_source import ClosedWindows, JoinedSide, KeyedJoin, StreamSource
from headrace.spark.topology.nodes import JOIN_SIDES, WINDOW_TYPE, JoinKind, NarrowCall, TopicSource
from headrace.spark.unsupported import refusal, translated

__all__ = [
    "STREAM_JOINS",
    "JoinReader",
    "StreamSide",
    "check_unique_names",
    "conditions_of",
    "join_kind",
    "keyed_join",
    "no_equality",
    "without_equal_rows",
]

_INHERITS = "org.apache.spark.sql.catalyst.expressions.InheritAnalysisRules"
STREAM_JOINS: Mapping[str, JoinKind] = {
    "inner": "inner",
    "left": "left",
    "leftouter": "left",
    "right": "right",
    "rightouter": "right",
    "outer": "full",
    "full": "full",
    "fullouter": "full",
    "semi": "left_semi",
    "leftsemi": "left_semi",
}
_RANGE = 'F.expr("id = auction AND bid_time BETWEEN opened AND opened + INTERVAL 1 HOUR")'
_WATERMARKS = f'withWatermark("time", "10 minutes") on both sides, and a time range: {_RANGE}'

Clock: TypeAlias = ClosingWindows | RelayedClosing
Kind = TypeVar("Kind", bound=str)


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamSide:
    """Rows of one side of a join."""

    template: DataFrame
    origins: tuple[StreamSource, ...]
    closed_windows: Collection[str] = ()  # canonical texts of the windows that the rows are of, if those have closed


def join_kind(how: object, kinds: Mapping[str, Kind], sides: str, where: str) -> Kind:
    """Return the kind of a join.

    Args:
        how: As `DataFrame.join` takes it.
        kinds: The kinds that are supported, by each name of Spark's in lower case without "_".
        sides: What is joined, for messages: "two streams".
        where: "file:line" of the user's call.

    Raises:
        TopologyError: not-supported-here.
    """
    kind = kinds.get(str("inner" if how is None else how).lower().replace("_", ""))
    if kind is None:
        *names, last = (f'"{name}"' for name in dict.fromkeys(kinds.values()))
        message = f"how={how!r} of {sides} is not supported"
        raise refusal("not-supported-here", message, f"how={', '.join(names)} or {last}", where)
    return kind


def keyed_join(left: StreamSide, right: StreamSide, on: Any, kind: JoinKind, name: str | None, where: str) -> KeyedJoin:
    """Return the declaration of a join.

    Args:
        left: The rows on the left.
        right: Those on the right.
        on: Condition, as `DataFrame.join` takes it.
        kind: From `join_kind`.
        name: Name of the store; None derives one of the key's columns.
        where: "file:line" of the user's call.

    Raises:
        TopologyError: needs-shuffle, not-supported-here, duplicate-column, unresolved-column.
    """
    if on is None:
        raise no_equality("a join of two streams without a condition", where)
    clocks = _clocks(left, right, kind, where)
    templates = [without_hidden(side.template) for side in (left, right)]
    with translated(where, [*templates[0].columns, *templates[1].columns]):
        joined = templates[0].join(templates[1], on, kind)
    check_unique_names(joined.columns, where)
    if kind == "inner" and clocks is not None and any(isinstance(clock, RelayedClosing) for clock in clocks):
        found = JoinReader(joined, kind, clocks, (left, right), where)
        if not found.equates_windows():
            # Without equal windows in the condition, rows of closed windows are joined as those of any stream.
            clocks = None
    return JoinReader(joined, kind, clocks, (left, right), where).declared(templates, on, name)


def without_equal_rows(join: KeyedJoin, has_calls: bool, where: str) -> KeyedJoin:
    """Return a join with `dropDuplicates` behind it: each row of the result leaves once.

    Equal rows of the result come from equal rows of both sides, so they are left out where the sides are stored, and
    are forgotten with them.

    Raises:
        TopologyError: not-supported-here.
    """
    limited = all(side.bounds for side in join.sides)
    if has_calls or join.orders or join.kind != "inner" or not limited:
        raise refusal(
            "not-supported-here",
            "dropDuplicates behind a join of two streams is supported for all columns of an inner join on equal "
            "windows, directly behind it",
            "write the rows to a topic with to_topic, and read that with app.stream",
            where,
        )
    return replace(join, is_distinct=True)


def _clocks(left: StreamSide, right: StreamSide, kind: JoinKind, where: str) -> tuple[Clock, Clock] | None:
    """Return the watermarks of both sides; None if the join has no time."""
    clocks = [_clock(side, where) for side in (left, right)]
    if clocks[0] is not None and clocks[1] is not None:
        return clocks[0], clocks[1]
    known = clocks[0] or clocks[1]
    # An inner join of the rows of closed windows needs no watermark.
    if known is not None and (kind != "inner" or not isinstance(known, RelayedClosing)):
        raise refusal(
            "not-supported-here",
            f"the {'right' if clocks[0] else 'left'} side of this join has no watermark, so nothing tells which rows "
            "of the other side can match no more",
            _WATERMARKS if kind != "inner" else f"{_WATERMARKS}; or no watermark at all, and every row is kept",
            where,
        )
    if kind != "inner":
        raise refusal(
            "not-supported-here",
            f"a {kind} join of two streams without watermarks would have to keep every row for ever, and a row without "
            "a partner could never leave"
            if kind != "left_semi"
            else "a left_semi join of two streams without watermarks would have to keep every row for ever",
            _WATERMARKS,
            where,
        )
    return None


def _clock(side: StreamSide, where: str) -> Clock | None:
    """Return the watermark of the rows of a side, or the one that the operator in front of them sends on."""
    [origin, *_] = side.origins
    if has_watermark(side.template):
        ways = [(origin.source, origin.calls) for origin in side.origins if isinstance(origin.source, TopicSource)]
        return closing_windows(side.template, ways, where, "a join in event time")
    if side.closed_windows and isinstance(origin.source, ClosedWindows):
        return RelayedClosing(source=origin.source.name)
    return None


class JoinReader:
    """Reads the analysed plan of a join."""

    _noun = "a join of two streams"

    def __init__(
        self,
        joined: DataFrame,
        kind: JoinKind,
        clocks: tuple[Clock, Clock] | None,
        streams: tuple[StreamSide, ...],
        where: str,
    ) -> None:
        self._joined, self._kind, self._clocks, self._where = joined, kind, clocks, where
        self._streams = streams
        self._session = joined.sparkSession
        self._plan = analysed(joined)
        # `on="id"` puts a projection around the join, which leaves out the second column of this name.
        self._join = self._plan if class_of(self._plan) == "Join" else self._plan.child()
        self._sides = (self._join.left(), self._join.right())
        # With the plan of the join: Spark gives the right side of a self-join other expression ids.
        self._canonical = [CanonicalExpressions(frame_of_plan(self._session, plan)) for plan in self._sides]
        self._times: ConditionTimes | None = None
        if clocks is not None:
            self._times = ConditionTimes(
                self._session,
                self._canonical,
                [None if isinstance(clock, RelayedClosing) else clock.event_time_expression for clock in clocks],
                [stream.closed_windows for stream in streams],
                [plan.outputSet() for plan in self._sides],
            )

    def equates_windows(self) -> bool:
        """Whether the condition equates windows of both sides, which limits the rows that match."""
        condition = self._join.condition()
        pairs = map(self._equated, _conjuncts_of(condition.get()) if condition.isDefined() else [])
        return self._times is not None and any(
            pair is not None and self._times.equal_windows(pair) is not None for pair in pairs
        )

    def declared(self, templates: Sequence[DataFrame], on: Any, name: str | None) -> KeyedJoin:
        conjuncts = conditions_of(self._join, self._refuse)
        self._check_no_user_function(conjuncts)
        keys: list[JoinKey] = []
        named: list[Any] = []  # for the name of the store
        filters: list[Any] = []
        for conjunct in conjuncts:
            pair = self._equated(conjunct)
            if pair is not None:
                keys += self._keys_of(pair, templates)
                named.append(pair[0])
            elif self._times is None or not self._times.add_comparisons(conjunct):
                filters.append(conjunct)
        if not keys:
            raise no_equality("this condition has no equality between a value of each stream", self._where)
        self._check_bounded(filters)
        left, right = (self._side(number, self._streams[number].origins, keys) for number in range(2))
        return KeyedJoin(
            name=self._name(name, named),
            left=left,
            right=right,
            key_types=tuple(key.kind for key in keys),
            filters=tuple(map(self._filter, filters)),
            schema=self._joined.schema,
            on=on,
            where=self._where,
            frame=self._joined,
            kind=self._kind,
            orders=() if self._times is None else tuple(self._times.orders),
        )

    def _keys_of(self, pair: tuple[Any, Any], templates: Sequence[DataFrame]) -> list[JoinKey]:
        """Return the keys of two values that are equal: one, or start and end of a window."""
        if self._times is not None:
            windows = self._times.equal_windows(pair)
            if windows is not None:
                return list(windows)
            self._times.add_equal_times(pair)
        self._check_key(pair)
        key = JoinKey(
            sql=(str(pair[0].sql()), str(pair[1].sql())),
            columns=(_column_of(pair[0]), _column_of(pair[1])),
            texts=(self._canonical[0].text(pair[0]), self._canonical[1].text(pair[1])),
            kind=str(pair[0].dataType().json()),
        )
        for template, sql in zip(templates, key.sql, strict=True):
            self._check_sql(template, sql, key.kind)
        return [key]

    def _check_bounded(self, filters: Sequence[Any]) -> None:
        """Refuse a join in event time without bounds, and what an outer join cannot decide by its keys and times."""
        if self._times is None:
            return
        bounds = self._times.bounds
        if not any(bounds):
            raise self._refuse(
                "nothing in this condition limits the event times of rows that match, so no watermark says when a row "
                "can be deleted",
                f"add a time range over the columns of withWatermark: {_RANGE}; or join on equal windows of both"
                + ("; or leave withWatermark out" if self._kind == "inner" else ""),
            )
        if self._kind == "inner":
            return
        if filters:
            raise self._refuse(
                f"the condition of a {self._kind} join of two streams may have equalities and comparisons of "
                f"timestamps, and not: {filters[0].sql()}",
                "filter the sides before the join (where), or the joined rows of an inner join",
            )
        needed = {"left": (0,), "right": (1,), "full": (0, 1), "left_semi": (0, 1)}[self._kind]
        open_side = next((side for side in needed if not bounds[side]), None)
        if open_side is not None:
            raise self._refuse(
                f"nothing in this condition says when a row of the {JOIN_SIDES[open_side]} side can match no more",
                f"limit the event time of the {JOIN_SIDES[1 - open_side]} side from above: {_RANGE}",
            )
        if self._kind == "full" and class_of(self._plan) != "Join":
            raise self._refuse(
                "a full join on column names takes the key from either side, which is not supported yet",
                'name the columns differently, and join on F.expr("id = other_id")',
            )

    def _side(self, number: int, origins: tuple[StreamSource, ...], keys: Sequence[JoinKey]) -> JoinedSide:
        canonical = self._canonical[number]
        ids = {expression_id(column) for column in sequence(self._sides[number].output())}
        # By expression id and not by name: with `on="id"` the plan's output has one `id`, which is the left side's.
        columns = [column for column in sequence(self._plan.output()) if expression_id(column) in ids]
        for column in columns:
            self._check_stored(number, column)
        kinds = [
            WINDOW_TYPE if self._is_kept_window(number, column) else str(column.dataType().json()) for column in columns
        ]
        times = self._times
        return JoinedSide(
            origins=origins,
            key_sql=tuple(key.sql[number] for key in keys),
            key_columns=tuple(key.columns[number] for key in keys),
            key_expressions=tuple(key.texts[number] for key in keys),
            columns=tuple((str(column.name()), kind) for column, kind in zip(columns, kinds, strict=True)),
            expressions=tuple(map(canonical.text, columns)),
            clock=None if self._clocks is None else self._clocks[number],
            operands=() if times is None else tuple(times.operands[number]),
            bounds=() if times is None else tuple(times.bounds[number]),
        )

    def _is_kept_window(self, side: int, column: Any) -> bool:
        return self._times is not None and (is_window(column) or self._times.is_closed_window(side, column))

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
        if has_user_function(self._session, conjuncts):
            raise self._refuse(
                f"a function of the user in the condition of {self._noun} is not supported yet",
                "make its result a column of one side first (withColumn), or filter behind the join (where)",
            )

    def _check_key(self, pair: tuple[Any, Any]) -> None:
        for value in pair:
            if not is_groupable(value):
                raise self._refuse(
                    f"{value.sql()} is of type {value.dataType().simpleString()}; that is no key of a join",
                    "equate values of another type: cast both to string, decimal or bigint",
                )

    def _check_stored(self, side: int, column: Any) -> None:
        if is_groupable(column) or is_number(str(column.dataType().json())) or self._is_kept_window(side, column):
            return
        name = str(column.name())
        raise self._refuse(
            f'"{name}" is of type {column.dataType().simpleString()}; the state of a join cannot keep it yet',
            f'leave it out before the join: drop("{name}"), or make it a string: F.to_json("{name}"), a cast',
        )

    def _check_sql(self, template: DataFrame, sql: str, kind: str) -> None:
        """Check the SQL text of a key: parsed again it must have the type of the whole."""
        try:
            [again] = template.selectExpr(f"{sql} as g0").schema
        except PySparkException as error:
            raise self._refuse(
                "a value of this condition has no form in SQL",
                "make it a column first: withColumn",
            ) from error
        if again.dataType.json() != kind:
            raise self._refuse("a value of this condition changes its type", "make it a column first: withColumn")

    def _refuse(self, message: str, fix: str) -> Exception:
        return refusal("not-supported-here", message, fix, self._where)


def _column_of(value: Any) -> str | None:
    return str(value.name()) if class_of(value) == "AttributeReference" else None


def conditions_of(join: Any, refuse: Callable[[str, str], Exception]) -> list[Any]:
    """Return the expressions that the condition of an analysed join connects by AND.

    Args:
        join: The plan's node.
        refuse: Returns the error for a reason and its fix.

    Raises:
        TopologyError: for a subquery.
    """
    if join.subqueries().size():
        raise refuse(
            "a subquery in the condition would be read again, or not, with every micro-batch",
            "read it beforehand and put the value in with F.lit",
        )
    condition = join.condition()
    return _conjuncts_of(condition.get()) if condition.isDefined() else []


def _conjuncts_of(condition: Any) -> list[Any]:
    """Return the expressions that `AND` connects in a condition."""
    if class_of(condition) == "And":
        return [*_conjuncts_of(condition.left()), *_conjuncts_of(condition.right())]
    return [condition]


def no_equality(what: str, where: str) -> Exception:
    """Return the refusal of a join without an equality."""
    return refusal(
        "needs-shuffle",
        f"{what}: each row would have to meet the rows of all tasks",
        'equate a column of each: join(other, "id"), or F.expr("seller = person_id AND price > 10")',
        where,
    )


def check_unique_names(names: list[str], where: str) -> None:
    """Refuse joined rows with two columns of one name. Raises TopologyError: duplicate-column."""
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
