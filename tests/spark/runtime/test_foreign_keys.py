"""A join of two tables by a foreign key on our broker: left rows that move, right rows that come and go, `verify`."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from pyspark.sql import functions as F
from tests.longer import LONG

pytestmark = pytest.mark.spark


def declared(app: Any) -> Any:
    orders = app.stream("orders", schema="id bigint, at int, customer int, amount bigint")
    customers = app.stream("customers", schema="customer_id bigint, at int, name string")
    newest = orders.groupBy("id").agg(
        F.max_by("customer", "at").alias("customer"), F.max_by("amount", "at").alias("amount")
    )
    known = customers.groupBy("customer_id").agg(F.max_by("name", "at").alias("name")).where("name <> 'gone'")
    newest.join(known, F.expr("customer = customer_id")).to_topic("named", partitions=2)
    return app


def order(chance: random.Random, at: int) -> str:
    customer = chance.choice([None, *range(8)])
    return json.dumps({"id": chance.randrange(40), "at": at, "customer": customer, "amount": at % 5})


def customer(chance: random.Random, at: int) -> str:
    return json.dumps({"customer_id": chance.randrange(9), "at": at, "name": chance.choice(["a", "bb", "gone"])})


def test_left_rows_that_move_have_the_row_of_their_newest_foreign_key(broker, make_app):
    broker.create_topics({"orders": 3, "customers": 2})
    chance = random.Random(5)
    for number, instance in enumerate(["a", "b"] if LONG else ["a"]):  # the second one restores from the changelogs
        broker.produce("orders", [order(chance, 300 * number + at) for at in range(300)])
        broker.produce("customers", [customer(chance, 300 * number + at) for at in range(100)])
        app = declared(make_app("named-orders", instance=instance, config={"headrace.batch.max.records": 30}))
        with app.start() as running:
            running.wait_until("caught-up", timeout=240)
            gone = {"customer_id": 5, "at": 1000 + number, "name": "gone" if number % 2 == 0 else "back"}
            broker.produce("customers", [json.dumps(gone)])
            running.wait_until("caught-up", timeout=240)
    verdict = app.verify()
    assert verdict.status == "equal", verdict
    [found] = verdict.sinks
    assert found.equal == found.expected > 0
    assert [record for record in broker.records("named") if record.value is None], "rows that lost their partner"
    broker.produce("named", [{"id": 999, "amount": 1}], key="id")
    assert app.verify().status == "differs"
