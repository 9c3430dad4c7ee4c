"""A topic that is deleted and created again on Apache Kafka 4.3.1: the tests of our broker, run on Kafka."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import tests.client.consumer.test_recreated_topics as on_our_broker
from tests.interop.kafka_broker import KafkaBroker

from headrace.client.network_client import NetworkClient

pytestmark = pytest.mark.interop


@pytest.fixture
def topic(kafka: KafkaBroker, request: pytest.FixtureRequest) -> on_our_broker.Topic:
    return on_our_broker.Topic(kafka.bootstrap_servers, f"recreated-{abs(hash(request.node.name))}")


@pytest.fixture
def client(kafka: KafkaBroker) -> Iterator[NetworkClient]:
    with NetworkClient(kafka.bootstrap_servers, api_timeout_ms=20_000) as connected:
        yield connected


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_running_consumer(topic: on_our_broker.Topic, protocol: str) -> None:
    on_our_broker.test_a_running_consumer_reads_the_new_topic_from_its_beginning(topic, protocol, "latest")


def test_a_commit(topic: on_our_broker.Topic) -> None:
    on_our_broker.test_an_offset_of_the_deleted_topic_is_not_committed(topic)


def test_a_pipeline(topic: on_our_broker.Topic) -> None:
    on_our_broker.test_a_pipeline_processes_every_record_of_the_new_topic(topic)


def test_finished_offsets_of_a_recreated_topic(topic: on_our_broker.Topic, client: NetworkClient) -> None:
    on_our_broker.test_finished_offsets_are_bound_to_the_topic_id(topic, client)
