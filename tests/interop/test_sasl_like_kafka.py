"""The same SASL conversations and SCRAM requests with Apache Kafka and with us; our client on Kafka's SASL_SSL."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.client.running_consumers import RunningConsumer
from tests.harness.certificates import Certificates
from tests.harness.polling import wait_until
from tests.interop.kafka_broker import KafkaBroker
from tests.interop.sasl_sequences import SEQUENCES, Conversation
from tests.interop.scram_requests import ALTERATIONS, DESCRIPTIONS, altered, described

from headrace.broker.embedded import EmbeddedBroker
from headrace.client.admin import Admin
from headrace.client.consumer.consumer import Consumer
from headrace.client.network_client import NetworkClient
from headrace.client.plain_records import PlainRecord, produce
from headrace.errors import CannotConnect, HeadraceError

pytestmark = pytest.mark.interop

JAAS = (
    "org.apache.kafka.common.security.plain.PlainLoginModule required "
    'username="x" password="y" user_alice="pw-alice" user_carol="pw-carol";'
)
SCRAM_JAAS = "org.apache.kafka.common.security.scram.ScramLoginModule required;"
TOKEN_JAAS = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required;"
TOKEN_VALIDATOR = (
    "org.apache.kafka.common.security.oauthbearer.internals.unsecured.OAuthBearerUnsecuredValidatorCallbackHandler"
)
SETTINGS = {
    "listener.name.clients.sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
    "listener.name.clients.plain.sasl.jaas.config": JAAS,
    "listener.name.clients.connections.max.reauth.ms": 60000,
}
USERS = ["SCRAM-SHA-256=[name=bob,password=pw-bob]", "SCRAM-SHA-512=[name=bob,password=pw-bob]"]


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
        "listener.name.tokens.sasl.enabled.mechanisms": "OAUTHBEARER",
        "listener.name.tokens.oauthbearer.sasl.jaas.config": TOKEN_JAAS,
        "listener.name.tokens.oauthbearer.sasl.server.callback.handler.class": TOKEN_VALIDATOR,
        "listener.name.tokens.connections.max.reauth.ms": 60000,  # else no session ends, not even with its token
    }
    listeners = {"CLIENTS": "SASL_PLAINTEXT", "SECURE": "SASL_SSL", "TOKENS": "SASL_PLAINTEXT"}
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


def test_scram_credentials_are_set_and_described_as_by_kafka(kafka: KafkaBroker, ours: EmbeddedBroker) -> None:
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


def unsecured_token(*, lives_s: float, subject: str = "alice") -> str:
    """A JWT that nobody signed, which Kafka's validator for tests takes."""
    now = time.time()
    claims = {"sub": subject, "iat": now - 1, "exp": now + lives_s}
    parts = [json.dumps(part, separators=(",", ":")).encode() for part in ({"alg": "none"}, claims)]
    return ".".join(base64.urlsafe_b64encode(part).decode().rstrip("=") for part in parts) + "."


def token_settings(kafka: KafkaBroker) -> dict[str, object]:
    server = f"127.0.0.1:{kafka.ports['TOKENS']}"
    security = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "OAUTHBEARER"}
    return {"bootstrap.servers": server, **security}


def test_a_consumer_with_tokens(kafka: KafkaBroker) -> None:
    """Each token holds for some seconds: the consumer asks for another before a session ends, and stays a member."""
    given: list[str] = []

    def token() -> str:
        given.append(unsecured_token(lives_s=6))
        return given[-1]

    with NetworkClient(kafka.bootstrap_servers) as client:
        Admin(client).create_topics({"tokens": 2})
        with RunningConsumer("tokens", group_id="tokens", token_provider=token, config=token_settings(kafka)) as member:
            wait_until(lambda: len(member.assigned) == 2, "it has both")
            before = len(given)
            wait_until(lambda: len(given) >= before + 3, "each connection logs in again")
            produce(client, "tokens", [PlainRecord(value=b"late")], partition=1)
            wait_until(lambda: bool(member.read), "it reads on")
        assert not member.errors
        assert [call for call, _ in member.heard.calls] == ["assigned", "revoked"]
        assert len(set(given)) == len(given)


@pytest.mark.parametrize(
    ("token", "code"), [(lambda: unsecured_token(lives_s=-60), "authentication-failed"), (lambda: 1 / 0, "user-code")]
)
def test_a_token_that_is_not_taken(kafka: KafkaBroker, token: Callable[[], str], code: str) -> None:
    consumer = Consumer("tokens", group_id="no-tokens", token_provider=token, config=token_settings(kafka))
    with consumer, pytest.raises(HeadraceError) as raised:
        consumer.poll_records(60)
    assert raised.value.code == code
    assert "eyJ" not in raised.value.render(), "how a token begins"
