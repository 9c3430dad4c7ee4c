"""Health of a broker: the rules, and the answers over HTTP."""

from __future__ import annotations

import json
import threading
from typing import Any

import pytest
from tests.harness.http import http_get
from tests.harness.polling import wait_until

from headrace.broker.embedded import EmbeddedBroker
from headrace.broker.monitoring.metrics_server import Health, LoopLag
from headrace.storage.log_directory import LogDirectory

PATIENCE_SECONDS = 60.0


class StatedBroker:
    """Stands for a broker in the state that a test names."""

    is_loading = False
    is_stopping = False

    def __init__(self, **state: Any) -> None:
        self.state = state
        self.is_loading = state.get("loading", False)
        self.is_stopping = state.get("stopping", False)

    def failed_logs(self) -> list[str]:
        return list(self.state.get("failed", []))

    def full_disk(self) -> str | None:
        full: str | None = self.state.get("full")
        return full

    def failed_shards(self) -> int:
        return int(self.state.get("shards", 0))

    def loop_lag_seconds(self) -> float:
        return float(self.state.get("lag", 0.0))


@pytest.mark.parametrize(
    ("state", "reasons", "ready"),
    [
        ({}, [], True),
        ({"loading": True}, ["loading"], False),
        ({"stopping": True}, ["stopping"], False),
        ({"failed": ["t-0"]}, ["disk-failed"], False),
        ({"full": "no room"}, ["disk-full"], False),
        ({"lag": 4.9}, [], True),
        ({"lag": 5.0}, ["event-loop-late"], False),
        ({"shards": 2}, ["shard-failed"], True),
        ({"shards": 2, "full": "no room"}, ["disk-full", "shard-failed"], False),
    ],
)
def test_readiness_follows_the_state_of_the_broker(state: dict[str, Any], reasons: list[str], ready: bool) -> None:
    health = Health(StatedBroker(**state))
    fine, text = health.ready()
    document = json.loads(text)
    assert (fine, document["status"]) == (ready, "ready" if ready else "not-ready")
    assert [each["reason"] for each in document["reasons"]] == reasons
    assert all(each["detail"].endswith(".") or each["reason"] == "disk-full" for each in document["reasons"])
    assert health.live()[0]


def test_only_the_first_ten_failed_logs_are_named() -> None:
    _, text = Health(StatedBroker(failed=[f"t-{number}" for number in range(40)])).ready()
    assert "t-9 and 30 more" in text


def test_loop_lag_counts_the_last_beats_and_an_overdue_one() -> None:
    lag = LoopLag(0.5)
    assert lag.beat(10.0) == 0.0
    assert lag.beat(10.5) == 0.0
    assert lag.beat(13.0) == pytest.approx(2.0)
    assert lag.seconds(13.1) == pytest.approx(2.0)
    assert lag.seconds(20.0) == pytest.approx(6.5)
    now = 13.5
    for _ in range(10):
        lag.beat(now)
        now += 0.5
    assert lag.seconds(now - 0.5) == 0.0


def test_a_full_disk_makes_the_broker_unready_until_an_append_succeeds(monkeypatch: pytest.MonkeyPatch) -> None:
    with EmbeddedBroker(topics={"t": 1}, metrics_port=0) as broker:
        port = broker.metrics_port
        assert port is not None
        assert http_get(port, "/health/ready") == (200, {"status": "ready", "reasons": []})
        assert http_get(port, "/health/live") == (200, {"status": "live", "reasons": []})
        running = broker._running
        assert running is not None
        assert running.server.services is not None
        running.server.services.logs.no_room = "no room for partition t-0."
        status, document = http_get(port, "/health/ready")
        assert (status, document["reasons"][0]["reason"]) == (503, "disk-full")
        broker.produce("t", ["an append that succeeds"])
        assert http_get(port, "/health/ready")[0] == 200


def test_a_broker_that_loads_its_logs_is_live_and_not_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    go_on = threading.Event()

    def open_slowly(*arguments: Any, **settings: Any) -> LogDirectory:
        assert go_on.wait(PATIENCE_SECONDS)
        return LogDirectory(*arguments, **settings)

    monkeypatch.setattr("headrace.broker.services.LogDirectory", open_slowly)
    broker = EmbeddedBroker(metrics_port=0)
    starting = threading.Thread(target=broker.start)
    starting.start()
    try:
        port = wait_until(
            lambda: broker._running.server.metrics_port if broker._running else None, "the port of the metrics"
        )
        status, document = http_get(port, "/health/ready")
        assert (status, [each["reason"] for each in document["reasons"]]) == (503, ["loading"])
        assert http_get(port, "/health/live")[0] == 200
        assert b'KafkaServer_Value{name="BrokerState"} 1.0' in http_get(port, "/metrics")[1]
    finally:
        go_on.set()
        starting.join(PATIENCE_SECONDS)
    try:
        assert http_get(port, "/health/ready")[0] == 200
    finally:
        broker.stop()
