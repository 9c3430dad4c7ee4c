"""librdkafka against our broker: producer with every codec, consumer with assign, admin client."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Producer, TopicPartition
from tests.broker.librdkafka_clients import TIMEOUT, produced
from tests.harness.polling import wait_until

from headrace.broker.embedded import EmbeddedBroker

pytestmark = pytest.mark.foreign


def consumed(broker: EmbeddedBroker, topic: str, partitions: int, count: int, **settings: object) -> list[Any]:
    consumer = Consumer(
        {"bootstrap.servers": broker.bootstrap_servers, "group.id": "reader", "enable.auto.commit": False, **settings}
    )
    try:
        consumer.assign([TopicPartition(topic, index, OFFSET_BEGINNING) for index in range(partitions)])
        messages: list[Any] = []
        while len(messages) < count:
            batch = consumer.consume(count - len(messages), timeout=TIMEOUT)
            assert batch, f"nothing more came after {len(messages)} of {count} messages"
            assert not [message.error() for message in batch if message.error()]
            messages += batch
        return messages
    finally:
        consumer.close()


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
@pytest.mark.parametrize("idempotent", [False, True])
def test_produce_and_consume(codec: str, idempotent: bool, broker: EmbeddedBroker) -> None:
    broker.create_topics({"t": 3})
    errors = produced(
        broker, "t", 2000, **{"compression.type": codec, "enable.idempotence": idempotent, "linger.ms": 5}
    )
    assert errors == []
    messages = consumed(broker, "t", 3, 2000)
    assert {message.value() for message in messages} == {b"value-%d" % number for number in range(2000)}
    sample = next(message for message in messages if message.value() == b"value-77")
    assert sample.key() == b"key-27"
    assert sample.headers() == [("number", b"77"), ("null", None)]
    assert len(broker.records("t")) == 2000


@pytest.mark.parametrize("acks", ["0", "1", "all"])
def test_acks(acks: str, broker: EmbeddedBroker) -> None:
    broker.create_topics({"t": 1})
    assert produced(broker, "t", 100, acks=acks) == []
    wait_until(lambda: len(broker.records("t")) == 100)
    assert [record.value for record in broker.records("t")] == [b"value-%d" % number for number in range(100)]


def test_read_committed_reads_everything_that_is_not_transactional(broker: EmbeddedBroker) -> None:
    broker.create_topics({"t": 1})
    assert produced(broker, "t", 10) == []
    assert len(consumed(broker, "t", 1, 10, **{"isolation.level": "read_committed"})) == 10


def test_offset_out_of_range_goes_to_the_reset_policy(broker: EmbeddedBroker) -> None:
    broker.create_topics({"t": 1})
    broker.produce("t", [b"1", b"2"])
    consumer = Consumer(
        {"bootstrap.servers": broker.bootstrap_servers, "group.id": "g", "auto.offset.reset": "earliest"}
    )
    try:
        consumer.assign([TopicPartition("t", 0, 99)])
        message = consumer.poll(TIMEOUT)
        assert message is not None
        assert message.value() == b"1"
    finally:
        consumer.close()


def test_message_too_large(broker: EmbeddedBroker) -> None:
    broker.create_topics({"t": 1}, {"max.message.bytes": "1000"})
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
    errors: list[Any] = []
    producer.produce("t", b"x" * 5000, on_delivery=lambda error, _: errors.append(error))
    assert producer.flush(TIMEOUT) == 0
    assert [error.code() for error in errors] == [KafkaError.MSG_SIZE_TOO_LARGE]


def test_producing_to_an_internal_topic_is_refused(broker: EmbeddedBroker) -> None:
    errors = produced(broker, "__consumer_offsets", 1)
    assert [error.code() for error in errors] == [KafkaError.TOPIC_EXCEPTION]


@pytest.fixture
def reader(broker: EmbeddedBroker) -> Iterator[Consumer]:
    consumer = Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": "g", "enable.auto.commit": False})
    yield consumer
    consumer.close()


def test_long_poll_wakes_on_append(broker: EmbeddedBroker) -> None:
    broker.create_topics({"t": 1})
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap_servers,
            "group.id": "g",
            "fetch.wait.max.ms": 60_000,
            "socket.timeout.ms": 61_000,
        }
    )
    try:
        consumer.assign([TopicPartition("t", 0, 0)])
        assert consumer.poll(0.5) is None
        broker.produce("t", [b"awake"])
        message = consumer.poll(TIMEOUT)
        assert message is not None
        assert message.value() == b"awake"
    finally:
        consumer.close()
