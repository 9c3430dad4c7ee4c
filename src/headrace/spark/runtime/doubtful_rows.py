"""Rows on which Spark SQL may fail, picked out by Spark itself in one pass.

`try_` forms of Spark exist for some functions. Its expression `TryEval` exists for all: null where the child raises. A
chain of projections and filters becomes one condition over the rows that it starts from: whether a filter raises, and
for rows that pass, whether a column of the result does. A job with this condition returns few rows, whatever it reads.

1. The condition is a sieve, not a verdict: the order in which Spark evaluates may make the real plan fail on other
   rows. So the caller tries the rows that are left one by one in the real plan, which knows the reason as well. When
   that fails on none of them, it searches all rows.
2. Spark computes what occurs twice in an expression once, in front of it, and outside of TryEval. So the plan has to
   run in a session with `NO_SHARED_EXPRESSIONS`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from py4j.protocol import Py4JError
from pyspark.sql import Column, DataFrame

from headrace.spark.plan_reader import analysed, class_of, expression_id, sequence, walk

__all__ = ["NO_SHARED_EXPRESSIONS", "doubtful_rows"]

NO_SHARED_EXPRESSIONS = {"spark.sql.subexpressionElimination.enabled": "false"}

_OPAQUE = frozenset({"PythonUDF", "ScalaUDF", "HiveSimpleUDF", "HiveGenericUDF"})
MOST_NODES = 2000  # of the condition: columns are inlined, and a chain of them may become large


def doubtful_rows(rows: DataFrame, sql: Callable[[DataFrame], DataFrame]) -> DataFrame | None:
    """Return the rows on which `sql` may fail, None where Spark cannot tell in one pass.

    It cannot for joins, generators (`explode`), functions of the user and expressions that are not deterministic.
    """
    try:
        condition = _Condition(rows, sql(rows)).build()
    except Py4JError:  # a Spark with other classes
        return None
    return None if condition is None else rows.where(condition)


class _Condition:
    """The condition of one plan over the rows that it starts from. Mutable while it is built."""

    def __init__(self, rows: DataFrame, result: DataFrame) -> None:
        self._start, self._plan = analysed(rows), analysed(result)
        jvm: Any = rows.sparkSession._jvm
        self._jvm, self._expressions = jvm, jvm.org.apache.spark.sql.catalyst.expressions
        self._parser = rows.sparkSession._jsparkSession.sessionState().sqlParser()
        self._definitions: dict[int, Any] = {}

    def build(self) -> Column | None:
        """Return the condition, None where it cannot be one."""
        nodes = self._nodes()
        if nodes is None or not self._plan.deterministic():
            return None
        filters = []
        for node in reversed(nodes):
            if class_of(node) == "Filter":
                filters.append(self._inlined(node.condition()))
                continue
            self._definitions |= {
                expression_id(column): self._inlined(column.child())
                for column in sequence(node.projectList())
                if class_of(column) == "Alias"
            }
        results = [self._inlined(column) for column in sequence(self._plan.output())]
        raised = self._raises(results)
        for condition in reversed(filters):
            passes = self._expressions.Coalesce(self._list([condition, self._literal("false")]))
            raised = self._expressions.If(passes, raised, self._literal("false"))
            raised = self._expressions.Or(self._raises([condition]), raised)
        if sum(1 for _ in walk(raised)) > MOST_NODES:
            return None
        return Column(self._jvm.org.apache.spark.sql.classic.ExpressionUtils.column(raised))

    def _nodes(self) -> list[Any] | None:
        """The projections and filters from the result down to the rows."""
        nodes, node = [], self._plan
        while not node.fastEquals(self._start):
            name = class_of(node)
            if name not in ("Filter", "Project", "SubqueryAlias"):
                return None
            if any(class_of(part) in _OPAQUE for one in sequence(node.expressions()) for part in walk(one)):
                return None
            if name != "SubqueryAlias":
                nodes.append(node)
            node = node.child()
        return nodes

    def _inlined(self, expression: Any) -> Any:
        """`expression` over the columns of the rows."""
        if class_of(expression) == "AttributeReference":
            return self._definitions.get(expression_id(expression), expression)
        children = sequence(expression.children())
        if not children:
            return expression
        return expression.withNewChildren(self._list([self._inlined(child) for child in children]))

    def _raises(self, expressions: list[Any]) -> Any:
        named = [part for at, one in enumerate(expressions) for part in (self._literal(f"'c{at}'"), one)]
        struct = self._expressions.CreateNamedStruct(self._list(named))  # never null by itself
        return self._expressions.IsNull(self._expressions.TryEval(struct))

    def _literal(self, text: str) -> Any:
        return self._parser.parseExpression(text)

    def _list(self, items: list[Any]) -> Any:
        return self._jvm.PythonUtils.toSeq(items)
