"""Stages in the calling process: SQL between them, and records that fail in it."""

from __future__ import annotations

import pytest
from pyspark.sql import functions as F
from tests.spark.offline_programs import EWR, JFK, SCHEMA

from headrace.errors import RecordError, UserCodeError
from headrace.testing import TopologyTest

pytestmark = pytest.mark.spark


@pytest.mark.parametrize("policy", ["skip", "fail"])
def test_records_that_spark_sql_refuses_follow_the_policy(make_offline_app, policy):
    app = make_offline_app(on_error=policy)
    flights = app.stream("flights", schema="origin string, n string")
    flights.withColumn("n", F.col("n").cast("int")).to_topic("numbers")
    flights.to_topic("copy")
    rows = [{"origin": str(i), "n": "x" if i == 5 else str(i)} for i in range(9)]
    with TopologyTest(app) as test:
        test.push("flights", rows)
        if policy == "skip":
            assert [row["n"] for row in test.read("numbers")] == [0, 1, 2, 3, 4, 6, 7, 8]
            assert [row["n"] for row in test.read("copy")] == [row["n"] for row in rows if row["n"] != "x"]
        else:
            with pytest.raises(RecordError, match="flights-0@5"):
                test.run()
            assert [row["n"] for row in test.read("copy")] == ["0", "1", "2", "3", "4"], "once, though it ran again"


def test_a_filter_protects_the_sql_in_front_of_it(make_offline_app):
    """Spark moves the filter below the cast, in an application as well: rows that it drops cannot fail."""
    app = make_offline_app()
    rows = app.stream("in", schema="kind string, text string").withColumn("n", F.col("text").cast("int"))
    rows.where("kind = 'number'").to_topic("numbers")
    with TopologyTest(app) as test:
        test.push("in", [{"kind": "word", "text": "x"}, {"kind": "number", "text": "7"}])
        assert [row["n"] for row in test.read("numbers")] == [7]


def test_a_sum_that_overflows_names_its_record(make_offline_app):
    app = make_offline_app(on_error="skip")
    app.stream("in", schema="k string, n bigint", key="k").groupBy("k").agg(F.sum("n").alias("n")).to_topic("sums")
    with TopologyTest(app) as test:
        test.push("in", [{"k": "a", "n": 2**62}, {"k": "a", "n": 2**62}, {"k": "a", "n": 1}])
        assert test.table("sums") == {"a": {"k": "a", "n": 2**62 + 1}}


def test_foreach_batch_gets_the_rows(make_offline_app):
    app, seen = make_offline_app(), []

    def take(frame, batch):
        seen.append((int(batch), sorted(row.origin for row in frame.collect())))
        if len(seen) == 2:
            raise ValueError("enough")

    app.stream("flights", schema=SCHEMA).where("dep_delay > 2").foreachBatch(take)
    with TopologyTest(app) as test:
        test.push("flights", [JFK, {**EWR, "dep_delay": 1.0}])
        test.run()
        assert seen == [(0, ["JFK"])]
        test.push("flights", [EWR])
        with pytest.raises(UserCodeError, match="enough"):
            test.run()


def test_a_static_join_and_a_function_of_the_user(make_offline_app, spark):
    @F.udf("string")
    def shout(text):
        return text.upper() + "!"

    names = spark.createDataFrame([("JFK", "Kennedy"), ("LGA", "LaGuardia")], "origin string, name string")
    app = make_offline_app()
    app.stream("flights", schema=SCHEMA).join(names, "origin").withColumn("name", shout("name")).to_topic("named")
    with TopologyTest(app) as test:
        test.push("flights", [EWR])
        assert test.read("named") == []
        test.push("flights", [JFK])
        assert test.read("named") == [{**JFK, "name": "KENNEDY!"}]
