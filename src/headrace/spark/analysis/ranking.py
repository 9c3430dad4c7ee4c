"""Ranks over a window as top-N: what `row_number()`, `rank()` and `dense_rank()` declare on a stream.

    w = Window.partitionBy("auction").orderBy(F.desc("price"))
    stream.withColumn("rn", F.row_number().over(w)).where("rn <= 10")

Spark plans the first call as `Project(Window(Project(rows)))`. `read_ranking` takes the node apart into SQL over the
columns in front of it; `limit_of` reads the condition behind it. Both halves are checked against Spark's own types, and
whatever else stands there is refused. Spark recognises the same conditions for DataFrames (`InferWindowGroupLimit`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame
from pyspark.sql.types import StructField, StructType, _parse_datatype_json_string

from headrace.errors import TopologyError
from headrace.spark.analysis.aggregate_split import is_groupable, is_sortable
from headrace.spark.analysis.canonical_expressions import CanonicalExpressions
from headrace.spark.analysis.plan_reader import ColumnOrigins, nondeterministic_functions, only_projects
from headrace.spark.analysis.ranked_windows import WindowColumn
from headrace.spark.frames import empty_frame, quoted
from headrace.spark.spark_internals import (
    analysed,
    class_of,
    expression_id,
    parse_expression,
    sequence,
    unresolved_column,
    walk,
    with_children,
)
from headrace.spark.topology.nodes import ProjectForGroup, RankFunction, SortColumn, TimeWindow
from headrace.spark.unsupported import is_hidden, refusal, translated

__all__ = ["MOST_ROWS", "Ranking", "WindowCallReader", "has_window", "is_ranking", "limit_of", "read_ranking"]

MOST_ROWS = 10_000
_FUNCTIONS: dict[str, RankFunction] = {"RowNumber": "row_number", "Rank": "rank", "DenseRank": "dense_rank"}
_FIRST_ROWS = (
    "row_number(), rank() or dense_rank() in a column of its own, and where('rn <= 10') behind it, keeps the first "
    "rows of each key; avg, lag and others over a window follow withWatermark, whose time the window is ordered by"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranking:
    """A rank over a window, in SQL over the columns in front of it."""

    function: RankFunction
    rank_column: str  # the user's name of the rank
    group_columns: tuple[tuple[str, str], ...]  # (name, type JSON) of g0, g1, ..
    order: tuple[SortColumn, ...]
    projection: ProjectForGroup  # g0.. and i0..; these are in the order in which they break ties
    results: tuple[tuple[str, str], ...]  # (output column, SQL over g0.., i0.. and r)
    output_schema_json: str
    bare: bool
    source_keys: tuple[str, ...]  # columns of the source that grouping values are, unchanged
    window: TimeWindow | None = None  # that is one of the grouping values
    time_expression: str = ""  # canonical text of the window's time

    @property
    def inputs(self) -> tuple[tuple[str, str], ...]:
        """Return (name, type JSON) of i0, i1, .."""
        return self.projection.columns[len(self.group_columns) :]


def has_window(dataframe: DataFrame) -> bool:
    """Whether the plan of `dataframe` contains a window function."""
    return any(class_of(node) == "Window" for node in walk(analysed(dataframe)))


def read_ranking(
    before: DataFrame, ranked: DataFrame, where: str, windows: Mapping[str, WindowColumn] | None = None
) -> Ranking:
    """Return the rank that `ranked`, which is one call on `before`, adds.

    Args:
        before: The rows that are ranked.
        ranked: The call on them.
        where: "file:line" of the user's call.
        windows: By canonical text, the columns that are windows which close.

    Raises:
        TopologyError: needs-shuffle, not-supported-here.
    """
    return _RankingReader(before, where, windows or {}).read(ranked)


def is_ranking(dataframe: DataFrame) -> bool:
    """Whether all window functions in the plan of `dataframe` are ranks. A rank needs a filter behind it."""
    windows = [node for node in walk(analysed(dataframe)) if class_of(node) == "Window"]
    aliases = [alias for node in windows for alias in sequence(node.windowExpressions())]
    return all(class_of(alias.child().windowFunction()) in _FUNCTIONS for alias in aliases)


class WindowCallReader:
    """Reader of a call with window functions: what it computes, in SQL over the columns in front of it.

    Grouping values become `g0..`, what else is kept of the rows `i0..`, and the functions have names of their own.
    Subclasses read the functions. Mutable while it reads.
    """

    _noun = "window function"  # in messages

    def __init__(self, before: DataFrame, where: str, windows: Mapping[str, WindowColumn]) -> None:
        self._before, self._where, self._windows = before, where, windows
        self._spark = before.sparkSession
        self._canonical = CanonicalExpressions(before)
        self._origins = ColumnOrigins(before)
        self._definitions: dict[int, Any] = {}  # by number of a column that the call itself defines
        self._groups: list[Any] = []
        self._inputs: list[Any] = []
        self._made: dict[int, str] = {}  # names of the functions' columns, by their numbers in Spark
        self._window_at = -1  # number of the grouping value that is a window
        self._column: WindowColumn | None = None  # this window
        self._time_window: TimeWindow | None = None

    def _window_nodes(self, plan: Any) -> tuple[list[Any], list[Any]]:
        """Return the window nodes, the last one first, and the columns of the result.

        Notes what the projections around them define.
        """
        columns = sequence(plan.output())
        rows = analysed(self._before)
        windows = []
        while not plan.equals(rows):
            name = class_of(plan)
            if name == "Window":
                windows.append(plan)
            elif name == "Project":
                aliases = [one for one in sequence(plan.projectList()) if class_of(one) == "Alias"]
                self._definitions.update((expression_id(one), one.child()) for one in aliases)
            else:
                raise self._refuse("needs-shuffle", f"{name} stands around this window function", _FIRST_ROWS)
            plan = plan.child()
        return windows, columns

    def _resolved(self, expression: Any) -> Any:
        """Return `expression` over the columns in front of the call, and the rank."""
        if class_of(expression) == "AttributeReference":
            defined = self._definitions.get(expression_id(expression))
            return expression if defined is None else self._resolved(defined)
        children = sequence(expression.children())
        if not children:
            return expression
        return with_children(self._spark, expression, [self._resolved(child) for child in children])

    @property
    def _compute_before(self) -> str:
        return f"compute it with withColumn before the {self._noun}"

    def _find_window(self) -> None:
        """Note the grouping value that is a window which closes. It is grouped by its start."""
        for at, one in enumerate(self._groups):
            column = self._windows.get(self._canonical.text(one))
            if column is not None:
                self._window_at, self._column = at, column
                self._time_window = replace(column.window, group=f"g{at}")
                return

    @property
    def _window_sql(self) -> str | None:
        return None if self._time_window is None else self._time_window.sql

    def _check_groups(self) -> None:
        if not self._groups:
            raise self._refuse(
                "needs-shuffle",
                f"a {self._noun} over all rows needs them in one place",
                'name a column: Window.partitionBy("c").orderBy(..)',
            )
        for at, one in enumerate(self._groups):
            self._check_computable(one)
            if at != self._window_at and not is_groupable(one):
                raise self._refuse(
                    "not-supported-here",
                    f'"{one.sql()}" is of type {one.dataType().simpleString()}; that is no key',
                    f'cast it: Window.partitionBy(F.col("{one.sql()}").cast("string"))',
                )

    def _check_computable(self, expression: Any) -> None:
        """Refuse what has no form in SQL, and what has another value when it is computed again."""
        if any(class_of(node) in ("PythonUDF", "ScalaUDF") for node in walk(expression)):
            raise self._refuse(
                "not-supported-here", f"a Python function stands beside the {self._noun}", self._compute_before
            )
        volatile = nondeterministic_functions(expression)
        if volatile:
            message = f"{', '.join(sorted(volatile))} stands beside the {self._noun}, and its value changes"
            raise self._refuse("not-supported-here", message, self._compute_before)

    def _note_columns(self, expression: Any) -> None:
        """Note the columns that `expression` reads as inputs, in the order in which they stand there."""
        if class_of(expression) == "AttributeReference":
            if expression_id(expression) not in self._made and self._group_of(expression) is None:
                self._input(expression)
            return
        self._check_computable(expression)
        if self._group_of(expression) is not None:
            return
        # A column of a type that cannot be stored (a struct, a map) is not needed as a whole if the expression only
        # takes a part of it.
        columns = [one for one in walk(expression) if class_of(one) == "AttributeReference"]
        is_made = any(expression_id(one) in self._made for one in columns)
        if not is_made and is_sortable(expression) and not all(map(is_sortable, columns)):
            self._input(expression)  # a field of a struct, an entry of a map: kept in place of the whole
            return
        for child in sequence(expression.children()):
            self._note_columns(child)

    def _sorted_by(self, sort: Any) -> SortColumn | None:
        expression = self._resolved(sort.child())
        self._check_computable(expression)
        if self._group_of(expression) is not None or expression.foldable():
            return None  # the same in all rows of a key
        if not is_sortable(expression):
            raise self._refuse(
                "not-supported-here",
                f'rows cannot be kept in the order of "{expression.sql()}", of type '
                f"{expression.dataType().simpleString()}",
                'order by numbers, texts, dates or timestamps: cast("string"), or a field of the struct',
            )
        return SortColumn(
            column=f"i{self._input(expression)}",
            descending=str(sort.direction().toString()) == "Descending",
            nulls_last=str(sort.nullOrdering().toString()) == "NullsLast",
        )

    def _input(self, expression: Any) -> int:
        """Return the number of the input that `expression` is; noted if it is none yet."""
        for number, one in enumerate(self._inputs):
            if one.semanticEquals(expression):
                return number
        if not is_sortable(expression):
            raise self._refuse(
                "not-supported-here",
                f'"{expression.sql()}" is of type {expression.dataType().simpleString()}; '
                "the rows that are kept have columns of flat types",
                f"select the fields that are needed, or make it a text with F.to_json, before the {self._noun}",
            )
        self._inputs.append(expression)
        return len(self._inputs) - 1

    def _group_of(self, expression: Any) -> int | None:
        return next((at for at, one in enumerate(self._groups) if one.semanticEquals(expression)), None)

    def _rebuilt(self, expression: Any) -> Any:
        """Return `expression` over g0.., i0.. and the functions' columns."""
        if class_of(expression) == "AttributeReference" and expression_id(expression) in self._made:
            return unresolved_column(self._spark, self._made[expression_id(expression)])
        for kind, values in (("g", self._groups), ("i", self._inputs)):
            for at, one in enumerate(values):
                if not one.semanticEquals(expression):
                    continue
                if kind == "g" and self._time_window is not None and at == self._window_at:
                    return parse_expression(self._spark, self._time_window.sql)
                return unresolved_column(self._spark, f"{kind}{at}")
        children = sequence(expression.children())
        if not children:
            return expression
        return with_children(self._spark, expression, [self._rebuilt(child) for child in children])

    def _name_of(self, group: Any) -> str:
        return str(group.name()) if class_of(group) == "AttributeReference" else str(group.sql())

    def _projection(self, group_columns: tuple[tuple[str, str], ...]) -> ProjectForGroup:
        columns = [(f"g{at}", one) for at, one in enumerate(self._groups)]
        columns += [(f"i{at}", one) for at, one in enumerate(self._inputs)]
        origins = [(name, self._origins.column_of(one)) for name, one in columns]
        source_columns = tuple((name, origin) for name, origin in origins if origin is not None)
        bare = only_projects(self._before) and len(source_columns) == len(columns) and self._column is None
        return ProjectForGroup(
            key_sql=tuple(
                (name, f"{one.sql()}.`start`" if at == self._window_at else str(one.sql()))
                for at, (name, one) in enumerate(columns[: len(group_columns)])
            ),
            input_sql=tuple((name, str(one.sql())) for name, one in columns[len(group_columns) :]),
            columns=(
                *((f"g{at}", kind) for at, (_, kind) in enumerate(group_columns)),
                *((name, str(one.dataType().json())) for name, one in columns[len(group_columns) :]),
            ),
            bare=bare,
            source_columns=source_columns if bare else (),
            expressions=tuple(
                self._column.expression
                if self._column is not None and at == self._window_at
                else self._canonical.text(one)
                for at, (_, one) in enumerate(columns)
            ),
        )

    def _check_against_spark(
        self,
        projection: ProjectForGroup,
        made: Sequence[tuple[str, str]],
        results: Sequence[tuple[str, str]],
        wanted: StructType,
    ) -> None:
        """Both halves, parsed again, must have the types of the whole: SQL text is only trusted when they do."""
        sql = (*projection.key_sql, *projection.input_sql)
        kinds = [*projection.columns, *made]
        rows = StructType([StructField(name, _parse_datatype_json_string(kind)) for name, kind in kinds])
        try:
            projected = self._before.selectExpr(*(f"{text} as {name}" for name, text in sql)).schema
            whole = empty_frame(self._spark, rows).selectExpr(*(f"{text} as {quoted(name)}" for name, text in results))
        except PySparkException as error:
            raise self._refuse(
                "not-supported-here", f"an expression beside the {self._noun} has no form in SQL", self._compute_before
            ) from error
        same = [field.dataType.json() for field in projected] == [kind for _, kind in projection.columns]
        if not same or [f.dataType for f in whole.schema] != [f.dataType for f in wanted]:
            raise self._refuse(
                "not-supported-here",
                f"an expression beside the {self._noun} changes its type when taken apart",
                self._compute_before,
            )

    def _refuse(self, code: str, message: str, fix: str) -> TopologyError:
        return refusal(code, message, fix, self._where)


class _RankingReader(WindowCallReader):
    _noun = "rank"

    def read(self, ranked: DataFrame) -> Ranking:
        """Take the plan of `ranked` apart, and check the parts against Spark."""
        # 1. The one Window node, and the definitions of the projections around it.
        windows, columns = self._window_nodes(analysed(ranked))
        if len(windows) != 1 or windows[0].windowExpressions().size() != 1:
            raise self._refuse("needs-shuffle", "several window functions stand in one call", _FIRST_ROWS)
        [window] = windows
        [alias] = sequence(window.windowExpressions())
        function = self._function(alias)
        self._made[expression_id(alias)] = "r"
        # 2. Grouping values and results over the columns in front of the call. Spark's projections rename what a window
        #    needs; those names are resolved away.
        self._groups = [self._resolved(one) for one in sequence(window.partitionSpec())]
        self._find_window()
        self._check_groups()
        names = [name for name in ranked.columns if not is_hidden(name)]
        shown = [column for column in columns if not is_hidden(str(column.name()))]
        outputs = [self._resolved(column) for column in shown]
        rank_column = self._rank_column(shown)
        # Columns in the order of the result: this order breaks ties. Then what else the rows are sorted by.
        # 3. Inputs are noted in the order of the result, which breaks ties and so must not depend on Spark's plan.
        for one in outputs:
            self._note_columns(one)
        order = tuple(found for one in sequence(window.orderSpec()) if (found := self._sorted_by(one)) is not None)
        results = tuple((name, str(self._rebuilt(one).sql()).strip()) for name, one in zip(names, outputs, strict=True))
        group_columns = tuple(
            (self._name_of(one), '"timestamp"' if at == self._window_at else str(one.dataType().json()))
            for at, one in enumerate(self._groups)
        )
        projection = self._projection(group_columns)
        own = {f"g{at}" for at in range(len(self._groups))} | {f"i{at}" for at in range(len(self._inputs))} | {"r"}
        ranking = Ranking(
            function=function,
            rank_column=rank_column,
            group_columns=group_columns,
            order=order,
            projection=projection,
            results=results,
            output_schema_json=StructType([ranked.schema[name] for name in names]).json(),
            bare=all(sql.strip("`") in own or sql == self._window_sql for _, sql in results),
            source_keys=tuple(key for one in self._groups if (key := self._origins.column_of(one)) is not None),
            window=self._time_window,
            time_expression="" if self._column is None else self._column.time_expression,
        )
        # 4. Both halves from their SQL texts must have the types of the whole.
        made = [("r", '"integer"')]
        self._check_against_spark(projection, made, results, StructType([ranked.schema[name] for name in names]))
        return ranking

    def _function(self, alias: Any) -> RankFunction:
        function = alias.child().windowFunction()
        if class_of(function) not in _FUNCTIONS:
            shown = str(function.sql())
            raise self._refuse(
                "needs-shuffle", f"{shown} over a window needs all rows of its partition in order", _FIRST_ROWS
            )
        return _FUNCTIONS[class_of(function)]

    def _rank_column(self, columns: Sequence[Any]) -> str:
        for column in columns:
            one = column
            while class_of(one) == "AttributeReference" and expression_id(one) in self._definitions:
                one = self._definitions[expression_id(one)]
            if class_of(one) == "AttributeReference" and expression_id(one) in self._made:
                return str(column.name())
        raise self._refuse(
            "not-supported-here",
            "the rank itself is no column of the result",
            "give it a name of its own: withColumn('rn', F.row_number().over(w))",
        )


def limit_of(ranked: DataFrame, rank_column: str, condition: Column | str, where: str) -> int:
    """Return N of `rank_column <= N`, which `condition` on `ranked` must say.

    Args:
        ranked: An empty frame with the rank as a column of its leaf.
        rank_column: Name of that column.
        condition: As for `DataFrame.where`.
        where: "file:line" of the user's call.

    Raises:
        TopologyError: needs-shuffle, bad-value, unresolved-column.
    """
    with translated(where, ranked.columns):
        plan = analysed(ranked.where(condition))
    limit = _limit(ranked, rank_column, plan.condition())
    if limit is None:
        raise refusal(
            "needs-shuffle",
            f"the condition behind a rank is ({plan.condition().sql()}); only the first ranks of each key can be kept",
            f"where('{rank_column} <= 10'), < 10 or = 1, alone; filter rows before the rank",
            where,
        )
    if not 1 <= limit <= MOST_ROWS:
        raise refusal("bad-value", f"the ranks up to {limit} are kept", f"a limit between 1 and {MOST_ROWS:,}", where)
    return limit


def _limit(ranked: DataFrame, rank_column: str, condition: Any) -> int | None:
    name, children = class_of(condition), sequence(condition.children())
    if len(children) != 2 or name not in _MIRRORED:
        return None
    left, right = children
    # `10 >= rn` is the same condition, mirrored.
    if class_of(left) == "Literal":
        left, right, name = right, left, _MIRRORED[name]
    if class_of(left) == "Cast" and str(left.dataType().json()) == '"long"':  # `rn <= 10L`
        left = left.child()
    if class_of(right) != "Literal" or class_of(left) != "AttributeReference":
        return None
    if str(right.dataType().json()) not in ('"integer"', '"long"'):
        return None
    if ColumnOrigins(ranked).column_of(left) != rank_column:
        return None
    limit = int(right.value()) if right.value() is not None else 0
    if name == "LessThanOrEqual":
        return limit
    if name == "LessThan":
        return limit - 1
    return 1 if name == "EqualTo" and limit == 1 else None


_MIRRORED = {
    "LessThanOrEqual": "GreaterThanOrEqual",
    "GreaterThanOrEqual": "LessThanOrEqual",
    "LessThan": "GreaterThan",
    "GreaterThan": "LessThan",
    "EqualTo": "EqualTo",
}
