"""Groups of our consumer with other people's, on our broker; with Java's and on Apache Kafka in tests/interop."""

from __future__ import annotations

import pytest
from tests.interop.mixed_groups import mixed_group

from headrace.broker.embedded import EmbeddedBroker

pytestmark = [
    pytest.mark.foreign,
    pytest.mark.slow,
    # What the others' packages do is theirs.
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]

CASES = [
    ("confluent-kafka", "classic", "cooperative-sticky"),
    ("confluent-kafka", "consumer", "range"),
    ("kafka-python", "classic", "sticky"),
    ("aiokafka", "classic", "roundrobin"),
]


@pytest.mark.parametrize(("client_name", "protocol", "strategy"), CASES)
def test_a_mixed_group(client_name: str, protocol: str, strategy: str) -> None:
    with EmbeddedBroker(config={"group.initial.rebalance.delay.ms": 0}) as broker:
        mixed_group(broker.bootstrap_servers, client_name, protocol=protocol, strategy=strategy)
