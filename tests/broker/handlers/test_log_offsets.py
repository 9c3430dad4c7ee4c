"""ListOffsets in every version."""

from __future__ import annotations

from typing import Any

import pytest
from confluent_kafka import KafkaError, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    OffsetSpec,
)
from tests.broker.librdkafka_clients import settled

from headrace.broker.embedded import EmbeddedBroker
from headrace.protocol import messages as m
from headrace.protocol.api_keys import SUPPORTED, ApiKey
from headrace.protocol.error_codes import ErrorCode
from headrace.protocol.kio_units import from_ms


@pytest.mark.parametrize(
    "version", range(SUPPORTED[ApiKey.LIST_OFFSETS].lowest, SUPPORTED[ApiKey.LIST_OFFSETS].highest + 1)
)
def test_list_offsets_in_every_version(version: int, client: Any, broker: EmbeddedBroker) -> None:
    broker.produce("t", [b"a", b"b", b"c"], partition=0)
    stamps = [record.timestamp_ms for record in broker.records("t")]
    newest = stamps.index(max(stamps))
    lo = m.list_offsets_request

    def offset(timestamp: int) -> tuple[ErrorCode, int]:
        part = lo.ListOffsetsPartition(partition_index=0, timestamp=timestamp)
        request = lo.ListOffsetsRequest(
            replica_id=-1,
            isolation_level=0,
            topics=(lo.ListOffsetsTopic(name="t", partitions=(part,)),),
            timeout=from_ms(1000),
        )
        answer = client.call(ApiKey.LIST_OFFSETS, request, version).topics[0].partitions[0]
        return answer.error_code, answer.offset

    assert offset(-1) == (ErrorCode.none, 3)
    assert offset(-2) == (ErrorCode.none, 0)
    assert offset(0) == (ErrorCode.none, 0)
    assert offset(2**62) == (ErrorCode.none, -1)
    unsupported = (ErrorCode.unsupported_version, -1)
    assert offset(-3) == ((ErrorCode.none, newest) if version >= 7 else unsupported)
    assert offset(-4) == ((ErrorCode.none, 0) if version >= 8 else unsupported)
    assert offset(-5) == ((ErrorCode.none, -1) if version >= 9 else unsupported)
    assert offset(-7) == unsupported


@pytest.mark.foreign
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


@pytest.mark.foreign
def test_records_are_deleted(admin: AdminClient, broker: EmbeddedBroker) -> None:
    broker.create_topics({"t": 1})
    broker.produce("t", [b"1", b"2", b"3"])
    deleted = settled(admin.delete_records([TopicPartition("t", 0, 2)]))
    assert [result.low_watermark for result in deleted.values()] == [2]
    assert [record.value for record in broker.records("t")] == [b"3"]
    beyond = settled(admin.delete_records([TopicPartition("t", 0, 9)]))
    assert [error.code() for error in beyond.values()] == [KafkaError.OFFSET_OUT_OF_RANGE]
