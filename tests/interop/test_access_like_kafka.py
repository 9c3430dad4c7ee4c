"""Every API asked without a right and with exactly the right one, of Apache Kafka 4.3.1 with its StandardAuthorizer and
of us: the same answers, row by row. The rows are those of the table in docs/how-to/security.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from tests.harness.ports import find_free_port
from tests.interop.access_script import ROWS, AccessScript
from tests.interop.kafka_broker import KafkaBroker

from headrace.broker.embedded import EmbeddedBroker
from headrace.broker.requests.api_table import SERVED
from headrace.protocol.api_keys import ApiKey

pytestmark = [pytest.mark.interop, pytest.mark.slow]

_JAAS = (
    "org.apache.kafka.common.security.plain.PlainLoginModule required "
    'username="root" password="root" user_root="root" user_alice="secret";'
)
SETTINGS = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS",
    "listener.name.sasl_plaintext.sasl.enabled.mechanisms": "PLAIN",
    "listener.name.sasl_plaintext.plain.sasl.jaas.config": _JAAS,
    "auto.create.topics.enable": "true",
}
# Kafka's text is one of Java's insides, or there is none where we have a sentence.
WORDS_DIFFER = {
    "DescribeAcls",
    "AlterPartitionReassignments",
    "ListPartitionReassignments",
    "UpdateFeatures",
    "CreateAcls",
    "DeleteAcls",
    "DeleteTopics, seen",
    "ConsumerGroupHeartbeat",
    "ConsumerGroupHeartbeat, group only",
    "DescribeQuorum",
    "FindCoordinator, share",
    "StreamsGroupHeartbeat, group only",
}
# Who may gets an answer of the broker's own; who may not gets the same from both.
ALLOWED_DIFFERS = {
    "Metadata, creating 0": "the new topic is there at once, in Kafka a moment later",
    "Metadata, creating 1": "the new topic is there at once, in Kafka a moment later",
    "StreamsGroupHeartbeat": "epochs, intervals and the first rebalance delay",
}


def answers(port: int, sasl_port: int) -> dict[str, tuple[Any, Any]]:
    """Name of the row → (answer without a right, answer with it)."""
    script = AccessScript(port, sasl_port)
    found = {}
    for row in ROWS:
        script.revoke()
        denied = script.ask(row)
        script.grant(row.rights)
        found[row.name] = denied, script.ask(row)
    script.close()
    return found


@pytest.fixture(scope="module")
def kafkas(kafka_tools: None) -> Iterator[dict[str, tuple[Any, Any]]]:
    sasl = {"SASL_PLAINTEXT": "SASL_PLAINTEXT"}
    with KafkaBroker("4.3.1", SETTINGS, listeners=sasl) as broker:
        yield answers(broker.port, broker.ports["SASL_PLAINTEXT"])


@pytest.fixture(scope="module")
def ours() -> Iterator[dict[str, tuple[Any, Any]]]:
    sasl_port = find_free_port()
    listeners = f"PLAINTEXT://127.0.0.1:0,SASL_PLAINTEXT://127.0.0.1:{sasl_port}"
    with EmbeddedBroker(config={**SETTINGS, "listeners": listeners}) as broker:
        yield answers(int(broker.bootstrap_servers.rpartition(":")[2]), sasl_port)


def without_words(answer: Any) -> Any:
    if isinstance(answer, dict):
        return {name: without_words(value) for name, value in answer.items() if name != "error_message"}
    return [without_words(each) for each in answer] if isinstance(answer, list) else answer


@pytest.mark.parametrize("name", [row.name for row in ROWS])
def test_denied_and_allowed_as_kafka(
    name: str, kafkas: dict[str, tuple[Any, Any]], ours: dict[str, tuple[Any, Any]]
) -> None:
    if name in ALLOWED_DIFFERS:
        assert without_words(ours[name][0]) == without_words(kafkas[name][0])
        assert "authorization_failed" not in repr(ours[name][1]) + repr(kafkas[name][1])
    elif name in WORDS_DIFFER:
        assert without_words(ours[name][0]) == without_words(kafkas[name][0])
        assert without_words(ours[name][1]) == without_words(kafkas[name][1])
    else:
        assert ours[name] == kafkas[name]
    assert ours[name][0] != ours[name][1] or name in SAME_EITHER_WAY


# Another right is missing as well; or the right lets one through to something that is not there for anybody.
SAME_EITHER_WAY = {
    "Produce in a transaction",
    "OffsetCommit, topic only",
    "FindCoordinator, share",
    "Metadata, creating 0, not allowed to",
    "Metadata, creating 1, not allowed to",
}
# Asked before anybody is somebody: the script itself asks them to log in, and ApiVersions comes before that.
WITHOUT_A_RIGHT = {
    ApiKey.API_VERSIONS,
    ApiKey.SASL_HANDSHAKE,
    ApiKey.SASL_AUTHENTICATE,
    # KIP-714: no access rule guards them.
    ApiKey.GET_TELEMETRY_SUBSCRIPTIONS,
    ApiKey.PUSH_TELEMETRY,
}


def test_no_api_is_without_a_row() -> None:
    assert {row.api for row in ROWS} == set(SERVED) - WITHOUT_A_RIGHT
