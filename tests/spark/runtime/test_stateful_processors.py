"""An application with a stateful processor on our broker: state and timers through restarts, moves and restores."""

from __future__ import annotations

import datetime as dt
import json
from typing import Any

import pytest
from pyspark import cloudpickle
from pyspark.sql.streaming import StatefulProcessor
from pyspark.sql.types import Row
from tests.harness.polling import wait_until
from tests.longer import LONG, longer

pytestmark = [pytest.mark.spark, pytest.mark.slow]

BEGIN = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
SCHEMA = "card STRING, amount BIGINT, at TIMESTAMP"
CARDS = 12


class Spending(StatefulProcessor):
    """Adds up the payments of a card, and yields the sum when a minute of event time is over."""

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.total = handle.getValueState("total", "amount BIGINT")
        self.minutes = handle.getMapState("minutes", "minute BIGINT", "payments BIGINT")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Any:
        for row in rows:
            minute = int(row.at.timestamp()) // 60
            self.minutes.updateValue((minute,), ((self.minutes.getValue((minute,)) or (0,))[0] + 1,))
            self.total.update(((self.total.get() or (0,))[0] + row.amount,))
            self.handle.registerTimer((minute + 1) * 60_000)
        yield from ()

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Any:
        minute = expiredTimerInfo.getExpiryTimeInMs() // 60_000 - 1
        yield Row(card=key[0], minute=minute, payments=self.minutes.getValue((minute,)).payments)
        self.minutes.removeKey((minute,))


@pytest.fixture(autouse=True)
def pickled_by_value():
    """Workers of Spark cannot import this module."""
    module = __import__(__name__, fromlist=["Spending"])
    cloudpickle.register_pickle_by_value(module)
    yield
    cloudpickle.unregister_pickle_by_value(module)


def payments(first: int, count: int) -> list[dict[str, Any]]:
    rows = []
    for number in range(first, first + count):
        at = BEGIN + dt.timedelta(seconds=number)
        rows.append({"card": f"c{number // 2 % CARDS}", "amount": number, "at": at.isoformat()})
    return rows


def counted(rows: list[dict[str, Any]], before: dt.datetime) -> dict[tuple[str, int], int]:
    """Return the number of payments of each card and minute that is over by the watermark `before`."""
    found: dict[tuple[str, int], int] = {}
    for row in rows:
        minute = int(dt.datetime.fromisoformat(row["at"]).timestamp()) // 60
        if (minute + 1) * 60 <= before.timestamp():
            found[row["card"], minute] = found.get((row["card"], minute), 0) + 1
    return found


@pytest.mark.parametrize("execution", ["auto", *(["micro-batch"] if LONG else [])])
def test_timers_fire_once_through_restarts_moves_and_restores(broker, make_app, execution):
    broker.create_topics({"payments": 2})

    def application(instance):
        app = make_app("cards", instance=instance, config={"headrace.execution": execution})
        found = app.stream("payments", schema=SCHEMA).withWatermark("at", "1 second").groupBy("card")
        found = found.transformWithState(
            Spending(), "card STRING, minute BIGINT, payments BIGINT", "Append", "EventTime", name="spending"
        )
        found.to_topic("minutes", partitions=2)
        return app

    sent: list[dict[str, Any]] = []

    def send(count):
        rows = payments(len(sent), count)
        # Both partitions have rows up to the last moment, so both clocks are there.
        for partition in range(2):
            broker.produce("payments", [json.dumps(row) for row in rows[partition::2]], partition=partition)
        sent.extend(rows)

    def found():
        rows = [json.loads(record.value) for record in broker.records("minutes")]
        counts = {(row["card"], row["minute"]): row["payments"] for row in rows}
        assert len(counts) == len(rows)  # none twice
        return counts

    def expected():
        watermark = BEGIN + dt.timedelta(seconds=len(sent) - 3)
        return counted(sent, watermark)

    send(200)
    # The second instance has no stores, the third has those of the first, which are out of date.
    for instance in ("a", "b", "a"):
        with application(instance).start() as running:
            running.wait_until("caught-up", timeout=200)
            send(130)
            running.wait_until("caught-up", timeout=200)
        assert found() == expected()
    assert len(found()) > 50
    verdict = application("a").verify()
    assert verdict.status == "cannot-tell", verdict
    assert "the processor Spending" in str(verdict)


class Reminder(StatefulProcessor):
    """Reminds of a card once, two seconds of processing time behind its first payment."""

    def init(self, handle: Any) -> None:
        self.handle = handle

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Any:
        self.handle.registerTimer(timerValues.getCurrentProcessingTimeInMs() + 2000)
        yield from ()

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Any:
        late = timerValues.getCurrentProcessingTimeInMs() - expiredTimerInfo.getExpiryTimeInMs()
        yield Row(card=key[0], late=late)


@longer
def test_timers_of_processing_time_fire_in_an_idle_application(broker, make_app):
    broker.create_topics({"payments": 2})
    app = make_app("cards")
    found = app.stream("payments", schema=SCHEMA).groupBy("card")
    found.transformWithState(Reminder(), "card STRING, late BIGINT", "Append", "ProcessingTime").to_topic(
        "late", partitions=2
    )
    with app.start() as running:
        running.wait_until("caught-up", timeout=200)
        broker.produce("payments", [json.dumps(row) for row in payments(0, CARDS * 2)])
        wait_until(lambda: len(broker.records("late")) == CARDS, "all reminders", timeout_s=120)
        running.wait_until("caught-up", timeout=200)
    rows = [json.loads(record.value) for record in broker.records("late")]
    assert {row["card"] for row in rows} == {f"c{number}" for number in range(CARDS)}
    assert all(row["late"] >= 0 for row in rows)
