"""Listeners of every kind with real clients: who gets in, who does not, and what nobody learns."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import socket
import ssl
import stat
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer
from aiokafka.helpers import create_ssl_context
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from tests.harness.certificates import Certificates

from headrace.broker.config.broker_configuration import BrokerConfiguration
from headrace.broker.embedded import EmbeddedBroker
from headrace.broker.manual_clock import ManualClock
from headrace.broker.security.certificate_name import map_name, parse_mapping_rules, subject_name
from headrace.client.network_client import NetworkClient
from headrace.errors import CannotConnect, ConfigError

PLAIN_JAAS = (
    "org.apache.kafka.common.security.plain.PlainLoginModule required "
    'username="admin" password="pw-admin" user_alice="pw-alice";'
)
pytestmark = pytest.mark.foreign

USERS = ("SCRAM-SHA-256=[name=bob,password=pw-bob]", "SCRAM-SHA-512=[name=bob,password=pw-bob]")
LISTENERS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")


@pytest.fixture(scope="module")
def broker(certificates: Certificates) -> Iterator[EmbeddedBroker]:
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


def login(mechanism: str, username: str, password: str) -> dict[str, str]:
    return {"sasl.mechanism": mechanism, "sasl.username": username, "sasl.password": password}


ALICE = login("PLAIN", "alice", "pw-alice")
BOB = login("SCRAM-SHA-512", "bob", "pw-bob")
WAYS: list[tuple[str, dict[str, str]]] = [("PLAINTEXT", {}), ("SSL", {})]
WAYS += [
    (protocol, who)
    for protocol in ("SASL_PLAINTEXT", "SASL_SSL")
    for who in (ALICE, BOB, login("SCRAM-SHA-256", "bob", "pw-bob"))
]


def our_client(broker: EmbeddedBroker, listener: str, protocol: str, **settings: str) -> NetworkClient:
    named = {name.replace("_", "."): value for name, value in settings.items()}
    server = f"127.0.0.1:{broker.ports[listener]}"
    return NetworkClient(server, security={"security.protocol": protocol, **named}, bootstrap_timeout_ms=30_000)


def trusting(certificates: Certificates, protocol: str) -> dict[str, str]:
    return {"ssl.truststore.location": str(certificates.authority)} if "SSL" in protocol else {}


@pytest.mark.parametrize(("protocol", "who"), WAYS)
def test_every_kind_of_listener_takes_its_clients_and_names_its_own_address(
    protocol: str, who: dict[str, str], broker: EmbeddedBroker, certificates: Certificates
) -> None:
    port = broker.ports[protocol]
    settings = {"security.protocol": protocol, **trusting(certificates, protocol), **who}
    with NetworkClient(f"127.0.0.1:{port}", security=settings) as client:
        assert [each.port for each in client.metadata().brokers.values()] == [port]
    authority = {"ssl.ca.location": str(certificates.authority)} if "SSL" in protocol else {}
    librdkafka = AdminClient(
        {"bootstrap.servers": f"127.0.0.1:{port}", "security.protocol": protocol, **authority, **who}
    )
    assert "t" in librdkafka.list_topics(timeout=30).topics


def test_kafka_python_and_aiokafka_come_in_by_sasl_ssl(broker: EmbeddedBroker, certificates: Certificates) -> None:
    server = f"localhost:{broker.ports['SASL_SSL']}"
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
    who: dict[str, str], broker: EmbeddedBroker, caplog: pytest.LogCaptureFixture
) -> None:
    settings = {"security.protocol": "SASL_PLAINTEXT", **who}
    with caplog.at_level(logging.DEBUG), pytest.raises(CannotConnect) as raised:
        NetworkClient(f"127.0.0.1:{broker.ports['SASL_PLAINTEXT']}", security=settings).metadata()
    assert raised.value.code == "authentication-failed"
    assert "wrong" not in raised.value.render() + caplog.text
    assert "pw-" not in raised.value.render() + caplog.text


def test_a_mechanism_that_is_not_offered_is_told(certificates: Certificates) -> None:
    config = {"listeners": "SASL_PLAINTEXT://127.0.0.1:0", "sasl.enabled.mechanisms": "SCRAM-SHA-256"}
    with EmbeddedBroker(config=config) as broker, pytest.raises(CannotConnect) as raised:
        NetworkClient(broker.bootstrap_servers, security={"security.protocol": "SASL_PLAINTEXT", **ALICE}).metadata()
    assert raised.value.code == "authentication-failed"
    assert "SCRAM-SHA-256" in raised.value.message


def test_whom_a_client_does_not_trust_it_does_not_talk_to(
    broker: EmbeddedBroker, certificates: Certificates, tmp_path_factory: pytest.TempPathFactory
) -> None:
    stranger = Certificates(tmp_path_factory.mktemp("stranger"))
    expired = certificates.issue("expired", "/CN=localhost", "DNS:localhost,IP:127.0.0.1", days=-1)
    elsewhere = certificates.issue("elsewhere", "/CN=elsewhere", "DNS:elsewhere")
    said = {}
    with our_client(broker, "SSL", "SSL", ssl_truststore_location=str(stranger.authority)) as client:
        with pytest.raises(CannotConnect) as raised:
            client.metadata()
        said["untrusted"] = raised.value
    for name, pem in (("expired", expired), ("elsewhere", elsewhere)):
        config = {"listeners": "SSL://127.0.0.1:0", "ssl.keystore.location": str(pem)}
        with EmbeddedBroker(config=config) as other:
            with our_client(other, "SSL", "SSL", ssl_truststore_location=str(certificates.authority)) as client:
                with pytest.raises(CannotConnect) as raised:
                    client.metadata()
                said[name] = raised.value
            if name == "elsewhere":
                trusting_all = {"ssl.endpoint.identification.algorithm": "", **trusting(certificates, "SSL")}
                security = {"security.protocol": "SSL", **trusting_all}
                with NetworkClient(other.bootstrap_servers, security=security) as client:
                    assert client.metadata().brokers
    assert {error.code for error in said.values()} == {"tls-failed"}
    assert "expired" in said["expired"].message
    assert "127.0.0.1" in said["elsewhere"].message


def test_mutual_tls_asks_for_a_certificate_and_takes_its_name(
    broker: EmbeddedBroker, certificates: Certificates
) -> None:
    trusted = str(certificates.authority)
    pem = certificates.issue("client", "/C=DE/O=Flights, Inc./OU=app/CN=client")
    with our_client(broker, "MUTUAL", "SSL", ssl_truststore_location=trusted, ssl_keystore_location=str(pem)) as client:
        assert client.metadata().brokers
    server = f"127.0.0.1:{broker.ports['MUTUAL']}"
    security = {"security.protocol": "SSL", "ssl.truststore.location": trusted}
    with NetworkClient(server, security=security, bootstrap_timeout_ms=1_000) as client, pytest.raises(CannotConnect):
        client.metadata()
    der = ssl.PEM_cert_to_DER_cert("-----BEGIN CERTIFICATE" + pem.read_text().split("-----BEGIN CERTIFICATE")[1])
    name = subject_name(der)
    assert name == "CN=client,OU=app,O=Flights\\, Inc.,C=DE"
    assert map_name(parse_mapping_rules("RULE:^CN=(.*?),OU=app,.*$/$1/U,DEFAULT"), name) == "CLIENT"
    assert map_name(parse_mapping_rules("RULE:^CN=(.*?),OU=other$/$1/, DEFAULT"), name) == name
    assert map_name(parse_mapping_rules("RULE:^CN=(.*?),OU=other$/$1/L"), name) is None


def test_the_wrong_kind_of_client_is_closed_and_told_why(
    broker: EmbeddedBroker, certificates: Certificates, caplog: pytest.LogCaptureFixture
) -> None:
    context = ssl.create_default_context(cafile=str(certificates.authority))
    plaintext = ("127.0.0.1", broker.ports["PLAINTEXT"])
    with socket.create_connection(plaintext, timeout=20) as connection, pytest.raises(OSError):
        context.wrap_socket(connection, server_hostname="localhost")
    with socket.create_connection(("127.0.0.1", broker.ports["SSL"]), timeout=20) as connection:
        connection.sendall(b"\0\0\0\x0c\0\x12\0\0\0\0\0\7\0\2hi")
        while True:
            try:
                if not connection.recv(1024):
                    break
            except ConnectionError:
                break
    assert "it speaks TLS, and this listener does not" in caplog.text


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


def test_a_session_that_is_over_ends_the_connection_and_a_client_logs_in_again() -> None:
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


def test_scram_credentials_survive_a_kill_and_nobody_else_reads_them() -> None:
    config = {"listeners": "SASL_PLAINTEXT://127.0.0.1:0", "sasl.enabled.mechanisms": "SCRAM-SHA-512"}
    with EmbeddedBroker(config=config) as broker:
        broker.add_scram_users(USERS)
        file = broker.data_dir / "headrace-scram.json"
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        assert "pw-bob" not in file.read_text()
        assert set(json.loads(file.read_text())["users"]["bob"]["SCRAM-SHA-512"]) == {
            "iterations", "salt", "server_key", "stored_key",
        }  # fmt: skip
        broker.kill()
        broker.restart()
        with NetworkClient(broker.bootstrap_servers, security={"security.protocol": "SASL_PLAINTEXT", **BOB}) as client:
            assert client.metadata().brokers


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"listeners": "SSL://127.0.0.1:0"}, "no certificate"),
        ({"listeners": "SASL_PLAINTEXT://127.0.0.1:0"}, "GSSAPI"),
        ({"listeners": "SASL_PLAINTEXT://127.0.0.1:0", "sasl.enabled.mechanisms": "PLAIN"}, "knows no user"),
        ({"listeners": "SSL://127.0.0.1:0", "ssl.keystore.location": "/nowhere.pem"}, "cannot be read"),
        ({"listeners": "SSL://127.0.0.1:0", "ssl.enabled.protocols": "TLSv1.1,TLSv1.2"}, "TLS 1.2"),
    ],
)
def test_a_listener_that_cannot_be_is_told_at_the_start(settings: dict[str, str], said: str) -> None:
    with pytest.raises(ConfigError) as raised, EmbeddedBroker(config=settings):
        pass
    assert said in raised.value.message


def test_a_key_store_of_java_says_how_to_convert_it(tmp_path_factory: pytest.TempPathFactory) -> None:
    store = tmp_path_factory.mktemp("java") / "store.jks"
    store.write_bytes(bytes.fromhex("feedfeed00000002"))
    with (
        pytest.raises(ConfigError) as raised,
        EmbeddedBroker(config={"listeners": "SSL://127.0.0.1:0", "ssl.keystore.location": str(store)}),
    ):
        pass
    assert "openssl pkcs12" in raised.value.fix


@pytest.mark.parametrize(
    "settings",
    [
        {"listeners": "A://127.0.0.1:0"},
        {"listeners": "PLAINTEXT://127.0.0.1:1,SSL://127.0.0.1:1"},
        {"advertised.listeners": "SSL://127.0.0.1:9093"},
        {"listener.name.other.ssl.client.auth": "required"},
        {"listener.security.protocol.map": "PLAINTEXT:TCP"},
    ],
)
def test_listeners_that_contradict_themselves_are_refused(settings: dict[str, str]) -> None:
    with pytest.raises(ConfigError):
        BrokerConfiguration.from_settings("/tmp/x", settings=settings)


def test_librdkafka_is_told_of_a_wrong_password(broker: EmbeddedBroker) -> None:
    heard: list[str] = []
    wrong = login("SCRAM-SHA-512", "bob", "wrong")
    server = f"127.0.0.1:{broker.ports['SASL_PLAINTEXT']}"
    settings: dict[str, Any] = {"bootstrap.servers": server, "security.protocol": "SASL_PLAINTEXT", **wrong}
    client = AdminClient(settings | {"error_cb": lambda error: heard.append(error.name())})
    with pytest.raises(KafkaException):
        client.list_topics(timeout=0.5)
    for _ in range(60):
        if "_AUTHENTICATION" in heard:
            break
        client.poll(0.5)
    assert "_AUTHENTICATION" in heard


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
