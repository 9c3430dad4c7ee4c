"""Guarded Spark SQL: rows on which a plan fails are marked in the job's result and do not fail the job.

Spark has `try_` forms of some functions. Its expression `TryEval` covers all of them: it is null where its child
raises. A chain of projections and filters becomes one expression under TryEval over the rows that the chain reads. It
is used in two ways: a micro-batch that processes the good rows and reports the others (`guarded_rows`), and a search
that only returns the others (`suspect_rows`).

1. A row for which the expression raises is doubtful, not bad. The caller evaluates doubtful rows one by one with the
   plan itself, which also knows the reason (`driver_evaluation`).
2. The plan itself must not fail on a row that `guarded_rows` takes for good, or a record's fate would depend on the
   form in which its micro-batch ran. Some optimisations of Spark evaluate an expression that is conditional in the
   query: a projection whose column is used several times is computed as a whole (CollapseProject keeps it apart), a
   subexpression that occurs several times is computed first (`EquivalentExpressions`), and so is what a function such
   as `between` uses several times (`RewriteWithExpression`). All of them are evaluated here as well, in the first place
   where Spark may do so. A search needs none of this: the micro-batch that follows it fails on the rows that it missed.
3. Spark computes shared subexpressions outside of TryEval, and pushes filters below a projection by evaluating it
   twice. The job needs a session with the settings `GUARDING`.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from py4j.java_gateway import JavaObject
from py4j.protocol import Py4JError
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from headrace.spark.frames import quoted
from headrace.spark.spark_internals import (
    analysed,
    catalyst_expressions,
    class_of,
    column_of,
    empty_option,
    expression_id,
    has_user_function,
    parse_expression,
    scala_sequence,
    sequence,
)

__all__ = ["GUARDING", "GuardedRows", "guarded_rows", "suspect_rows"]

GUARDING = {
    "spark.sql.subexpressionElimination.enabled": "false",
    "spark.sql.optimizer.collapseProjectAlwaysInline": "false",
    "spark.sql.optimizer.excludedRules": "org.apache.spark.sql.catalyst.optimizer.PushDownPredicates,"
    "org.apache.spark.sql.catalyst.optimizer.PushPredicateThroughNonJoin",
    # Spark adds up the size of all columns after each row that it hands to Python, as long as a batch is bounded by
    # bytes: with the columns of the input that takes as long as all the rest. A guarded plan makes no more rows than it
    # reads, so a bound on rows limits memory as well (2,000 rows of 32 KB are Spark's usual 64 MB).
    "spark.sql.execution.arrow.maxBytesPerBatch": str(2**31 - 1),
    "spark.sql.execution.arrow.maxRecordsPerBatch": "2000",
}

_CONDITIONAL = frozenset(
    {"CaseWhen", "Coalesce", "If", "NaNvl"}
)  # of whose children only the first is always evaluated
MOST_NODES = 2000  # of the expression: columns are inlined, and a chain of them may become large
_GUARDED = "__headrace_guarded"


@dataclass(frozen=True, slots=True, kw_only=True)
class GuardedRows:
    """A DataFrame of two struct columns, of which exactly one is null in each row.

    The first is a row of the result, without those that a filter drops; the second an input row that is doubtful.
    Their fields have positions for names, as Arrow refuses equal names in a struct.
    """

    frame: DataFrame
    columns: tuple[str, ...]  # of the result
    inputs: tuple[str, ...]  # of the input


def guarded_rows(
    rows: DataFrame, sql: Callable[[DataFrame], DataFrame], *, leave_out: tuple[str, ...] = ()
) -> GuardedRows | None:
    """Return `sql(rows)` with doubtful input rows marked instead of raising.

    Args:
        rows: The input. The job must run in a session with the settings `GUARDING`.
        sql: The plan to guard.
        leave_out: Columns of the result that are not needed.

    Returns:
        None for a plan that cannot be guarded: joins, generators (`explode`), functions of the user, expressions that
        are not deterministic, and a Spark release with other internal classes.
    """
    try:
        result = sql(rows)
        guard = _Guard(rows, result, leave_out, strict=True)
        guarded = guard.build()
    except (Py4JError, _TooLarge):
        return None
    if guarded is None:
        return None
    frame = rows.select("*", guarded.alias(_GUARDED))
    # Rows that a filter drops are neither a result nor doubtful. Without filters the condition would be a second
    # evaluation for nothing.
    if guard.filters:
        frame = frame.where(F.col(_GUARDED).isNull() | F.col(f"{_GUARDED}.row").isNotNull())
    inputs = F.struct(*(F.col(quoted(name)).alias(f"c{at}") for at, name in enumerate(rows.columns)))
    frame = frame.select(
        F.col(f"{_GUARDED}.row").alias("row"), F.when(F.col(_GUARDED).isNull(), inputs).alias("failed")
    )
    columns = tuple(name for name in result.columns if name not in leave_out)
    return GuardedRows(frame=frame, columns=columns, inputs=tuple(rows.columns))


def suspect_rows(rows: DataFrame, sql: Callable[[DataFrame], DataFrame]) -> DataFrame | None:
    """Return only the doubtful rows of the input; None and the session as in `guarded_rows`."""
    try:
        guarded = _Guard(rows, sql(rows), (), strict=False).build()
    except (Py4JError, _TooLarge):
        return None
    return None if guarded is None else rows.where(guarded.isNull())


class _TooLarge(Exception):
    """The guarded expression would have too many nodes."""


@dataclass(frozen=True, slots=True)
class _Projection:
    # Expression id → expression over the rows, of columns that are not mere references.
    definitions: dict[int, JavaObject]
    early: list[JavaObject]  # what Spark computes before them


@dataclass(frozen=True, slots=True)
class _Filter:
    # Over the rows, of this filter and all below it; None: nothing that decides about what is above.
    condition: JavaObject | None
    early: list[JavaObject]
    is_last: bool


class _Guard:
    """The guarded expression of one plan over the rows that it reads. Mutable while it is built."""

    def __init__(self, rows: DataFrame, result: DataFrame, leave_out: tuple[str, ...], *, strict: bool) -> None:
        """`strict`: also evaluate what Spark's optimisations may evaluate."""
        self._start, self._plan, self._leave_out = analysed(rows), analysed(result), leave_out
        self._strict = strict
        self._session = rows.sparkSession
        self._expressions = catalyst_expressions(self._session)
        self._definitions: dict[int, JavaObject] = {}
        self._references: Counter[int] = Counter()
        self._common: dict[str, JavaObject] = {}  # id → definition in `WITH` expressions
        self._early: list[JavaObject] = []  # those that are computed whatever the conditions are
        self._nodes_of: dict[int, int] = {}  # expression id → size of its definition
        self._size = 0  # of all that was inlined
        self.filters = 0

    def build(self) -> Column | None:
        """Return a column `struct<row: struct<..>>`: null where the plan raises, `row` null where a filter drops."""
        # 1. Only a chain of projections and filters is one expression. A join or a generator makes other rows than it
        #    reads.
        nodes = self._nodes()
        if nodes is None or not self._plan.deterministic():
            return None
        self.filters = sum(class_of(node) == "Filter" for node in nodes)
        # 2. All expressions are inlined down to the columns of the input, so that the guard stands on the input's rows
        #    alone.
        steps = self._steps(nodes)
        results = [
            self._inlined(column)
            for column in sequence(self._plan.output())
            if str(column.name()) not in self._leave_out
        ]
        # 3. From the result inwards: a struct of the result's columns, null as a row that was dropped, wrapped step by
        #    step in the conditions of the filters below it.
        row = self._struct([f"c{at}" for at in range(len(results))], results)
        dropped = self._struct(["row"], [self._expressions.Literal(None, row.dataType())])
        outcome = self._after(self._shared(results), self._struct(["row"], [row]))
        for step in reversed(steps):
            # 4. A projection adds what Spark may compute on its account before anything above it.
            if isinstance(step, _Projection):
                outcome = self._after([*step.early, *self._kept_apart(step)], outcome)
                continue
            if step.condition is not None:
                # A condition that is null drops the row, but Spark evaluates the filters above it where it does not
                # generate code for the whole stage.
                null_counts_as = self._literal("false" if step.is_last else "true")
                passes = self._expressions.Coalesce(self._list([step.condition, null_counts_as]))
                outcome = self._expressions.If(passes, outcome, dropped)
            outcome = self._after(step.early, outcome)
        # 5. Shared subexpressions of the last filter's condition are evaluated before the condition.
        last = next((step for step in reversed(steps) if isinstance(step, _Filter)), None)
        if last is not None:
            outcome = self._after(self._shared([last.condition]), outcome)
        # The optimiser pushes a TryEval into the branches of an If right below it, and their condition out of it.
        guarded = self._expressions.GetStructField(
            self._expressions.TryEval(self._struct(["outcome"], [outcome])), 0, empty_option(self._session)
        )
        return column_of(self._session, guarded)

    def _nodes(self) -> list[JavaObject] | None:
        """The projections and filters from the rows up to the result."""
        nodes, node = [], self._plan
        # The result was built on these very rows, so the plan ends in the node of the input.
        while not node.fastEquals(self._start):
            name = class_of(node)
            if name not in ("Filter", "Project", "SubqueryAlias"):
                return None
            if has_user_function(self._session, sequence(node.expressions())):
                return None
            if name != "SubqueryAlias":
                nodes.append(node)
            node = node.child()
        return nodes[::-1]

    def _steps(self, nodes: list[JavaObject]) -> list[_Projection | _Filter]:
        steps: list[_Projection | _Filter] = []
        conditions: list[JavaObject] = []
        not_null: list[JavaObject] = []  # FilterExec evaluates them behind the others, whatever their place
        filters = self.filters
        for node in nodes:
            if class_of(node) == "Filter":
                # Filters that follow each other become one in Spark (CombineFilters), so conditions of all filters so
                # far count as one.
                for condition in self._conjuncts(self._inlined(node.condition())):
                    (not_null if class_of(condition) == "IsNotNull" else conditions).append(condition)
                filters -= 1
                deciding = conditions if filters else [*conditions, *not_null]
                joined = functools.reduce(self._expressions.And, deciding) if deciding else None
                steps.append(_Filter(joined, self._take_early(), filters == 0))
                continue
            defined = {}
            for column in sequence(node.projectList()):
                if class_of(column) == "Alias":
                    before = self._size
                    defined[expression_id(column)] = self._inlined(column.child())
                    self._nodes_of[expression_id(column)] = self._size - before
            self._definitions |= defined
            computed = {at: one for at, one in defined.items() if one.children().size()}
            steps.append(_Projection(computed, self._take_early()))
        return steps

    def _conjuncts(self, condition: JavaObject) -> list[JavaObject]:
        if class_of(condition) != "And":
            return [condition]
        return [*self._conjuncts(condition.left()), *self._conjuncts(condition.right())]

    def _take_early(self) -> list[JavaObject]:
        found, self._early = self._early, []
        return found if self._strict else []

    def _inlined(self, expression: JavaObject, *, conditional: bool = False) -> JavaObject:
        """`expression` over the columns of the rows."""
        name = class_of(expression)
        self._size += 1
        if name == "AttributeReference":
            found = expression_id(expression)
            self._references[found] += 1
            # A definition that is referenced n times is in the expression n times. Chains of such columns grow
            # exponentially, hence the bound.
            self._size += self._nodes_of.get(found, 0)
            return self._definitions.get(found, expression)
        if self._size > MOST_NODES:
            raise _TooLarge
        # `With` computes a common expression once (`RewriteWithExpression` makes it a projection below).
        if name == "With":  # Spark would move its definitions out of TryEval
            return self._inlined_with(expression, conditional=conditional)
        if name == "CommonExpressionRef":
            return self._common[str(expression.id().toString())]
        children = sequence(expression.children())
        if not children:
            return expression
        inlined = [
            self._inlined(child, conditional=conditional or (at > 0 and name in _CONDITIONAL))
            for at, child in enumerate(children)
        ]
        return expression.withNewChildren(self._list(inlined))

    def _inlined_with(self, expression: JavaObject, *, conditional: bool) -> JavaObject:
        for definition in sequence(expression.defs()):
            inlined = self._inlined(definition.child(), conditional=conditional)
            self._common[str(definition.id().toString())] = inlined
            if inlined.children().size() and not conditional:
                self._early.append(inlined)
        return self._inlined(expression.child(), conditional=conditional)

    def _kept_apart(self, step: _Projection) -> list[JavaObject]:
        """Return the part of a projection that Spark may compute before the nodes above it."""
        if not self._strict or all(self._references[at] < 2 for at in step.definitions):
            return []
        used = [one for at, one in step.definitions.items() if self._references[at]]
        return [*self._shared(used), *used]

    def _shared(self, expressions: list[JavaObject]) -> list[JavaObject]:
        """The subexpressions that Spark computes once, before the expressions in which they occur."""
        if not self._strict:
            return []
        found = self._expressions.EquivalentExpressions(False)
        for one in expressions:
            found.addExprTree(one, getattr(found, "addExprTree$default$2")())
        return sequence(found.getCommonSubexpressions())

    def _after(self, first: list[JavaObject], outcome: JavaObject) -> JavaObject:
        """`outcome`, null if one of the expressions `first` raises."""
        if not first:
            return outcome
        # A struct is never null by itself; under TryEval, the optimiser does not know.
        # `if(isnotnull(try(struct(first…))), outcome, null)`: one null if any of them raises.
        checked = self._expressions.TryEval(self._struct([f"c{at}" for at in range(len(first))], first))
        nothing = self._expressions.Literal(None, outcome.dataType())
        return self._expressions.If(self._expressions.IsNotNull(checked), outcome, nothing)

    def _struct(self, names: list[str], expressions: list[JavaObject]) -> JavaObject:
        named = [
            part for name, one in zip(names, expressions, strict=True) for part in (self._literal(f"'{name}'"), one)
        ]
        return self._expressions.CreateNamedStruct(self._list(named))

    def _literal(self, text: str) -> JavaObject:
        return parse_expression(self._session, text)

    def _list(self, items: list[JavaObject]) -> JavaObject:
        return scala_sequence(self._session, items)
