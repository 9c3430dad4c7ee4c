"""An application that joins plain DataFrames, on our broker: both guarantees, beside the same joins as a batch."""

import json
from collections import Counter

import pytest
from pyspark.sql import functions as F
from tests.longer import LONG, longer

pytestmark = [pytest.mark.spark, pytest.mark.slow]

CITIES = [("EWR", "Newark"), ("JFK", "New York"), ("JFK", "Queens"), ("BOS", "Boston")]


def joined(rows, cities):
    """name → what leaves: the same calls on a stream and on a DataFrame."""
    codes = cities.withColumnRenamed("origin", "code")
    return {
        "left": rows.join(F.broadcast(codes), (F.col("origin") == codes["code"]) & (codes.city != "Queens"), "left"),
        "nowhere": rows.join(cities, "origin").where("city = 'Atlantis'"),
        "timed": rows.join(cities, "origin", "left_anti").withColumn(
            "late", F.current_timestamp() > F.lit("2020-01-01")
        ),
    }


def texts(rows):
    """Rows as JSON records have them: without nulls."""
    return Counter(json.dumps({k: v for k, v in row.items() if v is not None}, sort_keys=True) for row in rows)


@pytest.mark.parametrize("guarantee", ["exactly_once_v2", pytest.param("at_least_once", marks=longer)])
def test_joined_as_in_a_batch(spark, broker, make_app, running, flights, tmp_path, guarantee):
    directory = str(tmp_path / "cities")
    spark.createDataFrame(CITIES, "origin string, city string").write.parquet(directory)
    app = make_app(processing_guarantee=guarantee, config={"headrace.join.refresh.ms": 0})
    rows, cities = app.stream("flights", schema=flights.SCHEMA), spark.read.parquet(directory)
    for name, stream in joined(rows, cities).items():
        stream.to_topic(name, partitions=2)
    rows.join(cities, "origin").groupBy("city").count().to_topic("by-city", partitions=2)
    handed = []
    if LONG:
        rows.join(cities, "origin", "left_anti").foreachBatch(lambda frame, _: handed.extend(frame.collect()))

    flights.send(broker, range(200))
    first = running(app)
    first.wait_until("caught-up", timeout=120)
    batch = joined(spark.createDataFrame([flights.flight(n) for n in range(200)], flights.SCHEMA), cities)
    for name, frame in batch.items():
        found = [json.loads(record.value) for record in broker.records(name)]
        assert texts(found) == texts(row.asDict() for row in frame.collect()), name
    assert {city: row["count"] for city, row in flights.newest(broker, "by-city").items()} == {
        "Newark": 67, "New York": 67, "Queens": 67,
    }  # fmt: skip
    if LONG:
        assert app.verify().status == "equal"
        assert sorted(row["n"] for row in handed) == [n for n in range(200) if n % 3 == 2]

    spark.createDataFrame([("LGA", "Flushing")], "origin string, city string").write.mode("append").parquet(directory)
    flights.send(broker, range(200, 230))
    first.wait_until("caught-up", timeout=120)
    last = [n for n in range(200, 230) if n % 3 == 2]
    assert flights.newest(broker, "by-city")["Flushing"]["count"] == len(last), "of what was read anew, and after it"
    named = [json.loads(record.value) for record in broker.records("left")]
    assert sorted(row["n"] for row in named if row.get("city") == "Flushing") == last
