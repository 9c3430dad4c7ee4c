"""An application that joins streams, on our broker: beside Spark's own join of the same rows, while they come in turns,
through restarts, moves and restores."""

from __future__ import annotations

import json
import random

import pytest
from pyspark.sql import functions as F
from tests.longer import longer

pytestmark = [pytest.mark.spark, pytest.mark.slow]

AUCTIONS = "id bigint, seller int, category int, reserve decimal(9,2), opened timestamp"
PERSONS = "person_id bigint, name string, state string"
BIDS = "id bigint, bidder int, price bigint, at timestamp"
PARTITIONS = {"auctions": 3, "persons": 2, "bids": 4}


class Market:
    """Rows of an auction, in the shape of Nexmark's: bids before their auctions, sellers that come late, nulls, and one
    auction that has half of the bids."""

    def __init__(self, seed: int) -> None:
        self._chance, self._number = random.Random(seed), 0

    def rows(self, count: int) -> dict[str, list[dict[str, object]]]:
        """Return the next rows of each topic."""
        found: dict[str, list[dict[str, object]]] = {"persons": [], "auctions": [], "bids": []}
        for _ in range(count):
            kind = self._chance.choices(["persons", "auctions", "bids"], [1, 3, 12])[0]
            found[kind].append(getattr(self, f"_{kind}")(self._number))
            self._number += 1
        return found

    def _persons(self, number: int) -> dict[str, object]:
        known = None if self._chance.random() < 0.1 else self._chance.randrange(number // 16 + 2)
        return {"person_id": known, "name": f"n{number}", "state": self._chance.choice(["OR", "ID", "CA", "WA"])}

    def _auctions(self, number: int) -> dict[str, object]:
        seller = None if self._chance.random() < 0.1 else self._chance.randrange(number // 16 + 2)
        opened = f"2026-01-01T00:{number // 60 % 60:02}:{number % 60:02}Z"
        reserve = f"{number % 500}.{number % 100:02}"
        return {"id": number // 4, "seller": seller, "category": number % 5, "reserve": reserve, "opened": opened}

    def _bids(self, number: int) -> dict[str, object]:
        auction = 7 if self._chance.random() < 0.5 else self._chance.randrange(number // 4 + 10)
        # Out of order, and one in some hundred far behind.
        time = max(0, number - self._chance.choice([0, 0, 3, 12] * 50 + [200]))
        at = f"2026-01-01T00:{time // 60 % 60:02}:{time % 60:02}Z"
        return {"id": auction, "bidder": number % 11, "price": self._chance.randrange(1000), "at": at}


def send(broker, rows):
    for topic, values in rows.items():
        broker.produce(topic, [json.dumps(value) for value in values])


def declared(app):
    """Nexmark's q3 and q20 with the rest of a condition behind the join, and a sum behind a join."""
    auctions = app.stream("auctions", schema=AUCTIONS)
    persons = app.stream("persons", schema=PERSONS)
    bids = app.stream("bids", schema=BIDS)
    q3 = auctions.where("category < 3").join(
        persons.where("state IN ('OR', 'ID', 'CA')"), F.expr("seller = person_id AND length(name) BETWEEN 2 AND 4")
    )
    q3.select("name", "state", "id").to_topic("q3", partitions=2)
    q20 = bids.join(auctions.where("category = 3").select("id", "seller", "reserve", "opened"), "id")
    q20.to_topic("q20", key=["id", "bidder"], partitions=3)
    return app


def declared_in_event_time(app):
    """Nexmark's q9 without its rank, the auctions without a bid beside it, and q8."""
    auctions = app.stream("auctions", schema=AUCTIONS).withWatermark("opened", "10 seconds")
    bids = app.stream("bids", schema=BIDS).withWatermark("at", "15 seconds")
    closing = auctions.select("id", "category", "opened")
    offers = bids.select(F.col("id").alias("auction"), "price", "at")
    sold = F.expr("id = auction AND at BETWEEN opened AND opened + INTERVAL 2 MINUTES")
    closing.join(offers, sold, "full", name="sold").to_topic("sold", partitions=2)
    window = F.window("opened", "20 seconds").alias("window")
    bidders = bids.select("id", "bidder", F.window("at", "20 seconds").alias("window"))
    active = auctions.select(window, "id", "category").join(bidders, ["window", "id"], name="active")
    active.dropDuplicates(["window", "id", "category", "bidder"]).to_topic("active", key="id", partitions=2)
    # Windows that have closed, in a join by themselves.
    opened = auctions.groupBy(F.window("opened", "20 seconds"), "category").agg(F.count("*").alias("n"), name="opened")
    group = F.expr("CAST(price % 40 AS INT) AS category")
    offered = bids.groupBy(F.window("at", "20 seconds"), group).agg(F.max("price").alias("most"), name="offered")
    busy = opened.join(offered, ["window", "category"], "left", name="busy")
    busy.to_topic("busy", key="category", partitions=2)
    return app


def equal(app, topics=("q3", "q20")):
    """Whether Spark's join of all rows is what lies in the topics; how many rows those are."""
    verdict = app.verify()
    found = {sink.topic: (sink.equal, sink.missing, sink.extra, sink.repeated) for sink in verdict.sinks}
    assert verdict.status == "equal", (verdict, found)
    return [found[topic][0] for topic in topics]


@pytest.mark.parametrize(
    "settings",
    [
        {},
        pytest.param({"processing_guarantee": "at_least_once"}, marks=longer),
        pytest.param({"config": {"headrace.execution": "micro-batch"}}, marks=longer),
    ],
    ids=["exactly-once", "at-least-once", "micro-batch"],
)
def test_joined_as_in_a_batch(broker, make_app, running, settings):
    broker.create_topics(PARTITIONS)
    market = Market(seed=1)
    config = {"headrace.batch.max.records": 90, **settings.get("config", {})}
    app = declared(make_app("joins", **{**settings, "config": config}))
    send(broker, market.rows(900))
    started = running(app)
    started.wait_until("caught-up", timeout=200)
    send(broker, market.rows(300))  # rows that meet rows of micro-batches long ago
    started.wait_until("caught-up", timeout=200)
    states = [state for row in started.recentProgress for state in row["stateOperators"]]
    assert {state["operatorName"] for state in states} == {"symmetricHashJoin"}
    started.stop()
    first, second = equal(app)
    assert first > 40
    assert second > 60
    assert {record.key for record in broker.records("q3")} == {None}
    broker.produce("q3", [json.dumps({"name": "n1", "state": "OR", "id": 1})])
    assert app.verify().status == "differs"


def test_joined_in_event_time_as_in_a_batch(broker, make_app, running):
    broker.create_topics(PARTITIONS)
    market = Market(seed=4)
    settings = {"config": {"headrace.batch.max.records": 150}}
    send(broker, market.rows(700))
    with declared_in_event_time(make_app("closing", **settings)).start() as started:
        started.wait_until("caught-up", timeout=200)
    send(broker, market.rows(300))
    # Its stores are restored from the changelogs, while rows wait for partners.
    app = declared_in_event_time(make_app("closing", instance="another-host", **settings))
    started = running(app)
    started.wait_until("caught-up", timeout=200)
    kept = sum(task.state_keys for task in started.tasks)
    started.stop()
    sold, active, busy = equal(app, ["sold", "active", "busy"])
    assert sold > 200
    assert active > 20
    assert busy > 20
    most = [json.loads(record.value)["most"] for record in broker.records("busy")]
    assert None in most
    assert set(most) != {None}
    rows = [json.loads(record.value) for record in broker.records("sold")]
    alone = {
        "id": [row for row in rows if row["auction"] is None],
        "auction": [row for row in rows if row["id"] is None],
    }
    assert len(alone["id"]) > 20
    assert len(alone["auction"]) > 20
    assert kept < 500, "rows of the last minutes"


@longer
def test_rows_of_both_sides_move_and_are_restored(broker, make_app):
    """Instances take over from each other, with the state directory, without it, and while both run."""
    broker.create_topics(PARTITIONS)
    market = Market(seed=2)

    def application(instance):
        # Resident slots of two applications would need more threads than the session of these tests has.
        app = make_app("joins", instance=instance, config={"headrace.execution": "micro-batch"})
        bids, auctions = app.stream("bids", schema=BIDS), app.stream("auctions", schema=AUCTIONS)
        bids.join(auctions, "id").to_topic("q20", key="id", partitions=3)
        return app

    send(broker, market.rows(400))
    with application("a").start() as first:
        first.wait_until("caught-up", timeout=200)
    send(broker, market.rows(200))
    with application("b").start() as second:
        second.wait_until("caught-up", timeout=200)
        with application("a").start() as first:
            send(broker, market.rows(200))
            first.wait_until("running", timeout=200)
            second.wait_until("caught-up", timeout=200)
            first.wait_until("caught-up", timeout=200)
        send(broker, market.rows(200))
        second.wait_until("caught-up", timeout=200)
    [count] = equal(application("c"), ["q20"])
    assert count > 300


@longer
def test_a_self_join_behind_a_join_and_in_front_of_a_sum(broker, make_app, running, tmp_path):
    broker.create_topics(PARTITIONS)
    market = Market(seed=3)
    app = make_app("joins", config={"headrace.batch.max.records": 90})
    bids, auctions = app.stream("bids", schema=BIDS), app.stream("auctions", schema=AUCTIONS)
    low = bids.where("price < 100").select("id", F.col("price").alias("low"))
    high = bids.where("price > 900").select("id", F.col("price").alias("high"))
    low.join(high, "id", name="pairs").to_parquet(tmp_path / "table")
    sold = bids.join(auctions.select("id", "category", "reserve"), "id", name="sold")
    again = sold.join(low.withColumnRenamed("low", "least"), "id", name="sold-low")
    again.groupBy("category").agg(F.count("*").alias("pairs"), F.sum("reserve").alias("reserve")).to_topic(
        "by-category", partitions=2
    )
    send(broker, market.rows(700))
    started = running(app)
    started.wait_until("caught-up", timeout=300)
    send(broker, market.rows(300))
    started.wait_until("caught-up", timeout=300)
    started.stop()
    verdict = app.verify()
    assert verdict.status == "equal", verdict
    assert all(sink.equal for sink in verdict.sinks), verdict
