"""Users, their logins, and our client on a listener of each kind."""

from __future__ import annotations

from tests.harness.certificates import Certificates

from headrace.broker.embedded import EmbeddedBroker
from headrace.client.network_client import NetworkClient

PLAIN_JAAS = (
    "org.apache.kafka.common.security.plain.PlainLoginModule required "
    'username="admin" password="pw-admin" user_alice="pw-alice";'
)


USERS = ("SCRAM-SHA-256=[name=bob,password=pw-bob]", "SCRAM-SHA-512=[name=bob,password=pw-bob]")


LISTENERS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")


def login(mechanism: str, username: str, password: str) -> dict[str, str]:
    return {"sasl.mechanism": mechanism, "sasl.username": username, "sasl.password": password}


ALICE = login("PLAIN", "alice", "pw-alice")


BOB = login("SCRAM-SHA-512", "bob", "pw-bob")


def our_client(broker: EmbeddedBroker, listener: str, protocol: str, **settings: str) -> NetworkClient:
    named = {name.replace("_", "."): value for name, value in settings.items()}
    server = f"127.0.0.1:{broker.ports[listener]}"
    return NetworkClient(server, security={"security.protocol": protocol, **named}, bootstrap_timeout_ms=30_000)


def trusting(certificates: Certificates, protocol: str) -> dict[str, str]:
    return {"ssl.truststore.location": str(certificates.authority)} if "SSL" in protocol else {}
