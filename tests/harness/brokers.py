"""Brokers for tests: a fixture with an embedded broker, and a broker in a process of its own.

A test module that needs its own topics or settings replaces the `broker` fixture of its package:

    broker = broker_fixture({"flights": 4}, config=STREAMS_GROUPS_WITHOUT_DELAYS, scope="module")
"""

from __future__ import annotations

import select
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, Protocol

import pytest

from headrace.broker.embedded import EmbeddedBroker

__all__ = [
    "CLASSIC_GROUPS_WITHOUT_DELAYS",
    "STREAMS_GROUPS_WITHOUT_DELAYS",
    "BrokerEngineProcess",
    "Connect",
    "RunningBroker",
    "broker_fixture",
]

STREAMS_GROUPS_WITHOUT_DELAYS: Mapping[str, object] = {
    "group.streams.initial.rebalance.delay.ms": 0,
    "group.streams.assignment.interval.ms": 0,
}
"""Settings for streams groups that assign tasks with the first heartbeat instead of after seconds."""

CLASSIC_GROUPS_WITHOUT_DELAYS: Mapping[str, object] = {"group.initial.rebalance.delay.ms": 0}
"""Settings for classic groups that complete their first rebalance at once."""

Connect = Callable[[EmbeddedBroker], Any]
"""The fixture `connect` of tests/broker: opens a connection that is closed after the test."""

PROCESS_TIMEOUT_S = 60.0


def broker_fixture(
    topics: Mapping[str, int] | None = None,
    *,
    config: Mapping[str, object] | None = None,
    scope: Literal["function", "module"] = "function",
    setup: Callable[[EmbeddedBroker], object] | None = None,
) -> Any:
    """Return a fixture named `broker` that starts an embedded broker and stops it at the end of its scope.

    Args:
        topics: Topic → number of partitions.
        config: Settings of the broker.
        scope: "module" for tests that use groups and topics of their own.
        setup: Called with the running broker, for example to write records.
    """

    @pytest.fixture(scope=scope, name="broker")
    def start_broker() -> Iterator[EmbeddedBroker]:
        with EmbeddedBroker(topics, config=config) as running:
            if setup is not None:
                setup(running)
            yield running

    return start_broker


class RunningBroker(Protocol):
    """A broker or several, of ours or of Apache Kafka, that run as processes with a log file."""

    @property
    def bootstrap_servers(self) -> str: ...
    @property
    def log(self) -> Path: ...


class BrokerEngineProcess:
    """`run_broker` in a process of its own, which can be killed and started again on the same directory and port."""

    def __init__(self, data_dir: Path, port: int = 0, settings: Mapping[str, object] | None = None) -> None:
        self.data_dir = data_dir
        self.port = port
        self._settings = dict(settings or {})
        self.errors = ""
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> BrokerEngineProcess:
        """Return when the broker listens; `port` is its port from then on."""
        program = (
            "import sys\n"
            "from headrace.broker.config.broker_configuration import BrokerConfiguration\n"
            "from headrace.broker.process import run_broker\n"
            f"configuration = BrokerConfiguration.from_settings({str(self.data_dir)!r}, port={self.port}, "
            f"settings={self._settings!r})\n"
            "run_broker(configuration, ready_callback=lambda server: print(server.port, flush=True))\n"
        )
        self.process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        assert self.process.stdout is not None
        ready, _, _ = select.select([self.process.stdout], [], [], PROCESS_TIMEOUT_S)
        line = self.process.stdout.readline() if ready else b""
        if not line.strip():
            self.process.kill()
            raise AssertionError(f"the broker did not start: {self.process.communicate()[1].decode()}")
        self.port = int(line)
        return self

    @property
    def bootstrap_servers(self) -> str:
        return f"127.0.0.1:{self.port}"

    def kill(self) -> None:
        """End the process with SIGKILL; its port and directory stay known."""
        self._end(signal.SIGKILL)

    def stop(self) -> int:
        """Return the exit code after SIGTERM; `errors` holds what the process wrote to stderr."""
        return self._end(signal.SIGTERM)

    def _end(self, number: signal.Signals) -> int:
        if self.process is None:
            return 0
        process, self.process = self.process, None
        process.send_signal(number)
        _, errors = process.communicate(timeout=PROCESS_TIMEOUT_S)
        self.errors = errors.decode()
        return process.returncode
