"""Requests read by hand because they come thousands of times a second: nothing of their records is copied.

Only the shape that nearly all of them have: Produce from v9 on, outside of transactions, short names, no tagged fields,
nothing behind it. Everything else, whatever is wrong with it, is left to the codec (None), so that hostile bytes are
judged in one place. A test holds both against each other.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from headrace.protocol.api_keys import ApiKey
from headrace.protocol.request_codec import RequestHeader

__all__ = ["ProduceFrame", "ProducedBatch", "ProducedTopic", "produce_request"]

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
    """`frame` comes without its length. None for what is not of the usual shape, or not sound."""
    try:
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
