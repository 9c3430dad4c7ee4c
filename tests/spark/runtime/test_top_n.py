"""The first rows of each key in an application on our broker: topics with tombstones, state, restarts and `verify`."""

from __future__ import annotations

import json
import random

import pytest
from pyspark.sql import Window
from pyspark.sql import functions as F
from tests.longer import longer

pytestmark = pytest.mark.spark

SCHEMA = "auction bigint, bidder bigint, price bigint, channel string"


def bids(count, seed=1, *, auctions=12):
    """Bids of which a third has one of few prices, so that many are equal; some have no price."""
    chance = random.Random(seed)
    return [
        {
            "auction": chance.randrange(auctions),
            "bidder": chance.randrange(40),
            "price": None if chance.random() < 0.03 else chance.choice([500, chance.randrange(1_000)]),
            "channel": chance.choice(["web", "app", None]),
        }
        for _ in range(count)
    ]


def send(broker, rows, topic="bids"):
    broker.produce(topic, [json.dumps(row) for row in rows], key=lambda value: str(json.loads(value)["auction"]))


def newest(broker, topic="top"):
    """Key → value of the records that compaction would leave, and how many deletions the topic holds."""
    found: dict[bytes, dict] = {}
    deletions = 0
    for record in sorted(broker.records(topic), key=lambda record: (record.partition, record.offset)):
        if record.value is None:
            deletions += 1
            del found[record.key]  # there is something to delete
        else:
            found[record.key] = json.loads(record.value)
    return found, deletions


def order(row):
    """Highest price first, no price last; ties by the other columns, ascending with nulls first."""
    price = (1, 0) if row["price"] is None else (0, -row["price"])
    return *price, row["bidder"], row["channel"] is not None, row["channel"] or ""


def first_rows(rows, limit, function="row_number"):
    """(auction, position) → row with its rank, computed in plain Python."""
    found = {}
    for auction in {row["auction"] for row in rows}:
        mine = sorted((row for row in rows if row["auction"] == auction), key=order)
        prices = [row["price"] for row in mine]
        for position, row in enumerate(mine, start=1):
            rank = {
                "row_number": position,
                "rank": 1 + prices.index(row["price"]),
                "dense_rank": 1 + list(dict.fromkeys(prices)).index(row["price"]),
            }[function]
            if rank <= limit:
                found[auction, position] = {**row, "rn": rank}
    return found


def by_key(topic, position):
    return {(json.loads(key)["auction"], json.loads(key)[position]): value for key, value in topic.items()}


@pytest.mark.parametrize(
    ("key", "settings"),
    [
        (None, {}),
        pytest.param("auction", {}, marks=longer),
        ("auction", {"config": {"headrace.execution": "resident", "headrace.batch.max.records": 70}}),
    ],
    ids=["repartitioned", "keyed", "resident"],
)
def test_the_first_rows_of_each_key_are_kept(broker, make_app, running, key, settings):
    """Nexmark's q19, with a restart of the application on an empty directory, which restores from the changelog."""
    broker.create_topics({"bids": 3})
    rows = bids(600)

    def declared(instance):
        app = make_app("top-bids", instance=instance, **{"config": {"headrace.batch.max.records": 70}, **settings})
        stream = app.stream("bids", schema=SCHEMA, key=key)
        by_price = Window.partitionBy("auction").orderBy(F.desc("price"))
        ranked = stream.withColumn("rn", F.row_number().over(by_price)).where("rn <= 4")
        if key is None:  # Spark SQL behind the operator
            ranked = ranked.withColumn("double", F.col("price") * 2).drop("double")
        ranked.to_topic("top", partitions=2)
        return app

    send(broker, rows[:400])
    started = running(declared("a"))
    started.wait_until("caught-up", timeout=120)
    states = [state for row in started.recentProgress for state in row["stateOperators"]]
    assert states[-1]["numRowsTotal"] <= 4 * 12
    started.stop()
    found, deletions = newest(broker)
    assert by_key(found, "rn") == first_rows(rows[:400], 4)
    app = declared("b")
    send(broker, rows[400:])
    started = running(app)
    started.wait_until("caught-up", timeout=120)
    started.stop()
    found, deletions = newest(broker)
    assert by_key(found, "rn") == first_rows(rows, 4)
    assert deletions == 0, "positions are never vacant again"
    verdict = app.verify()
    assert (verdict.status, verdict.sinks[0].expected) == ("equal", len(found))
    wrong = next(iter(found))
    broker.produce("top", [json.dumps({**found[wrong], "price": -1})], key=lambda _: wrong.decode())
    assert app.verify().status == "differs"


@pytest.mark.parametrize("function", ["rank", pytest.param("dense_rank", marks=longer)])
def test_ties_that_leave_become_tombstones(broker, make_app, running, function):
    broker.create_topics({"bids": 3})
    rows = bids(500, seed=3)
    app = make_app("ties", config={"headrace.batch.max.records": 60})
    stream = app.stream("bids", schema=SCHEMA)
    ranked = stream.selectExpr("*", f"{function}() over (partition by auction order by price desc) rn").where("rn < 3")
    ranked.to_topic("top", partitions=2)
    started = running(app)
    for at in (0, 100, 300):
        send(broker, rows[at : {0: 100, 100: 300, 300: 500}[at]])
        started.wait_until("caught-up", timeout=120)
    started.stop()
    found, deletions = newest(broker)
    assert by_key(found, "row_number") == first_rows(rows, 2, function)
    assert deletions > 0
    assert app.verify().status == "equal"
    gone = next(iter(found))
    broker.produce("top", [None], key=lambda _: gone.decode())
    verdict = app.verify()
    assert (verdict.status, verdict.sinks[0].missing) == ("differs", 1)


def test_last_row_of_a_key_replaces_the_one_before(broker, make_app, running):
    """Nexmark's q18: the last bid of each bidder on each auction, by two columns, under a text key of its own."""
    broker.create_topics({"bids": 3})
    rows = [{**row, "n": n} for n, row in enumerate(bids(400, seed=5))]
    app = make_app("last-bids", config={"headrace.batch.max.records": 90})
    stream = app.stream("bids", schema=f"{SCHEMA}, n bigint")
    last = Window.partitionBy("bidder", "auction").orderBy(F.desc("n"))
    stream.withColumn("rn", F.row_number().over(last)).filter(F.col("rn") == 1).drop("rn").to_topic("top", partitions=2)
    started = running(app)
    send(broker, rows[:200])
    started.wait_until("caught-up", timeout=120)
    send(broker, rows[200:])
    started.wait_until("caught-up", timeout=120)
    started.stop()
    found, deletions = newest(broker)
    wanted = {(row["bidder"], row["auction"]): row for row in rows}
    assert {(json.loads(key)["bidder"], json.loads(key)["auction"]): row for key, row in found.items()} == wanted
    assert all(set(json.loads(key)) == {"bidder", "auction"} for key in found)
    assert deletions == 0
    assert app.verify().status == "equal"
    wrong = next(iter(found))
    broker.produce("top", [json.dumps({**found[wrong], "price": -1})], key=lambda _: wrong.decode())
    assert app.verify().status == "differs"
