"""The bytes around the one batch of a Produce request."""

from __future__ import annotations

import uuid
from typing import Any

import pytest
from tests.broker.handlers.fetch_requests import batch, only, p, produce, topic_id_of

from headrace.broker.embedded import EmbeddedBroker
from headrace.broker.handlers.produce import sole_batch
from headrace.broker.logs.partition_logs import AppendRefused
from headrace.protocol import messages as m
from headrace.protocol.api_keys import SUPPORTED, ApiKey
from headrace.protocol.error_codes import ErrorCode
from headrace.protocol.kio_units import from_ms
from headrace.protocol.record_batches import PlainRecord, encode_batch


def records(count: int) -> list[PlainRecord]:
    return [PlainRecord(value=b"v", timestamp_ms=1) for _ in range(count)]


ONE = encode_batch(records(2))


def test_a_batch_alone_and_one_with_a_rest_behind_it() -> None:
    assert sole_batch(ONE, 13) is ONE
    for rest in (b"\0", ONE[:-1], ONE[:16]):
        assert sole_batch(ONE + rest, 13) == ONE


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (None, "invalid_record"),
        (b"", "invalid_record"),
        (ONE[:11], "invalid_record"),
        (ONE[:16], "invalid_record"),
        (ONE[:-1], "invalid_record"),
        (ONE + ONE, "invalid_record"),
        (bytes(61), "corrupt_message"),
        (ONE[:16] + b"\x03" + ONE[17:], "corrupt_message"),
        (ONE[:16] + b"\x01" + ONE[17:], "invalid_record"),
        (b"\0" * 7 + b"\x05" + ONE[8:], "invalid_record"),
        (ONE + bytes(20), "corrupt_message"),
    ],
)
def test_produce_data_other_than_one_batch(data: bytes | None, code: str) -> None:
    with pytest.raises(AppendRefused) as refused:
        sole_batch(data, 13)
    assert refused.value.code is ErrorCode[code]


def test_zstd_came_with_version_7() -> None:
    batch = encode_batch(records(1), compression="zstd")
    assert sole_batch(batch, 7) is batch
    with pytest.raises(AppendRefused) as refused:
        sole_batch(batch, 6)
    assert refused.value.code is ErrorCode.unsupported_compression_type


@pytest.mark.parametrize("version", range(SUPPORTED[ApiKey.PRODUCE].lowest, SUPPORTED[ApiKey.PRODUCE].highest + 1))
def test_every_version_of_produce(version: int, client: Any, broker: EmbeddedBroker) -> None:
    answer = only(client.call(ApiKey.PRODUCE, produce("t", topic_id_of(client, "t"), batch(b"a", b"b")), version))
    assert (answer.error_code, answer.base_offset) == (ErrorCode.none, 0)
    assert [record.value for record in broker.records("t")] == [b"a", b"b"]


def test_acks_0_gets_no_answer(client: Any, broker: EmbeddedBroker) -> None:
    topic_id = topic_id_of(client, "t")
    client.send(ApiKey.PRODUCE, produce("t", topic_id, batch(b"quiet"), acks=0))
    answer = only(client.call(ApiKey.PRODUCE, produce("t", topic_id, batch(b"loud"), acks=1)))
    assert answer.base_offset == 1
    assert [record.value for record in broker.records("t")] == [b"quiet", b"loud"]


def test_errors_are_per_partition(client: Any) -> None:
    topic_id = topic_id_of(client, "t")
    good = p.PartitionProduceData(index=0, records=batch(b"good"))
    bad = p.PartitionProduceData(index=9, records=batch(b"bad"))
    known = p.TopicProduceData(name="t", topic_id=topic_id, partition_data=(good, bad))
    unknown = p.TopicProduceData(name="", topic_id=uuid.uuid4(), partition_data=(good,))
    request = p.ProduceRequest(acks=-1, timeout=from_ms(1000), topic_data=(known, unknown))
    first, second = client.call(ApiKey.PRODUCE, request).responses
    assert [part.error_code for part in first.partition_responses] == [
        ErrorCode.none,
        ErrorCode.unknown_topic_or_partition,
    ]
    assert [part.error_code for part in second.partition_responses] == [ErrorCode.unknown_topic_id]


def corrupted(records: bytes) -> bytes:
    return records[:-1] + bytes([records[-1] ^ 1])


def test_bad_batches_are_refused_and_nothing_is_kept(client: Any, broker: EmbeddedBroker) -> None:
    topic_id = topic_id_of(client, "t")
    refusals = {
        ErrorCode.corrupt_message: corrupted(batch(b"x")),
        ErrorCode.invalid_record: None,
        ErrorCode.message_too_large: batch(b"x" * 1_100_000),
    }
    for code, records in refusals.items():
        answer = only(client.call(ApiKey.PRODUCE, produce("t", topic_id, records)))
        assert (answer.error_code, answer.base_offset) == (code, -1)
    answer = only(client.call(ApiKey.PRODUCE, produce("t", topic_id, batch(b"x"), acks=2)))
    assert answer.error_code is ErrorCode.invalid_required_acks
    assert broker.records("t") == []


def test_a_repeated_batch_of_an_idempotent_producer_is_written_once(client: Any, broker: EmbeddedBroker) -> None:
    topic_id = topic_id_of(client, "t")
    producer = client.call(
        ApiKey.INIT_PRODUCER_ID,
        m.init_producer_id_request.InitProducerIdRequest(transactional_id=None, transaction_timeout=from_ms(0)),
    )
    assert producer.producer_epoch == 0
    for sequence, expected in ((0, 0), (0, 0), (2, 2)):
        records = batch(b"a", b"b", producer_id=producer.producer_id, producer_epoch=0, base_sequence=sequence)
        answer = only(client.call(ApiKey.PRODUCE, produce("t", topic_id, records)))
        assert (answer.error_code, answer.base_offset) == (ErrorCode.none, expected)
    gap = batch(b"late", producer_id=producer.producer_id, producer_epoch=0, base_sequence=9)
    answer = only(client.call(ApiKey.PRODUCE, produce("t", topic_id, gap)))
    assert answer.error_code is ErrorCode.out_of_order_sequence_number
    assert len(broker.records("t")) == 4
