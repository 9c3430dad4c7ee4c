"""Comparison of a top-N's topic with its recomputation: Spark's own window functions, none of the operator's code.

Which of the rows with equal order values has which row number is open in Spark. Here ties are ordered by the remaining
columns (`headrace.spark.analysis.ranking`), so the recomputation orders by them as well and every record can be
compared. That this changes nothing else is checked: rank and filter as the user wrote them must keep, in each group,
the same order values as often.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from headrace.spark.frames import apply_calls, quoted
from headrace.spark.ranked_stream import KeyedTopN, RankedTable
from headrace.spark.topology.nodes import COORDINATES_COLUMN, HIDDEN_PREFIX, TopicSink
from headrace.spark.unsupported import is_hidden
from headrace.spark.verification.verdict import SinkVerdict
from headrace.spark.verification.verify_streams import EXAMPLES, canonical_value, key_of, value_of, value_schema

if TYPE_CHECKING:
    from headrace.spark.application_declaration import ApplicationDeclaration

__all__ = ["compare_ranked"]

_POSITION = f"{HIDDEN_PREFIX}position"


def compare_ranked(
    app: ApplicationDeclaration,
    table: RankedTable,
    sink: TopicSink,
    rows: DataFrame,
    actual: DataFrame,
    ignored: frozenset[str],
    *,
    once: bool = False,
) -> SinkVerdict:
    """Compare the sink of a top-N.

    Args:
        app: The application.
        table: The top-N.
        sink: Its sink topic.
        rows: The decodable input rows in front of the rank.
        actual: The records of the sink's topic.
        ignored: Columns that cannot be recomputed.
        once: Whether a key has one record only: it is written when its window is complete.
    """
    top = table._top
    rows = rows.drop(*(name for name in rows.columns if is_hidden(name) and name != COORDINATES_COLUMN))
    # 1. Ranked by Spark, with ties broken by the remaining columns as the operator does.
    ranked = _ranked(top, rows)
    # 2. The same rows as by the user's own calls, except for the choice among ties: otherwise the declaration was read
    #    wrongly, and nothing can be claimed.
    if not _keeps_the_same(top, rows, ranked):
        why = "the rank as it is written keeps other rows than the operator is declared to keep"
        return SinkVerdict(topic=sink.topic, kind="table", expected=0, found=0, equal=0, undecided=why)
    groups = [f"{HIDDEN_PREFIX}g{at}" for at in range(len(top.ranking.group_columns))]
    results = [f"{sql} AS {quoted(name)}" for name, sql in top.ranking.results]
    window = top.ranking.window
    shown = {} if window is None else {window.group: window.sql}
    copies = [f"{shown.get(f'g{at}', f'g{at}')} AS {name}" for at, name in enumerate(groups)]
    expected = apply_calls(ranked.selectExpr(*results, *copies, _POSITION), table._calls)
    key = [*groups, *([_POSITION] if top.position_name else [])]
    schema = value_schema(expected, sink)
    wanted = expected.select(
        key_of(expected, sink, list(zip(key, top.key_columns, strict=True))).alias("key"),
        canonical_value(value_of(expected, sink), sink, schema, ignored).alias("wanted"),
    )
    # 3. The newest record per key; a tombstone is a position that has no row any more.
    newest = actual.groupBy("key").agg(F.max_by("value", F.struct("timestamp", "offset")).alias("value"))
    found = newest.where("value is not null").select(
        "key", canonical_value(F.col("value"), sink, schema, ignored).alias("found")
    )
    verdict = _verdict(app, sink, wanted.withColumn("here", F.lit(1)), found.withColumn("there", F.lit(1)))
    return replace(verdict, repeated=actual.count() - found.count()) if once else verdict


def _ranked(top: KeyedTopN, rows: DataFrame) -> DataFrame:
    """Return the first rows as g0.., i0.., the rank r, and the position."""
    projection = top.projection
    projected = rows.selectExpr(*(f"{sql} AS {name}" for name, sql in projection.key_sql + projection.input_sql))
    groups = ", ".join(name for name, _ in projection.key_sql)
    declared = [str(one) for one in top.ranking.order] or ["1"]
    ties = [name for name, _ in projection.input_sql]
    by = f"PARTITION BY {groups} ORDER BY {', '.join(declared)}"
    positions = f"row_number() OVER ({by}{''.join(f', {name} ASC NULLS FIRST' for name in ties)})"
    ranks = positions if top.ranking.function == "row_number" else f"{top.ranking.function}() OVER ({by})"
    return projected.selectExpr("*", f"{ranks} AS r", f"{positions} AS {_POSITION}").where(f"r <= {top.limit}")


def _keeps_the_same(top: KeyedTopN, rows: DataFrame, ranked: DataFrame) -> bool:
    """Whether the user's own calls keep the same order values of each group as `ranked`, as often."""
    inputs = dict(top.projection.input_sql)
    sql = [text for _, text in top.projection.key_sql] + [inputs[one.column] for one in top.ranking.order]
    hidden = [f"{HIDDEN_PREFIX}k{at}" for at in range(len(sql))]
    marked = rows.selectExpr("*", *(f"{text} AS {name}" for text, name in zip(sql, hidden, strict=True)))
    written = apply_calls(marked, (top.call,)).where(f"{quoted(top.ranking.rank_column)} <= {top.limit}")
    columns = [name for name, _ in top.projection.key_sql] + [one.column for one in top.ranking.order]
    mine, theirs = ranked.select(*columns), written.select(*hidden)
    return mine.exceptAll(theirs).isEmpty() and theirs.exceptAll(mine).isEmpty()


def _verdict(app: ApplicationDeclaration, sink: TopicSink, wanted: DataFrame, found: DataFrame) -> SinkVerdict:
    pairs = wanted.join(found, wanted["key"].eqNullSafe(found["key"]), "full_outer").select(
        F.coalesce(wanted["key"], found["key"]).alias("key"), "wanted", "found", "here", "there"
    )
    pairs = pairs.withColumn("same", _both() & F.col("wanted").eqNullSafe(F.col("found")))
    totals = pairs.agg(
        F.count("here"),
        F.count("there"),
        F.count_if("same"),
        F.count_if(F.col("there").isNull()),
        F.count_if(F.col("here").isNull()),
        F.count_if(_both() & ~F.col("same")),
    ).first()
    assert totals is not None
    expected, there, equal, missing, extra, differ = (int(total) for total in totals)
    is_same = equal == expected == there
    examples = [] if is_same else pairs.where("not same").orderBy("key").limit(EXAMPLES).collect()
    undecided = ""
    # A top-N has no count of rows that would bound repeats, as aggregates have.
    if not is_same and app.processing_guarantee == "at_least_once":
        undecided = (
            f"{differ + missing + extra} rows differ; at least once, a row that was processed again after a failure is "
            "there twice, which cannot be told from an error"
        )
    return SinkVerdict(
        topic=sink.topic,
        kind="table",
        expected=expected,
        found=there,
        equal=equal,
        differ=differ,
        missing=missing,
        extra=extra,
        examples=tuple(
            f"{'no key' if row.key is None else bytes(row.key).decode('utf-8', 'replace')}: "
            f"{row.found or 'no record'} there, {row.wanted or 'nothing'} recomputed"
            for row in examples
        ),
        undecided=undecided,
    )


def _both() -> Column:
    return F.col("here").isNotNull() & F.col("there").isNotNull()
