"""Deduplication in event time in an application on our broker: results, state, restarts and `verify`."""

from __future__ import annotations

import json
import random
from datetime import UTC, datetime

import pytest
from pyspark.sql import functions as F
from tests.longer import longer
from tests.spark.runtime.operators.test_deduplicate_operator import Event, reference

from headrace.errors import RecordError
from headrace.spark.topology.nodes import Deduplication

pytestmark = pytest.mark.spark

SCHEMA = "id string, n bigint, ts timestamp"
SECOND = 1_000_000
BASE = 1_700_000_000 * SECOND
BY_ID = Deduplication(
    name="unique-by-id",
    key_columns=(("id", '"string"'),),
    key_expressions=("id",),
    event_time_expression="ts",
    delay_us=10 * SECOND,
    max_ahead_us=3600 * SECOND,
    changelog_topic="",
)


def events(count, seed=1):
    """Ids of which a third is repeated within the delay, some later; a row in 20 is late, one in 50 has no time."""
    chance = random.Random(seed)
    found = []
    for n in range(count):
        behind = chance.choice([0, 0, 1, 5, 9]) if chance.random() > 0.05 else 25
        time = None if chance.random() < 0.02 else BASE + (n * SECOND) // 5 - behind * SECOND
        name = f"id-{n - chance.randrange(1, 40) if chance.random() < 0.4 else n}"
        found.append({"id": name, "n": n, "ts": time})
    return found


def sent(broker, rows, topic="clicks"):
    texts = [json.dumps({**row, "ts": None if row["ts"] is None else iso(row["ts"])}) for row in rows]
    broker.produce(topic, texts, key=lambda value: json.loads(value)["id"])


def iso(microseconds):
    return datetime.fromtimestamp(microseconds / SECOND, UTC).isoformat()


def expected(broker, topic="clicks"):
    """Numbers of the rows that are kept, and how many are late: the two rules, over each partition by itself."""
    partitions: dict[int, list] = {}
    for record in broker.records(topic):
        partitions.setdefault(record.partition, []).append(record)
    kept, late = [], 0
    for records in partitions.values():
        rows = [json.loads(record.value) for record in sorted(records, key=lambda record: record.offset)]
        times = [None if row["ts"] is None else micros(row["ts"]) for row in rows]
        found, too_late = reference(
            [Event(row["id"], time, 2_000_000_000_000) for row, time in zip(rows, times, strict=True)], BY_ID
        )
        kept += [rows[at]["n"] for at in found]
        late += too_late
    return sorted(kept), late


def micros(text):
    return round(datetime.fromisoformat(text).timestamp() * SECOND)


def deduplicated(app, **settings):
    rows = app.stream("clicks", schema=SCHEMA, key="id", **settings)
    unique = rows.withWatermark("ts", "10 seconds").dropDuplicatesWithinWatermark(["id"])
    unique.to_topic("unique", partitions=3)
    return app


def numbers(broker, topic="unique"):
    return sorted(json.loads(record.value)["n"] for record in broker.records(topic))


@pytest.mark.filterwarnings("ignore::headrace.errors.UnboundedStateWarning")
def test_first_rows_without_a_watermark(broker, make_app, running):
    broker.create_topics({"clicks": 3})
    rows = events(300)
    app = make_app("unique", config={"headrace.batch.max.records": 70})
    stream = app.stream("clicks", schema=SCHEMA, key="id").dropDuplicates(["id"])
    stream.where("n % 2 = 0").to_topic("unique", partitions=3)
    sent(broker, rows)
    started = running(app)
    started.wait_until("caught-up", timeout=120)
    states = [state for row in started.recentProgress for state in row["stateOperators"]]
    assert {state["operatorName"] for state in states} == {"dedupe"}
    assert not [row for row in started.recentProgress if "watermark" in row["eventTime"]]
    started.stop()
    first: dict[str, int] = {}
    for row in rows:
        first.setdefault(row["id"], row["n"])
    assert numbers(broker) == sorted(n for n in first.values() if n % 2 == 0)
    assert app.verify().status == "equal"


@pytest.mark.parametrize(
    "settings",
    [
        pytest.param({}, marks=longer),
        {"config": {"headrace.execution": "resident", "headrace.batch.max.records": 70}},
    ],
    ids=["exactly-once", "resident"],
)
def test_first_rows_leave_and_late_ones_are_counted(broker, make_app, running, settings):
    broker.create_topics({"clicks": 3})
    rows = events(600)
    app = deduplicated(make_app("unique", **{"config": {"headrace.batch.max.records": 70}, **settings}))
    sent(broker, rows[:400])
    started = running(app)
    started.wait_until("caught-up", timeout=120)
    sent(broker, rows[400:])
    started.wait_until("caught-up", timeout=120)
    kept, late = expected(broker)
    assert 0 < late < 100
    assert len(kept) < 500
    assert numbers(broker) == kept
    states = [state for row in started.recentProgress for state in row["stateOperators"]]
    assert sum(state["numRowsDroppedByWatermark"] for state in states) == late
    assert {state["operatorName"] for state in states} == {"dedupeWithinWatermark"}
    watermarks = [micros(row["eventTime"]["watermark"]) for row in started.recentProgress]
    times = [row["ts"] for row in rows if row["ts"] is not None]
    assert min(times) - BY_ID.delay_us <= min(watermarks) < max(watermarks) <= max(times) - BY_ID.delay_us
    assert states[-1]["numRowsTotal"] < len(kept), "old keys are deleted"
    started.stop()
    assert app.verify().status == "equal"
    duplicate = next(record for record in broker.records("clicks") if json.loads(record.value)["n"] not in kept)
    broker.produce("unique", [duplicate.value.decode()], key="id-0")
    assert app.verify().status == "differs"


def test_state_moves_and_is_restored(broker, make_app):
    """Instances take over from each other, with the state directory, without it, and while both run."""
    broker.create_topics({"clicks": 3})
    rows = events(900, seed=2)
    sent(broker, rows[:300])
    with deduplicated(make_app("unique")).start() as first:
        first.wait_until("caught-up", timeout=120)
    sent(broker, rows[300:500])
    with deduplicated(make_app("unique", instance="b")).start() as second:
        second.wait_until("caught-up", timeout=120)
        with deduplicated(make_app("unique")).start() as first:
            sent(broker, rows[500:700])
            first.wait_until("running", timeout=120)
            second.wait_until("caught-up", timeout=120)
            first.wait_until("caught-up", timeout=120)
        sent(broker, rows[700:])
        second.wait_until("caught-up", timeout=120)
    assert numbers(broker) == expected(broker)[0]
    changelog = broker.records("unique-unique-by-id-changelog")
    assert any(record.value is None for record in changelog), "expired keys are deleted there, too"


def test_a_record_that_a_call_behind_deduplication_cannot_process(broker, make_app, running):
    """A duplicate never gets to later calls, so it is not blamed for what they would make of it."""
    broker.create_topics({"clicks": 1})
    found = [("a", "1"), ("a", "x"), ("b", "2"), ("c", "x"), ("d", "3")]
    texts = [json.dumps({"key": key, "text": text, "at": iso(BASE)}) for key, text in found]
    broker.produce("clicks", texts, key=lambda value: json.loads(value)["key"])
    app = make_app("unique")
    rows = app.stream("clicks", schema="key string, text string, at timestamp, unused int", key="key")
    named = rows.where("key <> 'z'").withColumnRenamed("key", "id").withColumn("unused", F.col("unused") + 1)
    unique = named.withWatermark("at", "10 seconds").dropDuplicatesWithinWatermark(["id"], name="once")
    unique.select("id", F.col("text").cast("int").alias("number"), F.col("_kafka.offset")).to_topic(
        "unique", key="id", partitions=1
    )
    started = running(app)
    with pytest.raises(RecordError) as caught:
        started.awaitTermination(timeout=120)
    assert (caught.value.facts["topic"], caught.value.facts["offset"]) == ("clicks", 3)
    assert [json.loads(record.value) for record in broker.records("unique")] == [
        {"id": "a", "number": 1, "offset": 0},
        {"id": "b", "number": 2, "offset": 2},
    ]


def test_one_event_from_the_far_future_closes_nothing(broker, make_app, running):
    """Raw records, whose event time the program computes."""
    broker.create_topics({"clicks": 1})
    years = 100 * 365 * 86_400 * SECOND
    at = [BASE, BASE + years, BASE + SECOND, BASE + years + SECOND, BASE]
    broker.produce("clicks", [str(time) for time in at], key=lambda value: "a" if value != str(at[2]) else "b")
    app = make_app("unique")
    rows = app.stream("clicks", value="raw", key="key")
    timed = rows.withColumn("time", F.timestamp_micros(F.col("value").cast("string").cast("bigint")))
    unique = timed.withWatermark("time", "10 seconds").dropDuplicatesWithinWatermark(["key"])
    unique.select("offset").to_topic("unique", partitions=1)
    started = running(app)
    started.wait_until("caught-up", timeout=120)
    assert [json.loads(record.value)["offset"] for record in broker.records("unique")] == [0, 1, 2]
    assert app.verify().status == "equal"
