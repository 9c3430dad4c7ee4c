"""confluent-kafka against a broker in this process: pip install confluent-kafka pytest headrace; pytest."""

from __future__ import annotations

import json

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition


def copy_large_orders(bootstrap_servers: str, source: str, target: str) -> int:
    """The code under test: copies what is large, until the end of the topic."""
    settings = {"bootstrap.servers": bootstrap_servers, "socket.timeout.ms": 10_000}
    consumer = Consumer(
        settings | {"group.id": "orders", "enable.partition.eof": False, "auto.offset.reset": "earliest"}
    )
    producer = Producer(settings | {"enable.idempotence": True, "message.timeout.ms": 20_000})
    consumer.assign([TopicPartition(source, 0, 0)])
    copied = 0
    _, end = consumer.get_watermark_offsets(TopicPartition(source, 0), timeout=20)
    while consumer.position([TopicPartition(source, 0)])[0].offset < end:
        message = consumer.poll(20)
        if message is None:
            break
        if message.error():
            raise KafkaException(message.error())
        if json.loads(message.value())["amount"] >= 100:
            producer.produce(target, message.value(), key=message.key())
            copied += 1
    consumer.close()
    if producer.flush(30):
        raise RuntimeError("not everything was written")
    return copied


ORDERS = [{"id": number, "amount": number * 40} for number in range(6)]


@pytest.mark.kafka_broker(topics={"orders": 1, "large": 1})
def test_large_orders_are_copied(kafka_broker):
    kafka_broker.produce("orders", ORDERS, key=lambda order: str(order["id"]))
    assert copy_large_orders(kafka_broker.bootstrap_servers, "orders", "large") == 3
    assert [json.loads(record.value)["id"] for record in kafka_broker.records("large")] == [3, 4, 5]


@pytest.mark.kafka_broker(topics={"orders": 1, "large": 1})
def test_nothing_is_written_twice_when_an_answer_is_lost(kafka_broker):
    """The broker has the records, the producer does not know it, and tries again: idempotence must sort it out."""
    kafka_broker.produce("orders", ORDERS)
    lost = kafka_broker.faults.disconnect("Produce", handled=True, times=1)
    assert copy_large_orders(kafka_broker.bootstrap_servers, "orders", "large") == 3
    assert lost.hits == 1
    assert len(kafka_broker.records("large")) == 3
