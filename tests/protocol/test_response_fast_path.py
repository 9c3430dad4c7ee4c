"""Answers written by hand are those of the codec, byte for byte."""

from __future__ import annotations

import dataclasses
import datetime as dt
import uuid
from typing import Any, cast
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.static.primitive import i32, i64

from headrace.protocol import fast_path
from headrace.protocol import messages as m
from headrace.protocol.api_keys import SUPPORTED, ApiKey
from headrace.protocol.error_codes import ErrorCode
from headrace.protocol.kio_units import from_ms, timestamp_from_ms
from headrace.protocol.request_codec import RequestHeader, encode_pieces, encode_response

r = m.produce_response
longs, ints = st.integers(-(2**63), 2**63 - 1), st.integers(-(2**31), 2**31 - 1)


def partition(index: int, base_offset: int, log_start_offset: int, **more: object) -> r.PartitionProduceResponse:
    given_fields: dict[str, Any] = {"error_code": ErrorCode.none, "record_errors": ()} | more
    return r.PartitionProduceResponse(
        index=i32(index), base_offset=i64(base_offset), log_start_offset=i64(log_start_offset), **given_fields
    )


def answer(topics: tuple[r.TopicProduceResponse, ...], throttle_ms: int = 0) -> r.ProduceResponse:
    return r.ProduceResponse(responses=topics, throttle_time=from_ms(throttle_ms))


def by_codec(header: RequestHeader, response: r.ProduceResponse) -> bytes:
    with patch.object(fast_path, "produce_response", return_value=None):
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
    assert fast_path.produce_response(13, 1, answer((topic,))) is None


def test_the_usual_answer_is_written_by_hand() -> None:
    topic = r.TopicProduceResponse(name="t", topic_id=uuid.uuid4(), partition_responses=(partition(0, 1, 0),))
    assert fast_path.produce_response(13, 1, answer((topic,), 7)) is not None
    assert dt.timedelta(milliseconds=7) == answer((topic,), 7).throttle_time


# --- Fetch ---

f = m.fetch_response


class Span:
    """Counts as bytes, as a span of a file does."""

    def __init__(self, data: bytes) -> None:
        self.data = data

    def __len__(self) -> int:
        return len(self.data)


def fetched(index: int, offsets: tuple[int, int, int], code: ErrorCode, records: bytes, **more: Any) -> f.PartitionData:
    return f.PartitionData(
        partition_index=i32(index),
        error_code=code,
        high_watermark=i64(offsets[0]),
        last_stable_offset=i64(offsets[1]),
        log_start_offset=i64(offsets[2]),
        records=records,
        **more,
    )


def fetch_by_codec(header: RequestHeader, response: f.FetchResponse) -> bytes:
    with patch.object(fast_path, "fetch_response", return_value=None):
        return encode_response(header, response)


aborted = st.one_of(
    st.none(),
    st.lists(
        st.builds(
            lambda producer, offset: f.AbortedTransaction(producer_id=producer, first_offset=i64(offset)), longs, longs
        ),
        max_size=3,
    ).map(tuple),
)
fetched_partitions = st.builds(
    lambda index, offsets, code, records, transactions, replica, end: fetched(
        index,
        offsets,
        code,
        records,
        aborted_transactions=transactions,
        preferred_read_replica=replica,
        diverging_epoch=f.EpochEndOffset(epoch=i32(end[0]), end_offset=i64(end[1])),
    ),
    ints,
    st.tuples(longs, longs, longs),
    st.sampled_from((ErrorCode.none, ErrorCode.none, ErrorCode.offset_out_of_range, ErrorCode.unknown_server_error)),
    st.one_of(st.binary(max_size=300), st.just(b"x" * 20_000)),
    aborted,
    st.sampled_from((-1, 3)),
    st.sampled_from(((-1, -1), (-1, -1), (0, 5), (2, -1), (-1, 7))),
)
fetched_topics = st.builds(
    lambda name, number, parts: f.FetchableTopicResponse(
        topic=name, topic_id=uuid.UUID(int=number) if number else None, partitions=tuple(parts)
    ),
    st.text("abcäö.-_", min_size=1, max_size=200),
    st.integers(0, 2**128 - 1),
    st.lists(fetched_partitions, max_size=4),
)


@given(
    st.sampled_from(tuple(SUPPORTED[ApiKey.FETCH])), ints, st.lists(fetched_topics, max_size=3), st.integers(0, 9999)
)
def test_fetch_as_the_codec_writes_it(
    version: int, correlation_id: int, found: list[f.FetchableTopicResponse], session_id: int
) -> None:
    header = RequestHeader(api_key=1, api_version=version, correlation_id=correlation_id, client_id=None)
    response = f.FetchResponse(
        throttle_time=from_ms(7), error_code=ErrorCode.none, session_id=i32(session_id), responses=tuple(found)
    )
    expected = fetch_by_codec(header, response)
    assert encode_response(header, response) == expected
    assert b"".join(cast("list[bytes]", encode_pieces(header, response))) == expected
    if version >= 12:
        assert fast_path.fetch_response(version, correlation_id, response) is not None


def _with_span(part: f.PartitionData) -> f.PartitionData:
    """`part` with records that are counted as bytes only: the broker sends them out of the file."""
    fields: dict[str, Any] = {"records": Span(part.records or b"")}
    return dataclasses.replace(part, **fields)


@given(st.sampled_from(tuple(SUPPORTED[ApiKey.FETCH])), st.lists(fetched_topics, max_size=3))
def test_file_backed_records_stay_separate_pieces(version: int, found: list[f.FetchableTopicResponse]) -> None:
    header = RequestHeader(api_key=1, api_version=version, correlation_id=1, client_id=None)
    response = f.FetchResponse(
        throttle_time=from_ms(0), error_code=ErrorCode.none, session_id=i32(0), responses=tuple(found)
    )
    with_spans = dataclasses.replace(
        response,
        responses=tuple(
            dataclasses.replace(
                topic,
                partitions=tuple(_with_span(part) for part in topic.partitions),
            )
            for topic in found
        ),
    )
    pieces = encode_pieces(header, with_spans)
    assert sum(isinstance(piece, Span) for piece in pieces) == sum(len(topic.partitions) for topic in found)
    written = b"".join(piece.data if isinstance(piece, Span) else cast("bytes", piece) for piece in pieces)
    assert written == fetch_by_codec(header, response)


@pytest.mark.parametrize(
    "more",
    [
        {"current_leader": f.LeaderIdAndEpoch(leader_id=1, leader_epoch=i32(2))},
        {"snapshot_id": f.SnapshotId(end_offset=i64(4), epoch=i32(1))},
    ],
)
def test_other_fetches_are_left_to_the_codec(more: dict[str, object]) -> None:
    part = fetched(0, (1, 1, 0), ErrorCode.none, b"", aborted_transactions=None, **more)
    topic = f.FetchableTopicResponse(topic="t", topic_id=uuid.uuid4(), partitions=(part,))
    response = f.FetchResponse(
        throttle_time=from_ms(0), error_code=ErrorCode.none, session_id=i32(0), responses=(topic,)
    )
    assert fast_path.fetch_response(17, 1, response) is None
