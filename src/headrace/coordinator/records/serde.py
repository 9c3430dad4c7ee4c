"""Records of `__consumer_offsets` ↔ Kafka's own bytes.

A key is int16 type + plain fields. A value is int16 version + fields; the streams values and version 4 of the others
are flexible. Written versions are those of Apache Kafka 4.3.1: OffsetCommit 4 (1 with an expire timestamp),
GroupMetadata 3, streams and consumer groups 0. Read: every version that exists. An unknown type is None (a newer broker
wrote it); an unknown value version, a short field or text that is not UTF-8 is `CorruptRecord`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from headrace.coordinator.errors import CorruptRecord
from headrace.coordinator.records import consumer_schemas as c
from headrace.coordinator.records import consumer_values as consumer
from headrace.coordinator.records import group_values as groups
from headrace.coordinator.records import schemas as s
from headrace.coordinator.records import streams_values as streams
from headrace.coordinator.records.fields import Cursor, write_int16, write_int32, write_string
from headrace.coordinator.result import CoordinatorRecord

__all__ = ["decode", "encode_key", "encode_value"]


class _RecordType(NamedTuple):
    """One row of the table: the type's number, its classes, and the value's writer (with version) and reader."""

    number: int
    key: type
    value: type
    write: Callable[[Any], tuple[int, bytes]]
    read: Callable[[Cursor, int], Any]
    versions: range


_TYPES = (
    _RecordType(1, s.OffsetCommitKey, s.OffsetCommitValue, groups.write_offset, groups.read_offset, range(5)),
    _RecordType(2, s.GroupMetadataKey, s.GroupMetadataValue, groups.write_group, groups.read_group, range(5)),
    _RecordType(
        3,
        c.ConsumerGroupMetadataKey,
        c.ConsumerGroupMetadataValue,
        consumer.write_metadata,
        consumer.read_metadata,
        range(1),
    ),
    _RecordType(
        4,
        c.ConsumerGroupPartitionMetadataKey,
        c.ConsumerGroupPartitionMetadataValue,
        consumer.write_partition_metadata,
        consumer.read_partition_metadata,
        range(1),
    ),
    _RecordType(
        5,
        c.ConsumerGroupMemberMetadataKey,
        c.ConsumerGroupMemberMetadataValue,
        consumer.write_member,
        consumer.read_member,
        range(1),
    ),
    _RecordType(
        6,
        c.ConsumerGroupTargetAssignmentMetadataKey,
        c.ConsumerGroupTargetAssignmentMetadataValue,
        consumer.write_target_metadata,
        consumer.read_target_metadata,
        range(1),
    ),
    _RecordType(
        7,
        c.ConsumerGroupTargetAssignmentMemberKey,
        c.ConsumerGroupTargetAssignmentMemberValue,
        consumer.write_target_member,
        consumer.read_target_member,
        range(1),
    ),
    _RecordType(
        8,
        c.ConsumerGroupCurrentMemberAssignmentKey,
        c.ConsumerGroupCurrentMemberAssignmentValue,
        consumer.write_current,
        consumer.read_current,
        range(1),
    ),
    _RecordType(
        16,
        c.ConsumerGroupRegularExpressionKey,
        c.ConsumerGroupRegularExpressionValue,
        consumer.write_regular_expression,
        consumer.read_regular_expression,
        range(1),
    ),
    _RecordType(
        17,
        s.StreamsGroupMetadataKey,
        s.StreamsGroupMetadataValue,
        streams.write_metadata,
        streams.read_metadata,
        range(1),
    ),
    _RecordType(
        19,
        s.StreamsGroupMemberMetadataKey,
        s.StreamsGroupMemberMetadataValue,
        streams.write_member,
        streams.read_member,
        range(1),
    ),
    _RecordType(
        20,
        s.StreamsGroupTargetAssignmentMetadataKey,
        s.StreamsGroupTargetAssignmentMetadataValue,
        streams.write_target_metadata,
        streams.read_target_metadata,
        range(1),
    ),
    _RecordType(
        21,
        s.StreamsGroupTargetAssignmentMemberKey,
        s.StreamsGroupTargetAssignmentMemberValue,
        streams.write_target_member,
        streams.read_target_member,
        range(1),
    ),
    _RecordType(
        22,
        s.StreamsGroupCurrentMemberAssignmentKey,
        s.StreamsGroupCurrentMemberAssignmentValue,
        streams.write_current,
        streams.read_current,
        range(1),
    ),
    _RecordType(
        23,
        s.StreamsGroupTopologyKey,
        s.StreamsGroupTopologyValue,
        streams.write_topology,
        streams.read_topology,
        range(1),
    ),
)
_BY_KEY = {row.key: row for row in _TYPES}
_BY_VALUE = {row.value: row for row in _TYPES}
_BY_NUMBER = {row.number: row for row in _TYPES}
_LEGACY_OFFSET_COMMIT = 0
_OFFSET_COMMIT = b"\x00\x01"


def encode_key(key: object) -> bytes:
    """Kafka's bytes of a key of `schemas`. Raises TypeError for anything else."""
    row = _BY_KEY.get(type(key))
    if row is None:
        raise TypeError(f"{type(key).__name__} is not a key of __consumer_offsets")
    out = bytearray()
    write_int16(out, row.number)
    for field in row.key.__slots__:  # type: ignore[attr-defined]
        value = getattr(key, field)
        if isinstance(value, int):
            write_int32(out, value)
        else:
            write_string(out, value)
    return bytes(out)


def encode_value(value: object) -> bytes:
    """Kafka's bytes of a value of `schemas`, in the version 4.3.1 writes. Raises TypeError for anything else."""
    row = _BY_VALUE.get(type(value))
    if row is None:
        raise TypeError(f"{type(value).__name__} is not a value of __consumer_offsets")
    version, body = row.write(value)
    out = bytearray()
    write_int16(out, version)
    return bytes(out) + body


def decode(key_bytes: bytes, value_bytes: bytes | None) -> CoordinatorRecord | None:
    """The record behind the bytes, None when its type is unknown. Raises CorruptRecord."""
    if value_bytes is not None and key_bytes.startswith(_OFFSET_COMMIT):
        plain = groups.read_plain_offset(key_bytes, value_bytes)
        if plain is not None:
            return CoordinatorRecord(key=plain[0], value=plain[1])
    cursor = Cursor(key_bytes)
    number = cursor.int16()
    row = _BY_NUMBER.get(1 if number == _LEGACY_OFFSET_COMMIT else number)
    if row is None:
        return None
    key = _read_key(row, cursor)
    if value_bytes is None:
        return CoordinatorRecord(key=key, value=None)
    body = Cursor(value_bytes)
    version = body.int16()
    if version not in row.versions:
        raise CorruptRecord(f"version {version} of {row.value.__name__} is unknown, at most {row.versions[-1]} is")
    return CoordinatorRecord(key=key, value=row.read(body, version))


def _read_key(row: _RecordType, cursor: Cursor) -> object:
    if row.number == 1:  # most records are offsets
        return s.OffsetCommitKey(group=cursor.string(), topic=cursor.string(), partition=cursor.int32())
    fields: dict[str, object] = {}
    for field in row.key.__slots__:  # type: ignore[attr-defined]
        fields[field] = cursor.int32() if field == "partition" else cursor.string()
    return row.key(**fields)
