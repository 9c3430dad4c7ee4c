"""Tables of changes on our broker: restarts, lost state directories, `verify`, at both ends of a repartition topic."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from pyspark.sql import functions as F

pytestmark = pytest.mark.spark


def declared(app: Any) -> Any:
    """Second half of Nexmark's q4 over bids, a filtered table, and a join of two."""
    bids = app.stream("bids", schema="id bigint, category int, price bigint")
    highest = bids.groupBy("id", "category").agg(F.max("price").alias("final"))
    means = highest.groupBy("category").agg(F.avg("final").alias("mean"), F.count("*").alias("auctions"))
    means.to_topic("means", partitions=2)
    counts = bids.groupBy("id").agg(F.count("*").alias("bids"), name="counts")
    counts.where("bids % 3 = 1").withColumn("share", F.expr("1 / bids")).to_topic("some", partitions=2)
    dear = bids.where("price > 30").groupBy("id").agg(F.max("price").alias("most"), name="dear")
    all_bids = bids.withColumnRenamed("id", "auction").groupBy("auction").agg(F.count("*").alias("n"), name="all-bids")
    all_bids.join(dear, F.expr("auction = id"), "left").where("n % 4 <> 2").to_topic("joined", partitions=2)
    return app


def test_tables_survive_restarts_and_lost_stores_and_verify(broker, make_app):
    broker.create_topics({"bids": 3})
    chance = random.Random(4)
    rows = [{"id": chance.randrange(40), "price": chance.choice([None, *range(50)])} for _ in range(400)]
    for row in rows:
        row["category"] = (row["id"] or 0) % 4
    for number, instance in enumerate(["a", "b"]):  # the second one restores from the changelogs
        broker.produce("bids", [json.dumps(row) for row in rows[number * 200 : (number + 1) * 200]])
        app = declared(make_app("tables", instance=instance, config={"headrace.batch.max.records": 30}))
        with app.start() as running:
            running.wait_until("caught-up", timeout=120)
    verdict = app.verify()
    assert verdict.status == "equal", verdict
    found = {sink.topic: sink for sink in verdict.sinks}
    assert found["means"].equal == 4
    assert found["some"].equal == found["some"].expected > 0
    assert found["joined"].equal == found["joined"].expected > 0
    for topic in ("some", "joined"):
        assert [record for record in broker.records(topic) if record.value is None], topic
    assert "by-category" in app.describe()
    broker.produce("some", [{"id": 999, "bids": 1, "share": 1.0}], key="id")
    broker.produce("joined", [{"auction": 998, "n": 1}], key="auction")
    verdict = app.verify(sinks=["some", "joined"])
    assert [sink.extra for sink in verdict.sinks] == [1, 1], verdict
    assert verdict.status == "differs"
