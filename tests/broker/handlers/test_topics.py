"""Topics made, grown and deleted with the admin client of confluent-kafka."""

from __future__ import annotations

import pytest
from confluent_kafka import KafkaError
from confluent_kafka.admin import (
    AdminClient,
    NewPartitions,
    NewTopic,
)
from tests.broker.librdkafka_clients import TIMEOUT, produced, settled
from tests.harness.values import not_none

from headrace.broker.embedded import EmbeddedBroker

pytestmark = pytest.mark.foreign


def test_auto_creation_by_a_producer(broker: EmbeddedBroker) -> None:
    assert produced(broker, "made-by-producer", 3) == []
    assert len(broker.records("made-by-producer")) == 3


def test_auto_creation_can_be_forbidden() -> None:
    with EmbeddedBroker(config={"auto.create.topics.enable": False}) as broker:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
        topics = admin.list_topics("missing", timeout=TIMEOUT).topics
        assert not_none(topics["missing"].error).code() == KafkaError.UNKNOWN_TOPIC_OR_PART


def test_topics_are_created_described_and_deleted(admin: AdminClient) -> None:
    wanted = [
        NewTopic("plain", 3, 1),
        NewTopic("tuned", 2, -1, config={"retention.ms": "1000", "cleanup.policy": "compact,delete"}),
        NewTopic("replicated", 1, 3),
        NewTopic("empty", 0, 1),
        NewTopic("bad name", 1, 1),
        NewTopic("odd", 1, 1, config={"no.such.setting": "1"}),
        NewTopic("worse", 1, 1, config={"retention.ms": "soon"}),
    ]
    outcome = settled(admin.create_topics(wanted))
    assert outcome["plain"] is None
    assert outcome["tuned"] is None
    assert outcome["replicated"].code() == KafkaError.INVALID_REPLICATION_FACTOR
    assert outcome["empty"].code() == KafkaError.INVALID_PARTITIONS
    assert outcome["bad name"].code() == KafkaError.TOPIC_EXCEPTION
    assert outcome["odd"].code() == KafkaError.INVALID_CONFIG
    assert "no.such.setting" in outcome["odd"].str()
    assert outcome["worse"].code() == KafkaError.INVALID_CONFIG
    again = settled(
        admin.create_topics([NewTopic("plain", 3, 1), NewTopic("pla_in.x", 1, 1), NewTopic("pla.in_x", 1, 1)])
    )
    assert again["plain"].code() == KafkaError.TOPIC_ALREADY_EXISTS
    assert sorted(str(value) for value in (again["pla_in.x"] is None, again["pla.in_x"] is None)) == ["False", "True"]
    topics = admin.list_topics(timeout=TIMEOUT).topics
    assert len(topics["plain"].partitions) == 3
    assert len(topics["__consumer_offsets"].partitions) == 50
    outcome = settled(admin.delete_topics(["plain", "missing", "__consumer_offsets"]))
    assert outcome["plain"] is None
    assert outcome["missing"].code() == KafkaError.UNKNOWN_TOPIC_OR_PART
    assert outcome["__consumer_offsets"].code() == KafkaError.INVALID_REQUEST
    assert "plain" not in admin.list_topics(timeout=TIMEOUT).topics


def test_validate_only_creates_nothing(admin: AdminClient) -> None:
    assert settled(admin.create_topics([NewTopic("t", 3, 1)], validate_only=True)) == {"t": None}
    assert "t" not in admin.list_topics(timeout=TIMEOUT).topics


def test_partitions_are_added(admin: AdminClient, broker: EmbeddedBroker) -> None:
    broker.create_topics({"t": 2})
    assert settled(admin.create_partitions([NewPartitions("t", 5)])) == {"t": None}
    assert len(admin.list_topics("t", timeout=TIMEOUT).topics["t"].partitions) == 5
    for count in (5, 3):
        assert (
            settled(admin.create_partitions([NewPartitions("t", count)]))["t"].code() == KafkaError.INVALID_PARTITIONS
        )
    missing = settled(admin.create_partitions([NewPartitions("missing", 5)]))["missing"]
    assert missing.code() == KafkaError.UNKNOWN_TOPIC_OR_PART
