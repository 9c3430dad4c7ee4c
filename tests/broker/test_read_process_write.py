"""confluent-kafka reads, processes and writes exactly once on our broker: offsets go with the transaction."""

from __future__ import annotations

import time

import pytest
from tests.harness.values import not_none

from headrace.broker.embedded import EmbeddedBroker

confluent_kafka = pytest.importorskip("confluent_kafka")
from confluent_kafka import Consumer, Producer, TopicPartition  # noqa: E402

pytestmark = pytest.mark.foreign

PATIENCE_SECONDS = 60
RECORDS = 60
BATCH = 7


def test_records_are_processed_once_despite_aborts_and_kills() -> None:
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


def test_a_transaction_is_completed_when_its_partitions_are_revoked() -> None:
    """Results and offsets go in one transaction, committed in the revoke callback: the next owner repeats nothing."""
    config = {"group.initial.rebalance.delay.ms": 0, "group.min.session.timeout.ms": 100}
    with EmbeddedBroker(topics={"in": 2, "out": 1}, config=config) as broker:
        servers = {"bootstrap.servers": broker.bootstrap_servers}
        half = RECORDS // 2
        for number in range(half):
            broker.produce("in", [b"%d" % number], partition=number % 2)
        deadline = time.monotonic() + PATIENCE_SECONDS
        first, second = _Member(servers, "one"), _Member(servers, "two")
        try:
            while len(first.processed) < half:
                first.process(deadline)
            assert first.commits == 0, "its transaction is open when the other one comes"
            while not first.commits or not second.consumer.assignment():
                first.process(deadline)
                second.process(deadline)
            assert second.processed == []
            for number in range(half, RECORDS):
                broker.produce("in", [b"%d" % number], partition=number % 2)
            while len(first.processed) + len(second.processed) < RECORDS:
                first.process(deadline)
                second.process(deadline)
            assert (len(first.processed), len(second.processed)) == (half + half // 2, half // 2)
            first.commit()
            second.commit()
            assert sorted(_output(servers, deadline), key=int) == [b"%d" % number for number in range(RECORDS)]
        finally:
            first.consumer.close()
            second.consumer.close()


class _Member:
    """Mutable. It joins with its first `process`, and commits in the revoke callback only."""

    def __init__(self, servers: dict[str, str], name: str) -> None:
        settings = {"group.id": "g", "enable.auto.commit": False, "auto.offset.reset": "earliest"}
        settings |= {"isolation.level": "read_committed", "heartbeat.interval.ms": 100, "session.timeout.ms": 10_000}
        self.producer = Producer({**servers, "transactional.id": name})
        self.producer.init_transactions(PATIENCE_SECONDS)
        self.consumer = Consumer({**servers, **settings})
        self.positions: dict[int, int] = {}
        self.processed: list[bytes] = []
        self.commits = 0
        self._joined = False

    def process(self, deadline: float) -> None:
        assert time.monotonic() < deadline
        if not self._joined:
            self.consumer.subscribe(["in"], on_revoke=lambda _consumer, _partitions: self.commit())
            self._joined = True
        message = self.consumer.poll(0.05)
        if message is None or message.error() is not None:
            return
        if not self.positions:
            self.producer.begin_transaction()
        self.producer.produce("out", message.value())
        self.positions[not_none(message.partition())] = not_none(message.offset()) + 1
        self.processed.append(not_none(message.value()))

    def commit(self) -> None:
        if self.positions:
            offsets = [TopicPartition("in", partition, at) for partition, at in self.positions.items()]
            group = self.consumer.consumer_group_metadata()
            self.producer.send_offsets_to_transaction(offsets, group, PATIENCE_SECONDS)
            self.producer.commit_transaction(PATIENCE_SECONDS)
            self.positions = {}
            self.commits += 1


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
            values.append(not_none(message.value()))
    assert consumer.poll(0.5) is None
    consumer.close()
    return values
