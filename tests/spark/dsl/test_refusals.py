"""Mistakes are told at the line that made them, with the way out."""

from __future__ import annotations

import inspect

import pytest
from pyspark.sql import Window
from pyspark.sql import functions as F

from headrace.errors import ConfigError, TopologyError
from headrace.spark.streams_app import StreamsApp

pytestmark = pytest.mark.spark

SCHEMA = "origin string, carrier string, dep_delay double, n int, t timestamp"


@pytest.fixture
def app(spark):
    return StreamsApp("flight-delays", spark=spark)


@pytest.fixture
def flights(app):
    return app.stream("flights", schema=SCHEMA)


def refused(call) -> TopologyError:
    with pytest.raises(TopologyError) as caught:
        call()
    lines, first = inspect.getsourcelines(call)
    name, _, place = caught.value.facts["where"].partition(":")
    assert name.endswith("test_refusals.py")
    assert first <= int(place.split()[0]) < first + len(lines)
    return caught.value


def test_a_mistyped_column_names_the_right_one(flights):
    error = refused(lambda: flights.where("dep_dealy is not null"))
    assert (error.code, error.message) == ("unresolved-column", 'no column "dep_dealy"; did you mean "dep_delay"?')
    assert error.facts["why"] == "columns here: origin, carrier, dep_delay, n, t"
    assert 'flights.where("dep_dealy is not null")' in error.facts["where"]
    assert "__headrace" not in error.render()


UNRESOLVED = [
    lambda s: s.select("nope"),
    lambda s: s.selectExpr("nope + 1"),
    lambda s: s.withColumn("x", F.col("nope")),
    lambda s: s.withColumns({"x": F.col("nope")}),
    lambda s: s["nope"],
    lambda s: s.groupBy("nope"),
    lambda s: s.groupBy("origin").agg(F.max("nope")),
    lambda s: s.groupBy("origin").sum("nope"),
    lambda s: s.to_topic("out", key="nope"),
    lambda s: s.groupBy("origin").count().select("nope"),
]


@pytest.mark.parametrize("number", range(len(UNRESOLVED)))
def test_an_unknown_column_anywhere(flights, number):
    with pytest.raises(TopologyError) as caught:
        UNRESOLVED[number](flights)
    assert caught.value.code == "unresolved-column"
    assert "test_refusals.py" in caught.value.facts["where"]


SHUFFLES = {
    "orderBy": lambda s: s.orderBy("n"),
    "sort": lambda s: s.sort("n"),
    "limit": lambda s: s.limit(5),
    "distinct": lambda s: s.distinct(),
    "dropDuplicates": lambda s: s.dropDuplicates(["n"]),
    "rollup": lambda s: s.rollup("n"),
    "cube": lambda s: s.cube("n"),
    "crossJoin": lambda s: s.crossJoin(s),
    "pivot": lambda s: s.groupBy("n").pivot("origin"),
    "agg": lambda s: s.agg(F.count("*")),
    "groupBy of nothing": lambda s: s.groupBy(),
    "an aggregate in select": lambda s: s.select(F.count("*")),
    "a window": lambda s: s.withColumn("r", F.row_number().over(Window.orderBy("n"))),
}


@pytest.mark.parametrize("name", SHUFFLES)
def test_what_needs_all_rows(flights, name):
    with pytest.raises(TopologyError) as caught:
        SHUFFLES[name](flights)
    assert caught.value.code == "needs-shuffle"
    assert caught.value.fix


NOT_HERE = {
    "collect": lambda s: s.collect(),
    "toPandas": lambda s: s.toPandas(),
    "write": lambda s: s.write,
    "writeStream": lambda s: s.writeStream,
    "cache": lambda s: s.cache(),
    "coalesce": lambda s: s.coalesce(1),
    "join": lambda s: s.join(s, "n"),
    "withWatermark": lambda s: s.withWatermark("t", "1 hour"),
    "union": lambda s: s.union(s),
    "F.window": lambda s: s.groupBy(F.window("t", "1 hour")).count(),
    "a subquery": lambda s: s.withColumn("x", F.expr("(select max(id) from range(3))")),
    "where behind agg": lambda s: s.groupBy("n").count().where("count > 1"),
    "explode behind agg": lambda s: s.groupBy("n").count().select("n", F.explode(F.array("count", "count"))),
    "a second groupBy": lambda s: s.groupBy("n").count().groupBy("count"),
    "group by double": lambda s: s.groupBy("dep_delay").count(),
    "max of a struct": lambda s: s.groupBy("n").agg(F.max(F.struct("origin", "n"))),
    "a Python function in groupBy": lambda s: s.groupBy(F.udf(lambda v: v, "int")("n")).count(),
    "nested star": lambda s: s.select(F.struct("*")),
    "a hidden name": lambda s: s.withColumn("__headrace_task", F.lit(1)),
    "_kafka overwritten": lambda s: s.withColumn("_kafka", F.lit(1)),
    "append": lambda s: s.to_topic("out", output_mode="append"),
    "a key that is not the group": lambda s: s.groupBy("origin", "carrier").count().to_topic("out", key="origin"),
    "applyInPandas": lambda s: s.groupBy("n").applyInPandas(lambda f: f, "n int"),
    "decimal in JSON": lambda s: s._app.stream("prices", schema="price decimal(10, 2)"),
}


@pytest.mark.parametrize("name", NOT_HERE)
def test_what_is_not_here(flights, name):
    with pytest.raises(TopologyError) as caught:
        NOT_HERE[name](flights)
    assert caught.value.code == "not-supported-here"
    assert caught.value.fix


@pytest.mark.parametrize(
    ("aggregate", "sibling"),
    [
        ("count(distinct n)", "approx_count_distinct"),
        ("percentile(n, 0.5)", "approx_percentile"),
        ("median(n)", "approx_percentile"),
        ("collect_list(n)", "count"),
        ("sum(distinct n)", "count"),
        ("try_sum(n)", "count"),
        ("first(n)", "count"),
        ("stddev(n)", "count"),
    ],
)
def test_aggregates_whose_parts_do_not_merge(flights, aggregate, sibling):
    with pytest.raises(TopologyError) as caught:
        flights.groupBy("origin").agg(F.expr(aggregate))
    assert caught.value.code == "aggregate-not-mergeable"
    assert sibling in caught.value.fix


def test_the_spelling_is_pysparks(flights):
    with pytest.raises(AttributeError, match="Stream has no 'with_column'; as in PySpark it is 'withColumn'"):
        flights.with_column("a", F.lit(1))
    with pytest.raises(AttributeError, match="no column and no method 'frobnicate'"):
        flights.frobnicate()
    with pytest.raises(AttributeError, match="has no 'hint' yet"):
        flights.hint("x")


def test_duplicate_columns(flights):
    assert refused(lambda: flights.select("n", "n")).code == "duplicate-column"
    assert refused(lambda: flights.groupBy("n").agg(F.count("*").alias("n"))).code == "duplicate-column"


def test_two_states_of_one_name(flights):
    flights.groupBy("origin").count().to_topic("a")
    error = refused(lambda: flights.where("n > 1").groupBy("origin").count().to_topic("b"))
    assert (error.code, error.fix) == ("state-name-taken", "name one of them: agg(.., name='by-origin-2')")
    flights.where("n > 1").groupBy("origin").agg(F.count("*"), name="by-origin-2").to_topic("b")


def test_one_topic_read_in_two_ways(app, flights):
    assert refused(lambda: app.stream("flights", value="string")).code == "topic-read-twice"
    assert app.stream("flights", schema=SCHEMA).columns == flights.columns


def test_an_app_that_writes_nowhere(app, flights):
    with pytest.raises(TopologyError) as caught:
        app.compile()
    assert caught.value.code == "nothing-to-do"


@pytest.mark.parametrize("topic", ["", "a b", "ä", ".", "x" * 250, 5])
def test_topic_names(app, topic):
    with pytest.raises(TopologyError) as caught:
        app.stream(topic)
    assert caught.value.code == "bad-topic-name"


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        ({"processing_guarantee": "maybe"}, "exactly_once_v2, at_least_once"),
        ({"config": {"processing.guarantee": "exactly_once"}}, "processing.guarantee is 'exactly_once'"),
        ({"auto_offset_reset": "newest"}, "earliest, latest, none"),
        ({"on_error": "ignore"}, "ignore"),
        ({"trigger_interval_ms": -1}, "-1"),
        ({"config": {"max.pol.interval.ms": 1}}, 'did you mean "max.poll.interval.ms"?'),
        ({"config": {"compression.type": "brotli"}}, "brotli"),
        ({"config": {"fetch.max.bytes": "many"}}, "fetch.max.bytes"),
    ],
)
def test_settings(spark, arguments, part):
    with pytest.raises(ConfigError, match=part.replace("?", r"\?")):
        StreamsApp("app", spark=spark, **arguments)


def test_names_of_applications(spark):
    with pytest.raises(ConfigError):
        StreamsApp("two words", spark=spark)


def test_spark_connect_is_refused():
    class Connect:
        """As a Spark Connect session: no JVM session behind it."""

    with pytest.raises(ConfigError, match="StreamsApp needs a classic Spark session; this is Spark Connect"):
        StreamsApp("app", spark=Connect())


def test_java_missing(monkeypatch, tmp_path):
    from headrace.spark.spark_session import check_java

    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    with pytest.raises(ConfigError) as caught:
        check_java()
    assert caught.value.code == "java-missing"
    assert "found none (JAVA_HOME is not set, no java in PATH)" in caught.value.message
    old = tmp_path / "java"
    old.write_text("#!/bin/sh\necho 'openjdk version \"1.8.0_392\"' >&2\n")
    old.chmod(0o755)
    with pytest.raises(ConfigError, match="is Java 8"):
        check_java()
