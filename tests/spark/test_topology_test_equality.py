"""`TopologyTest` and a running application on a broker: the same records in, the same records out."""

from __future__ import annotations

import json

import pytest
from pyspark.sql import functions as F
from tests.spark.runtime.test_deduplication import deduplicated, events, iso

from headrace import DeadLetter
from headrace.testing import TopologyTest

pytestmark = pytest.mark.spark

FLIGHTS = "origin string, dep_delay double, n bigint"
RAW: tuple[bytes | None, ...] = (b"\x00\xff", None, b"", b"text")
INPUTS = {"flights": 4, "raw-in": 2, "numbers": 3, "clicks": 3, "mixed": 2}
TABLES = {"origin-delays": 3, "by-origin": 2, "stats": 2}  # rows replace each other by key
OUTPUTS = {"late": 3, "delay-text": 2, "named": 2, "raw-out": 2, "doubled": 3, "unique": 3, "filtered": 2, "bad": 1}


def delays(flights):
    """The program of the README."""
    return (
        flights.where("dep_delay is not null")
        .groupBy("origin")
        .agg(F.count("*").alias("flights"), F.round(F.avg("dep_delay"), 1).alias("mean_delay"), name="delays")
    )


def declare(app, spark):
    """Many programs in one application, because each start of one takes seconds."""
    flights = app.stream("flights", schema=FLIGHTS, on_error=DeadLetter("bad"))
    delays(flights).to_topic("origin-delays")
    counts = flights.groupBy("origin").agg(F.count("*").alias("flights"), F.sum("n").alias("total"), name="by-origin")
    counts.to_topic("by-origin")
    flights.groupBy("origin", (F.col("n") % 2 == 0).alias("even")).agg(
        F.min("dep_delay").alias("least"),
        F.max("n").alias("most"),
        F.avg("n").alias("mean"),
        name="stats",
    ).withColumn("wide", F.col("most") - F.coalesce("least", F.lit(0.0)) > 20).to_topic("stats")
    late = flights.where("dep_delay > 10").withColumn("at", F.timestamp_seconds(F.col("n")))
    late.withColumn("hour", F.hour("at")).to_topic("late", key="origin")
    flights.select("n", "dep_delay").to_topic("delay-text", key="n", value="string")
    names = spark.createDataFrame([("JFK", "Kennedy"), ("EWR", "Newark")], "origin string, name string")
    flights.join(names, "origin", "left").to_topic("named")
    app.stream("raw-in").select("key", "value").to_topic("raw-out", value="raw")
    numbers = app.stream("numbers", schema="text string", on_error="skip")
    numbers.select((F.col("text").cast("int") * 2).alias("n")).to_topic("doubled")
    mixed = app.stream("mixed", schema="kind string, text string").withColumn("n", F.col("text").cast("int"))
    mixed.where("kind = 'number'").to_topic("filtered")  # the cast would fail on the rows that are dropped
    return deduplicated(app)


def inputs(flights):
    """(topic, value, key) in the order in which they are written."""
    found: list[tuple[str, str | bytes | None, str]] = []
    for number in range(400):
        row = flights.flight(number)
        found.append(("flights", json.dumps(row), row["origin"]))
        if number % 90 == 7:
            found.append(("flights", '{"n": "nonsense"', f"bad-{number}"))
        found.append(("numbers", json.dumps({"text": "x" if number % 150 == 30 else str(number)}), str(number)))
    found += [("raw-in", value, f"k{at % 5}") for at, value in enumerate(RAW * 5)]
    mixed = [{"kind": "word", "text": "x"}, {"kind": "number", "text": "7"}]
    found += [("mixed", json.dumps(mixed[at % 2]), f"k{at}") for at in range(10)]
    for row in events(300):
        text = json.dumps({**row, "ts": None if row["ts"] is None else iso(row["ts"])})
        found.append(("clicks", text, row["id"]))
    return found


def test_results_equal_those_of_an_application_on_a_broker(broker, make_app, running, spark, flights):
    broker.create_topics({**{name: n for name, n in INPUTS.items() if name != "flights"}, **TABLES, **OUTPUTS})
    app = declare(make_app("everything", config={"headrace.batch.max.records": 150}), spark)
    records = inputs(flights)
    by_topic = {topic: [(value, key) for name, value, key in records if name == topic] for topic in INPUTS}
    for topic, rows in by_topic.items():
        keys = iter([key for _, key in rows])
        broker.produce(topic, [value for value, _ in rows], key=lambda _, keys=keys: next(keys))
    running(app).wait_until("caught-up", timeout=180)

    with TopologyTest(app, partitions={**INPUTS, **TABLES, **OUTPUTS}) as test:
        for topic, rows in by_topic.items():
            for part in (rows[:120], rows[120:]):  # in another cut than the running application's
                test.push(topic, [value for value, _ in part], key=[key for _, key in part])
                test.run()
        for topic in TABLES:
            assert newest(test.records(topic)) == newest(broker.records(topic)), topic
            assert len(newest(test.records(topic))) >= 3
        for topic in OUTPUTS:
            assert rows_of(test.records(topic)) == rows_of(broker.records(topic)), topic
            assert test.records(topic), topic
        assert test.table("by-origin") == flights.counted(range(400))
        before = {topic: newest(test.records(topic)) for topic in TABLES}
        test.restart()
        test.push("flights", [flights.flight(400)], key="origin")
        changed = flights.flight(400)["origin"].encode()
        after = newest(test.records("by-origin"))
        assert {key for key in after if after[key] != before["by-origin"][key]} == {changed}
        assert test.table("by-origin") == flights.counted(range(401))


def newest(records):
    """Key → partition and value of its newest record."""
    return {record.key: (record.partition, record.value) for record in records}


def rows_of(records):
    return sorted(((r.partition, r.key, r.value, r.headers) for r in records), key=repr)
