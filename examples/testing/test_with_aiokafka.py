"""aiokafka against a broker in this process: pip install aiokafka pytest pytest-asyncio headrace; pytest."""

from __future__ import annotations

import asyncio

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition


async def echo(bootstrap_servers: str, source: str, target: str, count: int) -> None:
    """The code under test: `count` records from one topic to the other, in upper case."""
    consumer = AIOKafkaConsumer(bootstrap_servers=bootstrap_servers, enable_auto_commit=False)
    producer = AIOKafkaProducer(bootstrap_servers=bootstrap_servers, enable_idempotence=True)
    await consumer.start()
    await producer.start()
    try:
        partition = TopicPartition(source, 0)
        consumer.assign([partition])
        await consumer.seek_to_beginning(partition)
        for _ in range(count):
            record = await consumer.getone()
            await producer.send_and_wait(target, record.value.upper(), key=record.key)
    finally:
        await producer.stop()
        await consumer.stop()


@pytest.mark.asyncio
async def test_echo(kafka_session_broker, kafka_topic):
    source, target = kafka_topic(), kafka_topic()
    kafka_session_broker.produce(source, ["a", "b", "c"], key=b"k")
    await asyncio.wait_for(echo(kafka_session_broker.bootstrap_servers, source, target, 3), 60)
    assert [record.value for record in kafka_session_broker.records(target)] == [b"A", b"B", b"C"]


@pytest.mark.asyncio
async def test_echo_survives_a_broker_that_moves_its_partitions(kafka_session_broker, kafka_topic):
    source, target = kafka_topic(), kafka_topic()
    kafka_session_broker.produce(source, ["a", "b"])
    refused = kafka_session_broker.faults.fail("Produce", "NOT_LEADER_OR_FOLLOWER", times=2, topic=target)
    await asyncio.wait_for(echo(kafka_session_broker.bootstrap_servers, source, target, 2), 60)
    assert refused.hits == 2
    assert [record.value for record in kafka_session_broker.records(target)] == [b"A", b"B"]
