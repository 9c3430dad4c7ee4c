"""Methods of DataFrames that a stream does not have, each with the alternative."""

from __future__ import annotations

import pytest
from pyspark.sql import Window
from pyspark.sql import functions as F
from tests.spark.compiled_programs import SCHEMA

from headrace.errors import TopologyError, UnknownName
from headrace.spark.analysis.aggregate_split import aggregate_limits
from headrace.spark.streams_app import StreamsApp

pytestmark = pytest.mark.spark


@pytest.fixture
def app(spark):
    return StreamsApp("flight-delays", spark=spark)


@pytest.fixture
def flights(app):
    return app.stream("flights", schema=SCHEMA)


SHUFFLES = {
    "orderBy": lambda s: s.orderBy("n"),
    "sort": lambda s: s.sort("n"),
    "limit": lambda s: s.limit(5),
    "distinct": lambda s: s.distinct(),
    "dropDuplicates of a table": lambda s: s.groupBy("n").count().dropDuplicates(["n"]),
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
    "join": lambda s: s.join(s, "n", "left"),
    "union": lambda s: s.union(s),
    "F.session_window": lambda s: s.groupBy(F.session_window("t", "1 hour")).count(),
    "a window of processing time": lambda s: s.groupBy(F.window(F.current_timestamp(), "1 hour")).count(),
    "a window over another column than the watermark": lambda s: (
        s.withColumn("u", F.expr("t + interval 1 hour")).withWatermark("t", "1 hour").groupBy(F.window("u", "1 hour"))
    ),
    "a subquery": lambda s: s.withColumn("x", F.expr("(select max(id) from range(3))")),
    "a filter by the time behind agg": lambda s: s.groupBy("n").count().where("count > second(current_timestamp())"),
    "join behind agg": lambda s: s.groupBy("n").count().join(s, "n"),
    "Parquet behind agg": lambda s: s.groupBy("n").count().to_parquet("/tmp/out"),
    "explode behind agg": lambda s: s.groupBy("n").count().select("n", F.explode(F.array("count", "count"))),
    "a union of a table and windows that close": lambda s: (
        s.groupBy("n").count().unionByName(s.withWatermark("t", "1 hour").groupBy(F.window("t", "1 hour")).count())
    ),
    "group by double": lambda s: s.groupBy("dep_delay").count(),
    "max of a struct": lambda s: s.groupBy("n").agg(F.max(F.struct("origin", "n"))),
    "a Python function in groupBy": lambda s: s.groupBy(F.udf(lambda v: v, "int")("n")).count(),
    "nested star": lambda s: s.select(F.struct("*")),
    "a hidden name": lambda s: s.withColumn("__headrace_task", F.lit(1)),
    "_kafka overwritten": lambda s: s.withColumn("_kafka", F.lit(1)),
    "complete": lambda s: s.to_topic("out", output_mode="complete"),
    "append without a window": lambda s: s.groupBy("n").count().to_topic("out", output_mode="append"),
    "append without a watermark": lambda s: (
        s.groupBy(F.window("t", "1 hour")).count().to_topic("out", output_mode="append")
    ),
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


def test_aggregate_functions_of_the_limitations_page_exist_or_are_refused(flights):
    supported, refused = aggregate_limits()
    arguments = {"count_if": "n > 1", "bool_and": "n > 1", "bool_or": "n > 1", "percentile": "n, 0.5"}
    arguments |= dict.fromkeys(("max_by", "min_by", "corr", "covar_pop", "covar_samp"), "n, dep_delay")
    arguments |= {name: "dep_delay, n" for name in supported if name.startswith("regr_")} | {"try_sum": "dep_delay"}
    arguments |= dict.fromkeys(("percentile_cont", "percentile_disc"), "0.5) WITHIN GROUP (ORDER BY n")
    arguments |= dict.fromkeys(("approx_percentile", "percentile_approx"), "n, 0.5")
    sql = [name for name in supported if name != "product" and not name.endswith("_distinct")]
    calls = {name: F.expr(f"{name}({arguments.get(name, 'n')})") for name in sql}
    calls |= {"product": F.product("n"), "about": F.approx_count_distinct("n"), "distinct": F.count_distinct("n")}
    flights.groupBy("origin").agg(*(call.alias(name) for name, call in calls.items()))
    arguments |= {"try_sum": "n"}
    arguments |= {"histogram_numeric": "n, 5", "count_min_sketch": "n, 0.1D, 0.9D, 1", "listagg": "origin"}
    arguments |= dict.fromkeys(("hll_union_agg", "bitmap_or_agg", "bitmap_and_agg"), "binary(origin)")
    arguments |= {"bitmap_construct_agg": "bigint(n)", "string_agg": "origin", "try_avg": "cast(n as decimal(9, 2))"}
    for name in refused:
        argument = arguments.get(name, "DISTINCT n" if name.endswith("_distinct") else "n")
        call = f"{name.removesuffix('_distinct')}({argument})"
        with pytest.raises(TopologyError) as caught:
            flights.groupBy("origin").agg(F.expr(call))
        assert caught.value.code == "aggregate-not-mergeable", call


def test_the_alternative_for_a_spread_is_accepted(flights):
    n = F.col("n")
    flights.groupBy("origin").agg(F.count("n").alias("k"), F.sum("n").alias("s"), F.sum(n * n).alias("q")).withColumn(
        "spread", F.sqrt((F.col("q") - F.col("s") * F.col("s") / F.col("k")) / (F.col("k") - 1))
    )


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
