"""Deduplication in event time in an application on our broker: results, state, restarts and `verify`."""

from __future__ import annotations

import json
import random

import pytest
from tests.spark.runtime.test_deduplicate_operator import Event, reference

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
    def text(row):
        time = None if row["ts"] is None else f"{row['ts'] / SECOND:.3f}"
        return json.dumps({**row, "ts": None if time is None else iso(row["ts"])})

    broker.produce(topic, [text(row) for row in rows], key=lambda value: json.loads(value)["id"])


def iso(microseconds):
    from datetime import UTC, datetime

    return datetime.fromtimestamp(microseconds / SECOND, UTC).isoformat()


def expected(broker, topic="clicks"):
    """Numbers of the rows that are kept, and how many are late: the two rules, over each partition by itself."""
    partitions = {}
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
    from datetime import datetime

    return round(datetime.fromisoformat(text).timestamp() * SECOND)


def deduplicated(app, **settings):
    rows = app.stream("clicks", schema=SCHEMA, key="id", **settings)
    unique = rows.withWatermark("ts", "10 seconds").dropDuplicatesWithinWatermark(["id"])
    unique.to_topic("unique", partitions=3)
    return app


def numbers(broker, topic="unique"):
    return sorted(json.loads(record.value)["n"] for record in broker.records(topic))


@pytest.mark.parametrize("guarantee", ["exactly_once_v2", "at_least_once"])
def test_first_rows_leave_and_late_ones_are_counted(broker, make_app, running, guarantee):
    broker.create_topics({"clicks": 3})
    rows = events(600)
    app = deduplicated(make_app("unique", processing_guarantee=guarantee, config={"headrace.batch.max.records": 70}))
    sent(broker, rows[:400])
    started = running(app)
    started.wait_until("caught-up", timeout=120)
    sent(broker, rows[400:])
    started.wait_until("caught-up", timeout=120)
    kept, late = expected(broker)
    assert 0 < late < 100
    assert len(kept) < 500
    assert numbers(broker) == kept
    assert (
        sum(state["numRowsDroppedByWatermark"] for row in started.recentProgress for state in row["stateOperators"])
        == late
    )
    started.stop()
    verdict = app.verify()
    assert verdict.status == "equal", verdict
