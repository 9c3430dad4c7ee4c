"""Consumers of others in classic groups of our broker: confluent-kafka, kafka-python and aiokafka join, share, leave,
die, come back, and move partitions without stopping."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest
from tests.harness.brokers import broker_fixture
from tests.harness.polling import wait_until
from tests.interop.foreign_consumers import kafka_python_consumer

from headrace.broker.embedded import EmbeddedBroker

pytestmark = [
    pytest.mark.foreign,
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]
PARTITIONS = 6
PATIENCE_S = 40.0
ALL = set(range(PARTITIONS))


broker = broker_fixture(
    {"t": PARTITIONS}, config={"group.initial.rebalance.delay.ms": 100, "group.min.session.timeout.ms": 1_000}
)


def produce(broker: EmbeddedBroker, count: int) -> None:
    confluent_kafka = pytest.importorskip("confluent_kafka")
    producer = confluent_kafka.Producer({"bootstrap.servers": broker.bootstrap_servers})
    for number in range(count):
        producer.produce("t", b"%d" % number, partition=number % PARTITIONS)
    assert producer.flush(PATIENCE_S) == 0


class Librdkafka:
    """One consumer of confluent-kafka. Mutable: what it has, what it ever lost, what it read."""

    def __init__(self, broker: EmbeddedBroker, **settings: object) -> None:
        confluent_kafka = pytest.importorskip("confluent_kafka")
        self.owned: set[int] = set()
        self.assignments = 0
        self.lost: list[set[int]] = []
        self.values: list[bytes] = []
        self._cooperative = settings.get("partition.assignment.strategy") == "cooperative-sticky"
        self.consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": broker.bootstrap_servers,
                "group.id": "g",
                "auto.offset.reset": "earliest",
                "session.timeout.ms": 6_000,
                "heartbeat.interval.ms": 200,
                **settings,
            }
        )
        self.consumer.subscribe(["t"], on_assign=self._assigned, on_revoke=self._revoked)

    def _assigned(self, consumer: Any, partitions: list[Any]) -> None:
        self.assignments += 1
        self.owned |= {each.partition for each in partitions}
        if self._cooperative:
            consumer.incremental_assign(partitions)
        else:
            consumer.assign(partitions)

    def _revoked(self, consumer: Any, partitions: list[Any]) -> None:
        gone = {each.partition for each in partitions}
        self.owned -= gone
        self.lost.append(gone)
        if self._cooperative:
            consumer.incremental_unassign(partitions)
        else:
            consumer.unassign()

    def poll(self) -> None:
        message = self.consumer.poll(0.02)
        if message is not None and message.error() is None:
            self.values.append(message.value())

    def has_read(self, count: int) -> bool:
        """Poll once; return whether all of `count` records have been read."""
        self.poll()
        return len(self.values) == count

    def has_owned(self) -> bool:
        """Poll once; return whether partitions are assigned."""
        self.poll()
        return bool(self.owned)

    def close(self) -> None:
        self.consumer.close()


def shared(*consumers: Librdkafka) -> Callable[[], bool]:
    """Everybody has some, together they have all."""

    def attempt() -> bool:
        for each in consumers:
            each.poll()
        owned = [partition for each in consumers for partition in each.owned]
        return all(each.owned for each in consumers) and sorted(owned) == sorted(ALL)

    return attempt


@pytest.mark.parametrize("strategy", ["range", "roundrobin", "cooperative-sticky"])
def test_confluent_kafka_joins_shares_and_leaves(strategy: str, broker: EmbeddedBroker) -> None:
    produce(broker, 120)
    one = Librdkafka(broker, **{"partition.assignment.strategy": strategy})
    wait_until(shared(one), "one has all")
    wait_until(lambda: one.has_read(120), "one read all")
    two = Librdkafka(broker, **{"partition.assignment.strategy": strategy})
    try:
        wait_until(shared(one, two), "both have some")
        if strategy == "cooperative-sticky":
            assert [len(gone) for gone in one.lost] == [3], "what stays is never revoked"
            assert one.owned.isdisjoint(*one.lost)
        group = broker.group("g")
        assert (group.state, group.group_type) == ("Stable", "classic")
        two.close()
        wait_until(shared(one), "one has all again")
    finally:
        one.close()
    assert broker.group("g").state == "Empty"
    assert sum(broker.group("g").offsets.values()) == 120


VICTIM = """
import sys
from confluent_kafka import Consumer
consumer = Consumer({"bootstrap.servers": sys.argv[1], "group.id": "g", "session.timeout.ms": 2000,
                     "heartbeat.interval.ms": 200})
consumer.subscribe(["t"])
while True:
    consumer.poll(0.1)
    if consumer.assignment():
        print("owns", flush=True)
"""


def test_killed_consumer_loses_its_partitions(broker: EmbeddedBroker) -> None:
    victim = subprocess.Popen([sys.executable, "-c", VICTIM, broker.bootstrap_servers], stdout=subprocess.PIPE)
    assert victim.stdout is not None
    try:
        victim.stdout.readline()  # it has all of them
        one = Librdkafka(broker)
        try:
            wait_until(one.has_owned, "one has some")
            assert one.owned != ALL
            victim.kill()
            wait_until(shared(one), "one has all")
        finally:
            one.close()
    finally:
        victim.kill()
        victim.wait()
        victim.stdout.close()


def test_a_static_member_restarts_without_a_rebalance(broker: EmbeddedBroker) -> None:
    one = Librdkafka(broker, **{"group.instance.id": "one"})
    two = Librdkafka(broker, **{"group.instance.id": "two"})
    try:
        wait_until(shared(one, two), "both have some")
        before, lost, owned = one.assignments, list(one.lost), set(two.owned)
        two.close()  # a static member does not leave
        again = Librdkafka(broker, **{"group.instance.id": "two"})
        try:
            wait_until(lambda: one.has_owned() and again.has_owned() and again.owned == owned, "it is back")
            for _ in range(50):  # time for heartbeats
                one.poll()
            assert (one.assignments, one.lost) == (before, lost), "the other one noticed nothing"
        finally:
            again.close()
    finally:
        one.close()


def test_a_group_outlives_the_broker(tmp_path: Any) -> None:
    """After a restart the members go on in their generation; nobody joins anew."""
    settings = {"group.initial.rebalance.delay.ms": 100, "group.min.session.timeout.ms": 1_000}
    first = EmbeddedBroker({"t": PARTITIONS}, data_dir=tmp_path, config=settings).start()
    port = first.port
    one = Librdkafka(first)
    try:
        wait_until(shared(one), "one has all")
        first.stop()
        with EmbeddedBroker({"t": PARTITIONS}, data_dir=tmp_path, port=port, config=settings) as second:
            assert second.group("g").state == "Stable"
            produce(second, 60)
            wait_until(lambda: one.has_read(60), "one reads on")
            assert one.lost == []
            assert one.assignments == 1
            one.close()
            assert second.group("g").state == "Empty"
    finally:
        first.stop()


def test_kafka_python_joins_shares_and_leaves(broker: EmbeddedBroker) -> None:
    pytest.importorskip("kafka")
    produce(broker, 60)
    stops = [threading.Event(), threading.Event()]
    owned: list[set[int]] = [set(), set()]
    values: list[bytes] = []

    def run(index: int) -> None:
        consumer = kafka_python_consumer(
            "t",
            bootstrap_servers=broker.bootstrap_servers,
            group_id="g",
            auto_offset_reset="earliest",
            session_timeout_ms=6_000,
            heartbeat_interval_ms=200,
        )
        while not stops[index].is_set():
            for batch in consumer.poll(timeout_ms=100).values():
                values.extend(record.value for record in batch)
            owned[index] = {each.partition for each in consumer.assignment()}
        owned[index] = set()
        consumer.close()

    threads = [threading.Thread(target=run, args=(index,), daemon=True) for index in range(2)]
    try:
        threads[0].start()
        wait_until(lambda: owned[0] == ALL and len(values) == 60, "one has all and read it")
        threads[1].start()
        wait_until(
            lambda: owned[0] and owned[1] and owned[0] | owned[1] == ALL and not owned[0] & owned[1], "both have some"
        )
        stops[1].set()
        wait_until(lambda: owned[0] == ALL, "one has all again")
    finally:
        for stop, thread in zip(stops, threads, strict=True):
            stop.set()
            if thread.ident is not None:
                thread.join(PATIENCE_S)
    wait_until(lambda: broker.group("g").state == "Empty", "all have left")
    assert sum(broker.group("g").offsets.values()) == 60


def test_aiokafka_joins_shares_and_leaves(broker: EmbeddedBroker) -> None:
    aiokafka = pytest.importorskip("aiokafka")
    produce(broker, 60)

    def consumer() -> Any:
        return aiokafka.AIOKafkaConsumer(
            "t",
            bootstrap_servers=broker.bootstrap_servers,
            group_id="g",
            auto_offset_reset="earliest",
            session_timeout_ms=6_000,
            heartbeat_interval_ms=200,
        )

    def owned(member: Any) -> set[int]:
        return {each.partition for each in member.assignment()}

    async def until(condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while not condition():
                await asyncio.sleep(0.05)

    async def play() -> None:
        one, two = consumer(), consumer()
        await one.start()
        try:
            read = 0
            while read < 60:
                batches = await one.getmany(timeout_ms=500)
                read += sum(map(len, batches.values()))
            await two.start()
            await until(lambda: bool(owned(one)) and bool(owned(two)) and owned(one) | owned(two) == ALL)
            await two.stop()
            await until(lambda: owned(one) == ALL)
        finally:
            await one.stop()

    asyncio.run(play())
    assert broker.group("g").state == "Empty"
    assert sum(broker.group("g").offsets.values()) == 60
