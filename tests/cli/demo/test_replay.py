"""The play: every flight arrives once, spread over the partitions; it can be held and stopped."""

from __future__ import annotations

import pytest
from tests.harness.polling import wait_until

from headrace.broker.embedded import EmbeddedBroker
from headrace.cli.demo.replay import FlightDay, FlightYear, Play
from headrace.errors import BrokerError

DAYS = tuple(
    FlightDay(
        date=f"2013-01-{number:02d}", values=tuple(b"%d-%d" % (number, i) for i in range(20)), delay_minutes=number
    )
    for number in range(1, 11)
)
YEAR = FlightYear(days=DAYS, by_origin={}, by_carrier={})


def test_everything_arrives_once() -> None:
    with EmbeddedBroker(topics={"flights": 4}) as broker:
        play = Play(YEAR, bootstrap_servers=broker.bootstrap_servers, topic="flights", day_seconds=0, pause_at=100)
        play.start()
        wait_until(lambda: play.sent >= 100 or play.error is not None, "100 records are sent")
        assert play.sent == 100
        assert not play.over
        play.go_on()
        wait_until(lambda: play.sent >= 200 or play.error is not None, "200 records are sent")
        play.stop()
        assert play.over
        assert play.error is None
        records = broker.records("flights")
        assert sorted(record.value or b"" for record in records) == sorted(v for day in DAYS for v in day.values)
        assert {record.partition for record in records} == {0, 1, 2, 3}
    assert play.date == "2013-01-10"
    assert play.worst == ("2013-01-10", 0.5)


def test_a_failure_is_handed_on() -> None:
    with EmbeddedBroker(topics={}, config={"auto.create.topics.enable": False}) as broker:
        play = Play(YEAR, bootstrap_servers=broker.bootstrap_servers, topic="flights", day_seconds=0)
        play.start()
        wait_until(lambda: play.sent >= 1 or play.error is not None, "1 records are sent")
        play.stop()
    assert isinstance(play.error, BrokerError)
    assert play.error.code == "topic-missing"


@pytest.mark.parametrize("started", [True, False])
def test_it_can_be_stopped(started: bool) -> None:
    with EmbeddedBroker(topics={"flights": 1}) as broker:
        play = Play(YEAR, bootstrap_servers=broker.bootstrap_servers, topic="flights", day_seconds=0, pause_at=0)
        if started:
            play.start()
        play.stop()
        assert not play.over
