"""Groups of our consumer with each of the others on Apache Kafka 4.3.1, and with Java's on our broker.

With the others on ours: tests/broker/test_mixed_groups.py.
"""

from __future__ import annotations

import pytest
from tests.interop.kafka_broker import KafkaBroker
from tests.interop.mixed_groups import mixed_group
from tests.longer import longer

from headrace.broker.embedded import EmbeddedBroker

pytestmark = [
    pytest.mark.interop,
    pytest.mark.foreign,
    pytest.mark.slow,
    # What the others' packages do is theirs.
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]

# Each client and each kind of assignor once; not each with each, which is minutes and shows no more.
CASES = [
    ("confluent-kafka", "classic", "range"),
    ("confluent-kafka", "consumer", "range"),
    ("kafka-python", "classic", "sticky"),
    ("java", "classic", "cooperative-sticky"),
]


@pytest.mark.parametrize(
    ("protocol", "strategy"), [("consumer", "range"), pytest.param("classic", "cooperative-sticky", marks=longer)]
)
def test_a_group_with_java_on_our_broker(kafka_tools: None, protocol: str, strategy: str) -> None:
    settings = {"group.initial.rebalance.delay.ms": 0, "group.consumer.assignment.interval.ms": 0}
    with EmbeddedBroker(config=settings) as broker:
        mixed_group(broker.bootstrap_servers, "java", protocol=protocol, strategy=strategy)


@pytest.mark.parametrize(("client_name", "protocol", "strategy"), CASES)
def test_a_mixed_group(kafka: KafkaBroker, client_name: str, protocol: str, strategy: str) -> None:
    mixed_group(kafka.bootstrap_servers, client_name, protocol=protocol, strategy=strategy)
