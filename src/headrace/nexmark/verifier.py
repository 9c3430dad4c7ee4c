"""Comparison of a query's result with the same query over DataFrames that the generator makes.

Neither the topics nor Headrace's decoder and operators take part in the recomputation. Rows compare as multisets; of a
table, the last record of each key counts. Rows that a rank leaves undecided may differ in what it does not order by.
Results that are final when a window closes compare over the windows that are certainly closed.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from headrace.client.security import ClientSecurity
from headrace.nexmark.events import Workload, last_time_ms
from headrace.nexmark.queries import Events, Query
from headrace.spark.frames import empty_frame, quoted
from headrace.spark.topic_frames import TopicPartition, topic_frame

__all__ = ["Comparison", "closed_before_ms", "compare", "rows_of_files", "rows_of_topic"]

EXAMPLES = 5
DELAY_MS = 4_000
# A window is certainly closed when every partition of every topic has passed its end. Persons are one event in 50:
# 5,000 events hold 100 of them, so a partition without a person among the last 5,000 events is next to impossible.
_LAST_OF_EVERY_PARTITION = 5_000
_SIGN = "__sign"


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Rows of the result against the recomputation.

    Args:
        expected: Rows of the recomputation that were compared.
        found: Rows of the result, over all windows.
        missing: Rows that the result lacks.
        extra: Rows that no recomputation has.
        open: Rows of windows that need not be closed yet, and are not there.
        examples: A few wrong rows, as text.
        compared: What was compared, as a sentence.
    """

    expected: int
    found: int
    missing: int
    extra: int
    open: int
    examples: tuple[str, ...]
    compared: str

    @property
    def equal(self) -> bool:
        """Whether the result is right; a comparison of no rows shows nothing."""
        return not self.missing and not self.extra and self.expected > 0

    def as_document(self) -> dict[str, Any]:
        return {**asdict(self), "equal": self.equal}


def closed_before_ms(workload: Workload, events: int) -> int:
    """Return the time before which windows are certainly closed after the first `events` events."""
    return last_time_ms(workload, events) - DELAY_MS - 1000 - _LAST_OF_EVERY_PARTITION * 1000 // workload.event_rate


def compare(query: Query, events: Events, found: DataFrame, *, closed_ms: int) -> Comparison:
    """Compare the rows of a result.

    Args:
        query: The query.
        events: Its inputs as DataFrames.
        found: The result: of a table, the last row of each key.
        closed_ms: From `closed_before_ms`.
    """
    expected = query.build(events)
    if query.totals is not None:
        return _difference(query.totals(expected), query.totals(found), compared="totals of each key")
    if query.ties is not None:
        return _with_ties(query, events, expected, found)
    return _difference(
        expected, found, closed=query.closed, closed_ms=closed_ms, compared=_compared(query.kind, query.closed)
    )


def _compared(kind: str, closed: str) -> str:
    rows = "the last row of each key" if kind == "table" else "all rows, as a multiset"
    return f"{rows}, of closed windows" if closed else rows


def _with_ties(query: Query, events: Events, expected: DataFrame, found: DataFrame) -> Comparison:
    """Compare the ordering columns of all rows, and look each row up among those that may stand there."""
    assert query.ties is not None
    # Equal multisets of the ordering columns, and each row among the candidates: the result is one that some order of
    # equal rows produces.
    order = [quoted(name) for name in query.ties.order]
    ranked = _difference(expected.select(*order), found.select(*order), compared="")
    candidates = query.ties.candidates(events)
    named = [quoted(name) for name in candidates.columns]
    known = _difference(candidates, found.select(*named), compared="")
    return Comparison(
        expected=ranked.expected,
        found=ranked.found,
        missing=ranked.missing,
        extra=ranked.extra + known.extra,
        open=0,
        examples=(*ranked.examples, *(text for text in known.examples if text.startswith("extra"))),
        compared="the last row of each key; rows that rank alike may stand for each other",
    )


def _difference(
    expected: DataFrame, found: DataFrame, *, compared: str, closed: str = "", closed_ms: int = 0
) -> Comparison:
    """Compare two multisets with one shuffle: rows count +1 on one side and -1 on the other."""
    # 1. One union instead of a full outer join: a join would match null columns with nothing, and need a count of equal
    #    rows on both sides besides.
    columns = [quoted(name) for name in expected.columns]
    both = expected.select(*columns, F.lit(1).alias(_SIGN)).unionAll(found.select(*columns, F.lit(-1).alias(_SIGN)))
    # 2. Rows of windows that may still be open are not missing. If they are there, they count like others.
    is_open = F.lit(False)
    if closed:
        bound = datetime.fromtimestamp(closed_ms / 1000, UTC)
        is_open = F.expr(closed) > F.lit(bound)
    here, there = F.count_if(F.col(_SIGN) > 0), F.count_if(F.col(_SIGN) < 0)
    summed = both.groupBy(*columns).agg(here.alias("__here"), there.alias("__there"), F.sum(_SIGN).alias(_SIGN))
    counted = summed.withColumn("__open", is_open)
    # 3. A positive sum is a row that the result lacks, a negative one a row too many.
    lacking, surplus = F.greatest(_SIGN, F.lit(0)), F.greatest(-F.col(_SIGN), F.lit(0))
    totals = counted.agg(
        F.sum(F.when(~F.col("__open"), F.col("__here"))),
        F.sum("__there"),
        F.sum(F.when(~F.col("__open"), lacking)),
        F.sum(surplus),
        F.sum(F.when(F.col("__open"), lacking)),
    ).first()
    assert totals is not None
    numbers = [int(total or 0) for total in totals]
    examples: list[str] = []
    if numbers[2] or numbers[3]:
        wrong = counted.where(f"{_SIGN} < 0 OR ({_SIGN} > 0 AND NOT __open)").limit(EXAMPLES).collect()
        examples = [_example(row.asDict(recursive=True)) for row in wrong]
    return Comparison(
        expected=numbers[0],
        found=numbers[1],
        missing=numbers[2],
        extra=numbers[3],
        open=numbers[4],
        examples=tuple(examples),
        compared=compared,
    )


def _example(row: dict[str, Any]) -> str:
    which = "missing" if row[_SIGN] > 0 else "extra"
    values = ", ".join(f"{name} {value}" for name, value in row.items() if not name.startswith("__"))
    return f"{which}: {values}"


def rows_of_topic(
    spark: SparkSession,
    bootstrap_servers: str,
    ranges: dict[TopicPartition, tuple[int, int]],
    schema: StructType,
    *,
    table: bool,
) -> DataFrame:
    """Return the rows of a result topic, decoded by Spark's `from_json`.

    Args:
        spark: A session.
        bootstrap_servers: Of the cluster.
        ranges: Offsets [from, to) of each partition.
        schema: Of the rows.
        table: Whether only the last record of each key counts, and none if it is a tombstone.
    """
    records = topic_frame(spark, bootstrap_servers, ClientSecurity(), ranges)
    if table:
        # A key lives in one partition, so offsets order its records.
        last = F.max_by(F.struct("value"), F.col("offset")).alias("last")
        records = records.groupBy("key").agg(last).select("last.value")
    # FAILFAST: a record that is not of the schema is an error of the result and must not become a row of nulls.
    row = F.from_json(F.col("value").cast("string"), schema, {"mode": "FAILFAST"}).alias("row")
    return records.where("value IS NOT NULL").select(row).select("row.*")


def rows_of_files(spark: SparkSession, path: Path, schema: StructType) -> DataFrame:
    """Return the rows of a result directory."""
    return spark.read.schema(schema).parquet(str(path)) if path.is_dir() else empty_frame(spark, schema)
