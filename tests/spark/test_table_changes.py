"""Tables of changes: filters behind aggregates, in memory, against Spark's own results."""

from __future__ import annotations

import random
from typing import Any

import pytest
from pyspark.sql import functions as F

from headrace.errors import TopologyError
from headrace.testing import TopologyTest

pytestmark = pytest.mark.spark

SCHEMA = "origin string, carrier string, n bigint"


def flights(count: int, seed: int = 1) -> list[dict[str, Any]]:
    chance = random.Random(seed)
    return [
        {
            "origin": chance.choice(["EWR", "JFK", "LGA", "", None]),
            "carrier": chance.choice(["UA", "AA"]),
            "n": chance.choice([None, *range(-3, 4)]),
        }
        for _ in range(count)
    ]


def having(stream: Any) -> Any:
    """A filter, an expression that fails on the rows that it drops, and a second filter."""
    table = stream.groupBy("origin", "carrier").agg(F.count("*").alias("rows"), F.sum("n").alias("n"))
    table = table.where("n != 0").withColumn("share", F.expr("round(100 / n, 3)"))
    return table.dropna().filter(F.col("share") > -50).drop("n")


def test_rows_that_do_not_pass_any_more_are_deleted(make_offline_app, spark):
    app = make_offline_app("having")
    having(app.stream("flights", schema=SCHEMA)).to_topic("out")
    rows, chance = flights(240), random.Random(5)
    with TopologyTest(app, partitions={"flights": 3, "out": 2}) as test:
        at, deleted = 0, 0
        while at < len(rows):
            size = chance.choice([1, 2, 7, 40])
            test.push("flights", rows[at : at + size])
            at += size
            deleted += test.read("out").count(None)
            if at % 3 == 0:
                wanted = having(spark.createDataFrame(rows[:at], SCHEMA)).collect()
                found = sorted(map(repr, test.table("out").values()))
                assert found == sorted(repr(_without_nulls(row.asDict())) for row in wanted)
        assert deleted > 1
        before = test.table("out")
        assert test.restart() > 0
        test.push("flights", flights(20, seed=9))
        assert test.table("out") != before


def _without_nulls(row: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if value is not None}


REFUSED: dict[str, Any] = {
    "the time": lambda t: t.withColumn("at", F.current_timestamp()).where("at > timestamp'2026-01-01'"),
    "chance": lambda t: t.where(F.rand() > 0.5),
    "a function of the user": lambda t: t.where(F.udf(lambda n: n > 1, "boolean")("rows")),
    "foreachBatch": lambda t: t.where("rows > 1").foreachBatch(lambda frame, batch: None),
    "a key that moves": lambda t: t.to_topic("out", key=["origin", "rows"]),
    "another key": lambda t: (
        t.withColumn("k", F.upper("origin")).where("rows > 1").to_topic("out", key=["origin", "k"])
    ),
    "a key of two groups": lambda t: t.withColumn("origin", F.upper("origin")).to_topic("out", key="origin"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_filters_and_keys_that_cannot_be_right_are_refused(make_offline_app, name):
    table = make_offline_app().stream("flights", schema=SCHEMA).groupBy("origin").agg(F.count("*").alias("rows"))
    with pytest.raises(TopologyError) as caught:
        REFUSED[name](table)
    assert caught.value.code == "not-supported-here"


def test_a_filter_behind_an_aggregate_needs_exactly_once(make_offline_app):
    app = make_offline_app(processing_guarantee="at_least_once")
    table = app.stream("flights", schema=SCHEMA).groupBy("origin").count()
    with pytest.raises(TopologyError, match="exactly once"):
        table.where("count > 1").to_topic("out")
    table.to_topic("out")


def test_another_filter_is_another_state(make_offline_app):
    def changes(table: Any) -> str:
        [part] = [one for one in table._app.compile().subtopologies if one.operators]
        return part.operators[0].changes

    def counted(**settings: Any) -> Any:
        stream = make_offline_app("one").stream("flights", schema=SCHEMA)
        return stream.groupBy("origin").agg(F.count("*").alias("rows"), **settings)

    texts = []
    for declare in (
        lambda t: t,
        lambda t: t.where("rows > 1"),
        lambda t: t.where("rows > 2"),
        lambda t: t.withColumn("twice", F.expr("2 * rows")).where("twice > 2"),
        lambda t: t.withColumnRenamed("rows", "r").where("r > 1"),  # the same
    ):
        table = declare(counted())
        table.to_topic("out")
        texts.append(changes(table))
    assert texts[0] == ""
    assert len(set(texts)) == 4
    assert texts[1] == texts[4]
