"""A stream joined with a plain DataFrame gives what the same join gives in a batch, and no row leaves its task."""

from __future__ import annotations

import functools
import json

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import functions as F

from headrace.errors import TopologyError
from headrace.spark.frames import apply_calls
from headrace.spark.runtime.batches.prepared_plan import PreparedPlan
from headrace.spark.streams_app import StreamsApp

pytestmark = pytest.mark.spark

SCHEMA = "origin string, dest string, n int"
ROWS = [("EWR", "JFK", 1), ("JFK", "XXX", 2), ("LGA", "EWR", 3), (None, "EWR", 4), ("XXX", None, 5), ("EWR", "EWR", 6)]
TASK = "__headrace_task"
AIRPORTS = [("EWR", "Newark", 10), ("JFK", "New York", 20), ("JFK", "Queens", 30), (None, "Nowhere", 40)]


@pytest.fixture
def app(spark):
    return StreamsApp("joins", spark=spark)


@pytest.fixture
def flights(app):
    return app.stream("flights", schema=SCHEMA)


@pytest.fixture
def airports(spark):
    return spark.createDataFrame(AIRPORTS, "origin string, city string, meters int")


def codes(airports):
    return airports.withColumnRenamed("origin", "code")


JOINS = {
    "inner by name": lambda rows, a: rows.join(a, "origin"),
    "left by names": lambda rows, a: rows.join(F.broadcast(a), ["origin"], "left"),
    "semi": lambda rows, a: rows.join(a, "origin", "leftsemi"),
    "anti": lambda rows, a: rows.join(a, on="origin", how="left_anti"),
    "by a condition": lambda rows, a: rows.join(codes(a), F.expr("dest = code and meters > n")),
    "left by a condition": lambda rows, a: rows.join(
        (c := codes(a)), (F.col("dest") == c["code"]) & (c.city != "Queens"), "left_outer"
    ),
    "without an equality": lambda rows, a: rows.join(codes(a), F.col("n") * 10 < F.col("meters"), "left"),
    "by an alias": lambda rows, a: rows.join(codes(a).alias("x"), F.expr("dest <=> x.code")).select("n", "x.city"),
    "twice": lambda rows, a: rows.join(a, "origin", "left").join(
        codes(a).selectExpr("code as dest", "city as dest_city"), "dest", "left"
    ),
    "with a struct": lambda rows, a: rows.join(
        a.select("origin", F.struct("city", "meters").alias("at"), F.array("city").alias("all")), "origin"
    ).selectExpr("n", "at.city", "all[0] as first", "at"),
    "none of its rows": lambda rows, a: rows.join(a.where("city = 'Atlantis'"), "origin", "left"),
}


def as_text(frame):
    return sorted(json.dumps(row.asDict(recursive=True), sort_keys=True) for row in frame.collect())


def through_tasks(spark, rows):
    """The rows as a micro-batch has them, each with its task behind a Python stage."""
    frame = spark.createDataFrame(ROWS, SCHEMA).withColumn(TASK, F.coalesce("n", F.lit(0)))
    frame = frame.mapInArrow(lambda batches: batches, frame.schema)
    return apply_calls(frame, rows._origins[0].calls)


def operators(frame):
    plan = frame._jdf.queryExecution().executedPlan().toString()
    return plan, [
        name for name in ("Exchange hashpartitioning", "Exchange SinglePartition", "SortMergeJoin") if name in plan
    ]


@pytest.mark.parametrize("name", JOINS)
def test_a_join_gives_what_the_batch_gives(spark, flights, airports, name):
    stream = JOINS[name](flights, airports)
    batch = JOINS[name](spark.createDataFrame(ROWS, SCHEMA), airports)
    assert stream.columns == batch.columns
    assert [field.dataType for field in stream.schema] == [field.dataType for field in batch.schema]
    wanted = as_text(batch)
    # with the user's DataFrame, as verify does it
    assert as_text(apply_calls(spark.createDataFrame(ROWS, SCHEMA), stream._origins[0].calls)) == wanted
    sides = [call.args[0] for call in stream._origins[0].calls if call.method == "join"]
    held = PreparedPlan(lambda: through_tasks(spark, stream), sides).kept()
    found = held.collect()
    assert (
        sorted(json.dumps({k: v for k, v in row.asDict(True).items() if k != TASK}, sort_keys=True) for row in found)
        == wanted
    )
    assert all("n" not in row or row[TASK] == row["n"] for row in found), "each row in its task"
    plan, shuffles = operators(held)
    assert "Broadcast" in plan
    assert not shuffles


def test_queries_without_results_still_fetch(spark, flights, airports):
    """Spark leaves out what joins with nothing, and a task whose fetch is left out never moves on."""
    nothing = [
        flights.join(spark.createDataFrame([], airports.schema), "origin"),
        flights.join(airports, "origin").where("city = 'Atlantis'"),
        flights.join(spark.sql("select 'EWR' as origin where false"), "origin", "left_semi"),
        flights.join(airports, "origin").where(F.lit(False)),
        flights.where(F.lit(False)),
        flights.withColumn("u", F.expr("uuid()")).where("1 = 0 or null"),
    ]
    for stream in nothing:
        sides = [call.args[0] for call in stream._origins[0].calls if call.method == "join"]
        plan = PreparedPlan(functools.partial(through_tasks, spark, stream), sides)
        assert plan.collect() == []
        assert "MapInArrow" in operators(plan.kept())[0]
    until_when = flights.where(F.current_date() < F.lit("2100-01-01"))
    plan = PreparedPlan(lambda: through_tasks(spark, until_when))
    assert plan._keeps_fetching, "one day it is false"
    assert len(plan.collect()) == len(ROWS)
    assert not PreparedPlan(lambda: through_tasks(spark, flights.where("n > 1")))._keeps_fetching


def test_a_plan_is_reused_unless_it_depends_on_time_or_chance(spark, flights, airports):
    joined = flights.join(airports, "origin")
    side = joined._origins[0].calls[0].args[0]
    kept = PreparedPlan(lambda: through_tasks(spark, joined), [side])
    assert kept.kept() is kept.kept(), "its broadcast is built once"
    timed = joined.withColumn("at", F.current_timestamp())
    anew = PreparedPlan(lambda: through_tasks(spark, timed), [side])
    assert anew.collect()[0]["at"] < anew.collect()[0]["at"]
    chance = joined.withColumn("u", F.expr("uuid()"))
    anew = PreparedPlan(lambda: through_tasks(spark, chance), [side])
    assert anew.collect()[0]["u"] != anew.collect()[0]["u"]


@pytest.mark.parametrize("sized", [True, False])
def test_it_is_read_again_when_it_is_old(spark, tmp_path, caplog, sized):
    where = str(tmp_path / "airports")

    def write(rows):
        spark.createDataFrame(rows, "origin string, city string").write.mode("append").parquet(where)

    write([("EWR", "Newark")])
    often = StreamsApp("joins", spark=spark, config={"headrace.join.refresh.ms": 0})
    airports = spark.read.parquet(where)
    joined = often.stream("flights", schema=SCHEMA).join(airports if sized else F.broadcast(airports), "origin")
    plan = PreparedPlan(lambda: through_tasks(spark, joined), [joined._origins[0].calls[0].args[0]])
    assert {row["city"] for row in plan.collect()} == {"Newark"}
    write([("LGA", "Queens")])
    assert {row["city"] for row in plan.collect()} == {"Newark", "Queens"}, "files that came since"
    for file in (tmp_path / "airports").glob("*.parquet"):
        file.write_bytes(b"this is no Parquet file")
    assert {row["city"] for row in plan.collect()} == {"Newark", "Queens"}
    assert "micro-batches go on with what was read before" in caplog.text
    seldom = StreamsApp("joins", spark=spark).stream("flights", schema=SCHEMA)
    unreadable = spark.read.schema("origin string, city string").parquet(where)
    joined = seldom.join(unreadable, "origin")
    with pytest.raises(TopologyError) as refused:
        PreparedPlan(lambda: through_tasks(spark, joined), [joined._origins[0].calls[0].args[0]])
    assert refused.value.code == "refused-by-spark"
    assert "could not be read" in refused.value.message


REFUSED = {
    "right": ("needs-shuffle", lambda s, a: s.join(a, "origin", "right")),
    "outer": ("needs-shuffle", lambda s, a: s.join(a, "origin", "full_outer")),
    "cross": ("not-supported-here", lambda s, a: s.join(a, "origin", "cross")),
    "no condition": ("not-supported-here", lambda s, a: s.join(a)),
    "another stream": ("not-supported-here", lambda s, a: s.join(s, "origin", "left")),
    "no DataFrame": ("not-supported-here", lambda s, a: s.join([("EWR", "Newark")], "origin")),
    "behind an aggregate": ("not-supported-here", lambda s, a: s.groupBy("origin").count().join(a, "origin")),
    "a column twice": (
        "duplicate-column",
        lambda s, a: s.join(codes(a).withColumn("n", F.lit(1)), F.expr("dest=code")),
    ),
    "a column of the runtime": (
        "not-supported-here",
        lambda s, a: s.join(a.withColumn("_kafka", F.lit(1)), "origin"),
    ),
    "an unknown column": ("refused-by-spark", lambda s, a: s.join(a, "nope")),
    "an unknown column in a condition": ("unresolved-column", lambda s, a: s.join(codes(a), F.expr("dest = koode"))),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_join_that_no_task_can_do_is_refused(flights, airports, name):
    code, join = REFUSED[name]
    with pytest.raises(TopologyError) as refused:
        join(flights, airports)
    assert refused.value.code == code
    assert refused.value.fix or code == "refused-by-spark"
    assert "test_static_join.py" in refused.value.facts["where"]


def test_a_streaming_dataframe_is_refused(spark, flights):
    endless = spark.readStream.format("rate").load().withColumn("n", F.col("value").cast("int"))
    with pytest.raises(TopologyError, match="is a Structured Streaming query"):
        flights.join(endless, "n")


def test_a_large_dataframe_is_refused_when_it_is_known_and_when_it_is_read(spark, flights, airports):
    large = spark.range(5_000_000).selectExpr("cast(id as int) as n", "id * 2 as twice")
    with pytest.raises(TopologyError) as early:
        flights.join(large, "n")
    assert early.value.code == "needs-shuffle"
    assert "spark.sql.autoBroadcastJoinThreshold is 10,485,760" in early.value.message
    assert "F.broadcast(df)" in early.value.fix
    flights.join(F.broadcast(large), "n")  # whoever says that it fits is believed
    before = spark.conf.get("spark.sql.autoBroadcastJoinThreshold")
    spark.conf.set("spark.sql.autoBroadcastJoinThreshold", "100")
    try:
        unknown = airports.repartition(1)  # Spark has no estimate of what Python gave it
        side = flights.join(unknown, "origin")._origins[0].calls[0].args[0]
        with pytest.raises(TopologyError) as late:
            side.hold()
        assert late.value.code == "needs-shuffle"
    finally:
        spark.conf.set("spark.sql.autoBroadcastJoinThreshold", before)


def test_aggregates_after_a_join_compile(app, spark, airports):
    keyed = app.stream("flights", schema=SCHEMA, key="origin")
    named = keyed.join(airports, "origin", "left")
    named.groupBy("origin").agg(F.max("meters").alias("meters")).to_topic("a")
    named.groupBy("city").count().to_topic("b")
    keyed.join(spark.sql("select 'EWR' as origin, 1 as x where false"), "origin").to_topic("c")
    compiled = app.compile()
    assert [part.subtopology_id for part in compiled.subtopologies] == ["by-city", "flights"]
    source = compiled.subtopology("flights").sources[0]
    assert source.columns_needed[:3] == ("origin", "dest", "n"), (
        "all of them where Spark sees nothing but an empty table"
    )
    assert "join" in app.describe()
    with pytest.raises(PySparkException):
        airports.join(airports, "nope")
