"""kafka-python and aiokafka against our broker, with partitions assigned by hand."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

from headrace.broker.embedded import EmbeddedBroker

pytestmark = [
    pytest.mark.foreign,
    # These clients warn about themselves; what we look at is what they read and write.
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]
CODECS = [None, "gzip", "snappy", "lz4", "zstd"]


@pytest.mark.parametrize("codec", [None, "gzip"])
def test_kafka_python_produces_and_consumes(codec: str | None, broker: EmbeddedBroker) -> None:
    kafka = pytest.importorskip("kafka")
    broker.create_topics({"t": 2})
    producer = kafka.KafkaProducer(bootstrap_servers=broker.bootstrap_servers, compression_type=codec, acks="all")
    try:
        sent = [producer.send("t", key=b"%d" % number, value=b"value-%d" % number) for number in range(500)]
        assert {future.get(timeout=20).topic for future in sent} == {"t"}
    finally:
        producer.close()
    consumer = kafka.KafkaConsumer(
        bootstrap_servers=broker.bootstrap_servers,
        consumer_timeout_ms=20_000,
        group_id="by-hand",
        enable_auto_commit=False,
    )
    try:
        partitions = [kafka.TopicPartition("t", index) for index in range(2)]
        consumer.assign(partitions)
        consumer.seek_to_beginning()
        values: set[bytes] = set()
        while len(values) < 500:
            values.add(next(consumer).value)
        assert values == {b"value-%d" % number for number in range(500)}
        consumer.commit()
        assert sum(consumer.committed(partition) for partition in partitions) == 500
        assert sum(consumer.end_offsets(partitions).values()) == 500
    finally:
        consumer.close()
    assert sum(broker.group("by-hand").offsets.values()) == 500


def test_kafka_python_administers(broker: EmbeddedBroker) -> None:
    admin_module = pytest.importorskip("kafka.admin")
    admin = admin_module.KafkaAdminClient(bootstrap_servers=broker.bootstrap_servers)
    try:
        admin.create_topics([admin_module.NewTopic("made", 3, 1)])
        assert "made" in admin.list_topics()
        admin.delete_topics(["made"])
        assert "made" not in admin.list_topics()
    finally:
        admin.close()


@pytest.mark.parametrize("codec", CODECS)
async def test_aiokafka_produces_and_consumes(codec: str | None, broker: EmbeddedBroker) -> None:
    aiokafka = pytest.importorskip("aiokafka")
    broker.create_topics({"t": 2})
    producer = aiokafka.AIOKafkaProducer(
        bootstrap_servers=broker.bootstrap_servers, compression_type=codec, enable_idempotence=True
    )
    try:
        await producer.start()
    except RuntimeError as error:
        pytest.skip(f"aiokafka lacks the library of this codec: {error}")
    try:
        sent = [await producer.send("t", b"value-%d" % number, key=b"%d" % number) for number in range(500)]
        for delivery in sent:
            await delivery
    finally:
        await producer.stop()
    consumer = aiokafka.AIOKafkaConsumer(
        bootstrap_servers=broker.bootstrap_servers, group_id=None, auto_offset_reset="earliest"
    )
    await consumer.start()
    try:
        consumer.assign([aiokafka.TopicPartition("t", index) for index in range(2)])
        values: set[Any] = set()
        while len(values) < 500:
            values.add((await consumer.getone()).value)
        assert values == {b"value-%d" % number for number in range(500)}
    finally:
        await consumer.stop()


async def test_aiokafka_administers(broker: EmbeddedBroker) -> None:
    admin_module = pytest.importorskip("aiokafka.admin")
    admin = admin_module.AIOKafkaAdminClient(bootstrap_servers=broker.bootstrap_servers)
    await admin.start()
    try:
        name = f"made-{uuid.uuid4()}"
        await admin.create_topics([admin_module.NewTopic(name, 3, 1)])
        assert name in await admin.list_topics()
        await admin.delete_topics([name])
        assert name not in await admin.list_topics()
    finally:
        await admin.close()
