"""Our consumer in groups over TLS, SASL PLAIN and SCRAM; OAUTHBEARER: tests/interop/test_sasl_like_kafka.py."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.client.running_consumers import RunningConsumer
from tests.harness.certificates import Certificates
from tests.harness.polling import wait_until

from headrace.broker.embedded import EmbeddedBroker
from headrace.client.consumer.consumer import Consumer
from headrace.errors import CannotConnect

pytestmark = pytest.mark.slow

JAAS = (
    "org.apache.kafka.common.security.plain.PlainLoginModule required "
    'username="admin" password="pw-admin" user_alice="pw-alice";'
)
USERS = ("SCRAM-SHA-256=[name=bob,password=pw-bob]", "SCRAM-SHA-512=[name=bob,password=pw-bob]")
LISTENERS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")


def login(mechanism: str, username: str) -> dict[str, object]:
    return {"sasl.mechanism": mechanism, "sasl.username": username, "sasl.password": f"pw-{username}"}


WAYS: list[tuple[str, dict[str, object]]] = [
    ("SSL", {}),
    ("SASL_SSL", login("PLAIN", "alice")),
    ("SASL_SSL", login("SCRAM-SHA-512", "bob")),
    ("SASL_PLAINTEXT", login("SCRAM-SHA-256", "bob")),
]


@pytest.fixture(scope="module")
def broker(certificates: Certificates) -> Iterator[EmbeddedBroker]:
    """A login holds for two seconds only, so that clients log in again while they work."""
    config = {
        "listeners": ",".join(f"{name}://127.0.0.1:0" for name in LISTENERS),
        "listener.security.protocol.map": ",".join(f"{name}:{name}" for name in LISTENERS),
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(certificates.server),
        "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
        "listener.name.sasl_ssl.plain.sasl.jaas.config": JAAS,
        "listener.name.sasl_plaintext.plain.sasl.jaas.config": JAAS,
        "connections.max.reauth.ms": 2_000,
        "group.initial.rebalance.delay.ms": 0,
    }
    with EmbeddedBroker({"t": 2}, config=config) as running:
        running.add_scram_users(USERS)
        yield running


def settings(broker: EmbeddedBroker, protocol: str, certificates: Certificates) -> dict[str, object]:
    trusted = {"ssl.truststore.location": str(certificates.authority)} if protocol.endswith("SSL") else {}
    server = f"127.0.0.1:{broker.ports[protocol]}"
    return {"bootstrap.servers": server, "security.protocol": protocol, **trusted}


@pytest.mark.parametrize(("protocol", "who"), WAYS)
@pytest.mark.parametrize("group_protocol", ["classic", "consumer"])
def test_a_member_of_a_group(
    protocol: str, who: dict[str, object], group_protocol: str, broker: EmbeddedBroker, certificates: Certificates
) -> None:
    group = f"{protocol}-{who.get('sasl.mechanism')}-{group_protocol}"
    config = {**settings(broker, protocol, certificates), **who, "group.protocol": group_protocol}
    with RunningConsumer("t", group_id=group, config=config) as member:
        wait_until(lambda: len(member.assigned) == 2, "it has both")
        for partition in (0, 1):
            broker.produce("t", [b"v"], partition=partition)
        wait_until(lambda: {partition for _, partition, _ in member.read} == {0, 1}, "it reads")
    assert not member.errors
    assert broker.group(group).state == "Empty"
    read_to = {partition: max(at for _, p, at in member.read if p == partition) + 1 for partition in (0, 1)}
    assert {partition: offset for (_, partition), offset in broker.group(group).offsets.items()} == read_to


def test_sessions_end_and_the_member_stays(broker: EmbeddedBroker, certificates: Certificates) -> None:
    """KIP-368: each of its connections logs in anew, or is made anew; the group notices nothing."""
    config = {**settings(broker, "SASL_PLAINTEXT", certificates), **login("SCRAM-SHA-512", "bob")}
    with RunningConsumer("t", group_id="again", config=config) as member:
        wait_until(lambda: len(member.assigned) == 2, "it has both")
        generation, before = member.consumer.generation, logins(broker)
        wait_until(lambda: logins(broker) >= before + 4, "it logs in again and again")
        read = len(member.read)
        broker.produce("t", [b"late"], partition=0)
        wait_until(lambda: len(member.read) > read, "it reads on")
        assert member.consumer.generation == generation
    assert [call for call, _ in member.heard.calls] == ["assigned", "revoked"]
    assert not member.errors
    assert len(set(member.read)) == len(member.read)


def logins(broker: EmbeddedBroker) -> float:
    """Of both kinds: who was too late for a second one is a first one again."""
    samples = broker.metrics()
    labels = 'listener="SASL_PLAINTEXT",networkProcessor="0"'
    names = (f"successful_{kind}_total" for kind in ("authentication", "reauthentication"))
    return sum(samples[f"kafka_server_socket_server_metrics_{name}{{{labels}}}"] for name in names)


def test_a_wrong_password_is_told_and_is_in_no_word(broker: EmbeddedBroker, certificates: Certificates) -> None:
    wrong = {"sasl.mechanism": "PLAIN", "sasl.username": "alice", "sasl.password": "pw-of-nobody"}
    config = {**settings(broker, "SASL_SSL", certificates), **wrong}
    with Consumer("t", group_id="wrong", config=config) as consumer, pytest.raises(CannotConnect) as raised:
        consumer.poll_records(60)
    assert raised.value.code == "authentication-failed"
    assert "pw-of-nobody" not in raised.value.render() + repr(raised.value)


def test_an_authority_that_is_not_trusted_is_told(broker: EmbeddedBroker, certificates: Certificates) -> None:
    config = settings(broker, "SSL", certificates)
    config.pop("ssl.truststore.location")
    with Consumer("t", group_id="wrong", config=config) as consumer, pytest.raises(CannotConnect) as raised:
        consumer.poll_records(60)
    assert raised.value.code == "tls-failed"
