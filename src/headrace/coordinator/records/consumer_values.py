"""The values of the consumer group records 3-8 and 16, all flexible, version 0."""

from __future__ import annotations

from uuid import UUID

from headrace.coordinator.records.consumer_schemas import (
    ClassicMemberMetadata,
    ConsumerGroupCurrentMemberAssignmentValue,
    ConsumerGroupMemberMetadataValue,
    ConsumerGroupMetadataValue,
    ConsumerGroupPartitionMetadataValue,
    ConsumerGroupRegularExpressionValue,
    ConsumerGroupTargetAssignmentMemberValue,
    ConsumerGroupTargetAssignmentMetadataValue,
    CurrentTopicPartitions,
    PartitionMetadataOfTopic,
    TopicPartitions,
)
from headrace.coordinator.records.fields import (
    Cursor,
    write_compact_array,
    write_compact_bytes,
    write_compact_string,
    write_int8,
    write_int32,
    write_int64,
    write_tags,
    write_unsigned_varint,
)

__all__ = [
    "read_current",
    "read_member",
    "read_metadata",
    "read_partition_metadata",
    "read_regular_expression",
    "read_target_member",
    "read_target_metadata",
    "write_current",
    "write_member",
    "write_metadata",
    "write_partition_metadata",
    "write_regular_expression",
    "write_target_member",
    "write_target_metadata",
]

_ABSENT, _PRESENT = 0, 1
_KAFKAS_DEFAULT = ClassicMemberMetadata(session_timeout_ms=0)
"""What Kafka takes a member for whose record does not have the tag at all. So the tag is there even for none."""


def write_metadata(value: ConsumerGroupMetadataValue) -> tuple[int, bytes]:
    out = bytearray()
    write_int32(out, value.epoch)
    write_tags(out, *_int64_tag(value.metadata_hash))
    return 0, bytes(out)


def read_metadata(cursor: Cursor, _version: int) -> ConsumerGroupMetadataValue:
    epoch = cursor.int32()
    tags = cursor.tags()
    return ConsumerGroupMetadataValue(epoch=epoch, metadata_hash=tags[0].int64() if 0 in tags else 0)


def write_partition_metadata(value: ConsumerGroupPartitionMetadataValue) -> tuple[int, bytes]:
    out = bytearray()
    write_compact_array(out, value.topics, _write_topic)
    write_tags(out)
    return 0, bytes(out)


def read_partition_metadata(cursor: Cursor, _version: int) -> ConsumerGroupPartitionMetadataValue:
    topics = cursor.compact_array(_read_topic)
    cursor.tags()
    return ConsumerGroupPartitionMetadataValue(topics=topics)


def write_member(value: ConsumerGroupMemberMetadataValue) -> tuple[int, bytes]:
    out = bytearray()
    write_compact_string(out, value.instance_id)
    write_compact_string(out, value.rack_id)
    write_compact_string(out, value.client_id)
    write_compact_string(out, value.client_host)
    write_compact_array(out, value.subscribed_topic_names, write_compact_string)
    write_compact_string(out, value.subscribed_topic_regex)
    write_int32(out, value.rebalance_timeout_ms)
    write_compact_string(out, value.server_assignor)
    write_tags(out, *_classic_tag(value.classic_member_metadata))
    return 0, bytes(out)


def read_member(cursor: Cursor, _version: int) -> ConsumerGroupMemberMetadataValue:
    instance_id, rack_id = cursor.nullable_compact_string(), cursor.nullable_compact_string()
    client_id, client_host = cursor.compact_string(), cursor.compact_string()
    names = cursor.compact_array(Cursor.compact_string)
    regex = cursor.nullable_compact_string()
    rebalance_timeout_ms = cursor.int32()
    assignor = cursor.nullable_compact_string()
    tags = cursor.tags()
    return ConsumerGroupMemberMetadataValue(
        instance_id=instance_id,
        rack_id=rack_id,
        client_id=client_id,
        client_host=client_host,
        subscribed_topic_names=names,
        subscribed_topic_regex=regex,
        rebalance_timeout_ms=rebalance_timeout_ms,
        server_assignor=assignor,
        classic_member_metadata=_read_classic(tags[0]) if 0 in tags else _KAFKAS_DEFAULT,
    )


def write_target_metadata(value: ConsumerGroupTargetAssignmentMetadataValue) -> tuple[int, bytes]:
    out = bytearray()
    write_int32(out, value.assignment_epoch)
    write_tags(out, *_int64_tag(value.assignment_timestamp))
    return 0, bytes(out)


def read_target_metadata(cursor: Cursor, _version: int) -> ConsumerGroupTargetAssignmentMetadataValue:
    epoch = cursor.int32()
    tags = cursor.tags()
    return ConsumerGroupTargetAssignmentMetadataValue(
        assignment_epoch=epoch, assignment_timestamp=tags[0].int64() if 0 in tags else 0
    )


def write_target_member(value: ConsumerGroupTargetAssignmentMemberValue) -> tuple[int, bytes]:
    out = bytearray()
    write_compact_array(out, value.topic_partitions, _write_partitions)
    write_tags(out)
    return 0, bytes(out)


def read_target_member(cursor: Cursor, _version: int) -> ConsumerGroupTargetAssignmentMemberValue:
    topic_partitions = cursor.compact_array(_read_partitions)
    cursor.tags()
    return ConsumerGroupTargetAssignmentMemberValue(topic_partitions=topic_partitions)


def write_current(value: ConsumerGroupCurrentMemberAssignmentValue) -> tuple[int, bytes]:
    out = bytearray()
    write_int32(out, value.member_epoch)
    write_int32(out, value.previous_member_epoch)
    write_int8(out, value.state)
    write_compact_array(out, value.assigned_partitions, _write_current_partitions)
    write_compact_array(out, value.partitions_pending_revocation, _write_current_partitions)
    write_tags(out)
    return 0, bytes(out)


def read_current(cursor: Cursor, _version: int) -> ConsumerGroupCurrentMemberAssignmentValue:
    value = ConsumerGroupCurrentMemberAssignmentValue(
        member_epoch=cursor.int32(),
        previous_member_epoch=cursor.int32(),
        state=cursor.int8(),
        assigned_partitions=cursor.compact_array(_read_current_partitions),
        partitions_pending_revocation=cursor.compact_array(_read_current_partitions),
    )
    cursor.tags()
    return value


def write_regular_expression(value: ConsumerGroupRegularExpressionValue) -> tuple[int, bytes]:
    out = bytearray()
    write_compact_array(out, value.topics, write_compact_string)
    write_int64(out, value.version)
    write_int64(out, value.timestamp)
    write_tags(out)
    return 0, bytes(out)


def read_regular_expression(cursor: Cursor, _version: int) -> ConsumerGroupRegularExpressionValue:
    value = ConsumerGroupRegularExpressionValue(
        topics=cursor.compact_array(Cursor.compact_string), version=cursor.int64(), timestamp=cursor.int64()
    )
    cursor.tags()
    return value


def _int64_tag(value: int) -> list[tuple[int, bytes]]:
    """Tag 0, which is left out for 0."""
    if value == 0:
        return []
    out = bytearray()
    write_int64(out, value)
    return [(0, bytes(out))]


def _write_protocol(out: bytearray, protocol: tuple[str, bytes]) -> None:
    write_compact_string(out, protocol[0])
    write_compact_bytes(out, protocol[1])
    write_tags(out)


def _classic_tag(metadata: ClassicMemberMetadata | None) -> list[tuple[int, bytes]]:
    if metadata == _KAFKAS_DEFAULT:
        return []
    out = bytearray()
    write_unsigned_varint(out, _ABSENT if metadata is None else _PRESENT)
    if metadata is not None:
        write_int32(out, metadata.session_timeout_ms)
        write_compact_array(out, metadata.supported_protocols, _write_protocol)
        write_tags(out)
    return [(0, bytes(out))]


def _read_classic(cursor: Cursor) -> ClassicMemberMetadata | None:
    if cursor.unsigned_varint() == _ABSENT:
        return None
    metadata = ClassicMemberMetadata(
        session_timeout_ms=cursor.int32(), supported_protocols=cursor.compact_array(_read_protocol)
    )
    cursor.tags()
    return metadata


def _read_protocol(cursor: Cursor) -> tuple[str, bytes]:
    protocol = cursor.compact_string(), cursor.compact_bytes()
    cursor.tags()
    return protocol


def _write_int32s(out: bytearray, numbers: tuple[int, ...]) -> None:
    write_compact_array(out, numbers, write_int32)


def _write_partitions(out: bytearray, each: TopicPartitions) -> None:
    out += each.topic_id.bytes
    _write_int32s(out, each.partitions)
    write_tags(out)


def _read_partitions(cursor: Cursor) -> TopicPartitions:
    topic_id, partitions = UUID(bytes=cursor.take(16)), cursor.compact_array(Cursor.int32)
    cursor.tags()
    return TopicPartitions(topic_id=topic_id, partitions=partitions)


def _write_current_partitions(out: bytearray, each: CurrentTopicPartitions) -> None:
    out += each.topic_id.bytes
    _write_int32s(out, each.partitions)
    tags: list[tuple[int, bytes]] = []
    if each.assignment_epochs is not None:
        epochs = bytearray()
        _write_int32s(epochs, each.assignment_epochs)
        tags.append((0, bytes(epochs)))
    write_tags(out, *tags)


def _read_current_partitions(cursor: Cursor) -> CurrentTopicPartitions:
    topic_id, partitions = UUID(bytes=cursor.take(16)), cursor.compact_array(Cursor.int32)
    tags = cursor.tags()
    epochs = tags[0].nullable_compact_array(Cursor.int32) if 0 in tags else None
    return CurrentTopicPartitions(topic_id=topic_id, partitions=partitions, assignment_epochs=epochs)


def _write_topic(out: bytearray, topic: PartitionMetadataOfTopic) -> None:
    out += topic.topic_id.bytes
    write_compact_string(out, topic.topic_name)
    write_int32(out, topic.num_partitions)
    write_compact_array(out, topic.racks, _write_racks)
    write_tags(out)


def _write_racks(out: bytearray, racks: tuple[int, tuple[str, ...]]) -> None:
    write_int32(out, racks[0])
    write_compact_array(out, racks[1], write_compact_string)
    write_tags(out)


def _read_topic(cursor: Cursor) -> PartitionMetadataOfTopic:
    topic = PartitionMetadataOfTopic(
        topic_id=UUID(bytes=cursor.take(16)),
        topic_name=cursor.compact_string(),
        num_partitions=cursor.int32(),
        racks=cursor.compact_array(_read_racks),
    )
    cursor.tags()
    return topic


def _read_racks(cursor: Cursor) -> tuple[int, tuple[str, ...]]:
    racks = cursor.int32(), cursor.compact_array(Cursor.compact_string)
    cursor.tags()
    return racks
