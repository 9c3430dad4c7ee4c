"""Facts about Spark's analysed plans: whether rows stay in their task, and which columns are read.

Plans are read over py4j (classic sessions only). The whitelist below is the definition of "narrow". A search for
Exchange nodes in the physical plan is not enough: `limit`, `cache` and `coalesce` have none. Any node that is not on
the list is refused by its name, at the user's line.
"""

from __future__ import annotations

from py4j.java_gateway import JavaObject
from pyspark.sql import DataFrame

from headrace.spark.spark_internals import analysed, class_of, expression_id, optimised, sequence, walk, walk_of_stream
from headrace.spark.unsupported import refusal

_LEAVES = frozenset({"LogicalRDD", "LocalRelation"})
_NARROW = frozenset({"Project", "Filter", "Generate", "SubqueryAlias", "Join"}) | _LEAVES
_ROW_FOR_ROW = frozenset({"Project", "SubqueryAlias"}) | _LEAVES
_REMEDIES = {
    "Window": (
        "a window function needs all rows of its partition in order",
        "row_number(), rank() or dense_rank(), with where('rn <= 10') behind it, keeps the first rows of each key",
    ),
    "Aggregate": (
        "an aggregate in select is over all rows; a stream never has them all",
        'group first: groupBy("c").agg(..)',
    ),
    "Sort": ("a sort needs all rows in one place; a stream never has them all", "sort where you read"),
}
_TIME_FUNCTIONS = frozenset({"CurrentTimestamp", "CurrentDate", "Now", "LocalTimestamp", "CurrentTime"})


def check_narrow(dataframe: DataFrame, where: str, *, row_for_row: bool = False, drops_rows: bool = False) -> None:
    """Refuse a plan in which a row could leave its task.

    `row_for_row` applies to plans behind an aggregate, where each row is the newest one of its key: none may become
    several, and none may be dropped, which is a deletion, unless `drops_rows`.
    """
    leaves = 0
    allowed = _ROW_FOR_ROW | {"Filter"} if drops_rows else _ROW_FOR_ROW
    # 1. Each node of the stream's side has to be on the list. New nodes of later Spark releases are therefore refused,
    #    not let through.
    for node in walk_of_stream(analysed(dataframe)):
        name = class_of(node)
        leaves += name in _LEAVES
        if name not in _NARROW:
            message, fix = _REMEDIES.get(
                name,
                (
                    f"{name} needs rows of other tasks or of other micro-batches",
                    "do it where you read, or in foreachBatch",
                ),
            )
            raise refusal("needs-shuffle", message, fix, where, node=name)
        if row_for_row and name not in allowed:
            raise refusal(
                "not-supported-here",
                f"{name} behind an aggregate would change which keys have a row",
                "filter or explode before groupBy; behind it, mark rows by a boolean column (withColumn)",
                where,
                node=name,
            )
        # 2. Subqueries hang on expressions and are no children: a walk over children would miss them.
        if node.subqueries().size():
            raise refusal(
                "not-supported-here",
                "a subquery would be read again, or not, with every micro-batch",
                "read it beforehand and put the value in with F.lit",
                where,
            )
    # 3. One leaf: the stream itself. Another one is a second DataFrame, such as `df2["x"]` in a condition.
    if leaves != 1:
        raise refusal(
            "not-supported-here",
            "another DataFrame stands in this expression",
            'bring it in with join(df, "column"), or put values in with F.lit',
            where,
        )


def leaf_columns(dataframe: DataFrame) -> dict[int, str]:
    """Return the columns of the leaf in the analysed plan of `dataframe`: expression id → name."""
    leaf = next(node for node in walk(analysed(dataframe)) if class_of(node) in _LEAVES)
    return {expression_id(attribute): str(attribute.name()) for attribute in sequence(leaf.output())}


def columns_read(dataframe: DataFrame) -> tuple[str, ...]:
    """Return the columns of the leaf that the optimised plan of `dataframe` reads, in the leaf's order.

    All columns are returned if Spark optimises the leaf away, which it does for a join with a DataFrame that is empty
    now.
    """
    columns = leaf_columns(dataframe)
    plan = optimised(dataframe)
    # References of the nodes, and the plan's own output: a column that only passes through is referenced by no node.
    used = {expression_id(attribute) for attribute in sequence(plan.output())}
    remains = False
    for node in walk(plan):
        if class_of(node) not in _LEAVES:
            used.update(expression_id(attribute) for attribute in sequence(node.references().toSeq()))
        else:
            remains = remains or columns.keys() >= {*map(expression_id, sequence(node.output()))}
    return tuple(name for number, name in columns.items() if not remains or number in used)


def aliases_of(dataframe: DataFrame) -> dict[int, JavaObject]:
    """Return what the projections of `dataframe` name or compute: expression id → the `Alias`."""
    return {
        expression_id(one): one
        for node in walk_of_stream(analysed(dataframe))
        if class_of(node) == "Project"
        for one in sequence(node.projectList())
        if class_of(one) == "Alias"
    }


class ColumnOrigins:
    """Columns of the leaf that the columns of a DataFrame equal.

    The plan is walked once, when the object is made: each step of a walk is a call into the JVM.

    Args:
        dataframe: A DataFrame whose plan has one leaf.
    """

    def __init__(self, dataframe: DataFrame) -> None:
        self._output = sequence(analysed(dataframe).output())
        self._columns = leaf_columns(dataframe)
        self._aliases = aliases_of(dataframe)

    def column_of(self, attribute: JavaObject) -> str | None:
        """Return the column of the leaf that an attribute equals; None if it is computed.

        Renamed columns are followed, through projections only.
        """
        while class_of(attribute) == "AttributeReference":
            number = expression_id(attribute)
            if number in self._columns:
                return self._columns[number]
            if number not in self._aliases:
                return None
            attribute = self._aliases[number].child()
        return None

    def by_name(self) -> dict[str, str | None]:
        """Return for each column of the DataFrame the column of the leaf that it equals, or None."""
        return {str(one.name()): self.column_of(one) for one in self._output}


def only_projects(dataframe: DataFrame) -> bool:
    """Whether the plan of `dataframe` consists of projections over its leaf."""
    return all(class_of(node) in _ROW_FOR_ROW for node in walk(analysed(dataframe)))


def nondeterministic_functions(expression: JavaObject) -> set[str]:
    """Return the names of nondeterministic and of time-dependent functions in `expression`."""
    found: set[str] = set()
    pending = [expression]
    while pending:
        one = pending.pop()
        children = sequence(one.children())
        if class_of(one) in _TIME_FUNCTIONS or (
            not one.deterministic() and all(child.deterministic() for child in children)
        ):
            found.add(str(one.prettyName()))
        pending.extend(children)
    return found


def nondeterministic_functions_of(plan: JavaObject) -> set[str]:
    """Return the names of nondeterministic and of time-dependent functions in a whole plan."""
    return {
        name for node in walk(plan) for one in sequence(node.expressions()) for name in nondeterministic_functions(one)
    }
