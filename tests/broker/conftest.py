"""A fresh broker per test, connections to it, and a broker in a process of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.broker.network.secured_clients import LISTENERS, PLAIN_JAAS, USERS
from tests.harness.brokers import BrokerEngineProcess, Connect, broker_fixture
from tests.harness.certificates import Certificates
from tests.harness.wire import WireClient

from headrace.broker.embedded import EmbeddedBroker

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient

broker = broker_fixture()


@pytest.fixture
def connect() -> Iterator[Connect]:
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


@pytest.fixture
def admin(broker: EmbeddedBroker) -> AdminClient:
    """librdkafka's admin client; imported late, because most tests here need none."""
    from confluent_kafka.admin import AdminClient

    return AdminClient({"bootstrap.servers": broker.bootstrap_servers})


@pytest.fixture(scope="module")
def secured_broker(certificates: Certificates) -> Iterator[EmbeddedBroker]:
    """A broker with a listener of each kind, and one that asks for certificates."""
    config = {
        "listeners": ",".join([*(f"{name}://127.0.0.1:0" for name in LISTENERS), "MUTUAL://127.0.0.1:0"]),
        "listener.security.protocol.map": ",".join([*(f"{name}:{name}" for name in LISTENERS), "MUTUAL:SSL"]),
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(certificates.server),
        "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
        "listener.name.sasl_plaintext.plain.sasl.jaas.config": PLAIN_JAAS,
        "listener.name.sasl_ssl.plain.sasl.jaas.config": PLAIN_JAAS,
        "listener.name.mutual.ssl.client.auth": "required",
        "listener.name.mutual.ssl.truststore.location": str(certificates.authority),
    }
    with EmbeddedBroker({"t": 1}, config=config) as running:
        running.add_scram_users(USERS)
        yield running
