"""Running groups that are rolled from the classic to the consumer protocol and back, member by member: see
`rolled_groups`. On our broker confluent-kafka and our own Consumer in one group, and Kafka's Java consumer; the same on
Apache Kafka 4.3.1. All but the first with HEADRACE_LONG=1."""

from __future__ import annotations

import pytest
from tests.interop.kafka_broker import KafkaBroker
from tests.interop.rolled_groups import OURS, rolled_group
from tests.interop.test_modern_consumers_on_our_broker import SETTINGS as QUICK_HEARTBEATS
from tests.longer import longer

from headrace.broker.embedded import EmbeddedBroker

pytestmark = [pytest.mark.interop, pytest.mark.slow]

SETTINGS = {
    **QUICK_HEARTBEATS,
    "group.consumer.session.timeout.ms": 10_000,  # a busy machine
    "group.initial.rebalance.delay.ms": 0,
}
MIXED = ("confluent-kafka", OURS, "confluent-kafka")
JAVA = ("java", "java", "java")


def test_confluent_and_ours_on_our_broker() -> None:
    with EmbeddedBroker(config=SETTINGS) as broker:
        rolled_group(broker.bootstrap_servers, MIXED, patience_s=60)


@longer
def test_java_on_our_broker(kafka_tools: None) -> None:
    with EmbeddedBroker(config=SETTINGS) as broker:
        rolled_group(broker.bootstrap_servers, JAVA, patience_s=60)


@longer
@pytest.mark.parametrize("kinds", [MIXED, JAVA])
def test_on_kafka(kafka_tools: None, kinds: tuple[str, ...]) -> None:
    with KafkaBroker("4.3.1", SETTINGS) as kafka:
        rolled_group(kafka.bootstrap_servers, kinds, patience_s=60)
