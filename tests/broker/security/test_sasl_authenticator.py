"""SASL logins with real clients: wrong passwords, mechanisms, and sessions that end."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from tests.broker.network.secured_clients import ALICE, BOB, USERS, login
from tests.harness.certificates import Certificates

from headrace.broker.embedded import EmbeddedBroker
from headrace.broker.manual_clock import ManualClock
from headrace.client.network_client import NetworkClient
from headrace.errors import CannotConnect

pytestmark = pytest.mark.foreign


@pytest.mark.parametrize(
    "who",
    [
        login("PLAIN", "alice", "wrong"),
        login("PLAIN", "nobody", "wrong"),
        login("SCRAM-SHA-512", "bob", "wrong"),
        login("SCRAM-SHA-512", "nobody", "wrong"),
    ],
)
def test_a_wrong_password_is_told_and_no_secret_is(
    who: dict[str, str], secured_broker: EmbeddedBroker, caplog: pytest.LogCaptureFixture
) -> None:
    settings = {"security.protocol": "SASL_PLAINTEXT", **who}
    with caplog.at_level(logging.DEBUG), pytest.raises(CannotConnect) as raised:
        NetworkClient(f"127.0.0.1:{secured_broker.ports['SASL_PLAINTEXT']}", security=settings).metadata()
    assert raised.value.code == "authentication-failed"
    assert "wrong" not in raised.value.render() + caplog.text
    assert "pw-" not in raised.value.render() + caplog.text


def test_a_mechanism_that_is_not_offered_is_told(certificates: Certificates) -> None:
    config = {"listeners": "SASL_PLAINTEXT://127.0.0.1:0", "sasl.enabled.mechanisms": "SCRAM-SHA-256"}
    with EmbeddedBroker(config=config) as broker, pytest.raises(CannotConnect) as raised:
        NetworkClient(broker.bootstrap_servers, security={"security.protocol": "SASL_PLAINTEXT", **ALICE}).metadata()
    assert raised.value.code == "authentication-failed"
    assert "SCRAM-SHA-256" in raised.value.message


def test_expired_sasl_session_closes_the_connection_until_reauthentication() -> None:
    clock = ManualClock()
    config = {
        "listeners": "SASL_PLAINTEXT://127.0.0.1:0",
        "sasl.enabled.mechanisms": "SCRAM-SHA-512",
        "connections.max.reauth.ms": 60_000,
    }
    with EmbeddedBroker(config=config, clock=clock) as broker:
        broker.add_scram_users(USERS)
        with NetworkClient(broker.bootstrap_servers, security={"security.protocol": "SASL_PLAINTEXT", **BOB}) as client:
            assert client.metadata().brokers
            connection = next(iter(client._connections.values()))
            clock.advance(seconds=30)
            connection._log_in_again_s = 0.0  # as if its share of the session were over
            assert client.metadata(refresh=True).brokers
            assert not connection.closed
            clock.advance(seconds=59)
            assert client.metadata(refresh=True).brokers
            assert not connection.closed
            clock.advance(seconds=2)
            assert client.metadata(refresh=True).brokers  # on a new connection
            assert connection.closed
        samples = broker.metrics()
    of_listener = 'kafka_server_socket_server_metrics_%s{listener="SASL_PLAINTEXT",networkProcessor="0"}'
    assert samples[of_listener % "successful_authentication_total"] == 2
    assert samples[of_listener % "successful_reauthentication_total"] == 1
    assert samples[of_listener % "expired_connections_killed_count"] == 1
    assert samples[of_listener % "failed_authentication_total"] == 0


def test_librdkafka_is_told_of_a_wrong_password(secured_broker: EmbeddedBroker) -> None:
    heard: list[str] = []
    wrong = login("SCRAM-SHA-512", "bob", "wrong")
    server = f"127.0.0.1:{secured_broker.ports['SASL_PLAINTEXT']}"
    settings: dict[str, Any] = {"bootstrap.servers": server, "security.protocol": "SASL_PLAINTEXT", **wrong}
    client = AdminClient(settings | {"error_cb": lambda error: heard.append(error.name())})
    with pytest.raises(KafkaException):
        client.list_topics(timeout=0.5)
    for _ in range(60):
        if "_AUTHENTICATION" in heard:
            break
        client.poll(0.5)
    assert "_AUTHENTICATION" in heard
