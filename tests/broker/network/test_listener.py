"""Listeners of every kind with real clients: who gets in, who does not, and what nobody learns."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import warnings

import pytest
from aiokafka import AIOKafkaConsumer
from aiokafka.helpers import create_ssl_context
from confluent_kafka.admin import AdminClient
from tests.broker.network.secured_clients import ALICE, BOB, LISTENERS, USERS, login, our_client, trusting
from tests.harness.certificates import Certificates

from headrace.broker.embedded import EmbeddedBroker
from headrace.client.network_client import NetworkClient
from headrace.errors import CannotConnect

pytestmark = pytest.mark.foreign


WAYS: list[tuple[str, dict[str, str]]] = [("PLAINTEXT", {}), ("SSL", {})]
WAYS += [
    (protocol, who)
    for protocol in ("SASL_PLAINTEXT", "SASL_SSL")
    for who in (ALICE, BOB, login("SCRAM-SHA-256", "bob", "pw-bob"))
]


@pytest.mark.parametrize(("protocol", "who"), WAYS)
def test_each_listener_accepts_its_clients_and_advertises_itself(
    protocol: str, who: dict[str, str], secured_broker: EmbeddedBroker, certificates: Certificates
) -> None:
    port = secured_broker.ports[protocol]
    settings = {"security.protocol": protocol, **trusting(certificates, protocol), **who}
    with NetworkClient(f"127.0.0.1:{port}", security=settings) as client:
        assert [each.port for each in client.metadata().brokers.values()] == [port]
    authority = {"ssl.ca.location": str(certificates.authority)} if "SSL" in protocol else {}
    librdkafka = AdminClient(
        {"bootstrap.servers": f"127.0.0.1:{port}", "security.protocol": protocol, **authority, **who}
    )
    assert "t" in librdkafka.list_topics(timeout=30).topics


def test_kafka_python_and_aiokafka_come_in_by_sasl_ssl(
    secured_broker: EmbeddedBroker, certificates: Certificates
) -> None:
    server = f"localhost:{secured_broker.ports['SASL_SSL']}"
    common = {"bootstrap_servers": server, "security_protocol": "SASL_SSL", "sasl_mechanism": "SCRAM-SHA-512"}
    user = {"sasl_plain_username": "bob", "sasl_plain_password": "pw-bob"}
    with warnings.catch_warnings():  # of kafka-python's own import
        warnings.simplefilter("ignore")
        from kafka import KafkaConsumer
    consumer = KafkaConsumer(**common, **user, ssl_cafile=str(certificates.authority))
    try:
        assert "t" in consumer.topics()
    finally:
        consumer.close()

    async def topics() -> set[str]:
        context = create_ssl_context(cafile=str(certificates.authority))
        one = AIOKafkaConsumer(**common, **user, ssl_context=context)
        try:
            await one.start()
            return set(await one.topics())
        finally:
            await one.stop()

    assert "t" in asyncio.run(topics())


@pytest.mark.parametrize("listener", ["SSL", "SASL_PLAINTEXT"])
def test_a_stranger_who_says_nothing_is_closed(listener: str, certificates: Certificates) -> None:
    config = {
        "listeners": f"{listener}://127.0.0.1:0",
        "ssl.keystore.location": str(certificates.server),
        "sasl.enabled.mechanisms": "SCRAM-SHA-256",
        "headrace.authentication.timeout.ms": 100,
    }
    with EmbeddedBroker(config=config) as broker:
        address = ("127.0.0.1", broker.ports[listener])
        with socket.create_connection(address, timeout=30) as silent, contextlib.suppress(ConnectionError):
            assert silent.recv(1) == b""


def test_logins_and_connections_are_counted_by_listener(certificates: Certificates) -> None:
    config = {
        "listeners": ",".join(f"{name}://127.0.0.1:0" for name in LISTENERS),
        "ssl.keystore.location": str(certificates.server),
        "sasl.enabled.mechanisms": "SCRAM-SHA-512",
    }
    with EmbeddedBroker(config=config) as broker:
        broker.add_scram_users(USERS)
        for protocol in LISTENERS:
            who = BOB if "SASL" in protocol else {}
            with our_client(broker, protocol, protocol, **trusting(certificates, protocol), **who) as client:
                assert client.metadata().brokers
        for protocol, settings in (("SASL_SSL", login("SCRAM-SHA-512", "bob", "no")), ("SSL", {})):
            trusted = trusting(certificates, protocol) if settings else {}  # without: the client breaks off
            with pytest.raises(CannotConnect), our_client(broker, protocol, protocol, **trusted, **settings) as client:
                client.metadata()
        samples = broker.metrics()

    def of(listener: str, what: str) -> float:
        return samples[f'kafka_server_socket_server_metrics_{what}{{listener="{listener}",networkProcessor="0"}}']

    assert {name: of(name, "successful_authentication_total") for name in LISTENERS} == {
        "PLAINTEXT": 0,  # as in Kafka: there is nothing to succeed in
        "SSL": 1,
        "SASL_PLAINTEXT": 1,
        "SASL_SSL": 1,
    }
    assert {name: of(name, "failed_authentication_total") > 0 for name in LISTENERS} == {
        "PLAINTEXT": False,
        "SSL": True,
        "SASL_PLAINTEXT": False,
        "SASL_SSL": True,
    }
    assert all(of(name, "connection_creation_total") > 0 for name in LISTENERS)
