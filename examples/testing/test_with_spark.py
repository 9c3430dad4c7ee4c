"""A Spark application against a broker in this process: pip install 'headrace[spark]' pytest; pytest."""

from __future__ import annotations

import json

import pytest
from pyspark.sql import functions as F

from headrace import StreamsApp


def order_totals(bootstrap_servers: str, state_dir) -> StreamsApp:
    """The code under test. Building it connects to nothing."""
    app = StreamsApp("order-totals", bootstrap_servers=bootstrap_servers, state_dir=state_dir)
    orders = app.stream("orders", schema="item string, amount long")
    orders.groupBy("item").agg(F.sum("amount").alias("total")).to_topic("totals", partitions=1)
    return app


@pytest.mark.kafka_broker(topics={"orders": 2})
def test_totals(kafka_broker, tmp_path):
    orders = [{"item": "tea", "amount": 3}, {"item": "coffee", "amount": 4}, {"item": "tea", "amount": 5}]
    kafka_broker.produce("orders", orders, key="item")
    order_totals(kafka_broker.bootstrap_servers, tmp_path).run(until="caught-up")
    newest = {record.key: json.loads(record.value) for record in kafka_broker.records("totals")}
    assert newest == {b"tea": {"item": "tea", "total": 8}, b"coffee": {"item": "coffee", "total": 4}}
