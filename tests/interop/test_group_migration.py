"""A group that changes its type while it is empty, classic → streams → classic, on Apache Kafka: offsets stay.

The classic member is librdkafka, the streams member ours. What Kafka wrote on the way into `__consumer_offsets` is
replayed by our coordinator, whole, in every prefix, and as a log cleaner may leave it.
"""

from __future__ import annotations

import random
from pathlib import Path

import confluent_kafka
import pytest
from tests.coordinator.coordinator_context import CoordinatorContext
from tests.coordinator.test_group_registry import compacted
from tests.harness.polling import wait_until
from tests.harness.values import not_none
from tests.interop.group_members import Worker, is_settled
from tests.interop.kafka_broker import KafkaBroker

from headrace.cli.main import run
from headrace.client.admin import Admin
from headrace.client.membership.events import Fatal
from headrace.client.membership.topology import Subtopology, Topology
from headrace.client.plain_records import PlainRecord, consume, produce
from headrace.client.streams_member import StreamsMember
from headrace.coordinator.records import serde
from headrace.coordinator.request_context import CorruptRecord
from headrace.protocol.partitioner import partition_for_group

pytestmark = [pytest.mark.interop, pytest.mark.slow]

GROUP, TOPIC = "migrating", "migrating-input"


def consumer_reads(servers: str, count: int, protocol: str = "classic", group: str = GROUP) -> list[int]:
    """A consumer reads so many records, commits and leaves; the offsets it read."""
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "group.protocol": protocol,
        }
    )
    consumer.subscribe([TOPIC])
    read: list[int] = []
    try:
        while len(read) < count:
            message = consumer.poll(30)
            assert message is not None, "nothing to read"
            assert message.error() is None, message.error()
            read.append(not_none(message.offset()))
            consumer.commit(message=message, asynchronous=False)
    finally:
        consumer.close()
    return read


def streams_member_was_there(admin: Admin) -> None:
    topology = Topology(subtopologies=(Subtopology(subtopology_id="0", source_topics=(TOPIC,)),))
    worker = Worker(admin.client.bootstrap_servers, topology, GROUP)
    try:
        wait_until(lambda: is_settled(admin, GROUP, 1))
        assert kind(admin) == ("streams", "Stable")
    finally:
        worker.close()
    wait_until(lambda: kind(admin) == ("streams", "Empty"))


def kind(admin: Admin, group_id: str = GROUP) -> tuple[str, str]:
    (listed,) = (group for group in admin.list_groups() if group.group_id == group_id)
    return listed.group_type.lower(), listed.state


def test_an_empty_consumer_group_is_in_the_way_until_it_is_upgraded(kafka: KafkaBroker, tmp_path: Path) -> None:
    """Kafka converts classic groups only; saved, deleted and restored it is one."""
    topology = Topology(subtopologies=(Subtopology(subtopology_id="0", source_topics=(TOPIC,)),))
    with Admin(kafka.bootstrap_servers) as admin:
        admin.create_topics({TOPIC: 1}, replication_factor=1, exist_ok=True)
        produce(admin.client, TOPIC, [PlainRecord(value=b"v") for _ in range(10)], partition=0)
        assert len(consumer_reads(kafka.bootstrap_servers, 2, "consumer", "modern")) == 2
        wait_until(lambda: kind(admin, "modern") == ("consumer", "Empty"))
        position = admin.committed_offsets("modern")
        with StreamsMember("modern", topology, bootstrap_servers=kafka.bootstrap_servers) as member:
            refused = next(c for _ in range(100) for c in member.changes(timeout=0.1) if isinstance(c, Fatal))
        assert refused.error.code == "group-kind"
        file = str(tmp_path / "positions.json")
        assert run(["upgrade", "modern", "--file", file, "--bootstrap-server", kafka.bootstrap_servers]) == 0
        assert (kind(admin, "modern"), admin.committed_offsets("modern")) == (("classic", "Empty"), position)
        worker = Worker(kafka.bootstrap_servers, topology, "modern")
        try:
            wait_until(lambda: is_settled(admin, "modern", 1))
        finally:
            worker.close()
        assert admin.committed_offsets("modern") == position


def test_an_upgrade_waits_for_positions_of_open_transactions(
    kafka: KafkaBroker, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """What is still undecided would be lost with the group."""
    group, topic = "undecided", "undecided-input"
    topology = Topology(subtopologies=(Subtopology(subtopology_id="0", source_topics=(topic,)),))
    servers = {"bootstrap.servers": kafka.bootstrap_servers, "log_level": 0}
    arguments = ["upgrade", group, "--file", str(tmp_path / "positions.json"), "--timeout", "1000"]
    arguments += ["--bootstrap-server", kafka.bootstrap_servers]
    with Admin(kafka.bootstrap_servers) as admin:
        admin.create_topics({topic: 1}, replication_factor=1)
        worker = Worker(kafka.bootstrap_servers, topology, group)
        wait_until(lambda: is_settled(admin, group, 1))
        worker.close()
        wait_until(lambda: kind(admin, group) == ("streams", "Empty"))
        consumer = confluent_kafka.Consumer({**servers, "group.id": group})
        producer = confluent_kafka.Producer({**servers, "transactional.id": "undecided"})
        producer.init_transactions(20)
        producer.begin_transaction()
        position = [confluent_kafka.TopicPartition(topic, 0, 5)]
        producer.send_offsets_to_transaction(position, consumer.consumer_group_metadata(), 20)
        assert run(arguments) == 1
        told = capfd.readouterr().err
        assert "error[offsets-unstable]" in told
        assert "a transaction of undecided is open there" in told
        assert kind(admin, group) == ("streams", "Empty")
        producer.commit_transaction(20)
        consumer.close()
        assert run(arguments) == 0
        assert admin.committed_offsets(group) == {(topic, 0): 5}


def history(admin: Admin) -> list[tuple[bytes, bytes | None]]:
    """What Kafka wrote of our group; keys of other groups in the same partition are left out."""
    where = ("__consumer_offsets", partition_for_group(GROUP))
    records = [record for _, _, record in consume(admin.client, {where: 0}, isolation_level="read_uncommitted")]
    own = []
    for record in records:
        assert record.key is not None
        decoded = serde.decode(record.key, record.value)
        if decoded is not None and GROUP in (getattr(decoded.key, "group_id", ""), getattr(decoded.key, "group", "")):
            own.append((record.key, record.value))
    return own


def test_an_empty_group_goes_from_classic_to_streams_and_back(kafka: KafkaBroker) -> None:
    with Admin(kafka.bootstrap_servers) as admin:
        admin.create_topics({TOPIC: 1}, replication_factor=1, exist_ok=True)
        produce(admin.client, TOPIC, [PlainRecord(value=b"v") for _ in range(10)], partition=0)
        assert consumer_reads(kafka.bootstrap_servers, 3) == [0, 1, 2]
        wait_until(lambda: kind(admin) == ("classic", "Empty"))
        streams_member_was_there(admin)
        assert admin.committed_offsets(GROUP) == {(TOPIC, 0): 3}
        assert consumer_reads(kafka.bootstrap_servers, 4) == [3, 4, 5, 6]
        wait_until(lambda: kind(admin) == ("classic", "Empty"))
        streams_member_was_there(admin)
        assert admin.committed_offsets(GROUP) == {(TOPIC, 0): 7}
        log = history(admin)

    ctx = CoordinatorContext()
    for key, value in log:
        record = serde.decode(key, value)
        assert record is not None
        ctx.shard.replay(record)  # raises CorruptRecord
    assert [(group.group_type, group.group_state) for group in ctx.shard.list_groups()] == [("streams", "Empty")]
    assert ctx.fetch(None, group_id=GROUP) == {(TOPIC, 0): 7}
    names = [type(record.key).__name__ for key, value in log if (record := serde.decode(key, value)) is not None]
    assert {"GroupMetadataKey", "OffsetCommitKey", "StreamsGroupMetadataKey", "StreamsGroupTopologyKey"} <= set(names)
    random_source = random.Random(4)
    for _ in range(40):
        assert replayed(compacted(log, random_source)) == ctx.shard.digest()


def replayed(log: list[tuple[bytes, bytes | None]]) -> str:
    shard = CoordinatorContext().shard
    for key, value in log:
        record = serde.decode(key, value)
        assert record is not None
        try:
            shard.replay(record)
        except CorruptRecord as error:
            raise AssertionError(f"a cleaned log cannot be loaded: {error}") from error
    return shard.digest()
