"""One function, two worlds: the recorded and split program, run over micro-batches, gives what the DataFrame gives.

Micro-batches are cut at random; buffers merge as the runtime merges them, by an aggregate over partial aggregates
written here in plain Spark. So this holds the DSL and the split against Spark, without the runtime.
"""

from __future__ import annotations

import json
import math
from itertools import pairwise

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from headrace.spark.frames import apply_calls
from headrace.spark.streams_app import StreamsApp

pytestmark = pytest.mark.spark

SCHEMA = "origin string, dep_delay double, n int, day date"


def delays(flights):
    return (
        flights.where("n is null or n > -50")
        .withColumn("late", F.col("dep_delay") > 15)
        .groupBy("origin", F.year("day").alias("year"))
        .agg(
            F.count("*").alias("flights"),
            F.count("dep_delay").alias("known"),
            F.round(F.avg("dep_delay"), 1).alias("mean"),
            F.sum("n").alias("total"),
            F.min("day").alias("first"),
            F.max("dep_delay").alias("worst"),
            F.count_if("late").alias("late"),
            F.bool_or("late").alias("any_late"),
            (F.sum(F.col("n") * 2) / F.count("*")).alias("ratio"),
            F.expr("max(n) filter (where n < 10)").alias("small"),
        )
        .withColumn("label", F.concat_ws("-", "origin", "year"))
        .drop("known")
    )


def words(flights):
    return (
        flights.select(F.explode(F.split("origin", "")).alias("letter")).where("letter != ''").groupBy("letter").count()
    )


def by_hour(flights):
    return flights.transform(lambda f: f.selectExpr("n % 3 as third", "dep_delay")).groupBy("third").avg()


def cleaned(flights):
    """The row-wise methods that PySpark users reach for first."""
    return (
        flights.na.replace({"": "none", "EWR": "Newark"}, subset="origin")
        .replace([1, 2], [10, 20], ["n"])
        .dropna(how="all", subset=["origin", "n"])
        .na.drop(thresh=2)
        .fillna({"origin": "unknown", "n": -1})
        .na.fill(0.5, subset=["dep_delay"])
        .fillna("never used")
        .withColumnRenamed("dep_delay", "delay")
        .withColumnsRenamed({"n": "number", "day": "date"})
        .toDF("from", "delay.s", "number", "date")
        .fillna(0)
        .alias("f")
        .select("f.from", F.col("f.number"), F.col("`delay.s`").alias("delay"), "f.date")
        .groupBy("from")
        .agg(F.count("date").alias("days"), F.sum("number").alias("total"), F.max("delay").alias("worst"))
        .fillna(-1, subset=["total"])
        .replace(0, 1000, subset=["days"])
        .alias("t")
        .withColumnRenamed("worst", "latest")
        .select("from", "t.days", "total", "latest")
    )


def keyed_by_python(flights):
    """What the refusal of groupBy(udf(..)) advises."""
    first = F.udf(lambda text: None if text is None else text[:1], "string")
    return flights.withColumn("initial", first("origin")).groupBy("initial").agg(F.count("*").alias("n"))


ROWS = st.tuples(
    st.none() | st.sampled_from(["EWR", "JFK", "LGA", ""]),
    st.none() | st.integers(-400, 4000).map(lambda n: n / 16),
    st.none() | st.integers(-100, 100),
    st.none() | st.dates(),
)


def through_the_split(app, function, rows, cuts):
    """Project each micro-batch, aggregate it to partials, merge the partials, finish, apply what follows."""
    spark = app.spark
    table = function(app.stream("flights", schema=SCHEMA))
    [origin] = table._aggregate.origins
    split = table._aggregate.split
    edges = [0, *sorted(cuts), len(rows)]
    partials = None
    for start, end in pairwise(edges):
        frame = spark.createDataFrame(rows[start:end], SCHEMA).withColumn("__headrace_task", F.lit(7))
        frame = apply_calls(frame, origin.calls)
        assert "__headrace_task" in frame.columns
        sql = split.projection.key_sql + split.projection.input_sql
        partial = _partial(frame.selectExpr(*(f"{text} as {name}" for name, text in sql)), split)
        partials = partial if partials is None else partials.unionByName(partial)
    merged = _merged(partials, split)
    results = merged.selectExpr(*(f"{text} as `{name}`" for name, text in split.results))
    return apply_calls(results, table._calls)


def _partial(frame, split):
    keys = [name for name, _ in split.projection.key_sql]
    parts = []
    for buffer in split.buffers:
        column = F.lit(1) if buffer.input is None else F.col(buffer.input)
        if buffer.function == "avg":
            parts += [
                F.sum(column.cast("double")).alias(f"{buffer.name}_sum"),
                F.count(column).alias(f"{buffer.name}_count"),
            ]
        else:
            parts.append(getattr(F, buffer.function)(column).alias(buffer.name))
    return frame.groupBy(*keys).agg(*parts)


def _merged(partials, split):
    keys = [name for name, _ in split.projection.key_sql]
    merged = []
    for buffer in split.buffers:
        if buffer.function == "avg":
            merged.append((F.sum(f"{buffer.name}_sum") / F.sum(f"{buffer.name}_count")).alias(buffer.name))
        else:
            function = "sum" if buffer.function == "count" else buffer.function
            merged.append(getattr(F, function)(buffer.name).alias(buffer.name))
    return partials.groupBy(*keys).agg(*merged)


def _sorted(frame):
    return sorted(json.dumps(row.asDict(), default=str, sort_keys=True) for row in frame.collect())


@pytest.mark.parametrize("function", [delays, words, by_hour, cleaned, keyed_by_python])
@settings(
    max_examples=2,
    deadline=None,
    derandomize=True,
    phases=(Phase.generate,),
    suppress_health_check=list(HealthCheck),
)
@given(data=st.data())
def test_the_split_gives_what_the_batch_gives(spark, function, data):
    rows = data.draw(st.lists(ROWS, min_size=5, max_size=60))
    cuts = data.draw(st.lists(st.integers(0, len(rows)), max_size=2))
    app = StreamsApp("same", spark=spark)
    batch = function(spark.createDataFrame(rows, SCHEMA))
    stream = through_the_split(app, function, rows, cuts)
    assert stream.columns == batch.columns
    assert [field.dataType for field in stream.schema] == [field.dataType for field in batch.schema]
    assert _sorted(stream) == _sorted(batch)
    assert all(not isinstance(value, float) or not math.isnan(value) for row in batch.collect() for value in row)


def test_a_stateless_function_on_both(spark):
    def clean(lines):
        lines = lines.selectExpr("*", "upper(origin) as up").drop("day").withColumnRenamed("n", "number")
        return lines.filter(F.col("number") > 0).withColumns({"twice": F.col("number") * 2})

    app = StreamsApp("same", spark=spark)
    rows = [("JFK", 1.5, 3, None), ("EWR", None, -1, None)]
    recorded = clean(app.stream("flights", schema=SCHEMA))
    frame = spark.createDataFrame(rows, SCHEMA).withColumn("__headrace_task", F.lit(1))
    through = apply_calls(frame, recorded._origins[0].calls)
    batch = clean(spark.createDataFrame(rows, SCHEMA))
    assert recorded.columns == batch.columns
    assert isinstance(recorded.schema, StructType)
    assert through.drop("__headrace_task").collect() == batch.collect()
