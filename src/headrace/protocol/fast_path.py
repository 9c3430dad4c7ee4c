"""Produce requests, Produce responses and Fetch responses read and written by hand: thousands of them come per second.

Only the shape that nearly all of them have; everything else, malformed bytes included, is left to the codec (None), so
that hostile bytes are judged in one place. Tests compare both byte for byte.

Requests: Produce from v9 on, outside of transactions, short names, no tagged fields, nothing behind it. No record is
copied. Responses: Produce from v9 on, every partition appended under CreateTime; Fetch from v12 on without other
leaders. Records of a Fetch may be a span of a file, which only counts as bytes: it stays a piece of its own.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence, Sized
from typing import NamedTuple, cast
from uuid import UUID

from headrace.protocol import messages as m
from headrace.protocol.api_keys import ApiKey
from headrace.protocol.array_bounds import encode_unsigned_varint
from headrace.protocol.error_codes import ErrorCode
from headrace.protocol.framing import RequestHeader
from headrace.protocol.kio_units import to_ms

__all__ = [
    "ProduceFrame",
    "ProducedBatch",
    "ProducedTopic",
    "encode_produce_response",
    "fetch_response",
    "produce_request",
    "produce_response",
]


_HEADER = struct.Struct(">hhih")  # API key, version, correlation id, length of the client id
_BODY = struct.Struct(">bbhiB")  # no tagged fields, no transactional id, acks, timeout, topics + 1
_PARTITION = struct.Struct(">iBB")  # its index, and the first two bytes of the length of its records
_INDEX_BYTES = 4
_FIRST_FLEXIBLE, _FIRST_WITH_IDS, _LAST = 9, 13, 13
_PRODUCE = 0
_HEADER_BYTES, _BODY_BYTES, _PARTITION_BYTES, _ID_BYTES = _HEADER.size, _BODY.size, _PARTITION.size, 16
_SHORT = 0x80  # counts and lengths below are one byte


ProducedBatch = tuple[int, int, int]
"""A partition, and where in the frame its records begin and end."""


class ProducedTopic(NamedTuple):
    """`key` names the topic as the request does, and as its answer shall: an id, or a name behind its length.

    `name` is "" where the request speaks of ids.
    """

    key: bytes
    name: str
    batches: list[ProducedBatch]


class ProduceFrame(NamedTuple):
    """A Produce request of the usual shape."""

    api_version: int
    correlation_id: int
    client_id: str | None
    acks: int
    topics: list[ProducedTopic]

    @property
    def by_id(self) -> bool:
        return self.api_version >= _FIRST_WITH_IDS

    @property
    def header(self) -> RequestHeader:
        return RequestHeader(
            api_key=ApiKey.PRODUCE,
            api_version=self.api_version,
            correlation_id=self.correlation_id,
            client_id=self.client_id,
        )


def produce_request(frame: bytes) -> ProduceFrame | None:
    """Decode a Produce request without its length. None if it is not eligible for the fast path, or malformed."""
    try:
        # One `struct` call per fixed part. Any other shape, and any error, returns None: then the codec reads the frame
        # from its start and finds the error again, so a malformed request is judged and reported in one place only.
        api_key, api_version, correlation_id, length = _HEADER.unpack_from(frame)
        if api_key != _PRODUCE or not _FIRST_FLEXIBLE <= api_version <= _LAST or length < -1:
            return None
        position = _HEADER_BYTES if length < 0 else _HEADER_BYTES + length
        client_id = None if length < 0 else frame[_HEADER_BYTES:position].decode()
        tags, transactional_id, acks, _, count = _BODY.unpack_from(frame, position)
        if tags or transactional_id or not 0 < count < _SHORT:
            return None
        position += _BODY_BYTES
        by_id = api_version >= _FIRST_WITH_IDS
        topics = []
        for _ in range(count - 1):
            position, topic = _topic(frame, position, by_id)
            topics.append(topic)
        # Tagged fields of the body, or bytes behind it, which Kafka ignores: rare enough to be left to the codec.
        if frame[position] or position + 1 != len(frame):
            return None
    except (struct.error, IndexError, ValueError):
        return None
    return ProduceFrame(api_version, correlation_id, client_id, acks, topics)


def _topic(frame: bytes, position: int, by_id: bool) -> tuple[int, ProducedTopic]:
    """The position behind it, and the topic. Raises ValueError, IndexError, struct.error."""
    if by_id:
        end = position + _ID_BYTES
    else:
        length = frame[position]
        if not 0 < length < _SHORT:
            raise ValueError("a name that is none, or long")
        end = position + length
    key, position = frame[position:end], end
    name = "" if by_id else key[1:].decode()
    count = frame[position]
    if not 0 < count < _SHORT:
        raise ValueError("no partitions, or many")
    position += 1
    batches = []
    for _ in range(count - 1):
        partition, low, high = _PARTITION.unpack_from(frame, position)
        # The usual batch: its length is a varint of two bytes, which came with the `struct` call above. Shorter and
        # longer ones read their length byte by byte.
        if low >= _SHORT > high > 0:  # 128 bytes to 16 KiB
            start = position + _PARTITION_BYTES
            end = start + (low & 0x7F | high << 7) - 1
        else:
            start, size = _size(frame, position + _INDEX_BYTES)
            end = start + size
        if frame[end]:
            raise ValueError("tagged fields")
        position = end + 1
        batches.append((partition, start, end))
    if frame[position]:
        raise ValueError("tagged fields")
    return position + 1, ProducedTopic(key, name, batches)


def _size(frame: bytes, position: int) -> tuple[int, int]:
    """The position behind a compact length, and the length. Raises ValueError for null."""
    value = 0
    for shift in range(0, 28, 7):
        byte = frame[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < _SHORT:
            if not value:
                raise ValueError("null in the place of records")
            return position, value - 1
    raise ValueError("more records than a frame holds")


_HEAD = struct.Struct(">iib")  # length of the frame, correlation id, no tagged fields
_PRODUCED_PARTITION = struct.Struct(">ihqqqbbb")  # ... no record errors, no error message, no tagged fields
_THROTTLE = struct.Struct(">ib")
_HEAD_BYTES = _HEAD.size
_NO_THROTTLE = _THROTTLE.pack(0, 0)
_NO_TIME = -1
_NO_ID = bytes(16)
_FIRST_FLEXIBLE_FETCH, _FIRST_FETCH_WITH_IDS = 12, 13
_FETCH_HEAD = struct.Struct(">ibihi")  # correlation id, no tagged fields, throttle time, error, session
_FETCHED = struct.Struct(">ihqqq")  # partition, error, high watermark, last stable offset, log start
_ABORTED = struct.Struct(">qqb")  # ... no tagged fields
_PREFERRED = struct.Struct(">i")
_DIVERGING = struct.Struct(">bbbiqb")  # one tagged field, number 0, of 13 bytes
_FEW = 0x7F  # items and characters whose count is one byte
_LENGTHS = tuple(bytes((size + 1,)) for size in range(_FEW))


def produce_response(
    api_version: int, correlation_id: int, response: m.produce_response.ProduceResponse
) -> bytes | None:
    """Encode the frame, length included; None if the response is not eligible for the fast path."""
    if api_version < _FIRST_FLEXIBLE or response.node_endpoints or len(response.responses) >= _FEW:
        return None
    # The frame is checked and written in one pass: at the first thing that needs the codec the pass ends, and nothing
    # was sent. Lengths are compact (KIP-482): one byte up to 126 items.
    parts = [b"", bytes((len(response.responses) + 1,))]
    for topic in response.responses:
        who = _topic_key(topic.topic_id, topic.name, api_version)
        if who is None or len(topic.partition_responses) >= _FEW:
            return None
        parts += (who, bytes((len(topic.partition_responses) + 1,)))
        for part in topic.partition_responses:
            if part.error_code is not ErrorCode.none or part.log_append_time is not None or part.record_errors:
                return None
            if part.error_message is not None or _leader_is_told(part.current_leader):
                return None
            parts.append(
                _PRODUCED_PARTITION.pack(part.index, 0, part.base_offset, _NO_TIME, part.log_start_offset, 1, 0, 0)
            )
        parts.append(b"\x00")
    parts.append(_THROTTLE.pack(to_ms(response.throttle_time), 0))
    size = _HEAD.size - 4 + sum(map(len, parts))
    parts[0] = _HEAD.pack(size, correlation_id, 0)
    return b"".join(parts)


def encode_produce_response(
    correlation_id: int, topics: Sequence[tuple[bytes, Sequence[tuple[int, int, int]]]]
) -> bytes:
    """Encode the frame, length included, of the response to a Produce of the fast path that was appended whole.

    Args:
        correlation_id: of the request.
        topics: the topic's bytes in the request, and (partition, base offset, log start offset) of each partition.
    """
    parts = [_length(len(topics))]
    for key, partitions in topics:
        parts += (key, _length(len(partitions)))
        for number, base, start in partitions:
            parts.append(_PRODUCED_PARTITION.pack(number, 0, base, _NO_TIME, start, 1, 0, 0))
        parts.append(b"\x00")
    parts.append(_NO_THROTTLE)
    body = b"".join(parts)
    return _HEAD.pack(_HEAD_BYTES - 4 + len(body), correlation_id, 0) + body


def fetch_response(
    api_version: int, correlation_id: int, response: m.fetch_response.FetchResponse
) -> list[bytes | Sized] | None:
    """Encode the frame in pieces, length included; None if the response is not eligible for the fast path."""
    if api_version < _FIRST_FLEXIBLE_FETCH or response.node_endpoints:
        return None
    # `small` gathers fields until records come that are no bytes (a span of a file). Such records are a piece of their
    # own, which the connection sends with sendfile(2); the fields before and after are joined to one piece each.
    pieces: list[bytes | Sized] = []
    small = [
        b"",
        _FETCH_HEAD.pack(
            correlation_id, 0, to_ms(response.throttle_time), response.error_code.value, response.session_id
        ),
        _length(len(response.responses)),
    ]
    for topic in response.responses:
        if api_version >= _FIRST_FETCH_WITH_IDS:
            small.append(_NO_ID if topic.topic_id is None else topic.topic_id.bytes)
        else:
            name = topic.topic.encode()
            small += (_length(len(name)), name)
        small.append(_length(len(topic.partitions)))
        for part in topic.partitions:
            if part.current_leader.leader_id != -1 or part.snapshot_id.end_offset != -1 or part.records is None:
                return None
            small.append(
                _FETCHED.pack(
                    part.partition_index,
                    part.error_code.value,
                    part.high_watermark,
                    part.last_stable_offset,
                    part.log_start_offset,
                )
            )
            small.append(_aborted(part.aborted_transactions))
            records: Sized = part.records
            small += (_PREFERRED.pack(part.preferred_read_replica), _length(len(records)))
            if isinstance(records, bytes):
                small.append(records)
            else:
                pieces += (b"".join(small), records)
                small = []
            small.append(_diverging(part.diverging_epoch))
        small.append(b"\x00")
    small.append(b"\x00")
    pieces.append(b"".join(small))
    size = sum(map(len, pieces)).to_bytes(4, "big")
    return [size + cast("bytes", pieces[0]), *pieces[1:]]


def _aborted(transactions: Sequence[m.fetch_response.AbortedTransaction] | None) -> bytes:
    if transactions is None:
        return b"\x00"
    each = (_ABORTED.pack(transaction.producer_id, transaction.first_offset, 0) for transaction in transactions)
    return b"".join((_length(len(transactions)), *each))


def _diverging(end: m.fetch_response.EpochEndOffset) -> bytes:
    """The tagged fields of a partition."""
    if end.epoch == -1 and end.end_offset == -1:
        return b"\x00"
    return _DIVERGING.pack(1, 0, _DIVERGING.size - 3, end.epoch, end.end_offset, 0)


def _length(size: int) -> bytes:
    """A compact length."""
    if size < _FEW:
        return _LENGTHS[size]
    return encode_unsigned_varint(size + 1)


def _leader_is_told(leader: m.produce_response.LeaderIdAndEpoch) -> bool:
    return bool(leader.leader_id != -1 or leader.leader_epoch != -1)


def _topic_key(topic_id: UUID | None, name: str | None, api_version: int) -> bytes | None:
    if api_version >= _FIRST_WITH_IDS:
        return _NO_ID if topic_id is None else topic_id.bytes
    encoded = (name or "").encode()
    return bytes((len(encoded) + 1,)) + encoded if name is not None and len(encoded) < _FEW else None
