"""Mistakes are told at the line that made them, with the way out."""

from __future__ import annotations

import inspect

import pandas as pd
import pytest
from pyspark.sql import Window
from pyspark.sql import functions as F

from headrace.errors import ArgumentError, ConfigError, TopologyError, UnknownName
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
def test_operations_that_need_a_shuffle_are_refused(flights, name):
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
    "a map with numbers for keys in JSON": lambda s: s._app.stream("prices", schema="prices map<int, double>"),
    "an interval in JSON": lambda s: s._app.stream("prices", schema="every interval day to second"),
    "names made of dates": lambda s: s.withColumn("m", F.create_map(F.current_date(), "n")).to_topic("out"),
    "group by a collation": lambda s: s.groupBy(F.expr("origin collate UTF8_LCASE")).count(),
    "max by a collation": lambda s: s.groupBy("n").agg(F.max(F.expr("origin collate UTF8_LCASE"))),
    "an interval in a topic": lambda s: s.withColumn("x", F.expr("interval 1 day")).to_topic("out"),
}


@pytest.mark.parametrize("name", NOT_HERE)
def test_unsupported_operations_are_refused(flights, name):
    with pytest.raises(TopologyError) as caught:
        NOT_HERE[name](flights)
    assert caught.value.code == "not-supported-here"
    assert caught.value.fix


@pytest.mark.parametrize(
    ("aggregate", "sibling"),
    [
        ("count(distinct n)", "groupBy that column as well"),
        ("sum(distinct n)", "groupBy that column as well"),
        ("percentile(n, 0.5)", "count per bucket"),
        ("median(n)", "count per bucket"),
        ("mode(n)", "takes the largest"),
    ],
)
def test_aggregates_whose_parts_do_not_merge(flights, aggregate, sibling):
    with pytest.raises(TopologyError) as caught:
        flights.groupBy("origin").agg(F.expr(aggregate))
    assert caught.value.code == "aggregate-not-mergeable"
    assert "needs every value of the group" in caught.value.message
    assert sibling in caught.value.fix


PLANNED = {
    "stddev(n)": "F.sum(x * x)",
    "stddev_pop(n)": "F.sum(x * x)",
    "variance(n)": "F.sum(x * x)",
    "var_pop(n)": "F.sum(x * x)",
    "max_by(origin, n)": "ordering column",
    "min_by(origin, n)": "ordering column",
    "approx_count_distinct(n)": "one row per value",
    "collect_set(n)": "one row per value",
    "collect_list(n)": "to a topic",
    "first(n)": "F.min or F.max",
    "any_value(n)": "F.min or F.max",
    "try_sum(n)": "F.sum",
    "corr(n, dep_delay)": "foreachBatch",
    "approx_percentile(n, 0.5)": "foreachBatch",
    "bit_and(n)": "foreachBatch",
}


@pytest.mark.parametrize("aggregate", PLANNED)
def test_aggregates_that_are_not_written_yet(flights, aggregate):
    error = refused(lambda: flights.groupBy("origin").agg(F.expr(aggregate)))
    assert error.code == "not-supported-here"
    assert error.message.endswith("is not supported yet")
    assert PLANNED[aggregate] in error.fix
    assert "cannot" not in error.message


def test_the_alternative_for_a_spread_is_accepted(flights):
    n = F.col("n")
    flights.groupBy("origin").agg(F.count("n").alias("k"), F.sum("n").alias("s"), F.sum(n * n).alias("q")).withColumn(
        "spread", F.sqrt((F.col("q") - F.col("s") * F.col("s") / F.col("k")) / (F.col("k") - 1))
    )


def test_a_python_aggregate_and_a_python_key(flights):
    @F.pandas_udf("double")
    def mean(values: pd.Series) -> float:
        return values.mean()

    assert refused(lambda: flights.groupBy("origin").agg(mean("n"))).code == "aggregate-not-mergeable"
    upper = F.udf(lambda text: text, "string")
    error = refused(lambda: flights.groupBy(upper("origin")).count())
    assert error.message == "groupBy does not take a Python function (<lambda>)"
    assert "withColumn" in error.fix
    assert refused(lambda: flights.groupBy(F.upper(upper("origin"))).count()).message == error.message
    assert flights.withColumn("key", upper("origin")).groupBy("key").count().columns == ["key", "count"]


def test_changes_of_a_key_after_an_aggregate_are_refused(flights):
    table = flights.groupBy("origin").agg(F.max("carrier").alias("carrier"), F.count("*").alias("n"))
    for call in (
        lambda: table.fillna("none"),
        lambda: table.fillna({"origin": "none"}),
        lambda: table.na.fill("none", subset="origin"),
        lambda: table.na.replace("EWR", "JFK"),
    ):
        error = refused(call)
        assert error.code == "not-supported-here"
        assert "subset=['carrier', 'n']" in error.fix
    assert table.fillna("none", subset=["carrier"]).columns == table.columns
    assert table.replace("UA", "United", "carrier").columns == table.columns
    assert refused(lambda: table.dropna()).code == "not-supported-here"


def test_hidden_columns_are_out_of_reach(flights):
    for call in (
        lambda: flights.replace(0, 1, "__headrace_task"),
        lambda: flights.fillna({"__headrace_task": 1}),
        lambda: flights.dropna(subset=["__headrace_key"]),
        lambda: flights.toDF("a", "b", "c", "d", "__headrace_key"),
    ):
        error = refused(call)
        assert (error.code, "column of the runtime" in error.message) == ("not-supported-here", True)
    assert refused(lambda: flights.toDF("a", "b")).message == "toDF got 2 names for 5 columns"


def test_formats_that_are_not_written_yet(app, flights):
    for call in (lambda: app.stream("t", value="csv"), lambda: flights.to_topic("t", value="protobuf")):
        error = refused(call)
        assert error.code == "not-supported-here"
        assert "not supported yet; json, Avro(..), string and raw are" in error.message
    assert "did you mean 'json'?" in refused(lambda: app.stream("t", value="jsn")).message
    with pytest.raises(ArgumentError, match='did you mean "value"'):
        app.stream("t", format="avro")


def test_wrong_items_and_functions(flights):
    for call in (lambda: flights[0.5], lambda: flights.transform(lambda s: 5)):
        with pytest.raises(ArgumentError) as caught:
            call()
        assert isinstance(caught.value, TypeError)
        assert "test_refusals.py" in caught.value.facts["where"]
        assert caught.value.fix
    assert refused(lambda: flights[7]).code == "unresolved-column"


def test_a_refusal_of_sparks_has_a_fix_too(flights):
    error = refused(lambda: flights.replace(object(), 1))
    assert error.code == "refused-by-spark"
    assert error.fix


def test_a_wrong_argument_whose_refusal_fails_in_pyspark_40(flights):
    error = refused(lambda: flights.dropna(how="some"))
    assert (error.code, error.message) == ("bad-value", "Invalid how 'some': expected 'any' or 'all'")
    assert 'how="any"' in error.fix


def test_the_spelling_is_pysparks(flights):
    with pytest.raises(AttributeError, match="Stream has no 'with_column'; as in PySpark it is 'withColumn'"):
        flights.with_column("a", F.lit(1))
    with pytest.raises(AttributeError, match="no column and no method 'frobnicate'"):
        flights.frobnicate()
    with pytest.raises(UnknownName, match="did you mean 'to_topic'") as caught:
        flights.to_topik("late")
    assert 'flights.to_topik("late")' in caught.value.facts["where"]
    with pytest.raises(UnknownName, match="GroupedStream has no"):
        flights.groupBy("origin").cuont()
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
        ({"processing_guarantee": "maybe"}, "at_least_once, exactly_once_v2"),
        ({"config": {"processing.guarantee": "exactly_once"}}, "Invalid processing.guarantee 'exactly_once'"),
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
