"""Answers written by hand are those of the codec, byte for byte."""

from __future__ import annotations

import datetime as dt
import uuid
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.static.primitive import i32, i64

from penstock.protocol import hot_responses
from penstock.protocol import messages as m
from penstock.protocol.api_keys import ApiKey
from penstock.protocol.error_codes import ErrorCode
from penstock.protocol.request_codec import RequestHeader, encode_response
from penstock.protocol.supported_versions import SUPPORTED
from penstock.protocol.units import from_ms, timestamp_from_ms

r = m.produce_response
longs, ints = st.integers(-(2**63), 2**63 - 1), st.integers(-(2**31), 2**31 - 1)


def partition(index: int, base_offset: int, log_start_offset: int, **more: object) -> r.PartitionProduceResponse:
    given_fields: dict[str, object] = {"error_code": ErrorCode.none, "record_errors": ()} | more
    return r.PartitionProduceResponse(
        index=i32(index), base_offset=i64(base_offset), log_start_offset=i64(log_start_offset), **given_fields
    )


def answer(topics: tuple[r.TopicProduceResponse, ...], throttle_ms: int = 0) -> r.ProduceResponse:
    return r.ProduceResponse(responses=topics, throttle_time=from_ms(throttle_ms))


def by_codec(header: RequestHeader, response: r.ProduceResponse) -> bytes:
    with patch.object(hot_responses, "produce_response", return_value=None):
        return encode_response(header, response)


topics = st.builds(
    lambda name, number, parts: r.TopicProduceResponse(
        name=name, topic_id=uuid.UUID(int=number) if number else None, partition_responses=tuple(parts)
    ),
    st.text("abcäö.-_", min_size=1, max_size=130),
    st.integers(0, 2**128 - 1),
    st.lists(st.builds(partition, ints, longs, longs), max_size=130),
)


@given(st.sampled_from(tuple(SUPPORTED[ApiKey.PRODUCE])), ints, st.lists(topics, max_size=3), st.integers(0, 100_000))
def test_as_the_codec_writes_them(
    version: int, correlation_id: int, found: list[r.TopicProduceResponse], throttle_ms: int
) -> None:
    header = RequestHeader(api_key=0, api_version=version, correlation_id=correlation_id, client_id=None)
    response = answer(tuple(found), throttle_ms)
    assert encode_response(header, response) == by_codec(header, response)


@pytest.mark.parametrize(
    "more",
    [
        {"error_code": ErrorCode.invalid_record},
        {"error_message": "no"},
        {"log_append_time": timestamp_from_ms(5)},
        {"record_errors": (r.BatchIndexAndErrorMessage(batch_index=i32(1), batch_index_error_message="x"),)},
        {"current_leader": r.LeaderIdAndEpoch(leader_id=1, leader_epoch=i32(2))},
    ],
)
def test_everything_else_is_left_to_the_codec(more: dict[str, object]) -> None:
    topic = r.TopicProduceResponse(name="t", topic_id=uuid.uuid4(), partition_responses=(partition(0, 1, 0, **more),))
    assert hot_responses.produce_response(13, 1, answer((topic,))) is None


def test_the_usual_answer_is_written_by_hand() -> None:
    topic = r.TopicProduceResponse(name="t", topic_id=uuid.uuid4(), partition_responses=(partition(0, 1, 0),))
    assert hot_responses.produce_response(13, 1, answer((topic,), 7)) is not None
    assert dt.timedelta(milliseconds=7) == answer((topic,), 7).throttle_time
