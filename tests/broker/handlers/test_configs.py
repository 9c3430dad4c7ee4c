"""Settings described to the admin client of confluent-kafka."""

from __future__ import annotations

import pytest
from confluent_kafka import KafkaError
from confluent_kafka.admin import (
    AdminClient,
    ConfigResource,
    ResourceType,
)
from tests.broker.librdkafka_clients import settled

from headrace.broker.embedded import EmbeddedBroker

pytestmark = pytest.mark.foreign


def test_configs_are_described_with_their_sources(admin: AdminClient, broker: EmbeddedBroker) -> None:
    broker.create_topics({"t": 1}, {"retention.ms": "1234"})
    resource = ConfigResource(ResourceType.TOPIC, "t")
    configs = settled(admin.describe_configs([resource]))[resource]
    assert (configs["retention.ms"].value, configs["retention.ms"].source) == ("1234", 1)
    assert (configs["segment.bytes"].value, configs["segment.bytes"].source) == ("1073741824", 5)
    assert list(configs["retention.ms"].synonyms) == ["retention.ms"]  # log.retention.ms has no default, as in Kafka
    assert list(configs["segment.bytes"].synonyms) == ["log.segment.bytes"]
    node = ConfigResource(ResourceType.BROKER, "1")
    assert settled(admin.describe_configs([node]))[node]["offsets.topic.num.partitions"].value == "50"
    missing = ConfigResource(ResourceType.TOPIC, "missing")
    assert settled(admin.describe_configs([missing]))[missing].code() == KafkaError.UNKNOWN_TOPIC_OR_PART
