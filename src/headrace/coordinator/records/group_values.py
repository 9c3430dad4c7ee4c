"""The values of OffsetCommit and GroupMetadata: versions 0-3 in the older form, 4 flexible."""

from __future__ import annotations

import struct
from uuid import UUID

from headrace.coordinator.records.fields import (
    Cursor,
    write_compact_string,
    write_int32,
    write_int64,
    write_string,
    write_tags,
)
from headrace.coordinator.records.schemas import GroupMember, GroupMetadataValue, OffsetCommitKey, OffsetCommitValue

__all__ = ["read_group", "read_offset", "read_plain_offset", "write_group", "write_offset"]

_FLEXIBLE = 4
_PLAIN_HEAD = struct.Struct(">hqiB")
"""Version, offset, leader epoch, and the length of the metadata plus one where that takes a byte."""
_PLAIN_TAIL = struct.Struct(">qB")
"""Commit timestamp, number of tags."""
_TOPIC_ID_TAG = b"\x00\x10"


def write_offset(value: OffsetCommitValue) -> tuple[int, bytes]:
    """Version 4; version 1 when there is an expire timestamp, the only one that has it."""
    out = bytearray()
    write_int64(out, value.offset)
    if value.expire_timestamp >= 0:
        write_string(out, value.metadata)
        write_int64(out, value.commit_timestamp)
        write_int64(out, value.expire_timestamp)
        return 1, bytes(out)
    write_int32(out, value.leader_epoch)
    write_compact_string(out, value.metadata)
    write_int64(out, value.commit_timestamp)
    write_tags(out, *([] if value.topic_id is None else [(0, value.topic_id.bytes)]))
    return _FLEXIBLE, bytes(out)


def read_plain_offset(key: bytes, value: bytes) -> tuple[OffsetCommitKey, OffsetCommitValue] | None:
    """An offset as it is written nowadays, read in one go: a start may have a million of them.

    None for every other layout, damaged ones included, which `serde` then reads field by field.
    """
    try:
        topic_at = 4 + (key[2] << 8 | key[3])
        partition_at = topic_at + 2 + (key[topic_at] << 8 | key[topic_at + 1])
        version, offset, leader_epoch, length = _PLAIN_HEAD.unpack_from(value)
        metadata_end = _PLAIN_HEAD.size + length - 1
        commit_timestamp, tag_count = _PLAIN_TAIL.unpack_from(value, metadata_end)
        tag_bytes = {0: b"", 1: _TOPIC_ID_TAG}.get(tag_count)
        if version != _FLEXIBLE or not 1 <= length <= 0x7F or tag_bytes is None:
            return None
        tags = value[metadata_end + _PLAIN_TAIL.size :]
        topic_id = UUID(bytes=tags[2:]) if tag_bytes and len(tags) == 18 and tags.startswith(tag_bytes) else None
        if len(key) != partition_at + 4 or (tags and topic_id is None) or (tag_bytes and topic_id is None):
            return None
        return (
            OffsetCommitKey(
                group=key[4:topic_at].decode(),
                topic=key[topic_at + 2 : partition_at].decode(),
                partition=int.from_bytes(key[partition_at:], "big", signed=True),
            ),
            OffsetCommitValue(
                offset=offset,
                leader_epoch=leader_epoch,
                metadata=value[_PLAIN_HEAD.size : metadata_end].decode(),
                commit_timestamp=commit_timestamp,
                topic_id=topic_id,
            ),
        )
    except (IndexError, struct.error, UnicodeDecodeError):
        return None


def read_offset(cursor: Cursor, version: int) -> OffsetCommitValue:
    offset = cursor.int64()
    leader_epoch = cursor.int32() if version >= 3 else -1
    metadata = cursor.compact_string() if version >= _FLEXIBLE else cursor.string()
    commit_timestamp = cursor.int64()
    expire_timestamp = cursor.int64() if version == 1 else -1
    tags = cursor.tags() if version >= _FLEXIBLE else {}
    topic_id = UUID(bytes=tags[0].take(16)) if 0 in tags else None
    return OffsetCommitValue(
        offset=offset,
        leader_epoch=leader_epoch,
        metadata=metadata,
        commit_timestamp=commit_timestamp,
        expire_timestamp=expire_timestamp,
        topic_id=topic_id,
    )


def write_group(value: GroupMetadataValue) -> tuple[int, bytes]:
    out = bytearray()
    write_string(out, value.protocol_type)
    write_int32(out, value.generation)
    write_string(out, value.protocol)
    write_string(out, value.leader)
    write_int64(out, value.current_state_timestamp)
    write_int32(out, len(value.members))
    for member in value.members:
        write_string(out, member.member_id)
        write_string(out, member.group_instance_id)
        write_string(out, member.client_id)
        write_string(out, member.client_host)
        write_int32(out, member.rebalance_timeout_ms)
        write_int32(out, member.session_timeout_ms)
        for data in (member.subscription, member.assignment):
            write_int32(out, len(data))
            out += data
    return 3, bytes(out)


def read_group(cursor: Cursor, version: int) -> GroupMetadataValue:
    flexible = version >= _FLEXIBLE
    nullable = Cursor.nullable_compact_string if flexible else Cursor.nullable_string
    protocol_type = cursor.compact_string() if flexible else cursor.string()
    generation = cursor.int32()
    protocol, leader = nullable(cursor), nullable(cursor)
    timestamp = cursor.int64() if version >= 2 else -1

    def read(members: Cursor) -> GroupMember:
        return _read_member(members, version)

    members = cursor.compact_array(read) if flexible else cursor.array(read)
    if flexible:
        cursor.tags()
    return GroupMetadataValue(
        protocol_type=protocol_type,
        generation=generation,
        protocol=protocol,
        leader=leader,
        current_state_timestamp=timestamp,
        members=members,
    )


def _read_member(cursor: Cursor, version: int) -> GroupMember:
    flexible = version >= _FLEXIBLE
    text = Cursor.compact_string if flexible else Cursor.string
    nullable = Cursor.nullable_compact_string if flexible else Cursor.nullable_string
    data = Cursor.compact_bytes if flexible else Cursor.bytes_field
    member_id = text(cursor)
    instance_id = nullable(cursor) if version >= 3 else None
    client_id, client_host = text(cursor), text(cursor)
    rebalance_timeout_ms = cursor.int32() if version >= 1 else -1
    session_timeout_ms = cursor.int32()
    subscription, assignment = data(cursor), data(cursor)
    if flexible:
        cursor.tags()
    return GroupMember(
        member_id=member_id,
        group_instance_id=instance_id,
        client_id=client_id,
        client_host=client_host,
        rebalance_timeout_ms=rebalance_timeout_ms,
        session_timeout_ms=session_timeout_ms,
        subscription=subscription,
        assignment=assignment,
    )
