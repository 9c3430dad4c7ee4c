"""The values of the streams group records 17-23, all flexible, version 0."""

from __future__ import annotations

from headrace.coordinator.records.fields import (
    Cursor,
    write_compact_array,
    write_compact_string,
    write_int8,
    write_int16,
    write_int32,
    write_int64,
    write_tags,
)
from headrace.coordinator.records.schemas import (
    CopartitionGroup,
    CurrentTaskIds,
    Endpoint,
    StreamsGroupCurrentMemberAssignmentValue,
    StreamsGroupMemberMetadataValue,
    StreamsGroupMetadataValue,
    StreamsGroupTargetAssignmentMemberValue,
    StreamsGroupTargetAssignmentMetadataValue,
    StreamsGroupTopologyValue,
    Subtopology,
    TaskIds,
    TopicInfo,
)

__all__ = [
    "read_current",
    "read_member",
    "read_metadata",
    "read_target_member",
    "read_target_metadata",
    "read_topology",
    "write_current",
    "write_member",
    "write_metadata",
    "write_target_member",
    "write_target_metadata",
    "write_topology",
]

_NO_VALIDATED_TOPOLOGY = -1
_PRESENT, _ABSENT = 1, -1


def write_metadata(value: StreamsGroupMetadataValue) -> tuple[int, bytes]:
    out = bytearray()
    write_int32(out, value.epoch)
    write_int64(out, value.metadata_hash)
    tags: list[tuple[int, bytes]] = []
    if value.validated_topology_epoch != _NO_VALIDATED_TOPOLOGY:
        epoch = bytearray()
        write_int32(epoch, value.validated_topology_epoch)
        tags.append((0, bytes(epoch)))
    if value.last_assignment_configs:
        configs = bytearray()
        write_compact_array(configs, value.last_assignment_configs, _write_pair)
        tags.append((1, bytes(configs)))
    write_tags(out, *tags)
    return 0, bytes(out)


def read_metadata(cursor: Cursor, _version: int) -> StreamsGroupMetadataValue:
    epoch, metadata_hash = cursor.int32(), cursor.int64()
    tags = cursor.tags()
    return StreamsGroupMetadataValue(
        epoch=epoch,
        metadata_hash=metadata_hash,
        validated_topology_epoch=tags[0].int32() if 0 in tags else _NO_VALIDATED_TOPOLOGY,
        last_assignment_configs=(tags[1].nullable_compact_array(_read_pair) or ()) if 1 in tags else (),
    )


def write_member(value: StreamsGroupMemberMetadataValue) -> tuple[int, bytes]:
    out = bytearray()
    write_compact_string(out, value.instance_id)
    write_compact_string(out, value.rack_id)
    write_compact_string(out, value.client_id)
    write_compact_string(out, value.client_host)
    write_int32(out, value.rebalance_timeout_ms)
    write_int32(out, value.topology_epoch)
    write_compact_string(out, value.process_id)
    if value.user_endpoint is None:
        write_int8(out, _ABSENT)
    else:
        write_int8(out, _PRESENT)
        write_compact_string(out, value.user_endpoint.host)
        out += value.user_endpoint.port.to_bytes(2, "big")
        write_tags(out)
    write_compact_array(out, value.client_tags, _write_pair)
    write_tags(out)
    return 0, bytes(out)


def read_member(cursor: Cursor, _version: int) -> StreamsGroupMemberMetadataValue:
    instance_id, rack_id = cursor.nullable_compact_string(), cursor.nullable_compact_string()
    client_id, client_host = cursor.compact_string(), cursor.compact_string()
    rebalance_timeout_ms, topology_epoch = cursor.int32(), cursor.int32()
    process_id = cursor.compact_string()
    endpoint = None
    if cursor.int8() >= 0:
        endpoint = Endpoint(host=cursor.compact_string(), port=cursor.uint16())
        cursor.tags()
    client_tags = cursor.compact_array(_read_pair)
    cursor.tags()
    return StreamsGroupMemberMetadataValue(
        instance_id=instance_id,
        rack_id=rack_id,
        client_id=client_id,
        client_host=client_host,
        rebalance_timeout_ms=rebalance_timeout_ms,
        topology_epoch=topology_epoch,
        process_id=process_id,
        user_endpoint=endpoint,
        client_tags=client_tags,
    )


def write_target_metadata(value: StreamsGroupTargetAssignmentMetadataValue) -> tuple[int, bytes]:
    out = bytearray()
    write_int32(out, value.assignment_epoch)
    timestamp = bytearray()
    write_int64(timestamp, value.assignment_timestamp)
    write_tags(out, *([(0, bytes(timestamp))] if value.assignment_timestamp else []))
    return 0, bytes(out)


def read_target_metadata(cursor: Cursor, _version: int) -> StreamsGroupTargetAssignmentMetadataValue:
    epoch = cursor.int32()
    tags = cursor.tags()
    return StreamsGroupTargetAssignmentMetadataValue(
        assignment_epoch=epoch, assignment_timestamp=tags[0].int64() if 0 in tags else 0
    )


def write_target_member(value: StreamsGroupTargetAssignmentMemberValue) -> tuple[int, bytes]:
    out = bytearray()
    for tasks in (value.active_tasks, value.standby_tasks, value.warmup_tasks):
        write_compact_array(out, tasks, _write_task_ids)
    write_tags(out)
    return 0, bytes(out)


def read_target_member(cursor: Cursor, _version: int) -> StreamsGroupTargetAssignmentMemberValue:
    active, standby, warmup = (cursor.compact_array(_read_task_ids) for _ in range(3))
    cursor.tags()
    return StreamsGroupTargetAssignmentMemberValue(active_tasks=active, standby_tasks=standby, warmup_tasks=warmup)


def write_current(value: StreamsGroupCurrentMemberAssignmentValue) -> tuple[int, bytes]:
    out = bytearray()
    write_int32(out, value.member_epoch)
    write_int32(out, value.previous_member_epoch)
    write_int8(out, value.state)
    for tasks in (
        value.active_tasks,
        value.standby_tasks,
        value.warmup_tasks,
        value.active_tasks_pending_revocation,
        value.standby_tasks_pending_revocation,
        value.warmup_tasks_pending_revocation,
    ):
        write_compact_array(out, tasks, _write_current_task_ids)
    write_tags(out)
    return 0, bytes(out)


def read_current(cursor: Cursor, _version: int) -> StreamsGroupCurrentMemberAssignmentValue:
    member_epoch, previous_member_epoch, state = cursor.int32(), cursor.int32(), cursor.int8()
    lists = [cursor.compact_array(_read_current_task_ids) for _ in range(6)]
    cursor.tags()
    return StreamsGroupCurrentMemberAssignmentValue(
        member_epoch=member_epoch,
        previous_member_epoch=previous_member_epoch,
        state=state,
        active_tasks=lists[0],
        standby_tasks=lists[1],
        warmup_tasks=lists[2],
        active_tasks_pending_revocation=lists[3],
        standby_tasks_pending_revocation=lists[4],
        warmup_tasks_pending_revocation=lists[5],
    )


def write_topology(value: StreamsGroupTopologyValue) -> tuple[int, bytes]:
    out = bytearray()
    write_int32(out, value.epoch)
    write_compact_array(out, value.subtopologies, _write_subtopology)
    write_tags(out)
    return 0, bytes(out)


def read_topology(cursor: Cursor, _version: int) -> StreamsGroupTopologyValue:
    epoch, subtopologies = cursor.int32(), cursor.compact_array(_read_subtopology)
    cursor.tags()
    return StreamsGroupTopologyValue(epoch=epoch, subtopologies=subtopologies)


def _write_subtopology(out: bytearray, value: Subtopology) -> None:
    write_compact_string(out, value.subtopology_id)
    write_compact_array(out, value.source_topics, write_compact_string)
    write_compact_array(out, value.source_topic_regex, write_compact_string)
    write_compact_array(out, value.state_changelog_topics, _write_topic)
    write_compact_array(out, value.repartition_sink_topics, write_compact_string)
    write_compact_array(out, value.repartition_source_topics, _write_topic)
    write_compact_array(out, value.copartition_groups, _write_copartition_group)
    write_tags(out)


def _read_subtopology(cursor: Cursor) -> Subtopology:
    subtopology = Subtopology(
        subtopology_id=cursor.compact_string(),
        source_topics=cursor.compact_array(Cursor.compact_string),
        source_topic_regex=cursor.compact_array(Cursor.compact_string),
        state_changelog_topics=cursor.compact_array(_read_topic),
        repartition_sink_topics=cursor.compact_array(Cursor.compact_string),
        repartition_source_topics=cursor.compact_array(_read_topic),
        copartition_groups=cursor.compact_array(_read_copartition_group),
    )
    cursor.tags()
    return subtopology


def _write_topic(out: bytearray, value: TopicInfo) -> None:
    write_compact_string(out, value.name)
    write_int32(out, value.partitions)
    write_int16(out, value.replication_factor)
    write_compact_array(out, value.topic_configs, _write_pair)
    write_tags(out)


def _read_topic(cursor: Cursor) -> TopicInfo:
    topic = TopicInfo(
        name=cursor.compact_string(),
        partitions=cursor.int32(),
        replication_factor=cursor.int16(),
        topic_configs=cursor.compact_array(_read_pair),
    )
    cursor.tags()
    return topic


def _write_copartition_group(out: bytearray, value: CopartitionGroup) -> None:
    for indices in (value.source_topics, value.source_topic_regex, value.repartition_source_topics):
        write_compact_array(out, indices, write_int16)
    write_tags(out)


def _read_copartition_group(cursor: Cursor) -> CopartitionGroup:
    sources, regexes, repartitions = (cursor.compact_array(Cursor.int16) for _ in range(3))
    cursor.tags()
    return CopartitionGroup(source_topics=sources, source_topic_regex=regexes, repartition_source_topics=repartitions)


def _write_task_ids(out: bytearray, value: TaskIds) -> None:
    write_compact_string(out, value.subtopology_id)
    write_compact_array(out, value.partitions, write_int32)
    write_tags(out)


def _read_task_ids(cursor: Cursor) -> TaskIds:
    tasks = TaskIds(subtopology_id=cursor.compact_string(), partitions=cursor.compact_array(Cursor.int32))
    cursor.tags()
    return tasks


def _write_current_task_ids(out: bytearray, value: CurrentTaskIds) -> None:
    write_compact_string(out, value.subtopology_id)
    write_compact_array(out, value.partitions, write_int32)
    if value.assignment_epochs is None:
        write_tags(out)
        return
    epochs = bytearray()
    write_compact_array(epochs, value.assignment_epochs, write_int32)
    write_tags(out, (0, bytes(epochs)))


def _read_current_task_ids(cursor: Cursor) -> CurrentTaskIds:
    subtopology_id, partitions = cursor.compact_string(), cursor.compact_array(Cursor.int32)
    tags = cursor.tags()
    return CurrentTaskIds(
        subtopology_id=subtopology_id,
        partitions=partitions,
        assignment_epochs=tags[0].nullable_compact_array(Cursor.int32) if 0 in tags else None,
    )


def _write_pair(out: bytearray, pair: tuple[str, str]) -> None:
    write_compact_string(out, pair[0])
    write_compact_string(out, pair[1])
    write_tags(out)


def _read_pair(cursor: Cursor) -> tuple[str, str]:
    pair = (cursor.compact_string(), cursor.compact_string())
    cursor.tags()
    return pair
