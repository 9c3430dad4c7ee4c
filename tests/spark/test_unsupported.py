"""Mistakes are told at the line that made them, with the way out."""

from __future__ import annotations

import pandas as pd
import pytest
from pyspark.sql import functions as F
from tests.spark.compiled_programs import SCHEMA
from tests.spark.refused_programs import refused

from headrace.errors import ArgumentError, TopologyError
from headrace.spark.streams_app import StreamsApp

pytestmark = pytest.mark.spark


@pytest.fixture
def app(spark):
    return StreamsApp("flight-delays", spark=spark)


@pytest.fixture
def flights(app):
    return app.stream("flights", schema=SCHEMA)


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
    assert "test_unsupported.py" in caught.value.facts["where"]


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
    assert table.dropna().columns == table.columns


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
    for call in (lambda: app.stream("t", value="csv"), lambda: flights.to_topic("t", value="parquet")):
        error = refused(call)
        assert error.code == "not-supported-here"
        assert "not supported yet; json, Avro(..), JsonSchema(..), Protobuf(..), string and raw are" in error.message
    assert "did you mean 'json'?" in refused(lambda: app.stream("t", value="jsn")).message
    with pytest.raises(ArgumentError, match='did you mean "value"'):
        app.stream("t", format="avro")


def test_wrong_items_and_functions(flights):
    for call in (lambda: flights[0.5], lambda: flights.transform(lambda s: 5)):
        with pytest.raises(ArgumentError) as caught:
            call()
        assert isinstance(caught.value, TypeError)
        assert "test_unsupported.py" in caught.value.facts["where"]
        assert caught.value.fix
    assert refused(lambda: flights[7]).code == "unresolved-column"


def test_a_refusal_of_sparks_has_a_fix_too(flights):
    error = refused(lambda: flights.replace(object(), 1))
    assert error.code == "refused-by-spark"
    assert error.fix


def test_a_wrong_argument_whose_refusal_fails_in_pyspark_40_and_41(flights):
    error = refused(lambda: flights.dropna(how="some"))
    assert (error.code, error.message) == ("bad-value", "Invalid how 'some': expected 'any' or 'all'")
    assert 'how="any"' in error.fix


def test_a_filter_without_a_rank_has_no_store_to_name(flights):
    for call in (lambda: flights.where("delay > 0", name="late"), lambda: flights.filter("delay > 0", name="late")):
        assert refused(call).fix == "leave name out"


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
