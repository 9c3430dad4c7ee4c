"""Aggregates: how they are split, and those whose parts do not merge."""

from __future__ import annotations

import json

import pytest
from pyspark.sql import functions as F
from tests.spark.compiled_programs import SCHEMA, split_of
from tests.spark.refused_programs import refused

from headrace.errors import TopologyError
from headrace.spark.analysis.aggregate_split import _is_allowed
from headrace.spark.streams_app import StreamsApp
from headrace.spark.topology.nodes import DeadLetter

pytestmark = pytest.mark.spark


@pytest.fixture
def app(spark):
    return StreamsApp("demo", spark=spark, on_error=DeadLetter("bad"))


@pytest.fixture
def flights(spark):
    return StreamsApp("flight-delays", spark=spark).stream("flights", schema=SCHEMA)


@pytest.mark.parametrize(
    ("aggregate", "sibling"),
    [
        ("sum(distinct n)", "groupBy that column as well"),
        ("first(n)", "F.min_by(x, t)"),
        ("last(n)", "F.max_by(x, t)"),
        ("any_value(n)", "F.min or F.max"),
        ("try_sum(n)", "F.sum"),
        ("try_avg(cast(n as decimal(9, 2)))", "F.avg"),
        ("listagg(origin)", "F.array_join"),
    ],
)
def test_aggregates_whose_parts_do_not_merge(flights, aggregate, sibling):
    with pytest.raises(TopologyError) as caught:
        flights.groupBy("origin").agg(F.expr(aggregate))
    assert caught.value.code == "aggregate-not-mergeable"
    assert "needs every value of the group" in caught.value.message or "depends on the order" in caught.value.message
    assert sibling in caught.value.fix


PLANNED = {
    "max_by(n, dep_delay, 3)": "foreachBatch",
}


@pytest.mark.parametrize("aggregate", PLANNED)
def test_aggregates_that_are_not_written_yet(flights, aggregate):
    error = refused(lambda: flights.groupBy("origin").agg(F.expr(aggregate)))
    assert error.code == "not-supported-here"
    assert error.message.endswith("is not supported yet")
    assert PLANNED[aggregate] in error.fix
    assert "cannot" not in error.message


def test_expressions_over_aggregates_split(app):
    split = split_of(
        app,
        F.round(F.avg("dep_delay"), 1).alias("mean"),
        (F.sum("dep_delay") / F.count("dep_delay")).alias("ratio"),
        F.avg("dep_delay").alias("again"),
        F.coalesce(F.max("n"), F.lit(0)).alias("most"),
        F.concat(F.col("origin"), F.lit("-")).alias("label"),
    )
    assert [(b.function, b.input) for b in split.buffers] == [
        ("avg", "i0"), ("count", "i0"), ("max", "i1"), ("sum", "i0"),
    ]  # fmt: skip
    assert split.projection.input_sql == (("i0", "dep_delay"), ("i1", "n"))
    results = dict(split.results)
    assert results["mean"] == "round(b0, 1)"
    assert (results["again"], results["label"]) == ("b0", "concat(g0, '-')")
    assert not split.bare


def test_conditions_become_inputs(app):
    small = F.expr("sum(n) filter (where n < 9)")
    split = split_of(app, F.count_if(F.col("n") > 3), F.bool_and(F.col("n") > 3), small, F.count("n"))
    assert [b.function for b in split.buffers] == ["count", "count", "min", "sum"]
    assert "CASE WHEN" in dict(split.projection.input_sql)[split.buffers[3].input]


def test_types_of_buffers(app):
    split = split_of(app, F.sum("n"), F.sum("dep_delay"), F.avg("n"), F.min("t"), F.max("carrier"), F.count("*"))
    assert [(b.input_type, b.result_type) for b in split.buffers] == [
        ('"integer"', '"double"'), (None, '"long"'), ('"string"', '"string"'),
        ('"timestamp"', '"timestamp"'), ('"double"', '"double"'), ('"integer"', '"long"'),
    ]  # fmt: skip


def test_functions_of_two_columns_are_known_by_both(app):
    """Were one input enough, max_by(n, t) and max_by(n, dep_delay) would share what is stored."""
    split = split_of(
        app, F.max_by("n", "t"), F.max_by("n", "dep_delay"), F.corr("n", "dep_delay"), F.max_by("n", "t").alias("again")
    )
    assert [(b.function, b.argument, b.inputs) for b in split.buffers] == [
        ("corr", "n, dep_delay", ("i1", "i0")),
        ("max_by", "n, dep_delay", ("i1", "i0")),
        ("max_by", "n, t", ("i1", "i2")),
    ]
    assert split.projection.input_sql == (("i0", "dep_delay"), ("i1", "n"), ("i2", "t"))
    assert split.projection.bare, "casts to double that Spark adds need no Spark SQL"


def test_a_condition_on_max_by_is_one_on_its_ordering(app):
    split = split_of(app, F.expr("max_by(carrier, n) filter (where n < 9)"))
    sql = dict(split.projection.input_sql)
    [buffer] = split.buffers
    assert [sql[name] for name in buffer.inputs] == ["carrier", "CASE WHEN (n < 9) THEN n END"]
    assert buffer.argument == "carrier, n FILTER (n < 9)"


def test_what_is_asked_of_a_list_of_values_is_no_part_of_its_identity(app):
    split = split_of(
        app,
        F.median("n"),
        F.percentile("n", [0.1, 0.9]),
        F.expr("percentile_disc(0.25) WITHIN GROUP (ORDER BY n DESC)").alias("quarter"),
        F.mode("n"),
        F.collect_list(F.struct("n", F.col("origin").alias("o"))).alias("pairs"),
        F.expr("collect_list(DISTINCT carrier)").alias("carriers"),
    )
    assert [(b.function, b.argument) for b in split.buffers] == [
        ("collect_list", "n, origin"),
        ("collect_set", "carrier"),
        ("mode", "n"),
        ("percentile", "n"),
        ("percentile", "n"),
        ("percentile", "n"),
    ]
    asked = {(tuple(one["at"]), one["many"], one["discrete"], one["descending"]) for one in parameters(split)}
    assert asked == {((0.5,), False, False, False), ((0.1, 0.9), True, False, False), ((0.25,), False, True, True)}


def parameters(split):
    return [json.loads(buffer.parameter) for buffer in split.buffers if buffer.function == "percentile"]


@pytest.mark.parametrize(
    "call",
    [
        "percentile(n, 0.5, 2)",
        "collect_list(struct(n)) FILTER (WHERE n > 1)",
        "collect_list(array(n))",
        "median(t - t)",
    ],
)
def test_values_that_no_list_keeps_are_refused(flights, call):
    assert refused(lambda: flights.groupBy("origin").agg(F.expr(call))).code == "not-supported-here"


def test_an_approximate_count_is_known_by_its_registers(app, flights):
    about = [F.approx_count_distinct("n"), F.approx_count_distinct("n", 0.01), F.approx_count_distinct("n", 0.051)]
    split = split_of(app, *(one.alias(f"about_{at}") for at, one in enumerate(about)))
    assert [(b.function, b.argument, b.parameter) for b in split.buffers] == [
        ("approx_count_distinct", "n, 14", "14"),
        ("approx_count_distinct", "n, 9", "9"),
    ]
    error = refused(lambda: flights.groupBy("origin").agg(F.approx_count_distinct("n", 0.001)))
    assert (error.code, "65,536" in error.message) == ("not-supported-here", True)


def test_a_function_without_declared_input_types_is_an_error():
    with pytest.raises(ValueError, match="no input types are defined"):
        _is_allowed("median", '"long"')  # type: ignore[arg-type]


@pytest.mark.parametrize("call", ["max_by(n, origin collate UTF8_LCASE)", "min_by(origin collate UTF8_LCASE, n)"])
def test_texts_that_count_as_equal_are_no_extremes(flights, call):
    error = refused(lambda: flights.groupBy("origin").agg(F.expr(call)))
    assert (error.code, "collation" in error.message) == ("not-supported-here", True)


def test_distinct_counts_are_buffers_of_their_own(app):
    split = split_of(
        app,
        F.count_distinct("n"),
        F.count_distinct("carrier", "n"),
        F.count_distinct(F.when(F.col("n") > 3, F.col("carrier"))),
        F.expr("count(distinct n, carrier) filter (where n > 3)"),
        F.count("n"),
    )
    assert [(b.function, b.argument) for b in split.buffers] == [
        ("count", "n"),
        ("count_distinct", "CASE WHEN (n > 3) THEN carrier END"),
        ("count_distinct", "carrier, n"),
        ("count_distinct", "n"),
        ("count_distinct", "n FILTER (n > 3), carrier"),
    ]


@pytest.mark.parametrize("call", ["count(distinct struct(n))", "count(distinct origin collate UTF8_LCASE)"])
def test_values_whose_bytes_do_not_decide_are_not_counted(flights, call):
    assert refused(lambda: flights.groupBy("origin").agg(F.expr(call))).code == "not-supported-here"


def test_distinct_counts_need_exactly_once(spark):
    app = StreamsApp("demo", spark=spark, processing_guarantee="at_least_once")
    flights = app.stream("flights", schema=SCHEMA)
    error = refused(lambda: flights.groupBy("origin").agg(F.count_distinct("n")))
    assert (error.code, "exactly_once_v2" in error.fix) == ("not-supported-here", True)
    assert flights.groupBy("origin").agg(F.max_by("n", "t")).columns == ["origin", "max_by(n, t)"]
