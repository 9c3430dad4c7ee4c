"""Records of `__consumer_offsets` ↔ Kafka's own bytes.

A key is an int16 type and plain fields. A value is an int16 version and fields, flexible or not (see `codec`). Written
versions are those of Apache Kafka 4.3.1; every existing version is read. An unknown type is None (a newer broker wrote
it); an unknown value version, a short field or text that is not UTF-8 is `CorruptRecord`.
"""

from __future__ import annotations

import struct
from functools import cache
from typing import Any, NamedTuple
from uuid import UUID

from headrace.coordinator.records import schemas as s
from headrace.coordinator.records.codec import Cursor, Reader, Writer, reader, write_int16, writer
from headrace.coordinator.request_context import CorruptRecord
from headrace.coordinator.result import CoordinatorRecord

__all__ = ["decode", "encode_key", "encode_value", "read_plain_offset"]


class _RecordType(NamedTuple):
    """Number, key and value of a record type; the versions of the value that exist, the first flexible one, and the one
    that is written."""

    number: int
    key: type
    value: type
    versions: range = range(1)
    flexible_since: int = 0
    written: int = 0


_TYPES = (
    _RecordType(1, s.OffsetCommitKey, s.OffsetCommitValue, range(5), flexible_since=4, written=4),
    # GroupMetadata is written in version 3, as Kafka writes it: version 4 is flexible and only read.
    _RecordType(2, s.GroupMetadataKey, s.GroupMetadataValue, range(5), flexible_since=4, written=3),
    _RecordType(3, s.ConsumerGroupMetadataKey, s.ConsumerGroupMetadataValue),
    _RecordType(4, s.ConsumerGroupPartitionMetadataKey, s.ConsumerGroupPartitionMetadataValue),
    _RecordType(5, s.ConsumerGroupMemberMetadataKey, s.ConsumerGroupMemberMetadataValue),
    _RecordType(6, s.ConsumerGroupTargetAssignmentMetadataKey, s.ConsumerGroupTargetAssignmentMetadataValue),
    _RecordType(7, s.ConsumerGroupTargetAssignmentMemberKey, s.ConsumerGroupTargetAssignmentMemberValue),
    _RecordType(8, s.ConsumerGroupCurrentMemberAssignmentKey, s.ConsumerGroupCurrentMemberAssignmentValue),
    _RecordType(16, s.ConsumerGroupRegularExpressionKey, s.ConsumerGroupRegularExpressionValue),
    _RecordType(17, s.StreamsGroupMetadataKey, s.StreamsGroupMetadataValue),
    _RecordType(19, s.StreamsGroupMemberMetadataKey, s.StreamsGroupMemberMetadataValue),
    _RecordType(20, s.StreamsGroupTargetAssignmentMetadataKey, s.StreamsGroupTargetAssignmentMetadataValue),
    _RecordType(21, s.StreamsGroupTargetAssignmentMemberKey, s.StreamsGroupTargetAssignmentMemberValue),
    _RecordType(22, s.StreamsGroupCurrentMemberAssignmentKey, s.StreamsGroupCurrentMemberAssignmentValue),
    _RecordType(23, s.StreamsGroupTopologyKey, s.StreamsGroupTopologyValue),
)
# Types 9 and 18 do not exist, 10 to 15 are share groups': an unknown number is skipped, as in Kafka.
_BY_KEY = {row.key: row for row in _TYPES}
_BY_VALUE = {row.value: row for row in _TYPES}
_BY_NUMBER = {row.number: row for row in _TYPES}
_BY_NUMBER[0] = _BY_NUMBER[1]  # type 0 is the older twin of OffsetCommit, with the same fields
_OFFSET_COMMIT = b"\x00\x01"
_EXPIRE_TIMESTAMP_VERSION = 1
_PLAIN_HEAD = struct.Struct(">hqiB")
"""Version, offset, leader epoch, and the length of the metadata plus one where that takes a byte."""
_PLAIN_TAIL = struct.Struct(">qB")
"""Commit timestamp, number of tags."""
_TOPIC_ID_TAG = b"\x00\x10"


def encode_key(key: object) -> bytes:
    """Return Kafka's bytes of a key of `schemas`. Raises TypeError for anything else."""
    row = _BY_KEY.get(type(key))
    if row is None:
        raise TypeError(f"{type(key).__name__} is not a key of __consumer_offsets")
    out = bytearray()
    write_int16(out, row.number)
    _key_writer(row.key)(out, key)
    return bytes(out)


def encode_value(value: object) -> bytes:
    """Return Kafka's bytes of a value of `schemas`, in the version that Kafka 4.3.1 writes.

    Raises TypeError for anything else.
    """
    row = _BY_VALUE.get(type(value))
    if row is None:
        raise TypeError(f"{type(value).__name__} is not a value of __consumer_offsets")
    version = row.written
    if isinstance(value, s.OffsetCommitValue) and value.expire_timestamp >= 0:
        version = _EXPIRE_TIMESTAMP_VERSION  # the only version that has the field
    out = bytearray()
    write_int16(out, version)
    _value_writer(row.value, version)(out, value)
    return bytes(out)


def decode(key_bytes: bytes, value_bytes: bytes | None) -> CoordinatorRecord | None:
    """Return the record of these bytes, None if its type is unknown. Raises CorruptRecord."""
    if value_bytes is not None and key_bytes.startswith(_OFFSET_COMMIT):
        plain = read_plain_offset(key_bytes, value_bytes)
        if plain is not None:
            return CoordinatorRecord(key=plain[0], value=plain[1])
    cursor = Cursor(key_bytes)
    row = _BY_NUMBER.get(cursor.int16())
    if row is None:
        return None
    key: Any = _key_reader(row.key)(cursor)
    if value_bytes is None:
        return CoordinatorRecord(key=key, value=None)
    body = Cursor(value_bytes)
    version = body.int16()
    if version not in row.versions:
        raise CorruptRecord(f"version {version} of {row.value.__name__} is unknown, at most {row.versions[-1]} is")
    return CoordinatorRecord(key=key, value=_value_reader(row.value, version)(body))


@cache
def _key_writer(key: type) -> Writer:
    return writer(key, 0, flexible=False)


@cache
def _key_reader(key: type) -> Reader:
    return reader(key, 0, flexible=False)


@cache
def _value_writer(value: type, version: int) -> Writer:
    return writer(value, version, flexible=version >= _BY_VALUE[value].flexible_since)


@cache
def _value_reader(value: type, version: int) -> Reader:
    return reader(value, version, flexible=version >= _BY_VALUE[value].flexible_since)


def read_plain_offset(key: bytes, value: bytes) -> tuple[s.OffsetCommitKey, s.OffsetCommitValue] | None:
    """Read a committed offset in its current layout. Fast path: a start may read a million of them.

    Returns None for every other layout, damaged ones included; `decode` then reads those field by field.
    """
    # A key is type 1, then group and topic with int16 lengths, then the partition. A value in version 4 is offset,
    # leader epoch, compact metadata, commit timestamp, and no tag or the topic id as the only one. Measured by
    # `benchmarks/replay.py`; the general reader makes a dozen calls for the same bytes. Slices beyond the end do not
    # raise in Python, hence the comparison of the key's length.
    try:
        topic_at = 4 + (key[2] << 8 | key[3])
        partition_at = topic_at + 2 + (key[topic_at] << 8 | key[topic_at + 1])
        version, offset, leader_epoch, length = _PLAIN_HEAD.unpack_from(value)
        metadata_end = _PLAIN_HEAD.size + length - 1
        commit_timestamp, tag_count = _PLAIN_TAIL.unpack_from(value, metadata_end)
        tag_bytes = {0: b"", 1: _TOPIC_ID_TAG}.get(tag_count)
        if version != 4 or not 1 <= length <= 0x7F or tag_bytes is None:
            return None
        tags = value[metadata_end + _PLAIN_TAIL.size :]
        topic_id = UUID(bytes=tags[2:]) if tag_bytes and len(tags) == 18 and tags.startswith(tag_bytes) else None
        if len(key) != partition_at + 4 or (tags and topic_id is None) or (tag_bytes and topic_id is None):
            return None
        return (
            s.OffsetCommitKey(
                group=key[4:topic_at].decode(),
                topic=key[topic_at + 2 : partition_at].decode(),
                partition=int.from_bytes(key[partition_at:], "big", signed=True),
            ),
            s.OffsetCommitValue(
                offset=offset,
                leader_epoch=leader_epoch,
                metadata=value[_PLAIN_HEAD.size : metadata_end].decode(),
                commit_timestamp=commit_timestamp,
                topic_id=topic_id,
            ),
        )
    except (IndexError, struct.error, UnicodeDecodeError):
        return None
