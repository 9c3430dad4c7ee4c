"""Transactions: the same requests to Apache Kafka 4.3.1 and to us, and every answer the same; the same records in
`__transaction_state`; Kafka's own tool against us.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from tests.broker.conftest import WireClient
from tests.interop.kafka_broker import KafkaBroker
from tests.interop.transaction_script import TransactionScript, steps

from penstock.broker.embedded import EmbeddedBroker
from penstock.coordinator.records.transaction_log import TransactionLogValue, decode, encode_key, encode_value
from penstock.protocol import messages as m
from penstock.protocol.api_keys import ApiKey as Api
from penstock.protocol.error_codes import ErrorCode
from penstock.protocol.record_batches import decode_records
from penstock.protocol.units import from_ms

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


def records(port: int, script: TransactionScript) -> list[Any]:
    """Keys and values of `__transaction_state` as they lie there, with times, ids and the run's mark made alike.

    Each value must come out of our own writer byte for byte, but for the order of partitions.
    """
    told: dict[str, list[Any]] = {}
    for key, value in read_all(port, "__transaction_state"):
        record = decode(key, value)
        assert record is not None
        name = record.key.transactional_id
        if script.mark not in name:
            continue
        assert encode_key(record.key) == key
        if value is None:
            told.setdefault(name, []).append(None)
            continue
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
