"""An application that joins rows with the versions of a table, on our broker, beside Spark's own join of them."""

from __future__ import annotations

import json
import random

import pytest
from pyspark.sql import functions as F

pytestmark = [pytest.mark.spark, pytest.mark.slow]

ORDERS = "order_id bigint, item string, ordered timestamp"
PRICES = "product string, price bigint, valid_from timestamp"


def rows(chance: random.Random, first: int, count: int) -> dict[str, list[str]]:
    """Orders and prices of 12 items out of order, some far behind, some without an item or of one without a price."""
    found: dict[str, list[str]] = {"orders": [], "prices": []}
    for number in range(first, first + count):
        second = max(0, number - chance.choice([0, 0, 5, 12] * 20 + [200]))
        at = f"2026-01-01T{second // 3600:02}:{second // 60 % 60:02}:{second % 60:02}Z"
        item = chance.choice([None, *(f"i{n}" for n in range(12))])
        if number % 3:
            found["orders"].append(json.dumps({"order_id": number, "item": item, "ordered": at}))
        else:
            # Times are distinct or not: equal versions of one key are all valid.
            product = item if item != "i11" else None
            found["prices"].append(json.dumps({"product": product, "price": number, "valid_from": at}))
    return found


def test_joined_with_versions_as_in_a_batch(broker, make_app, running):
    broker.create_topics({"orders": 3, "prices": 2})
    app = make_app("priced", config={"headrace.batch.max.records": 150})
    orders = app.stream("orders", schema=ORDERS).withWatermark("ordered", "15 seconds")
    prices = app.stream("prices", schema=PRICES).withWatermark("valid_from", "15 seconds")
    valid = F.expr("item = product AND valid_from <= ordered")
    orders.joinAsOf(prices, valid, "left").select("order_id", "item", "price", "valid_from").to_topic(
        "priced", key="order_id", partitions=2
    )
    chance = random.Random(6)
    started = running(app)
    for first in (0, 500):
        for topic, values in rows(chance, first, 500).items():
            broker.produce(topic, values)
        started.wait_until("caught-up", timeout=200)
    kept = sum(task.state_keys for task in started.tasks)
    started.stop()
    verdict = app.verify()
    [sink] = verdict.sinks
    assert (verdict.status, sink.missing, sink.extra, sink.repeated) == ("equal", 0, 0, 0), verdict
    assert sink.equal > 550
    written = [json.loads(record.value)["price"] for record in broker.records("priced")]
    assert None in written
    assert len(set(written)) > 100
    assert kept < 300, "rows that wait, and versions of the last seconds"
    broker.produce("priced", [json.dumps({"order_id": 1, "item": "i1", "price": 1, "valid_from": None})])
    assert app.verify().status == "differs"
