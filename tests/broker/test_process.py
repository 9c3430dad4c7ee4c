"""The broker as a service: `headrace broker` in a process of its own, its signals, its log, its notices to systemd."""

from __future__ import annotations

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
from tests.broker.test_faults import produce
from tests.harness.http import http_get
from tests.harness.wire import WireClient

from headrace.protocol import messages as m
from headrace.protocol.api_keys import ApiKey
from headrace.protocol.kio_units import from_ms

PATIENCE_SECONDS = 60.0


class Service:
    """`headrace broker` as a process, and the lines it writes to standard error."""

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
        """Return the first line that holds `text`; wait for it."""
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

    def page_port(self) -> int:
        return int(re.search(r"Page: http://127\.0\.0\.1:(\d+)/", self.line_with("Page: "))[1])  # type: ignore[index]

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


def send_without_reading(client: WireClient) -> None:
    """Request all settings of the broker again and again: tens of kilobytes in each response."""
    d = m.describe_configs_request
    resource = d.DescribeConfigsResource(resource_type=4, resource_name="1", configuration_keys=None)
    request = d.DescribeConfigsRequest(resources=(resource,), include_synonyms=True, include_documentation=True)
    while True:
        client.send(ApiKey.DESCRIBE_CONFIGS, request)


def create_topic(name: str, partitions: int = 1) -> Any:
    c = m.create_topics_request
    topic = c.CreatableTopic(name=name, num_partitions=partitions, replication_factor=1, assignments=(), configs=())
    return c.CreateTopicsRequest(topics=(topic,), timeout=from_ms(10_000))


@pytest.mark.slow
def test_a_service_notifies_systemd_logs_json_and_stops_with_code_0(
    service: Callable[..., Service], tmp_path: Path
) -> None:
    """Log lines never hold the content of a record."""
    channel = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    address = str(tmp_path / "notify")
    channel.bind(address)
    channel.settimeout(PATIENCE_SECONDS)
    try:
        running = service(
            "--log-format", "json", "--log-level", "debug", "--override", "headrace.request.log.slow.ms=0",
            NOTIFY_SOCKET=address, WATCHDOG_USEC="400000",
        )  # fmt: skip
        notices = ""
        while "READY=1" not in notices or "WATCHDOG=1" not in notices:
            notices += channel.recv(4096).decode() + "\n"
        assert http_get(running.metrics_port(), "/health/ready")[0] == 200
        client = WireClient(running.port())
        client.call(ApiKey.CREATE_TOPICS, create_topic("t"))
        client.call(ApiKey.PRODUCE, produce("t", b"open sesame"), 9)
        client.close()
        answered = json.loads(running.line_with('"api": "Produce"'))
        assert (answered["level"], answered["client_id"], answered["error"]) == ("DEBUG", "test-client", "NONE")
        running.signal(signal.SIGTERM)
        assert running.exit_code() == 0
        while "STOPPING=1" not in notices:
            notices += channel.recv(4096).decode() + "\n"
    finally:
        channel.close()
    documents = [json.loads(line) for line in running.lines]
    assert all({"time", "level", "logger", "message"} <= set(document) for document in documents)
    assert documents[-1]["message"] == "Stopped; everything is on the disk."
    assert "sesame" not in "".join(running.lines)


@pytest.mark.slow
def test_a_second_signal_ends_a_slow_graceful_stop(service: Callable[..., Service]) -> None:
    running = service("--override", "headrace.shutdown.drain.ms=3600000")
    stalled = WireClient(running.port())
    stalled.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    # A graceful stop waits for a client that sends requests and reads no response.
    stalled.socket.settimeout(5)
    with pytest.raises(TimeoutError):
        send_without_reading(stalled)
    running.signal(signal.SIGINT)
    running.line_with("a second signal ends the broker at once")
    running.signal(signal.SIGTERM)
    assert running.exit_code() == -signal.SIGTERM
    stalled.close()


@pytest.mark.slow
def test_a_start_on_a_locked_directory_fails_with_one_error_and_code_1(service: Callable[..., Service]) -> None:
    first = service()
    first.port()
    second = service()
    assert second.exit_code() == 1
    assert any(line.startswith("error[state-locked]") for line in second.lines), second.lines


@pytest.mark.slow
def test_a_running_broker_warns_about_slow_requests(service: Callable[..., Service]) -> None:
    running = service("--override", "headrace.request.log.slow.ms=1")
    client = WireClient(running.port())
    for number in range(200):
        client.call(ApiKey.CREATE_TOPICS, create_topic(f"t{number}", partitions=5))
        if any("A request was slow." in line for line in running.lines):
            break
    client.close()
    assert "api=CreateTopics" in running.line_with("A request was slow.")


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_the_page_beside_a_broker_ends_with_it(service: Callable[..., Service], number: signal.Signals) -> None:
    running = service("--ui-port", "0")
    port = running.page_port()
    status, body = http_get(port, "/")
    assert status == 200
    assert b"<html" in body
    running.signal(number)
    assert running.exit_code() == (0 if number == signal.SIGTERM else -number)
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except ConnectionRefusedError:
            return
        assert time.monotonic() < deadline, "the page outlives its broker"
        time.sleep(0.1)


def test_a_page_that_could_not_log_in_is_refused(service: Callable[..., Service]) -> None:
    secured = ("--override", "listeners=SASL_PLAINTEXT://127.0.0.1:0", "--override", "sasl.enabled.mechanisms=PLAIN")
    refused = service("--ui-port", "0", *secured)
    assert refused.exit_code() == 2
    assert any("--ui-command-config FILE" in line for line in refused.lines)
