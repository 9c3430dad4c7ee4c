"""Applications that really ran, verified: the DSL, the formats, the runtime and `verify` together."""

from __future__ import annotations

import json

import pytest
from pyspark.sql import functions as F
from tests.harness.brokers import broker_fixture
from tests.longer import longer

from headrace.spark.streams_app import StreamsApp
from headrace.spark.topology.nodes import DeadLetter

pytestmark = pytest.mark.spark


TOPICS = {"one": 3, "two": 2, "bad": 1, "plain": 2, "raw": 1, "counts": 2, "keyed": 2}
broker = broker_fixture(TOPICS, config={"group.streams.initial.rebalance.delay.ms": 0})


@longer  # the demo, the README's program, chaos and crash points end with `verify`, too
def test_everything_at_once(spark, broker, tmp_path):
    app = StreamsApp(
        "everything",
        spark=spark,
        bootstrap_servers=broker.bootstrap_servers,
        state_dir=tmp_path,
        on_error=DeadLetter("bad"),
    )
    one = app.stream("one", schema="k string, n int, t timestamp", key="k")
    two = app.stream("two", schema="n bigint, k string")
    both = one.drop("t").unionByName(two)
    both.where("n % 2 = 0").groupBy("k").agg(F.count("*").alias("even"), F.sum("n"), name="even").to_topic("counts")
    one.groupBy("k").agg(F.count("*"), F.min("t"), F.max("_kafka.offset").alias("last")).to_topic("keyed")
    times = one.groupBy((F.col("t") + F.expr("interval 1 microsecond")).alias("micro")).count()
    times.to_topic("by-time", partitions=1)
    one.select("k", F.explode(F.array("n", F.col("n") + 1)).alias("m"), "_kafka.offset", "t").to_topic("plain")
    two.select(F.upper("k").alias("value")).to_topic("raw", value="raw")
    broker.produce(
        "one", [{"k": f"k{n % 7}", "n": n, "t": f"2013-01-01T00:00:{n % 60:02}.25Z"} for n in range(300)], key="k"
    )
    broker.produce("two", [{"k": f"k{n % 5}", "n": n} for n in range(200)])
    broker.produce("one", ['{"k": "x", "n": "many"}', "no JSON", None])

    with app.start() as running:
        running.wait_until("caught-up")
    progress = [row for row in running.recentProgress if not row["sources"][0]["description"].count("repartition")]

    verdict = app.verify()
    assert verdict.status == "equal", verdict
    assert (verdict.records, verdict.bad_records, verdict.waiting) == (503, 2, 0)
    assert {sink.topic: sink.equal for sink in verdict.sinks} == {
        "counts": 7,
        "keyed": 8,
        "plain": 602,
        "raw": 200,
        "by-time": 61,
    }
    assert sorted(record.value for record in broker.records("bad")) == [b"no JSON", b'{"k": "x", "n": "many"}']
    assert sum(row["skippedRecords"] for row in progress) == 2
    assert sum(row["deadLetters"] for row in progress) == 2
    assert sum(row["numInputRows"] for row in progress) == 503
    plain = [json.loads(record.value) for record in broker.records("plain") if record.key == b"k1"]
    assert plain[0] == {"k": "k1", "m": 1, "offset": plain[0]["offset"], "t": "2013-01-01T00:00:01.250Z"}
