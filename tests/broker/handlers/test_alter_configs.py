"""Settings altered with the admin client of confluent-kafka."""

from __future__ import annotations

import pytest
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)
from tests.broker.librdkafka_clients import settled

from headrace.broker.embedded import EmbeddedBroker

pytestmark = pytest.mark.foreign


def test_configs_are_altered_one_by_one(admin: AdminClient, broker: EmbeddedBroker) -> None:
    broker.create_topics({"t": 1}, {"retention.ms": "1234"})
    change = ConfigResource(
        ResourceType.TOPIC,
        "t",
        incremental_configs=[
            ConfigEntry("cleanup.policy", "compact", incremental_operation=AlterConfigOpType.APPEND),
            ConfigEntry("retention.ms", None, incremental_operation=AlterConfigOpType.DELETE),
            ConfigEntry("segment.bytes", "4096", incremental_operation=AlterConfigOpType.SET),
        ],
    )
    assert list(settled(admin.incremental_alter_configs([change])).values()) == [None]
    resource = ConfigResource(ResourceType.TOPIC, "t")
    configs = settled(admin.describe_configs([resource]))[resource]
    assert configs["cleanup.policy"].value == "delete,compact"
    assert configs["retention.ms"].value == "604800000"
    assert configs["segment.bytes"].value == "4096"
