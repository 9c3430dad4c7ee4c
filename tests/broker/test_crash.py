"""What survives: kill -9 under load, a graceful stop, a disk that fills up and has room again."""

from __future__ import annotations

import resource
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.longer import longer

from headrace.broker.embedded import EmbeddedBroker

confluent_kafka = pytest.importorskip("confluent_kafka")
from confluent_kafka import KafkaError, Producer, TopicPartition  # noqa: E402
from confluent_kafka.admin import AdminClient, NewTopic  # noqa: E402

pytestmark = pytest.mark.foreign
TIMEOUT = 30


def create(bootstrap_servers: str, topic: str, partitions: int, **configs: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap_servers})
    for future in admin.create_topics([NewTopic(topic, partitions, 1, config=configs)]).values():
        future.result(TIMEOUT)


def read_all(bootstrap_servers: str, topic: str, partitions: int) -> list[Any]:
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": bootstrap_servers, "group.id": "reader", "enable.partition.eof": True}
    )
    messages = []
    try:
        consumer.assign([TopicPartition(topic, index, 0) for index in range(partitions)])
        ended: set[int] = set()
        while len(ended) < partitions:
            message = consumer.poll(TIMEOUT)
            assert message is not None
            if message.error() is None:
                messages.append(message)
            else:
                assert message.error().code() == KafkaError._PARTITION_EOF
                ended.add(message.partition())
    finally:
        consumer.close()
    return messages


class Load:
    """A producer that goes on until told to stop, and remembers what was acknowledged."""

    def __init__(self, bootstrap_servers: str, topic: str, *, idempotent: bool) -> None:
        self.acknowledged: dict[bytes, tuple[int, int]] = {}
        self.reached = threading.Event()
        self._wanted = 0
        self._stop = threading.Event()
        self._topic = topic
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap_servers,
                "enable.idempotence": idempotent,
                "acks": "all",
                "linger.ms": 2,
                "message.timeout.ms": 60_000,
                "reconnect.backoff.max.ms": 100,
                "log_level": 0,
            }
        )
        self._thread = threading.Thread(target=self._run)

    def start(self) -> None:
        self._thread.start()

    def wait_for(self, more: int) -> None:
        self._wanted = len(self.acknowledged) + more
        self.reached.clear()
        assert self.reached.wait(TIMEOUT), f"only {len(self.acknowledged)} acknowledged"

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()
        assert self._producer.flush(TIMEOUT) == 0

    def _run(self) -> None:
        number = 0
        while not self._stop.is_set():
            value = b"value-%d" % number
            try:
                self._producer.produce(self._topic, value, key=value, on_delivery=self._delivered)
                number += 1
            except BufferError:
                self._producer.poll(0.01)
            self._producer.poll(0)

    def _delivered(self, error: Any, message: Any) -> None:
        if error is None:
            self.acknowledged[message.value()] = (message.partition(), message.offset())
            if len(self.acknowledged) >= self._wanted:
                self.reached.set()


@pytest.mark.slow
@pytest.mark.parametrize("idempotent", [pytest.param(False, marks=longer), True])
def test_kill_9_under_load_loses_no_acknowledged_record(idempotent: bool, broker_process: Callable[..., Any]) -> None:
    broker = broker_process(log_segment_bytes=1_000_000)
    create(broker.bootstrap_servers, "t", 4)
    load = Load(broker.bootstrap_servers, "t", idempotent=idempotent)
    load.start()
    try:
        for _ in range(3):
            load.wait_for(5000)
            broker.kill()
            broker.start()
        load.wait_for(5000)
    finally:
        load.stop()
    found = {
        (message.partition(), message.offset()): message.value()
        for message in read_all(broker.bootstrap_servers, "t", 4)
    }
    lost = [value for value, place in load.acknowledged.items() if found.get(place) != value]
    assert lost == []
    assert len(load.acknowledged) >= 20_000
    if idempotent:
        assert len(found) == len(set(found.values())), "an idempotent producer's record is there twice"
    assert broker.stop() == 0


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["never", "interval", "always"])
def test_a_graceful_stop_keeps_everything(policy: str, broker_process: Callable[..., Any], tmp_path: Path) -> None:
    broker = broker_process(headrace_flush_policy=policy)
    create(broker.bootstrap_servers, "t", 2)
    load = Load(broker.bootstrap_servers, "t", idempotent=True)
    load.start()
    load.wait_for(500)
    load.stop()
    assert broker.stop() == 0
    assert f"fsync policy {policy}" in broker.errors
    assert "not replicated" in broker.errors
    assert (tmp_path / "data" / "headrace-clean-shutdown").exists()
    broker.start()
    found = {message.value() for message in read_all(broker.bootstrap_servers, "t", 2)}
    assert found == set(load.acknowledged)


@pytest.mark.slow
def test_full_disk_fails_produce_until_space_is_available(
    broker_process: Callable[..., Any],
) -> None:
    broker = broker_process(log_index_size_max_bytes=4096)
    create(broker.bootstrap_servers, "t", 1)
    unlimited = resource.prlimit(broker.process.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(broker.process.pid, resource.RLIMIT_FSIZE, (300_000, unlimited[1]))
    outcomes: list[Any] = []

    def produce(count: int, **settings: object) -> list[Any]:
        outcomes.clear()
        producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "linger.ms": 0, "log_level": 0, **settings})
        for number in range(count):
            producer.produce("t", b"%010d" % number + b"x" * 1000, on_delivery=lambda error, _: outcomes.append(error))
            producer.flush(TIMEOUT)
        return list(outcomes)

    errors = produce(400, **{"message.timeout.ms": 300, "retries": 0})
    assert len(errors) == 400
    refused = [error.code() for error in errors if error is not None]
    assert refused
    assert set(refused) <= {KafkaError.KAFKA_STORAGE_ERROR, KafkaError._MSG_TIMED_OUT}
    assert KafkaError.KAFKA_STORAGE_ERROR in refused
    kept = len(errors) - len(refused)
    assert len(read_all(broker.bootstrap_servers, "t", 1)) == kept
    resource.prlimit(broker.process.pid, resource.RLIMIT_FSIZE, unlimited)
    assert [error for error in produce(10) if error is not None] == []
    assert len(read_all(broker.bootstrap_servers, "t", 1)) == kept + 10
    broker.kill()
    broker.start()
    assert len(read_all(broker.bootstrap_servers, "t", 1)) == kept + 10


def test_killed_embedded_broker_keeps_acknowledged_records(
    broker: EmbeddedBroker,
) -> None:
    broker.create_topics({"t": 1})
    broker.produce("t", [b"1", b"2"])
    port = broker.port
    for _ in range(3):
        broker.kill()
        broker.restart()
    assert broker.port == port
    broker.produce("t", [b"3"])
    assert [record.value for record in broker.records("t")] == [b"1", b"2", b"3"]
