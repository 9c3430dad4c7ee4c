"""librdkafka against our broker: producer with every codec, consumer with assign, admin client."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from tests.harness.polling import wait_until
from tests.harness.values import not_none

from headrace.broker.embedded import EmbeddedBroker

confluent_kafka = pytest.importorskip("confluent_kafka")
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Producer, TopicPartition  # noqa: E402
from confluent_kafka.admin import (  # noqa: E402
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourceType,
)

pytestmark = pytest.mark.foreign
TIMEOUT = 20


@pytest.fixture
def admin(broker: EmbeddedBroker) -> AdminClient:
    return AdminClient({"bootstrap.servers": broker.bootstrap_servers})


def settled(futures: dict[Any, Any]) -> dict[Any, Any]:
    """Each future's result, or the KafkaError it raised."""
    outcome = {}
    for key, future in futures.items():
        try:
            outcome[key] = future.result(TIMEOUT)
        except KafkaException as error:
            outcome[key] = error.args[0]
    return outcome


def produced(broker: EmbeddedBroker, topic: str, count: int, **settings: object) -> list[Any]:
    errors: list[Any] = []
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, **settings})
    for number in range(count):
        producer.produce(
            topic,
            key=b"key-%d" % (number % 50),
            value=b"value-%d" % number,
            headers=[("number", b"%d" % number), ("null", None)],
            on_delivery=lambda error, _: errors.append(error) if error is not None else None,
        )
    assert producer.flush(TIMEOUT) == 0
    return errors


def consumed(broker: EmbeddedBroker, topic: str, partitions: int, count: int, **settings: object) -> list[Any]:
    consumer = Consumer(
        {"bootstrap.servers": broker.bootstrap_servers, "group.id": "reader", "enable.auto.commit": False, **settings}
    )
    try:
        consumer.assign([TopicPartition(topic, index, OFFSET_BEGINNING) for index in range(partitions)])
        messages: list[Any] = []
        while len(messages) < count:
            batch = consumer.consume(count - len(messages), timeout=TIMEOUT)
            assert batch, f"nothing more came after {len(messages)} of {count} messages"
            assert not [message.error() for message in batch if message.error()]
            messages += batch
        return messages
    finally:
        consumer.close()


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
@pytest.mark.parametrize("idempotent", [False, True])
def test_produce_and_consume(codec: str, idempotent: bool, broker: EmbeddedBroker) -> None:
    broker.create_topics({"t": 3})
    errors = produced(
        broker, "t", 2000, **{"compression.type": codec, "enable.idempotence": idempotent, "linger.ms": 5}
    )
    assert errors == []
    messages = consumed(broker, "t", 3, 2000)
    assert {message.value() for message in messages} == {b"value-%d" % number for number in range(2000)}
    sample = next(message for message in messages if message.value() == b"value-77")
    assert sample.key() == b"key-27"
    assert sample.headers() == [("number", b"77"), ("null", None)]
    assert len(broker.records("t")) == 2000


@pytest.mark.parametrize("acks", ["0", "1", "all"])
def test_acks(acks: str, broker: EmbeddedBroker) -> None:
    broker.create_topics({"t": 1})
    assert produced(broker, "t", 100, acks=acks) == []
    wait_until(lambda: len(broker.records("t")) == 100)
    assert [record.value for record in broker.records("t")] == [b"value-%d" % number for number in range(100)]


def test_read_committed_reads_everything_that_is_not_transactional(broker: EmbeddedBroker) -> None:
    broker.create_topics({"t": 1})
    assert produced(broker, "t", 10) == []
    assert len(consumed(broker, "t", 1, 10, **{"isolation.level": "read_committed"})) == 10


def test_auto_creation_by_a_producer(broker: EmbeddedBroker) -> None:
    assert produced(broker, "made-by-producer", 3) == []
    assert len(broker.records("made-by-producer")) == 3


def test_auto_creation_can_be_forbidden() -> None:
    with EmbeddedBroker(config={"auto.create.topics.enable": False}) as broker:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
        topics = admin.list_topics("missing", timeout=TIMEOUT).topics
        assert not_none(topics["missing"].error).code() == KafkaError.UNKNOWN_TOPIC_OR_PART


def test_topics_are_created_described_and_deleted(admin: AdminClient) -> None:
    wanted = [
        NewTopic("plain", 3, 1),
        NewTopic("tuned", 2, -1, config={"retention.ms": "1000", "cleanup.policy": "compact,delete"}),
        NewTopic("replicated", 1, 3),
        NewTopic("empty", 0, 1),
        NewTopic("bad name", 1, 1),
        NewTopic("odd", 1, 1, config={"no.such.setting": "1"}),
        NewTopic("worse", 1, 1, config={"retention.ms": "soon"}),
    ]
    outcome = settled(admin.create_topics(wanted))
    assert outcome["plain"] is None
    assert outcome["tuned"] is None
    assert outcome["replicated"].code() == KafkaError.INVALID_REPLICATION_FACTOR
    assert outcome["empty"].code() == KafkaError.INVALID_PARTITIONS
    assert outcome["bad name"].code() == KafkaError.TOPIC_EXCEPTION
    assert outcome["odd"].code() == KafkaError.INVALID_CONFIG
    assert "no.such.setting" in outcome["odd"].str()
    assert outcome["worse"].code() == KafkaError.INVALID_CONFIG
    again = settled(
        admin.create_topics([NewTopic("plain", 3, 1), NewTopic("pla_in.x", 1, 1), NewTopic("pla.in_x", 1, 1)])
    )
    assert again["plain"].code() == KafkaError.TOPIC_ALREADY_EXISTS
    assert sorted(str(value) for value in (again["pla_in.x"] is None, again["pla.in_x"] is None)) == ["False", "True"]
    topics = admin.list_topics(timeout=TIMEOUT).topics
    assert len(topics["plain"].partitions) == 3
    assert len(topics["__consumer_offsets"].partitions) == 50
    outcome = settled(admin.delete_topics(["plain", "missing", "__consumer_offsets"]))
    assert outcome["plain"] is None
    assert outcome["missing"].code() == KafkaError.UNKNOWN_TOPIC_OR_PART
    assert outcome["__consumer_offsets"].code() == KafkaError.INVALID_REQUEST
    assert "plain" not in admin.list_topics(timeout=TIMEOUT).topics


def test_validate_only_creates_nothing(admin: AdminClient) -> None:
    assert settled(admin.create_topics([NewTopic("t", 3, 1)], validate_only=True)) == {"t": None}
    assert "t" not in admin.list_topics(timeout=TIMEOUT).topics


def test_partitions_are_added(admin: AdminClient, broker: EmbeddedBroker) -> None:
    broker.create_topics({"t": 2})
    assert settled(admin.create_partitions([NewPartitions("t", 5)])) == {"t": None}
    assert len(admin.list_topics("t", timeout=TIMEOUT).topics["t"].partitions) == 5
    for count in (5, 3):
        assert (
            settled(admin.create_partitions([NewPartitions("t", count)]))["t"].code() == KafkaError.INVALID_PARTITIONS
        )
    missing = settled(admin.create_partitions([NewPartitions("missing", 5)]))["missing"]
    assert missing.code() == KafkaError.UNKNOWN_TOPIC_OR_PART


def test_configs_are_described_with_their_sources(admin: AdminClient, broker: EmbeddedBroker) -> None:
    broker.create_topics({"t": 1}, {"retention.ms": "1234"})
    resource = ConfigResource(ResourceType.TOPIC, "t")
    configs = settled(admin.describe_configs([resource]))[resource]
    assert (configs["retention.ms"].value, configs["retention.ms"].source) == ("1234", 1)
    assert (configs["segment.bytes"].value, configs["segment.bytes"].source) == ("1073741824", 5)
    assert list(configs["retention.ms"].synonyms) == ["retention.ms"]  # log.retention.ms has no default, as in Kafka
    assert list(configs["segment.bytes"].synonyms) == ["log.segment.bytes"]
    node = ConfigResource(ResourceType.BROKER, "1")
    assert settled(admin.describe_configs([node]))[node]["offsets.topic.num.partitions"].value == "50"
    missing = ConfigResource(ResourceType.TOPIC, "missing")
    assert settled(admin.describe_configs([missing]))[missing].code() == KafkaError.UNKNOWN_TOPIC_OR_PART


def test_configs_are_altered_one_by_one(admin: AdminClient, broker: EmbeddedBroker) -> None:
    broker.create_topics({"t": 1}, {"retention.ms": "1234"})
    change = ConfigResource(
        ResourceType.TOPIC,
        "t",
        incremental_configs=[
            ConfigEntry("cleanup.policy", "compact", incremental_operation=AlterConfigOpType.APPEND),
            ConfigEntry("retention.ms", None, incremental_operation=AlterConfigOpType.DELETE),
            ConfigEntry("segment.bytes", "4096", incremental_operation=AlterConfigOpType.SET),
        ],
    )
    assert list(settled(admin.incremental_alter_configs([change])).values()) == [None]
    resource = ConfigResource(ResourceType.TOPIC, "t")
    configs = settled(admin.describe_configs([resource]))[resource]
    assert configs["cleanup.policy"].value == "delete,compact"
    assert configs["retention.ms"].value == "604800000"
    assert configs["segment.bytes"].value == "4096"


def test_offsets_are_listed(admin: AdminClient, broker: EmbeddedBroker) -> None:
    broker.create_topics({"t": 1})
    for time_ms in (1000, 3000, 2000):
        broker.produce("t", [b"x"], timestamp_ms=time_ms)
    here = TopicPartition("t", 0)

    def offset(spec: Any) -> tuple[int, int]:
        result = settled(admin.list_offsets({here: spec}))[here]
        return result.offset, result.timestamp

    assert offset(OffsetSpec.earliest()) == (0, -1)
    assert offset(OffsetSpec.latest()) == (3, -1)
    assert offset(OffsetSpec.max_timestamp()) == (1, 3000)
    assert offset(OffsetSpec.for_timestamp(1500)) == (1, 3000)
    assert offset(OffsetSpec.for_timestamp(9999)) == (-1, -1)


def test_records_are_deleted(admin: AdminClient, broker: EmbeddedBroker) -> None:
    broker.create_topics({"t": 1})
    broker.produce("t", [b"1", b"2", b"3"])
    deleted = settled(admin.delete_records([TopicPartition("t", 0, 2)]))
    assert [result.low_watermark for result in deleted.values()] == [2]
    assert [record.value for record in broker.records("t")] == [b"3"]
    beyond = settled(admin.delete_records([TopicPartition("t", 0, 9)]))
    assert [error.code() for error in beyond.values()] == [KafkaError.OFFSET_OUT_OF_RANGE]


def test_cluster_is_described(admin: AdminClient) -> None:
    cluster = admin.describe_cluster().result(TIMEOUT)
    assert [node.id for node in cluster.nodes] == [1]
    assert cluster.controller.id == 1
    assert len(cluster.cluster_id) == 22


def test_offset_out_of_range_goes_to_the_reset_policy(broker: EmbeddedBroker) -> None:
    broker.create_topics({"t": 1})
    broker.produce("t", [b"1", b"2"])
    consumer = Consumer(
        {"bootstrap.servers": broker.bootstrap_servers, "group.id": "g", "auto.offset.reset": "earliest"}
    )
    try:
        consumer.assign([TopicPartition("t", 0, 99)])
        message = consumer.poll(TIMEOUT)
        assert message is not None
        assert message.value() == b"1"
    finally:
        consumer.close()


def test_message_too_large(broker: EmbeddedBroker) -> None:
    broker.create_topics({"t": 1}, {"max.message.bytes": "1000"})
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
    errors: list[Any] = []
    producer.produce("t", b"x" * 5000, on_delivery=lambda error, _: errors.append(error))
    assert producer.flush(TIMEOUT) == 0
    assert [error.code() for error in errors] == [KafkaError.MSG_SIZE_TOO_LARGE]


def test_producing_to_an_internal_topic_is_refused(broker: EmbeddedBroker) -> None:
    errors = produced(broker, "__consumer_offsets", 1)
    assert [error.code() for error in errors] == [KafkaError.TOPIC_EXCEPTION]


@pytest.fixture
def reader(broker: EmbeddedBroker) -> Iterator[Consumer]:
    consumer = Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": "g", "enable.auto.commit": False})
    yield consumer
    consumer.close()


def test_long_poll_wakes_on_append(broker: EmbeddedBroker) -> None:
    broker.create_topics({"t": 1})
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap_servers,
            "group.id": "g",
            "fetch.wait.max.ms": 60_000,
            "socket.timeout.ms": 61_000,
        }
    )
    try:
        consumer.assign([TopicPartition("t", 0, 0)])
        assert consumer.poll(0.5) is None
        broker.produce("t", [b"awake"])
        message = consumer.poll(TIMEOUT)
        assert message is not None
        assert message.value() == b"awake"
    finally:
        consumer.close()
