"""Transactions: the same requests to Apache Kafka 4.3.1 and to us, and every answer the same; the same records in
`__transaction_state`; Kafka's own tool against us.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from kio.static.primitive import i8
from tests.harness.polling import wait_until
from tests.harness.wire import WireClient
from tests.interop.kafka_broker import KafkaBroker
from tests.interop.kafka_tools import ToolServer
from tests.interop.marker_script import MarkerScript, marker_steps
from tests.interop.transaction_script import Producer, TransactionScript, steps

from headrace.broker.embedded import EmbeddedBroker
from headrace.broker.services import Services
from headrace.coordinator.transactions.transaction_log import TransactionLogKey, decode, encode_key, encode_value
from headrace.coordinator.transactions.transitions import TransactionLogValue
from headrace.protocol import messages as m
from headrace.protocol.api_keys import ApiKey as Api
from headrace.protocol.batch_headers import assign_producer
from headrace.protocol.error_codes import ErrorCode
from headrace.protocol.kio_units import from_ms
from headrace.protocol.record_batches import PlainRecord, decode_records, encode_batch

pytestmark = [pytest.mark.interop, pytest.mark.slow]

# As the Kafka of this run; the timeout of transactions is looked at more often.
SETTINGS = {"transaction.state.log.num.partitions": 3}
PROPERTIES = {**SETTINGS, "transaction.abort.timed.out.transaction.cleanup.interval.ms": 200}
UPGRADE, SAFE_DOWNGRADE = 1, 2


@pytest.fixture(scope="module")
def kafka(kafka_tools: None) -> Iterator[KafkaBroker]:
    """One of our own: its feature is moved, and its records are read."""
    with KafkaBroker("4.3.1", PROPERTIES) as broker:
        yield broker


@pytest.fixture(scope="module")
def ours() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker(config=SETTINGS) as broker:
        yield broker


def port_of(broker: KafkaBroker | EmbeddedBroker) -> int:
    return int(broker.bootstrap_servers.rpartition(":")[2])


def set_transaction_version(port: int, level: int) -> None:
    u = m.update_features_request
    client = WireClient(port)
    update = u.FeatureUpdateKey(
        feature="transaction.version", max_version_level=level, upgrade_type=UPGRADE if level else SAFE_DOWNGRADE
    )
    request = u.UpdateFeaturesRequest(timeout=from_ms(20_000), feature_updates=(update,), validate_only=False)
    answer = client.call(Api.UPDATE_FEATURES, request)
    assert answer.error_code is ErrorCode.none, answer
    client.close()


def answers(port: int, level: int) -> tuple[TransactionScript, list[tuple[str, Any]]]:
    script = TransactionScript(port)
    try:
        steps(script, level)
    finally:
        script.close()
    return script, script.answers


def differences(theirs: list[tuple[str, Any]], ours: list[tuple[str, Any]]) -> list[Any]:
    assert len(theirs) == len(ours)
    return [(number, *pair) for number, pair in enumerate(zip(theirs, ours, strict=True)) if pair[0] != pair[1]]


@pytest.mark.parametrize("level", [2, 0])
def test_every_answer_is_kafkas(kafka: KafkaBroker, ours: EmbeddedBroker, level: int) -> None:
    for port in (kafka.port, port_of(ours)):
        if level != 2:
            set_transaction_version(port, level)
    try:
        script, theirs = answers(kafka.port, level)
        our_script, our_answers = answers(port_of(ours), level)
        assert len(theirs) >= 100
        assert differences(theirs, our_answers) == []
        assert records(kafka.port, script) == records(port_of(ours), our_script)
    finally:
        if level != 2:
            for port in (kafka.port, port_of(ours)):
                set_transaction_version(port, 2)


def test_markers_are_refused_as_by_kafka(kafka: KafkaBroker, ours: EmbeddedBroker) -> None:
    """Stale epochs of producers and of coordinators, late ones at transaction version 2, sequences and transactions.

    One intended difference: an epoch below 0 is refused in words (Kafka: UNKNOWN_SERVER_ERROR)."""
    told = []
    for port in (kafka.port, port_of(ours)):
        script = TransactionScript(port)
        markers = MarkerScript(script)
        marker_steps(markers)
        script.close()
        told.append([(step, answer) for step, answer in markers.answers if "epoch=-1, coordinator_epoch=0" not in step])
    assert len(told[0]) >= 50
    assert differences(*told) == []


def set_verification(port: int, enabled: bool) -> None:
    r = m.incremental_alter_configs_request
    config = r.AlterableConfig(  # type: ignore[arg-type]
        name="transaction.partition.verification.enable", config_operation=i8(0), value=str(enabled).lower()
    )
    resource = r.AlterConfigsResource(resource_type=i8(4), resource_name="1", configs=(config,))
    client = WireClient(port)
    request = r.IncrementalAlterConfigsRequest(resources=(resource,), validate_only=False)
    assert client.call(Api.INCREMENTAL_ALTER_CONFIGS, request).responses[0].error_code is ErrorCode.none
    client.close()


def test_partitions_are_not_verified_when_verification_is_off(kafka: KafkaBroker, ours: EmbeddedBroker) -> None:
    """Produce of clients that add partitions themselves, and did not; those of version 2 leave it to the broker."""
    told = []
    for port in (kafka.port, port_of(ours)):
        script = TransactionScript(port)
        markers = MarkerScript(script)
        for enabled in (False, True):
            set_verification(port, enabled)
            name = f"verified-{enabled}"
            producer = script.init(name)
            wait_until(lambda at=port, is_on=enabled: verifies(at) is is_on)  # type: ignore[misc]
            markers.produce(producer, 0, tid=name)
            markers.produce(producer, 1, tid=name, version=10)
            markers.produce(Producer(producer.id, producer.epoch + 1), 0, tid=name)
            markers.produce(producer, 0, tid="somebody-else")
            other = script.init(f"new-{enabled}")
            markers.produce(other, 0, tid=f"new-{enabled}", version=12)
        told.append(markers.answers)
        script.close()
    assert differences(*told) == []


def verifies(port: int) -> bool:
    """What the broker says of the setting: a change comes to Kafka's brokers a little later."""
    d = m.describe_configs_request
    name = "transaction.partition.verification.enable"
    resource = d.DescribeConfigsResource(resource_type=i8(4), resource_name="1", configuration_keys=(name,))
    client = WireClient(port)
    answer = client.call(Api.DESCRIBE_CONFIGS, d.DescribeConfigsRequest(resources=(resource,)))
    client.close()
    return bool(answer.results[0].configs[0].value == "true")


def records(port: int, script: TransactionScript) -> list[Any]:
    """Keys and values of `__transaction_state` as they lie there, with times, ids and the run's mark made alike.

    Each value must come out of our own writer byte for byte, but for the order of partitions.
    """
    told: dict[str, list[Any]] = {}
    for key, value in read_all(port, "__transaction_state"):
        record = decode(key, value)
        assert record is not None
        assert isinstance(record.key, TransactionLogKey)
        name = record.key.transactional_id
        if script.mark not in name:
            continue
        assert encode_key(record.key) == key
        if value is None:
            told.setdefault(name, []).append(None)
            continue
        assert isinstance(record.value, TransactionLogValue)
        version = int.from_bytes(value[:2], "big")
        again = encode_value(record.value, version)
        assert again == value or len(record.value.transaction_partitions) > 1, (value, again)
        assert len(again) == len(value)
        told.setdefault(name, []).append((version, *worded(record.value, script)))
    return sorted((name.replace(script.mark, ""), values) for name, values in told.items())


def worded(value: TransactionLogValue, script: TransactionScript) -> tuple[Any, ...]:
    ids = [value.producer_id, value.previous_producer_id, value.next_producer_id]
    return (
        [script.word(each) for each in ids],
        value.producer_epoch,
        value.transaction_timeout_ms,
        value.transaction_status,
        sorted((topic.replace(script.mark, ""), part) for topic, part in value.transaction_partitions),
        value.transaction_last_update_timestamp_ms > 0,
        value.transaction_start_timestamp_ms > 0 or value.transaction_start_timestamp_ms,
        value.client_transaction_version,
    )


def read_all(port: int, topic: str) -> Iterator[tuple[bytes, bytes | None]]:
    f = m.fetch_request
    client = WireClient(port)
    for partition in range(3):
        position = 0
        while True:
            part = f.FetchPartition(partition=partition, fetch_offset=position, partition_max_bytes=1 << 20)
            request = f.FetchRequest(
                topics=(f.FetchTopic(topic=topic, partitions=(part,)),), max_wait=from_ms(0), min_bytes=0
            )
            (answer,) = client.call(Api.FETCH, request, 12).responses[0].partitions
            assert answer.error_code is ErrorCode.none
            found = [each for each in decode_records(answer.records or b"") if each.offset >= position]
            if not found:
                break
            for each in found:
                assert each.key is not None
                yield each.key, each.value
            position = found[-1].offset + 1
    client.close()


TRANSACTIONS = "org.apache.kafka.tools.TransactionsCommand"
PERFORMANCE = "org.apache.kafka.tools.ProducerPerformance"


def test_kafkas_transaction_tool_and_java_producer(ours: EmbeddedBroker, kafka_tools: None) -> None:
    """list, describe, describe-producers, forceTerminate, find-hanging, abort; and Java's transactional producer."""
    at = ("--bootstrap-server", ours.bootstrap_servers)
    script = TransactionScript(port_of(ours))
    with ToolServer() as tools:
        left = script.init("left")
        script.add("left", left, 0, 1)
        tid = script.name("left")
        listed = tools.run(TRANSACTIONS, *at, "list")
        assert listed.code == 0, listed
        assert [line.split()[2:] for line in listed.out.splitlines() if line.startswith(tid)] == [
            [str(left.id), "Ongoing"]
        ]
        described = tools.run(TRANSACTIONS, *at, "describe", "--transactional-id", tid)
        assert described.code == 0, described
        assert f"{script.topic}-0" in described.out
        assert f"{script.topic}-1" in described.out
        ended = tools.run(TRANSACTIONS, *at, "forceTerminateTransaction", "--transactionalId", tid)
        assert ended.code == 0, ended
        assert script.described("left")[0][1] in ("CompleteAbort", "Empty")

        hanging_at = hang(ours, script.topic)
        producers = tools.run(TRANSACTIONS, *at, "describe-producers", "--topic", script.topic, "--partition", "2")
        assert producers.code == 0, producers
        assert [line.split()[0] for line in producers.out.splitlines()[1:]] == ["4242"]
        found = tools.run(TRANSACTIONS, *at, "find-hanging", "--max-transaction-timeout", "0", "--broker-id", "1")
        assert (found.code, "4242" in found.out) == (0, True), found
        where = ("--topic", script.topic, "--partition", "2", "--start-offset", str(hanging_at))
        aborted = tools.run(TRANSACTIONS, *at, "abort", *where)
        assert aborted.code == 0, aborted
        again = tools.run(TRANSACTIONS, *at, "find-hanging", "--max-transaction-timeout", "0", "--broker-id", "1")
        assert (again.code, "4242" in again.out) == (0, False), again
        after = tools.run(TRANSACTIONS, *at, "describe-producers", "--topic", script.topic, "--partition", "2")
        assert [line.split()[-1] for line in after.out.splitlines()[1:]] == ["None"], after  # nothing is open

        many = ("--num-records", "3000", "--record-size", "100", "--throughput", "-1", "--topic", script.topic)
        to = ("--producer-props", f"bootstrap.servers={ours.bootstrap_servers}")
        ran = tools.run(
            PERFORMANCE, *many, *to, "--transactional-id", script.name("java"), "--transaction-duration-ms", "20"
        )
        assert ran.code == 0, ran
        assert "3000 records sent" in ran.out
        assert script.described("java")[0][1] == "CompleteCommit"
    script.close()


def hang(broker: EmbeddedBroker, topic: str) -> int:
    """A transactional batch that no coordinator knows of, as old clients could leave it. Its offset."""

    def append(services: Services) -> int:
        description = services.metadata.topic(topic)
        assert description is not None
        batch = bytearray(encode_batch([PlainRecord(value=b"lost", timestamp_ms=1)]))
        assign_producer(batch, 4242, 0, 0, transactional=True)
        return services.logs.append(description, 2, bytes(batch)).base_offset

    return broker._call(append)
