"""The recomputation of `verify` against the two rules of deduplication, word by word, over random events."""

from __future__ import annotations

import random
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from pyspark.sql import functions as F
from tests.spark.runtime.operators.test_deduplicate_operator import BY_ID, SECOND, Event, reference

from headrace.spark.analysis.event_time import KeyedDeduplication
from headrace.spark.topology.nodes import EVENT_TIME_COLUMN, OFFSET_COLUMN, TASK_COLUMN, TIMESTAMP_COLUMN
from headrace.spark.verification.verify_deduplication import first_rows

pytestmark = pytest.mark.spark

START = datetime(2026, 1, 1, tzinfo=UTC)
START_US = int(START.timestamp()) * SECOND
RECORD_MS = [-1, START_US // 1000, START_US // 1000 + 30_000]


def random_events(count: int, seed: int) -> list[Event]:
    chance = random.Random(seed)
    found = []
    for number in range(count):
        time = chance.choice([None, *[START_US + (number // 3 + chance.randrange(-25, 6)) * SECOND] * 9])
        if chance.random() < 0.02:
            time = START_US + 10**9 * SECOND
        found.append(Event(chance.choice([None, "", "a", "b", "c"]), time, chance.choice(RECORD_MS)))
    return found


@pytest.mark.parametrize("delay_s", [0, 1, 10])
def test_the_two_rules(spark, delay_s):
    declared = replace(BY_ID, delay_us=delay_s * SECOND, max_ahead_us=20 * SECOND)
    by_partition = {partition: random_events(300, seed=10 * delay_s + partition) for partition in (0, 1)}
    rows = [
        (partition, number, event.record_ms, event.key, as_time(event.time))
        for partition, events in by_partition.items()
        for number, event in enumerate(events)
    ]
    types = {TASK_COLUMN: "int", OFFSET_COLUMN: "bigint", TIMESTAMP_COLUMN: "bigint", "id": "string"}
    names = ", ".join(f"{name} {kind}" for name, kind in [*types.items(), (EVENT_TIME_COLUMN, "timestamp")])
    frame = spark.createDataFrame(rows, names).withColumn("row", F.concat_ws("-", TASK_COLUMN, OFFSET_COLUMN))
    keyed = KeyedDeduplication(
        name=declared.name,
        key_columns=declared.key_columns,
        key_expressions=declared.key_expressions,
        event_time_expression=declared.event_time_expression,
        delay_us=declared.delay_us,
        where="",
    )
    found = first_rows(frame, keyed, declared.max_ahead_us)
    assert found.columns == ["id", "row"]
    kept = {f"{partition}-{at}" for partition, events in by_partition.items() for at in reference(events, declared)[0]}
    assert 20 < len(kept) < 500
    assert {row.row for row in found.collect()} == kept


def as_time(microseconds: int | None) -> datetime | None:
    return None if microseconds is None else START + timedelta(microseconds=microseconds - START_US)
