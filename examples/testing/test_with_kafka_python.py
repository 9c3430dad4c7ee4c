"""kafka-python against a broker in this process: pip install kafka-python pytest headrace; pytest."""

from __future__ import annotations

import pytest
from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka.errors import KafkaError


def newest_value_per_key(bootstrap_servers: str, topic: str) -> dict[bytes, bytes]:
    """The code under test: reads a topic to its end."""
    consumer = KafkaConsumer(bootstrap_servers=bootstrap_servers, consumer_timeout_ms=10_000, enable_auto_commit=False)
    try:
        partitions = [TopicPartition(topic, index) for index in consumer.partitions_for_topic(topic) or ()]
        consumer.assign(partitions)
        consumer.seek_to_beginning(*partitions)
        ends = consumer.end_offsets(partitions)
        newest: dict[bytes, bytes] = {}
        while any(consumer.position(partition) < end for partition, end in ends.items()):
            for records in consumer.poll(timeout_ms=1000).values():
                newest.update((record.key, record.value) for record in records)
        return newest
    finally:
        consumer.close()


def test_the_newest_value_of_each_key(kafka_session_broker, kafka_topic):
    topic = kafka_topic(partitions=3)
    prices = [{"item": "tea", "price": 3}, {"item": "coffee", "price": 4}, {"item": "tea", "price": 5}]
    kafka_session_broker.produce(topic, prices, key="item")
    newest = newest_value_per_key(kafka_session_broker.bootstrap_servers, topic)
    assert newest == {b"tea": b'{"item":"tea","price":5}', b"coffee": b'{"item":"coffee","price":4}'}


@pytest.mark.kafka_broker(topics={"orders": 1})
def test_a_producer_is_told_that_it_may_not_write(kafka_broker):
    kafka_broker.faults.fail("Produce", "TOPIC_AUTHORIZATION_FAILED", topic="orders")
    producer = KafkaProducer(bootstrap_servers=kafka_broker.bootstrap_servers)
    try:
        with pytest.raises(KafkaError, match="TopicAuthorizationFailed"):
            producer.send("orders", b"x").get(timeout=60)
    finally:
        producer.close()
    assert kafka_broker.records("orders") == []


@pytest.mark.kafka_broker(topics={"orders": 1})
def test_records_outlive_a_broker_that_is_killed(kafka_broker):
    kafka_broker.produce("orders", ["one", "two"], key=b"k")
    kafka_broker.kill()
    kafka_broker.restart()
    assert newest_value_per_key(kafka_broker.bootstrap_servers, "orders") == {b"k": b"two"}
