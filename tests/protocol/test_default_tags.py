"""A tagged struct that holds only its default does not travel in any version (librdkafka would take it for news)."""

from __future__ import annotations

import dataclasses

import pytest
from kio.schema.errors import ErrorCode
from kio.schema.types import BrokerId, TopicName
from kio.static.primitive import i32, i64

from headrace.protocol import messages as m
from headrace.protocol.api_keys import ApiKey
from headrace.protocol.kio_units import from_ms
from headrace.protocol.request_codec import RequestHeader, encode_response


@pytest.mark.parametrize("version", [10, 11, 12, 13])
def test_an_unset_leader_is_left_out_of_produce_responses(version: int) -> None:
    response = m.produce_response
    partition = response.PartitionProduceResponse(
        index=i32(0),
        error_code=ErrorCode.none,
        base_offset=i64(0),
        log_append_time=None,
        record_errors=(),
        error_message=None,
    )

    def encoded(leader: m.produce_response.LeaderIdAndEpoch | None) -> bytes:
        entry = partition if leader is None else dataclasses.replace(partition, current_leader=leader)
        topic = response.TopicProduceResponse(name=TopicName("t"), topic_id=None, partition_responses=(entry,))
        message = response.ProduceResponse(responses=(topic,), throttle_time=from_ms(0))
        return encode_response(
            RequestHeader(api_key=ApiKey.PRODUCE, api_version=version, correlation_id=1, client_id="c"), message
        )

    unset = encoded(None)
    told = encoded(response.LeaderIdAndEpoch(leader_id=BrokerId(3), leader_epoch=i32(7)))
    assert (
        len(told) == len(unset) + 2 + 9
    )  # tag, size, and the struct with its own tag count: only where it says something
