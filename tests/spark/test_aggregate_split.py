"""Aggregates: how they are split, and those whose parts do not merge."""

from __future__ import annotations

import pytest
from pyspark.sql import functions as F
from tests.spark.compiled_programs import SCHEMA, split_of
from tests.spark.refused_programs import refused

from headrace.errors import TopologyError
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
