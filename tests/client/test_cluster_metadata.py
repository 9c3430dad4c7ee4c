"""Metadata of the cluster: brokers, leaders, and topics that are missing or appear later."""

from __future__ import annotations

import pytest

from headrace.broker.embedded import EmbeddedBroker
from headrace.client.admin import Admin
from headrace.client.network_client import NetworkClient
from headrace.errors import BrokerError


def test_metadata_shows_brokers_topics_and_leaders(client: NetworkClient) -> None:
    cluster = client.metadata(["flights", "nowhere"])
    assert list(cluster.topics) == ["flights"]
    assert set(cluster.topics["flights"].partitions) == {0, 1, 2, 3}
    leader = cluster.leader("flights", 0)
    assert leader in cluster.brokers
    assert cluster.topic_name(cluster.topics["flights"].topic_id) == "flights"
    assert cluster.leader("nowhere", 0) is None


def test_a_topic_that_appears_later_is_found(client: NetworkClient) -> None:
    assert "late" not in client.metadata(["late"]).topics
    Admin(client).create_topics({"late": 1})
    assert "late" in client.known_topics(["late"]).topics


def test_a_missing_topic_is_said_in_one_sentence(broker: EmbeddedBroker) -> None:
    with (
        NetworkClient(broker.bootstrap_servers, bootstrap_timeout_ms=200) as client,
        pytest.raises(BrokerError, match="there is no topic nowhere") as caught,
    ):
        client.known_topics(["nowhere"])
    assert caught.value.code == "topic-missing"


def test_a_missing_partition_is_said_in_one_sentence(broker: EmbeddedBroker) -> None:
    with (
        NetworkClient(broker.bootstrap_servers, bootstrap_timeout_ms=200) as client,
        pytest.raises(BrokerError, match="the topic flights has no partition 77"),
    ):
        client.leaders([("flights", 77)])
