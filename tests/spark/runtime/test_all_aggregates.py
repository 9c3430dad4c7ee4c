"""Every aggregate function in one application on our broker: restarts, lost state directories, failures, `verify`."""

from __future__ import annotations

import json
import math
import random
from typing import Any

import pytest
from pyspark.sql import functions as F
from tests.longer import LONG, longer

from headrace.spark.analysis.aggregate_split import aggregate_limits
from headrace.spark.runtime.stores.time_keys import DISTINCT_ENTRY
from headrace.testing import TopologyTest

pytestmark = pytest.mark.spark

SCHEMA = "g string, x double, n int, s string, t timestamp"
CALLS = {
    "count": "count(*)", "counted": "count(s)", "count_if": "count_if(n > 2)", "sum": "sum(n)", "avg": "avg(x)",
    "min": "min(s)", "max": "max(x)", "bool_and": "bool_and(n > 0)", "bool_or": "bool_or(n > 4)",
    "max_by": "max_by(s, t)", "min_by": "min_by(x, t)", "by_tie": "max_by(n, s) filter (where x > 0)",
    "stddev": "round(stddev(x), 9)", "stddev_pop": "stddev_pop(n)", "stddev_samp": "stddev_samp(x)",
    "variance": "variance(n)", "var_pop": "var_pop(x)", "var_samp": "var_samp(n) filter (where x > 0)",
    "corr": "corr(x, n)", "covar_pop": "covar_pop(n, x)", "covar_samp": "covar_samp(x, n)",
    "about": "approx_count_distinct(n)", "skewness": "skewness(n)", "kurtosis": "kurtosis(x)",
    "regr_count": "regr_count(x, n)", "regr_avgx": "regr_avgx(x, n)", "regr_avgy": "regr_avgy(x, n)",
    "regr_sxx": "regr_sxx(x, n)", "regr_sxy": "regr_sxy(x, n)", "regr_syy": "regr_syy(x, n)",
    "regr_r2": "regr_r2(x, n)", "regr_slope": "regr_slope(x, n)", "regr_intercept": "regr_intercept(x, n)",
    "product": "product(n)", "bit_and": "bit_and(n)", "bit_or": "bit_or(n)", "bit_xor": "bit_xor(n)",
    "try_sum": "try_sum(x)", "try_avg": "try_avg(n)", "list": "collect_list(n)", "set": "collect_set(s)",
    "array": "array_agg(struct(x, t))", "median": "median(n)", "percentile": "percentile(x, array(0.1, 0.9))",
    "cont": "percentile_cont(0.3) within group (order by n)", "mode": "mode(s)",
    "near": "percentile_approx(n, array(0.1, 0.6))", "near_time": "approx_percentile(t, 0.5, 50)",
    "disc": "percentile_disc(0.3) within group (order by x desc)", "joined": "array_join(collect_set(s), ' ')",
}  # fmt: skip
DISTINCT = {
    "count_distinct": "count(distinct n)", "pairs": "count(distinct s, n)",
    "some": "count(distinct case when n > 2 then s end)",
    "filtered": "count(distinct x) filter (where n > 1)",
}  # fmt: skip


def rows(count: int, seed: int = 3) -> list[dict[str, Any]]:
    chance = random.Random(seed)
    return [
        {
            "g": chance.choice(["a", "b", "c", None]),
            "x": chance.choice([None, -1.5, 0.25, 3.0, 1e3]),
            "n": chance.choice([None, *range(7)]),
            "s": chance.choice([None, "", "u", "vw", "ä"]),
            "t": chance.choice([None, f"2026-01-01T00:00:{chance.randrange(60):02}Z"]),
        }
        for _ in range(count)
    ]


def call_of(sql: str) -> Any:
    """A call as a column. SQL has no `product`."""
    return F.product(sql[len("product(") : -1]) if sql.startswith("product(") else F.expr(sql)


def declared(app: Any, calls: dict[str, str]) -> Any:
    table = app.stream("in", schema=SCHEMA).groupBy("g").agg(*(call_of(sql).alias(name) for name, sql in calls.items()))
    table.to_topic("out", partitions=2)
    return app


@pytest.mark.parametrize("guarantee", ["exactly_once_v2", pytest.param("at_least_once", marks=longer)])
def test_all_functions_through_restarts_and_restores(broker, make_app, spark, guarantee):
    calls = CALLS | DISTINCT if guarantee == "exactly_once_v2" else CALLS
    broker.create_topics({"in": 3})
    records = rows(900)
    settings = {"processing_guarantee": guarantee, "config": {"headrace.batch.max.records": 60}}
    for number, instance in enumerate(["a", "a", "b"]):  # the last one restores from the changelog
        broker.produce("in", [json.dumps(row) for row in records[number * 300 : (number + 1) * 300]])
        app = declared(make_app("all", instance=instance, **settings), calls)
        with app.start() as running:
            running.wait_until("caught-up", timeout=120)
    verdict = app.verify()
    assert (verdict.status, verdict.sinks[0].equal) == ("equal", 4), verdict
    newest = {record.key: json.loads(record.value) for record in broker.records("out")}
    assert len(newest) == 4
    group = [row for row in records if row["g"] == "a"]
    found = next(row for row in newest.values() if row["g"] == "a")
    assert found["count"] == len(group)
    if guarantee == "exactly_once_v2":
        assert found["count_distinct"] == len({row["n"] for row in group} - {None})
        assert found["pairs"] == len({(row["s"], row["n"]) for row in group if None not in (row["s"], row["n"])})
        broker.produce("out", [{**found, "count_distinct": found["count_distinct"] - 1}], key="g")
        assert app.verify().status == "differs"


@pytest.mark.parametrize("mode", ["append", pytest.param("update", marks=longer)])
def test_all_functions_in_windows_that_close(broker, make_app, spark, mode):
    """A restart with a lost state directory while windows are open; entries leave with their window.

    HEADRACE_LONG=1 adds a restart on the same directory.
    """
    broker.create_topics({"in": 2})
    sent = rows(600, seed=8)
    for number, row in enumerate(sent):
        row["t"] = f"2026-01-01T00:{number // 20:02}:{random.Random(number).randrange(60):02}Z"

    def windowed(app: Any) -> Any:
        minutes = (
            app.stream("in", schema=SCHEMA).withWatermark("t", "1 minute").groupBy(F.window("t", "5 minutes"), "g")
        )
        calls = {name: call_of(sql).alias(name) for name, sql in (CALLS | DISTINCT).items()}
        minutes.agg(*calls.values(), name="state").to_topic("out", partitions=2, output_mode=mode)
        return app

    instances = ["a", "a", "b"] if LONG else ["a", "b"]
    share = len(sent) // len(instances)
    for number, instance in enumerate(instances):
        broker.produce("in", [json.dumps(row) for row in sent[number * share : (number + 1) * share]])
        app = windowed(make_app("all", instance=instance, config={"headrace.batch.max.records": 75}))
        with app.start() as running:
            running.wait_until("caught-up", timeout=120)
    verdict = app.verify()
    assert verdict.status == "equal", verdict
    assert verdict.sinks[0].equal >= 16, "four groups in four closed windows at least"
    changelog = {record.key: record.value for record in broker.records("all-state-changelog")}
    entries = [value is None for key, value in changelog.items() if key.startswith(DISTINCT_ENTRY)]
    assert entries.count(True) > entries.count(False) > 0


def test_functions_of_columns_as_they_are_need_no_sql(make_offline_app):
    """Casts that Spark adds are left out, so that rows pass from the decoder to the operator without Spark SQL."""
    app = make_offline_app()
    calls = [F.stddev("n").alias("spread"), F.corr("n", "x").alias("corr"), F.max_by("s", "t").alias("last")]
    calls += [F.count_distinct("n").alias("values"), F.count_distinct("n", "s").alias("pairs")]
    app.stream("in", schema=SCHEMA, key="g").groupBy("g").agg(*calls).to_topic("out")
    [branch] = [branch for part in app.compile().subtopologies for branch in part.branches]
    assert branch.projection is not None
    assert branch.projection.bare
    with TopologyTest(app) as test:
        first = {"g": "a", "x": 1.0, "n": 1, "s": "u", "t": "2026-01-01T00:00:05Z"}
        test.push(
            "in", [first, {**first, "n": 3, "s": "v", "x": 2.0, "t": "2026-01-01T00:00:04Z"}, {**first, "t": None}]
        )
        [row] = test.state("by-g").values()
    assert row == {
        "g": "a", "spread": pytest.approx(math.sqrt(4 / 3)), "corr": pytest.approx(1.0), "last": "u", "values": 2,
        "pairs": 2,
    }  # fmt: skip


def test_the_list_above_has_every_supported_function():
    supported, _ = aggregate_limits()
    called = {sql.removeprefix("round(").removeprefix("array_join(").partition("(")[0] for sql in CALLS.values()}
    assert called | {"count_distinct"} == set(supported)
