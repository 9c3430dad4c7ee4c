"""A request or an answer of confluent-kafka's transactional producer is lost, as when a broker is killed: the same
story on Apache Kafka 4.3.1 and here, and whole transactions.

Among them the one that ends fatally on both: an abort right after AddPartitionsToTxn was lost. The client (librdkafka
2.16) asks for the end of a transaction that the broker never heard of, and takes INVALID_TXN_STATE for fatal.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.harness.ports import find_free_port
from tests.interop.cut_connections import CuttingProxy
from tests.interop.kafka_broker import KafkaBroker
from tests.interop.transactional_losses import ADD, END, INIT, PARTITIONS, PRODUCE, Case, told

from headrace.broker.embedded import EmbeddedBroker
from headrace.client.admin import Admin

confluent_kafka = pytest.importorskip("confluent_kafka")

pytestmark = [pytest.mark.interop, pytest.mark.foreign, pytest.mark.slow]

FATAL = Case(ADD, "request", commits=False, flushes=False)
CASES = (
    FATAL,
    Case(INIT, "answer", commits=True),
    Case(ADD, "answer", commits=True),
    Case(PRODUCE, "answer", commits=True),
    Case(END, "answer", commits=True),
    Case(END, "answer", commits=False),
)


@pytest.fixture(scope="module")
def proxies(kafka_tools: None) -> Iterator[tuple[CuttingProxy, CuttingProxy]]:
    """One before Kafka and one before us."""
    theirs, ours = CuttingProxy(), CuttingProxy()
    port = find_free_port()
    told_as = lambda proxy: {"advertised.listeners": f"PLAINTEXT://127.0.0.1:{proxy.port}"}  # noqa: E731
    kafka = KafkaBroker("4.3.1", told_as(theirs))
    theirs.target, ours.target = kafka.port, port
    with kafka, EmbeddedBroker(port=port, config=told_as(ours)):
        yield theirs, ours
    theirs.close()
    ours.close()


def committed(proxy: CuttingProxy, topic: str) -> list[list[str]]:
    settings = {"group.id": "reader", "isolation.level": "read_committed", "enable.partition.eof": True}
    servers = {"bootstrap.servers": f"127.0.0.1:{proxy.port}", "log_level": 0}
    consumer = confluent_kafka.Consumer({**servers, **settings, "enable.auto.commit": False})
    consumer.assign([confluent_kafka.TopicPartition(topic, partition, 0) for partition in range(PARTITIONS)])
    found: list[list[str]] = [[] for _ in range(PARTITIONS)]
    ended: set[int] = set()
    while len(ended) < PARTITIONS:
        message = consumer.poll(30)
        assert message is not None, (found, ended)
        if message.error():
            assert message.error().code() == confluent_kafka.KafkaError._PARTITION_EOF, message.error()
            ended.add(message.partition())
        else:
            found[message.partition()].append(message.value().decode())
    consumer.close()
    return found


def test_every_loss_ends_as_on_kafka(proxies: tuple[CuttingProxy, CuttingProxy]) -> None:
    stories = []
    for proxy in proxies:
        with Admin(f"127.0.0.1:{proxy.port}") as admin:
            admin.create_topics({"lossy": PARTITIONS})
        each = [told(case, number, "lossy", proxy) for number, case in enumerate(CASES)]
        stories.append((each, committed(proxy, "lossy")))
    (theirs, they_see), (ours, we_see) = stories
    assert ours == theirs
    assert "second: INVALID_TXN_STATE fatal" in ours[0]
    assert we_see == they_see
    assert we_see[0] == we_see[1]
