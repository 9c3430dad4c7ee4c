"""A fresh broker per test, connections to it, and a broker in a process of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.harness.brokers import BrokerEngineProcess, broker_fixture
from tests.harness.wire import WireClient

from headrace.broker.embedded import EmbeddedBroker

broker = broker_fixture()


@pytest.fixture
def connect() -> Iterator[Callable[[EmbeddedBroker], WireClient]]:
    clients: list[WireClient] = []

    def open_connection(broker: EmbeddedBroker) -> WireClient:
        clients.append(WireClient(broker.port))
        return clients[-1]

    yield open_connection
    for client in clients:
        client.close()


@pytest.fixture
def broker_process(tmp_path: Path) -> Iterator[Callable[..., BrokerEngineProcess]]:
    started: list[BrokerEngineProcess] = []

    def start(**settings: object) -> BrokerEngineProcess:
        named = {name.replace("_", "."): value for name, value in settings.items()}
        started.append(BrokerEngineProcess(tmp_path / "data", settings=named).start())
        return started[-1]

    yield start
    for process in started:
        process.kill()
