"""The same SASL conversations and SCRAM requests with Apache Kafka and with us; our client on Kafka's SASL_SSL."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.broker.certificates import Certificates
from tests.interop.kafka_broker import KafkaBroker
from tests.interop.sasl_sequences import SEQUENCES, Conversation
from tests.interop.scram_requests import ALTERATIONS, DESCRIPTIONS, altered, described

from penstock.broker.embedded import EmbeddedBroker
from penstock.client.network_client import NetworkClient
from penstock.errors import CannotConnect

pytestmark = pytest.mark.interop

JAAS = (
    "org.apache.kafka.common.security.plain.PlainLoginModule required "
    'username="x" password="y" user_alice="pw-alice" user_carol="pw-carol";'
)
SCRAM_JAAS = "org.apache.kafka.common.security.scram.ScramLoginModule required;"
SETTINGS = {
    "listener.name.clients.sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
    "listener.name.clients.plain.sasl.jaas.config": JAAS,
    "listener.name.clients.connections.max.reauth.ms": 60000,
}
USERS = ["SCRAM-SHA-256=[name=bob,password=pw-bob]", "SCRAM-SHA-512=[name=bob,password=pw-bob]"]


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def kafka(certificates: Certificates) -> Iterator[KafkaBroker]:
    properties = {
        **SETTINGS,
        "listener.name.clients.scram-sha-256.sasl.jaas.config": SCRAM_JAAS,
        "listener.name.clients.scram-sha-512.sasl.jaas.config": SCRAM_JAAS,
        "listener.name.secure.sasl.enabled.mechanisms": "SCRAM-SHA-512",
        "listener.name.secure.scram-sha-512.sasl.jaas.config": SCRAM_JAAS,
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": certificates.server,
    }
    listeners = {"CLIENTS": "SASL_PLAINTEXT", "SECURE": "SASL_SSL"}
    with KafkaBroker(properties=properties, listeners=listeners, scram_users=USERS) as broker:
        yield broker


@pytest.fixture(scope="module")
def ours() -> Iterator[EmbeddedBroker]:
    config = {
        **SETTINGS,
        "listeners": "CLIENTS://127.0.0.1:0,PLAINTEXT://127.0.0.1:0",
        "listener.security.protocol.map": "CLIENTS:SASL_PLAINTEXT,PLAINTEXT:PLAINTEXT",
    }
    with EmbeddedBroker(config=config) as broker:
        broker.add_scram_users(USERS)
        yield broker


@pytest.mark.parametrize("name", SEQUENCES)
def test_a_conversation_goes_as_with_kafka(name: str, kafka: KafkaBroker, ours: EmbeddedBroker) -> None:
    heard = []
    for port in (kafka.ports["CLIENTS"], ours.ports["CLIENTS"]):
        conversation = Conversation(port)
        try:
            SEQUENCES[name](conversation)
        finally:
            conversation.close()
        heard.append(conversation.heard)
    assert heard[1] == heard[0]
    assert heard[0]


def test_scram_credentials_are_set_and_told_as_by_kafka(kafka: KafkaBroker, ours: EmbeddedBroker) -> None:
    theirs: list[object] = []
    our_answers: list[object] = []
    for servers, answers in (
        (kafka.bootstrap_servers, theirs),
        (f"127.0.0.1:{ours.ports['PLAINTEXT']}", our_answers),
    ):
        with NetworkClient(servers) as client:
            for name, changes in ALTERATIONS.items():
                answers.append((name, altered(client, changes)))
            for name, users in DESCRIPTIONS.items():
                answers.append((name, described(client, users)))
    assert our_answers == theirs


def test_our_client_on_kafkas_sasl_ssl(kafka: KafkaBroker, certificates: Certificates) -> None:
    settings = {
        "security.protocol": "SASL_SSL",
        "ssl.truststore.location": str(certificates.authority),
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": "bob",
        "sasl.password": "pw-bob",
    }
    servers = f"127.0.0.1:{kafka.ports['SECURE']}"
    with NetworkClient(servers, security=settings) as client:
        assert [broker.port for broker in client.metadata().brokers.values()] == [kafka.ports["SECURE"]]
    with NetworkClient(servers, security={**settings, "sasl.password": "no"}) as client:
        with pytest.raises(CannotConnect) as refused:
            client.metadata()
        assert refused.value.code == "authentication-failed"


def test_kafkas_tools_on_our_sasl_ssl(kafka: KafkaBroker, certificates: Certificates, tmp_path: Path) -> None:
    config = {
        "listeners": "SASL_SSL://127.0.0.1:0",
        "sasl.enabled.mechanisms": "SCRAM-SHA-512",
        "ssl.keystore.location": str(certificates.server),
    }
    with EmbeddedBroker({"t": 1}, config=config) as broker:
        broker.add_scram_users(["SCRAM-SHA-512=[name=admin,password=pw-admin]"])
        files = {}
        for user in ("admin", "dave"):
            files[user] = tmp_path / f"{user}.properties"
            files[user].write_text(
                "security.protocol=SASL_SSL\nsasl.mechanism=SCRAM-SHA-512\nssl.truststore.type=PEM\n"
                f"ssl.truststore.location={certificates.authority}\n"
                "sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required "
                f'username="{user}" password="pw-{user}";\n'
            )
        server = ["--bootstrap-server", broker.bootstrap_servers]
        configs = [*server, "--entity-type", "users", "--command-config", str(files["admin"])]
        added = [*configs, "--alter", "--entity-name", "dave", "--add-config", "SCRAM-SHA-512=[password=pw-dave]"]
        assert "Completed updating config for user dave" in kafka.run_tool("kafka.admin.ConfigCommand", added)
        told = kafka.run_tool("kafka.admin.ConfigCommand", [*configs, "--describe"])
        assert "SCRAM credential configs for user-principal 'dave' are SCRAM-SHA-512=iterations=4096" in told
        # The user that Kafka's tool has made logs in.
        told = kafka.run_tool(
            "org.apache.kafka.tools.BrokerApiVersionsCommand", [*server, "--command-config", str(files["dave"])]
        )
        assert "SaslAuthenticate(36)" in told
