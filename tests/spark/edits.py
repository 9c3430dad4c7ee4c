"""Edits of a stateful program: the old version, the new one, and what becomes of the state. Used by two test modules.

A version is a function (app) → StreamTable over the topic `flights` with records {"origin", "dest", "n"}. Each has a
recount in plain Python: (all records) → {output key: row}. Where an edit changes what a kept value means (another
filter), the recount gets the records that each version has read.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pyspark.sql import functions as F

SCHEMA = "origin string, dest string, n int"
WIDER = "origin string, dest string, n bigint"
DOUBLE = "origin string, dest string, n double"


@dataclass(frozen=True, slots=True, kw_only=True)
class Version:
    """`results`: output column → function of the list of a group's n."""

    build: Callable[[Any], Any]
    results: dict[str, Callable[[list[int]], Any]]
    key: Callable[[dict[str, Any]], Any] = lambda record: record["origin"]
    key_name: str = "origin"
    keeps: Callable[[dict[str, Any]], bool] = lambda _record: True


@dataclass(frozen=True, slots=True, kw_only=True)
class Edit:
    """`refused`: words of the refusal; None where the new version goes on with the state."""

    name: str
    old: Version
    new: Version
    refused: str | None = None
    fast: bool = True  # among those that CI runs with Spark


def _mean(numbers: list[int]) -> float:
    return sum(numbers) / len(numbers)


RESULTS: dict[str, Callable[[list[int]], Any]] = {
    "count": len,
    "total": sum,
    "largest": max,
    "smallest": min,
    "mean": _mean,
}


def aggregated(*names: str, schema: str = SCHEMA, key: str | None = None, by: Any = "origin", before: Any = None):
    """A version that computes these results, in this order, of column n."""
    functions = {"count": "count(*)", "total": "sum(n)", "largest": "max(n)", "smallest": "min(n)", "mean": "avg(n)"}

    def build(app: Any) -> Any:
        rows = app.stream("flights", schema=schema, key=key)
        rows = before(rows) if before is not None else rows
        return rows.groupBy(by).agg(*(F.expr(functions[name]).alias(name) for name in names), name="state")

    return Version(build=build, results={name: RESULTS[name] for name in names})


def expressed(
    expressions: dict[str, Any], results: dict[str, Any], *, key: str | None = None, **others: Any
) -> Version:
    """A version with expressions of its own."""

    def build(app: Any) -> Any:
        rows = app.stream("flights", schema=SCHEMA, key=key)
        return rows.groupBy("origin").agg(*(F.expr(sql).alias(name) for name, sql in expressions.items()), name="state")

    return Version(build=build, results=results, **others)


def grouped(by: Any, *, key: Any, key_name: str, schema: str = SCHEMA) -> Version:
    def build(app: Any) -> Any:
        return (
            app.stream("flights", schema=schema).groupBy(*map(F.expr, by)).agg(F.sum("n").alias("total"), name="state")
        )

    return Version(build=build, results={"total": sum}, key=key, key_name=key_name)


def joined(side: str, on: Callable[[Any, Any], Any]) -> Version:
    """`side`: the static DataFrame's schema."""

    def build(app: Any) -> Any:
        names = [part.split()[0] for part in side.split(", ")]
        airports = app.spark.sql("VALUES ('EWR', 2), ('JFK', 3), ('LGA', 5)")
        airports = airports.selectExpr(
            *(
                f"CAST(col{at + 1} AS {part.split()[1]}) AS {part.split()[0]}"
                for at, part in enumerate(side.split(", "))
            )
        )
        rows = app.stream("flights", schema=SCHEMA)
        rows = rows.join(airports, on(rows, airports))
        return rows.groupBy("origin").agg(F.sum(names[1]).alias("weight"), name="state")

    weights = {"EWR": 2, "JFK": 3, "LGA": 5}
    return Version(build=build, results={"weight": lambda numbers: weights[_ORIGIN[numbers[0] % 3]] * len(numbers)})


_ORIGIN = ("EWR", "JFK", "LGA")
BASE = aggregated("count", "total")
KEYED = aggregated("count", "total", key="origin")

EDITS = (
    Edit(name="aggregates reordered", old=BASE, new=aggregated("total", "count")),
    Edit(
        name="aggregates reordered, no repartition",
        old=KEYED,
        new=aggregated("total", "count", key="origin"),
        fast=False,
    ),
    Edit(
        name="aggregates over different inputs reordered",
        old=expressed(
            {"a": "sum(n)", "b": "sum(n * 10)", "c": "max(dest)"},
            {"a": sum, "b": lambda ns: 10 * sum(ns), "c": lambda ns: "D"},
        ),
        new=expressed(
            {"c": "max(dest)", "b": "sum(n * 10)", "a": "sum(n)"},
            {"a": sum, "b": lambda ns: 10 * sum(ns), "c": lambda ns: "D"},
        ),
        fast=False,
    ),
    Edit(
        name="another expression over the same partial results",
        old=BASE,
        new=expressed(
            {"mean": "sum(n) / count(*)", "twice": "sum(n) * 2"},
            {"mean": _mean, "twice": lambda ns: 2 * sum(ns)},
        ),
    ),
    Edit(
        name="output columns renamed",
        old=BASE,
        new=expressed({"flights": "count(*)", "sum_n": "sum(n)"}, {"flights": len, "sum_n": sum}),
        fast=False,
    ),
    Edit(
        name="source column renamed on the way",
        old=BASE,
        new=Version(
            build=lambda app: (
                app.stream("flights", schema=SCHEMA)
                .withColumnRenamed("n", "m")
                .groupBy("origin")
                .agg(F.sum("m").alias("total"), F.count("*").alias("count"), name="state")
            ),
            results={"total": sum, "count": len},
        ),
        fast=False,
    ),
    Edit(
        name="a filter added before the groups",
        old=BASE,
        new=Version(
            build=aggregated("count", "total", before=lambda rows: rows.where("n % 2 = 0")).build,
            results={"count": len, "total": sum},
            keeps=lambda record: record["n"] % 2 == 0,
        ),
        fast=False,
    ),
    Edit(
        name="group column renamed",
        old=grouped(["origin"], key=lambda r: r["origin"], key_name="origin"),
        new=grouped(["origin AS airport"], key=lambda r: r["origin"], key_name="airport"),
        fast=False,
    ),
    Edit(
        name="source column wider, no repartition",
        old=KEYED,
        new=aggregated("count", "total", key="origin", schema=WIDER),
        fast=False,
    ),
    Edit(
        name="aggregate added",
        old=BASE,
        new=aggregated("count", "total", "mean"),
        refused="new: avg(n): double + int64",
    ),
    Edit(
        name="aggregate added, no repartition",
        old=KEYED,
        new=aggregated("count", "total", "largest", key="origin"),
        refused="new: max(n): int32",
        fast=False,
    ),
    Edit(
        name="standard deviation added",
        old=BASE,
        new=expressed(
            {"count": "count(*)", "total": "sum(n)", "spread": "stddev_pop(n)"},
            {"count": len, "total": sum, "spread": statistics.pstdev},
        ),
        refused="new: stddev_pop(n): double + int64 + double",
        fast=False,
    ),
    Edit(
        name="another expression over the same standard deviation",
        old=expressed({"spread": "stddev_pop(n)"}, {"spread": statistics.pstdev}),
        new=expressed({"twice": "stddev_pop(n) * 2"}, {"twice": lambda ns: 2 * statistics.pstdev(ns)}),
        fast=False,
    ),
    Edit(
        name="distinct counts reordered",
        old=expressed(
            {"a": "count(distinct n)", "b": "count(distinct n % 2)"},
            {"a": lambda ns: len(set(ns)), "b": lambda ns: len({n % 2 for n in ns})},
        ),
        new=expressed(
            {"b": "count(distinct n % 2)", "a": "count(distinct n)"},
            {"a": lambda ns: len(set(ns)), "b": lambda ns: len({n % 2 for n in ns})},
        ),
    ),
    Edit(
        name="distinct count added",
        old=BASE,
        new=expressed(
            {"count": "count(*)", "total": "sum(n)", "values": "count(distinct n)"},
            {"count": len, "total": sum, "values": lambda ns: len(set(ns))},
        ),
        refused="new: count_distinct(n): int64 of int32",
        fast=False,
    ),
    Edit(
        name="max_by ordered by another column",
        old=expressed({"last": "max_by(n, n)"}, {"last": max}),
        new=expressed({"last": "max_by(n, n + 1)"}, {"last": max}),
        refused="new: max_by(n, (n + 1)): int32 + int32; no longer there: max_by(n, n): int32 + int32",
        fast=False,
    ),
    Edit(
        name="aggregate removed",
        old=BASE,
        new=aggregated("count"),
        refused="no longer there: sum(n): int64",
        fast=False,
    ),
    Edit(
        name="aggregate replaced by one of the same type",
        old=aggregated("count", "largest", key="origin"),
        new=aggregated("count", "smallest", key="origin"),
        refused="new: min(n): int32; no longer there: max(n): int32",
        fast=False,
    ),
    Edit(
        name="argument of an aggregate changed",
        old=BASE,
        new=expressed({"count": "count(*)", "total": "sum(n + 1)"}, {"count": len, "total": sum}),
        refused="new: sum((n + 1)): int64; no longer there: sum(n): int64",
        fast=False,
    ),
    Edit(
        name="aggregated column redefined before the groups",
        old=BASE,
        new=aggregated("count", "total", before=lambda rows: rows.withColumn("n", F.col("n") * 2)),
        refused="new: sum((n * 2)): int64; no longer there: sum(n): int64",
        fast=False,
    ),
    Edit(
        name="condition added to an aggregate",
        old=BASE,
        new=expressed({"count": "count(*)", "total": "sum(n) FILTER (WHERE n > 3)"}, {"count": len, "total": sum}),
        refused="new: sum(n FILTER (n > 3)): int64",
        fast=False,
    ),
    Edit(
        name="group column of another expression",
        old=grouped(["origin"], key=lambda r: r["origin"], key_name="origin"),
        new=grouped(["lower(origin) AS origin"], key=lambda r: r["origin"], key_name="origin"),
        refused="grouped by origin: string before, by lower(origin): string now",
        fast=False,
    ),
    Edit(
        name="group column of another type",
        old=grouped(["n"], key=lambda r: r["n"], key_name="n"),
        new=grouped(["n"], key=lambda r: r["n"], key_name="n", schema=WIDER),
        refused="grouped by n: int32 before, by n: int64 now",
        fast=False,
    ),
    Edit(
        name="group columns in another order",
        old=grouped(["origin", "dest"], key=lambda r: (r["origin"], r["dest"]), key_name="origin"),
        new=grouped(["dest", "origin"], key=lambda r: (r["origin"], r["dest"]), key_name="origin"),
        refused="grouped by origin: string, dest: string before, by dest: string, origin: string now",
        fast=False,
    ),
    Edit(
        name="source column wider, repartitioned",
        old=BASE,
        # The repartition topic holds sums, which are int64 before and after.
        new=aggregated("count", "total", schema=WIDER),
        fast=False,
    ),
    Edit(
        name="source column of another kind",
        old=KEYED,
        new=aggregated("count", "total", schema=DOUBLE, key="origin"),
        refused="new: sum(n): double; no longer there: sum(n): int64",
    ),
    Edit(
        name="static join on another condition",
        old=joined("code string, weight int", lambda rows, side: F.col("origin") == F.col("code")),
        new=joined("code string, weight int", lambda rows, side: F.col("dest") == F.col("code")),
        refused="no longer there: sum(joined(code, weight ON (origin = joined.code)).weight): int64",
        fast=False,
    ),
    Edit(
        name="static join, column of another type",
        old=joined("code string, weight int", lambda rows, side: F.col("origin") == F.col("code")),
        new=joined("code string, weight double", lambda rows, side: F.col("origin") == F.col("code")),
        refused="sum(joined(code, weight ON (origin = joined.code)).weight): double",
        fast=False,
    ),
)


def record(number: int) -> dict[str, Any]:
    return {"origin": _ORIGIN[number % 3], "dest": "D", "n": number}


def recount(version: Version, records: list[dict[str, Any]]) -> dict[Any, dict[str, Any]]:
    """Each group's row, in plain Python."""
    groups: dict[Any, list[int]] = {}
    for each in records:
        groups.setdefault(version.key(each), []).append(each["n"])
    return {key: {name: result(ns) for name, result in version.results.items()} for key, ns in groups.items()}
