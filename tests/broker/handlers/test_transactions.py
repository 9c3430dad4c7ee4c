"""confluent-kafka's transactional producer and consumers of both isolation levels on our broker."""

from __future__ import annotations

import time

import pytest
from tests.harness.values import not_none

from headrace.broker.embedded import EmbeddedBroker
from headrace.client.fetch_loop import fetch_request
from headrace.client.network_client import NetworkClient
from headrace.client.selector import is_readable

confluent_kafka = pytest.importorskip("confluent_kafka")
from confluent_kafka import Consumer, Producer, TopicPartition  # noqa: E402

pytestmark = pytest.mark.foreign

PATIENCE_SECONDS = 30


def read_to_the_end(broker: EmbeddedBroker, isolation_level: str, ends: dict[int, int]) -> list[bytes]:
    """All values until each partition is read up to `ends`; -1001 and the like are positions that did not move yet."""
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap_servers,
            "group.id": isolation_level,
            "auto.offset.reset": "earliest",
            "isolation.level": isolation_level,
            "enable.auto.commit": False,
            "enable.partition.eof": True,
        }
    )
    consumer.assign([TopicPartition("t", partition, 0) for partition in ends])
    values: list[bytes] = []
    at_end: set[int] = set()
    deadline = time.monotonic() + PATIENCE_SECONDS
    while len(at_end) < len(ends):
        assert time.monotonic() < deadline, (isolation_level, values)
        message = consumer.poll(0.2)
        if message is None:
            continue
        error, partition = message.error(), not_none(message.partition())
        if error is not None:
            assert error.name() == "_PARTITION_EOF", error
            assert message.offset() == ends[partition]
            at_end.add(partition)
        else:
            values.append(not_none(message.value()))
    consumer.close()
    return sorted(values)


def test_readers_of_committed_records_see_committed_ones_alone() -> None:
    with EmbeddedBroker(topics={"t": 2}) as broker:
        producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "transactional.id": "x"})
        producer.init_transactions(PATIENCE_SECONDS)
        for number in range(6):
            producer.begin_transaction()
            for partition in (0, 1):
                producer.produce("t", b"%d" % number, partition=partition)
            producer.flush()
            if number % 2:
                producer.abort_transaction(PATIENCE_SECONDS)
            else:
                producer.commit_transaction(PATIENCE_SECONDS)
        producer.begin_transaction()
        producer.produce("t", b"open", partition=0)
        producer.flush()
        # Six records and six markers in each; the open transaction holds its partition's readers at 12.
        ends = {0: 12, 1: 12}
        assert read_to_the_end(broker, "read_committed", ends) == sorted([b"0", b"2", b"4"] * 2)
        everything = [b"%d" % number for number in range(6)] * 2 + [b"open"]
        assert read_to_the_end(broker, "read_uncommitted", {0: 13, 1: 12}) == sorted(everything)
        producer.commit_transaction(PATIENCE_SECONDS)
        committed = sorted([b"0", b"2", b"4"] * 2 + [b"open"])
        assert read_to_the_end(broker, "read_committed", {0: 14, 1: 12}) == committed


def test_a_second_producer_fences_the_first() -> None:
    with EmbeddedBroker(topics={"t": 1}) as broker:
        settings = {"bootstrap.servers": broker.bootstrap_servers, "transactional.id": "x"}
        first, second = Producer(settings), Producer(settings)
        first.init_transactions(PATIENCE_SECONDS)
        first.begin_transaction()
        first.produce("t", b"lost")
        first.flush()
        second.init_transactions(PATIENCE_SECONDS)  # aborts what was open
        with pytest.raises(confluent_kafka.KafkaException, match=r"INVALID_TXN_STATE|FENCED|EPOCH"):
            first.commit_transaction(PATIENCE_SECONDS)
        second.begin_transaction()
        second.produce("t", b"kept")
        second.commit_transaction(PATIENCE_SECONDS)
        assert read_to_the_end(broker, "read_committed", {0: 4}) == [b"kept"]


def test_read_committed_fetch_is_not_woken_by_an_open_transaction() -> None:
    places = [("t", 0, 0)]
    limits = {"max_wait_ms": 60_000, "min_bytes": 1, "max_bytes": 1 << 20, "max_partition_bytes": 1 << 20}
    with EmbeddedBroker(topics={"t": 1}) as broker, NetworkClient(broker.bootstrap_servers) as client:
        cluster = client.known_topics(["t"])
        with NetworkClient(broker.bootstrap_servers) as other:
            other.known_topics(["t"])
            parked = client.start(fetch_request(places, cluster, isolation_level=1, **limits), node=1)
            eager = other.start(fetch_request(places, cluster, isolation_level=0, **limits), node=1)
            producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "transactional.id": "x"})
            producer.init_transactions(PATIENCE_SECONDS)
            producer.begin_transaction()
            producer.produce("t", b"one", partition=0)
            producer.flush()
            assert b"one" in eager.result().responses[0].partitions[0].records, "this one takes all"
            time.sleep(0.3)
            assert not is_readable(parked)
            producer.commit_transaction(PATIENCE_SECONDS)
            assert b"one" in parked.result().responses[0].partitions[0].records
