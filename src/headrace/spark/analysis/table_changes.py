"""Calls behind a table that decide which keys have a row, and aggregates of its rows: what they may be, and their text.

Old rows are evaluated again when they are replaced, and what they were once published as is taken back by that. So such
calls have to answer the same for the same row for ever: they neither read the clock nor call functions of the user, and
their text is part of the identity of the stored rows. A program with others is refused, until
`headrace upgrade --state recompute`.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import DataFrame

from headrace.spark.analysis.aggregate_split import AggregateSplit
from headrace.spark.analysis.canonical_expressions import CanonicalExpressions
from headrace.spark.analysis.plan_reader import aliases_of, leaf_columns, nondeterministic_functions_of
from headrace.spark.analysis.session_settings import changed_settings, has_zone, is_computed, zone_of
from headrace.spark.spark_internals import (
    analysed,
    class_of,
    expression_id,
    has_user_function,
    sequence,
    walk,
    walk_of_stream,
)
from headrace.spark.topology.nodes import VALUE_FUNCTIONS
from headrace.spark.unsupported import refusal

__all__ = [
    "check_invertible",
    "check_repeatable",
    "columns_behind",
    "drops_rows",
    "filter_text",
    "unchanged_columns",
    "zone_text",
]


_INVERTIBLE = frozenset({"count", "count_distinct", "sum", "avg", "min", "max"}) | VALUE_FUNCTIONS


def drops_rows(template: DataFrame) -> bool:
    """Whether a filter stands between a table and `template`."""
    return any(class_of(node) == "Filter" for node in walk_of_stream(analysed(template)))


def check_repeatable(template: DataFrame, where: str, what: str) -> None:
    """Refuse what could answer differently when an old row is evaluated again. Raises TopologyError.

    Args:
        template: The rows behind the call.
        where: "file:line" of the call.
        what: The call, for messages, such as "where behind an aggregate".
    """
    plan = analysed(template)
    found = sorted(nondeterministic_functions_of(plan))
    if found:
        raise refusal(
            "not-supported-here",
            f"{what} takes back what a row once was, and {', '.join(found)} answers differently when asked again",
            f"compute it behind the filter, or before groupBy ({found[0]})",
            where,
        )
    expressions = [one for node in walk(plan) for one in sequence(node.expressions())]
    if has_user_function(template.sparkSession, expressions):
        raise refusal(
            "not-supported-here",
            f"{what} takes back what a row once was; whether a function of the user still answers the same is unknown",
            "write it with Spark's own functions, or call the function before groupBy",
            where,
        )


def check_invertible(split: AggregateSplit, where: str) -> None:
    """Refuse aggregates of a table that cannot give exactly back what a row added. Raises TopologyError."""
    for buffer in split.buffers:
        kinds = [kind for kind in (buffer.input_type, *(kind for _, kind in buffer.more_inputs)) if kind is not None]
        if buffer.function not in _INVERTIBLE:
            raise refusal(
                "not-supported-here",
                f"{buffer.function}({buffer.argument}) of a table, whose rows change and vanish, is not supported yet",
                "count, count_if, count_distinct, sum, avg, min, max, percentile, median, mode, collect_list and "
                "collect_set work now; or aggregate where you read",
                where,
            )
        if buffer.function in ("min", "max") and buffer.input_type in ('"string"', '"binary"'):
            raise refusal(
                "not-supported-here",
                f"{buffer.function}({buffer.argument}) of a table over texts and bytes is not supported yet",
                "numbers, dates, timestamps and booleans work now; or aggregate where you read",
                where,
            )
        if buffer.function in ("sum", "avg") and any(kind in ('"float"', '"double"') for kind in kinds):
            raise refusal(
                "not-supported-here",
                f"{buffer.function}({buffer.argument}) of a table: sums of floating-point numbers cannot be taken back "
                "exactly, so results would depend on the order of changes",
                f"cast to a decimal: {buffer.function}(F.col(..).cast('decimal(30,10)'))",
                where,
            )


def filter_text(template: DataFrame, results: Sequence[tuple[str, str]]) -> str:
    """Return the canonical text of all filters between a table and `template`; empty without any.

    Args:
        template: The rows behind the filters.
        results: (column, SQL over the stored values) of the table.
    """
    canonical = CanonicalExpressions(template)
    conditions = [
        canonical.text(node.condition()) for node in walk_of_stream(analysed(template)) if class_of(node) == "Filter"
    ]
    if not conditions:
        return ""
    # The filters name columns of the table, which mean nothing without what they are.
    columns = ", ".join(f"{sql} as {name}" for name, sql in results)
    return f"where {' and '.join(sorted(conditions))} of ({columns}){zone_text(template)}"


def zone_text(template: DataFrame) -> str:
    """Return the session's time zone and settings as text, if an expression behind the table may depend on them."""
    session = template.sparkSession
    nodes = walk_of_stream(analysed(template))
    expressions = [part for node in nodes for one in sequence(node.expressions()) for part in walk(one)]
    settings = changed_settings(session) if any(map(is_computed, expressions)) else ""
    text = f" with {settings}" if settings else ""
    return f"{text} in {zone_of(session)}" if any(has_zone(session, one) for one in expressions) else text


def columns_behind(template: DataFrame) -> dict[str, set[str]]:
    """Return for each column of `template` the table's own columns that it is computed from.

    Each step of the walk is a call into the JVM, so all columns are looked up in one walk: `verify` of 60 aggregates
    spent half of its time here when each column had a walk of its own.
    """
    own = leaf_columns(template)
    references = {
        number: [expression_id(other) for other in sequence(alias.references().toSeq())]
        for number, alias in aliases_of(template).items()
    }
    found: dict[str, set[str]] = {}
    for column in sequence(analysed(template).output()):
        behind = found.setdefault(str(column.name()), set())
        pending = [expression_id(column)]
        while pending:
            number = pending.pop()
            if number in own:
                behind.add(own[number])
            else:
                pending.extend(references.get(number, ()))
    return found


def unchanged_columns(template: DataFrame) -> set[str]:
    """Return the columns of `template` that are columns of the table under their own names, computed from nothing."""
    own = leaf_columns(template)
    output = ((own.get(expression_id(one)), str(one.name())) for one in sequence(analysed(template).output()))
    return {name for before, name in output if before == name}
