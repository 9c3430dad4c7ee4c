"""The broker as a service: `headrace broker` in a process of its own, its signals, health, logs, systemd's notice."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.broker.test_faults import LIST_GROUPS, produce
from tests.harness.polling import wait_until
from tests.harness.wire import WireClient

from headrace.broker.embedded import EmbeddedBroker
from headrace.broker.monitoring.log_format import JsonFormatter, TextFormatter
from headrace.broker.monitoring.metrics_server import Health, LoopLag
from headrace.protocol import messages as m
from headrace.protocol.api_keys import ApiKey
from headrace.protocol.error_codes import ErrorCode
from headrace.protocol.kio_units import from_ms
from headrace.storage.log_directory import LogDirectory

PATIENCE_SECONDS = 60.0


class Service:
    """`headrace broker`, and the lines it writes to standard error."""

    def __init__(self, data_dir: Path, *options: str, **environment: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "headrace.cli.main", "broker", "--data-dir", str(data_dir), "--port", "0",
             "--metrics-port", "0", *options],
            stderr=subprocess.PIPE, text=True, env={**os.environ, **environment},
        )  # fmt: skip
        self.lines: list[str] = []
        self._grown = threading.Condition()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            with self._grown:
                self.lines.append(line.rstrip("\n"))
                self._grown.notify_all()
        with self._grown:
            self._grown.notify_all()

    def line_with(self, text: str) -> str:
        """Waits for a line that holds `text`."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        with self._grown:
            while True:
                for line in self.lines:
                    if text in line:
                        return line
                left = deadline - time.monotonic()
                assert left > 0, f"no line with {text!r} in {self.lines}"
                assert self._reader.is_alive() or any(text in line for line in self.lines), self.lines
                self._grown.wait(min(left, 0.5))

    def port(self) -> int:
        return int(re.search(r"127\.0\.0\.1:(\d+)", self.line_with("Headrace broker on"))[1])  # type: ignore[index]

    def metrics_port(self) -> int:
        return int(re.search(r"http://127\.0\.0\.1:(\d+)/metrics", self.line_with("/metrics"))[1])  # type: ignore[index]

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def exit_code(self) -> int:
        code = self.process.wait(PATIENCE_SECONDS)
        self._reader.join(PATIENCE_SECONDS)
        return code


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Callable[..., Service]]:
    started: list[Service] = []

    def start(*options: str, **environment: str) -> Service:
        started.append(Service(tmp_path / "data", *options, **environment))
        return started[-1]

    yield start
    for each in started:
        each.process.kill()
        each.exit_code()
        if each.process.stderr is not None:
            each.process.stderr.close()


def get(port: int, path: str) -> tuple[int, Any]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_SECONDS)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        body = response.read()
        return response.status, json.loads(body) if "json" in (response.getheader("Content-Type") or "") else body
    finally:
        connection.close()


# --- health ---


class House:
    """A broker in whatever state a test wants."""

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
def test_what_makes_a_broker_unready(state: dict[str, Any], reasons: list[str], ready: bool) -> None:
    health = Health(House(**state))
    fine, text = health.ready()
    document = json.loads(text)
    assert (fine, document["status"]) == (ready, "ready" if ready else "not-ready")
    assert [each["reason"] for each in document["reasons"]] == reasons
    assert all(each["detail"].endswith(".") or each["reason"] == "disk-full" for each in document["reasons"])
    assert health.live()[0]


def test_many_failed_logs_are_named_shortly() -> None:
    _, text = Health(House(failed=[f"t-{number}" for number in range(40)])).ready()
    assert "t-9 and 30 more" in text


def test_the_lag_of_the_loop_is_that_of_the_last_beats_and_of_one_that_is_overdue() -> None:
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


def test_health_over_http_and_a_disk_that_is_full(monkeypatch: pytest.MonkeyPatch) -> None:
    with EmbeddedBroker(topics={"t": 1}, metrics_port=0) as broker:
        port = broker.metrics_port
        assert port is not None
        assert get(port, "/health/ready") == (200, {"status": "ready", "reasons": []})
        assert get(port, "/health/live") == (200, {"status": "live", "reasons": []})
        running = broker._running
        assert running is not None
        assert running.server.services is not None
        running.server.services.logs.no_room = "no room for partition t-0."
        status, document = get(port, "/health/ready")
        assert (status, document["reasons"][0]["reason"]) == (503, "disk-full")
        broker.produce("t", ["an append that succeeds"])
        assert get(port, "/health/ready")[0] == 200


def test_who_asks_while_the_logs_are_read_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    go_on = threading.Event()

    def slowly(*arguments: Any, **settings: Any) -> LogDirectory:
        assert go_on.wait(PATIENCE_SECONDS)
        return LogDirectory(*arguments, **settings)

    monkeypatch.setattr("headrace.broker.services.LogDirectory", slowly)
    broker = EmbeddedBroker(metrics_port=0)
    starting = threading.Thread(target=broker.start)
    starting.start()
    try:
        port = wait_until(lambda: broker._running and broker._running.server.metrics_port, "the port of the metrics")
        status, document = get(port, "/health/ready")
        assert (status, [each["reason"] for each in document["reasons"]]) == (503, ["loading"])
        assert get(port, "/health/live")[0] == 200
        assert b'KafkaServer_Value{name="BrokerState"} 1.0' in get(port, "/metrics")[1]
    finally:
        go_on.set()
        starting.join(PATIENCE_SECONDS)
    try:
        assert get(port, "/health/ready")[0] == 200
    finally:
        broker.stop()


# --- log lines ---


def record(message: str, *arguments: object, **more: Any) -> Any:
    import logging

    made = logging.LogRecord("headrace.broker", logging.WARNING, "", 0, message, arguments, None)
    vars(made).update(more)
    return made


def test_lines_for_people_and_for_machines() -> None:
    line = record("Closed %s.", "a\nb\x1b[31m\u2028", facts={"api": "Fetch", "total_ms": 2.5})
    text = TextFormatter().format(line)
    assert text.endswith(r"WARNING Closed a\nb\x1b[31m\u2028. [api=Fetch total_ms=2.5]")
    document = json.loads(JsonFormatter().format(line))
    assert document.pop("time").endswith("Z")
    assert document == {
        "level": "WARNING",
        "logger": "headrace.broker",
        "message": "Closed a\nb\x1b[31m\u2028.",
        "api": "Fetch",
        "total_ms": 2.5,
    }
    assert "\n" not in JsonFormatter().format(line)


def test_a_traceback_stays_in_the_document() -> None:
    try:
        raise ValueError("what happened")
    except ValueError:
        line = record("It failed.", exc_info=sys.exc_info())
    assert "ValueError: what happened" in json.loads(JsonFormatter().format(line))["exception"]
    assert TextFormatter().format(line).splitlines()[-1] == "ValueError: what happened"


def test_slow_requests_are_told_and_waiting_ones_are_not(caplog: pytest.LogCaptureFixture) -> None:
    from headrace.broker.monitoring.request_metrics import RequestLog, RequestMetrics
    from headrace.protocol.fast_path import ProduceFrame
    from headrace.protocol.request_codec import RequestHeader

    def told(api_key: ApiKey, seconds: float, remote: float, slow_ms: int = 1000) -> int:
        caplog.clear()
        header = RequestHeader(api_key=api_key, api_version=3, correlation_id=1, client_id="app\n")
        RequestLog(RequestMetrics(), lambda: slow_ms).answered(
            header, object(), ("10.0.0.1", 5), seconds=seconds, queue_seconds=0.0, remote_seconds=remote
        )
        return len(caplog.records)

    caplog.set_level("INFO")
    assert told(ApiKey.PRODUCE, 1.0, 0.9) == 1
    facts: dict[str, Any] = vars(caplog.records[0])["facts"]
    assert (facts["api"], facts["total_ms"], facts["local_ms"], facts["peer"]) == (
        "Produce",
        1000.0,
        100.0,
        "10.0.0.1:5",
    )
    assert told(ApiKey.PRODUCE, 0.99, 0.0) == 0
    assert told(ApiKey.FETCH, 30.0, 29.9) == 0
    assert told(ApiKey.FETCH, 30.0, 28.0) == 1
    assert told(ApiKey.PRODUCE, 30.0, 0.0, slow_ms=0) == 0
    usual = ProduceFrame(api_version=13, correlation_id=7, client_id="app", acks=1, topics=[])
    log = RequestLog(RequestMetrics(), lambda: 1000)
    for seconds in (0.0005, 0.9, 1.1):
        log.usual(usual, ("10.0.0.1", 5), seconds, 0.0)
    assert len(caplog.records) == 1
    facts = vars(caplog.records[0])["facts"]
    assert (facts["api"], facts["version"], facts["correlation_id"], facts["total_ms"]) == ("Produce", 13, 7, 1100.0)
    caplog.set_level("DEBUG")
    assert told(ApiKey.FETCH, 0.001, 0.0) == 1
    caplog.clear()
    RequestLog(RequestMetrics(), lambda: 1000).usual(usual, ("10.0.0.1", 5), 0.0005, 0.0)
    assert len(caplog.records) == 1


# --- the process ---


@pytest.mark.slow
def test_a_service_from_start_to_stop(service: Callable[..., Service], tmp_path: Path) -> None:
    """Notice to systemd, health, one JSON document per line, never a record's content, and a stop that exits with 0."""
    channel = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    address = str(tmp_path / "notify")
    channel.bind(address)
    channel.settimeout(PATIENCE_SECONDS)
    try:
        running = service(
            "--log-format", "json", "--log-level", "debug", "--override", "headrace.request.log.slow.ms=0",
            NOTIFY_SOCKET=address, WATCHDOG_USEC="400000",
        )  # fmt: skip
        told = ""
        while "READY=1" not in told or "WATCHDOG=1" not in told:
            told += channel.recv(4096).decode() + "\n"
        assert get(running.metrics_port(), "/health/ready")[0] == 200
        client = WireClient(running.port())
        client.call(ApiKey.CREATE_TOPICS, create_topic("t"))
        client.call(ApiKey.PRODUCE, produce("t", b"open sesame"), 9)
        client.close()
        answered = json.loads(running.line_with('"api": "Produce"'))
        assert (answered["level"], answered["client_id"], answered["error"]) == ("DEBUG", "test-client", "NONE")
        running.signal(signal.SIGTERM)
        assert running.exit_code() == 0
        while "STOPPING=1" not in told:
            told += channel.recv(4096).decode() + "\n"
    finally:
        channel.close()
    documents = [json.loads(line) for line in running.lines]
    assert all({"time", "level", "logger", "message"} <= set(document) for document in documents)
    assert documents[-1]["message"] == "Stopped; everything is on the disk."
    assert "sesame" not in "".join(running.lines)


@pytest.mark.slow
def test_a_second_signal_ends_a_stop_that_takes_long(service: Callable[..., Service]) -> None:
    running = service("--override", "headrace.shutdown.drain.ms=3600000")
    rude = WireClient(running.port())
    rude.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    # A client that asks and never reads keeps a graceful stop waiting.
    rude.socket.settimeout(5)
    with pytest.raises(TimeoutError):
        ask_without_end(rude)
    running.signal(signal.SIGINT)
    running.line_with("a second signal ends the broker at once")
    running.signal(signal.SIGTERM)
    assert running.exit_code() == -signal.SIGTERM
    rude.close()


@pytest.mark.slow
def test_a_start_that_cannot_be_is_one_error_and_code_1(service: Callable[..., Service]) -> None:
    first = service()
    first.port()
    second = service()
    assert second.exit_code() == 1
    assert any(line.startswith("error[state-locked]") for line in second.lines), second.lines


@pytest.mark.slow
def test_the_slow_request_warning_of_a_running_broker(service: Callable[..., Service]) -> None:
    running = service("--override", "headrace.request.log.slow.ms=1")
    client = WireClient(running.port())
    for number in range(200):
        client.call(ApiKey.CREATE_TOPICS, create_topic(f"t{number}", partitions=5))
        if any("A request was slow." in line for line in running.lines):
            break
    client.close()
    assert "api=CreateTopics" in running.line_with("A request was slow.")


def ask_without_end(client: WireClient) -> None:
    """Each answer is tens of kilobytes: all settings of the broker."""
    d = m.describe_configs_request
    resource = d.DescribeConfigsResource(resource_type=4, resource_name="1", configuration_keys=None)
    request = d.DescribeConfigsRequest(resources=(resource,), include_synonyms=True, include_documentation=True)
    while True:
        client.send(ApiKey.DESCRIBE_CONFIGS, request)


def create_topic(name: str, partitions: int = 1) -> Any:
    c = m.create_topics_request
    topic = c.CreatableTopic(name=name, num_partitions=partitions, replication_factor=1, assignments=(), configs=())
    return c.CreateTopicsRequest(topics=(topic,), timeout=from_ms(10_000))


def test_connections_are_counted_by_why_they_ended(connect: Callable[[EmbeddedBroker], Any]) -> None:
    with EmbeddedBroker() as broker:
        left = connect(broker)
        assert left.call(ApiKey.LIST_GROUPS, LIST_GROUPS).error_code is ErrorCode.none
        left.close()
        odd = connect(broker)
        odd.socket.sendall(b"\x00\x00\x00\x03abc")
        assert odd.is_closed_by_peer()
        closed = {
            reason: f'headrace_connections_closed_total{{listener="PLAINTEXT",reason="{reason}"}}'
            for reason in ("client", "malformed-request")
        }
        wait_until(lambda: [broker.metrics().get(name) for name in closed.values()] == [1.0, 1.0])
        samples = broker.metrics()
        created = (
            'kafka_server_socket_server_metrics_connection_creation_total{listener="PLAINTEXT",networkProcessor="0"}'
        )
        assert samples[created] == 2
        assert samples["process_resident_memory_bytes"] > 1 << 20
        assert samples["process_open_fds"] > 3
