"""confluent-kafka reads, processes and writes exactly once on our broker: offsets go with the transaction."""

from __future__ import annotations

import time

import pytest

from headrace.broker.embedded import EmbeddedBroker

confluent_kafka = pytest.importorskip("confluent_kafka")
from confluent_kafka import Consumer, Producer, TopicPartition  # noqa: E402

pytestmark = pytest.mark.foreign

PATIENCE_SECONDS = 60
RECORDS = 60
BATCH = 7


def test_every_record_is_processed_once_though_transactions_abort_and_processes_die() -> None:
    with EmbeddedBroker(topics={"in": 1, "out": 1}) as broker:
        servers = {"bootstrap.servers": broker.bootstrap_servers}
        filler = Producer(servers)
        for number in range(RECORDS):
            filler.produce("in", b"%d" % number)
        filler.flush()
        deadline = time.monotonic() + PATIENCE_SECONDS
        life = 0
        while not _one_life(servers, life, deadline):
            life += 1
        assert life > 3
        assert _output(servers, deadline) == [b"%d" % number for number in range(RECORDS)]


def _one_life(servers: dict[str, str], life: int, deadline: float) -> bool:
    """Starts where the group's offsets say. Aborts its second batch, and leaves its fourth open: the next life's
    `init_transactions` aborts it. Whether everything was read."""
    consumer = Consumer({**servers, "group.id": "g", "enable.auto.commit": False, "isolation.level": "read_committed"})
    producer = Producer({**servers, "transactional.id": "x"})
    producer.init_transactions(PATIENCE_SECONDS)
    (committed,) = consumer.committed([TopicPartition("in", 0)], timeout=PATIENCE_SECONDS)
    position = max(committed.offset, 0)
    batch = 0
    try:
        while position < RECORDS:
            consumer.assign([TopicPartition("in", 0, position)])
            producer.begin_transaction()
            start, end = position, min(position + BATCH, RECORDS)
            while position < end:
                assert time.monotonic() < deadline
                message = consumer.poll(0.2)
                if message is not None and message.error() is None and message.offset() == position:
                    producer.produce("out", message.value())
                    position += 1
            offsets = [TopicPartition("in", 0, position)]
            producer.send_offsets_to_transaction(offsets, consumer.consumer_group_metadata(), PATIENCE_SECONDS)
            batch += 1
            if batch == 2:
                producer.abort_transaction(PATIENCE_SECONDS)
                position = start
            elif batch == 4:
                producer.flush()
                return False
            else:
                producer.commit_transaction(PATIENCE_SECONDS)
    finally:
        consumer.close()
    return True


def _output(servers: dict[str, str], deadline: float) -> list[bytes]:
    consumer = Consumer(
        {**servers, "group.id": "reader", "auto.offset.reset": "earliest", "isolation.level": "read_committed"}
    )
    consumer.assign([TopicPartition("out", 0, 0)])
    values: list[bytes] = []
    while len(values) < RECORDS:
        assert time.monotonic() < deadline, values
        message = consumer.poll(0.2)
        if message is not None and message.error() is None:
            values.append(message.value())
    assert consumer.poll(0.5) is None
    consumer.close()
    return values
