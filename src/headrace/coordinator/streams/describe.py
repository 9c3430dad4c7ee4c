"""StreamsGroupDescribe (API 89; KIP-1071): topology, members, their assignments and targets.

Version 1 (Kafka 4.4) adds the assignor's name, and the topology's description, which is not stored here (KIP-1331).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import cast

from kio.schema.types import GroupId, TopicName
from kio.static.primitive import i8, i16, i32, i64, u16

from headrace.coordinator.records.schemas import StreamsGroupTopologyValue, Subtopology, TopicInfo
from headrace.coordinator.result import CreatableTopic
from headrace.coordinator.streams.group import StreamsGroup
from headrace.coordinator.streams.group_context import NO_OFFSETS, MemberTaskOffsets
from headrace.coordinator.streams.member import StreamsGroupMember
from headrace.coordinator.streams.topics.configured_topology import ConfiguredSubtopology, ConfiguredTopology
from headrace.coordinator.tasks import Task, TasksTuple, by_subtopology
from headrace.protocol.error_codes import ErrorCode
from headrace.protocol.messages import streams_group_describe_response as m

__all__ = ["describe_error", "describe_group"]

_NOT_REQUESTED, _NOT_STORED = 0, 1


def describe_group(
    group: StreamsGroup,
    configured: ConfiguredTopology | None,
    *,
    task_offsets: Mapping[str, MemberTaskOffsets] = MappingProxyType({}),
    assignor_name: str | None = None,
    wants_description: bool = False,
) -> m.DescribedGroup:
    """Partition counts are the configured ones when the topology is ready, else those that the member gave."""
    return m.DescribedGroup(
        error_code=ErrorCode.none,
        error_message=None,
        group_id=cast("GroupId", group.group_id),
        group_state=group.state().value,
        group_epoch=cast("i32", group.group_epoch),
        assignment_epoch=cast("i32", group.assignment_epoch),
        topology=None if group.topology is None else _topology(group.topology, configured),
        members=tuple(
            _member(group, group.members[member_id], task_offsets.get(member_id, NO_OFFSETS))
            for member_id in sorted(group.members)
        ),
        topology_description_status=cast("i8", _NOT_STORED if wants_description else _NOT_REQUESTED),
        assignor_name=assignor_name,
    )


def describe_error(group_id: str, code: ErrorCode, message: str) -> m.DescribedGroup:
    """Return a group with an error code."""
    return m.DescribedGroup(
        error_code=code,
        error_message=message,
        group_id=cast("GroupId", group_id),
        group_state="",
        group_epoch=cast("i32", 0),
        assignment_epoch=cast("i32", 0),
        topology=None,
        members=(),
    )


def _topology(topology: StreamsGroupTopologyValue, configured: ConfiguredTopology | None) -> m.Topology:
    ready = configured.subtopologies if configured is not None and configured.is_ready else {}
    ordered = sorted(topology.subtopologies, key=lambda each: each.subtopology_id)
    return m.Topology(
        epoch=cast("i32", topology.epoch),
        subtopologies=tuple(_subtopology(each, ready.get(each.subtopology_id)) for each in ordered),
    )


def _subtopology(subtopology: Subtopology, configured: ConfiguredSubtopology | None) -> m.Subtopology:
    changelogs: Iterable[TopicInfo | CreatableTopic] = subtopology.state_changelog_topics
    repartitions: Iterable[TopicInfo | CreatableTopic] = subtopology.repartition_source_topics
    if configured is not None:
        changelogs, repartitions = configured.changelog_topics, configured.repartition_source_topics
    # What the member asked for, also where the topic is created with the broker's default.
    asked = (*subtopology.state_changelog_topics, *subtopology.repartition_source_topics)
    factors = {topic.name: topic.replication_factor for topic in asked}
    return m.Subtopology(
        subtopology_id=subtopology.subtopology_id,
        source_topics=cast("tuple[TopicName, ...]", tuple(sorted(subtopology.source_topics))),
        repartition_sink_topics=cast("tuple[TopicName, ...]", tuple(sorted(subtopology.repartition_sink_topics))),
        state_changelog_topics=_topics(changelogs, factors),
        repartition_source_topics=_topics(repartitions, factors),
    )


def _topics(topics: Iterable[TopicInfo | CreatableTopic], factors: Mapping[str, int]) -> tuple[m.TopicInfo, ...]:
    return tuple(
        m.TopicInfo(
            name=cast("TopicName", topic.name),
            partitions=cast("i32", topic.partitions),
            replication_factor=cast("i16", factors[topic.name]),
            topic_configs=_pairs(topic.configs if isinstance(topic, CreatableTopic) else topic.topic_configs),
        )
        for topic in sorted(topics, key=lambda topic: topic.name)
    )


def _pairs(pairs: tuple[tuple[str, str], ...]) -> tuple[m.KeyValue, ...]:
    return tuple(m.KeyValue(key=key, value=value) for key, value in pairs)


def _member(group: StreamsGroup, member: StreamsGroupMember, offsets: MemberTaskOffsets) -> m.Member:
    metadata = member.metadata
    endpoint = metadata.user_endpoint
    return m.Member(
        member_id=member.member_id,
        member_epoch=cast("i32", member.member_epoch),
        instance_id=metadata.instance_id,
        rack_id=metadata.rack_id,
        client_id=metadata.client_id,
        client_host=metadata.client_host,
        topology_epoch=cast("i32", metadata.topology_epoch),
        process_id=metadata.process_id,
        user_endpoint=None if endpoint is None else m.Endpoint(host=endpoint.host, port=cast("u16", endpoint.port)),
        client_tags=_pairs(metadata.client_tags),
        task_offsets=_task_offsets(offsets.offsets),
        task_end_offsets=_task_offsets(offsets.end_offsets),
        assignment=_assignment(member.assigned.without_epochs()),
        target_assignment=_assignment(group.target_of(member.member_id)),
        is_classic=False,
    )


def _task_offsets(offsets: Mapping[Task, int]) -> tuple[m.TaskOffset, ...]:
    return tuple(
        m.TaskOffset(subtopology_id=name, partition=cast("i32", partition), offset=cast("i64", offset))
        for (name, partition), offset in offsets.items()
    )


def _assignment(tasks: TasksTuple) -> m.Assignment:
    return m.Assignment(
        active_tasks=_task_ids(tasks.active),
        standby_tasks=_task_ids(tasks.standby),
        warmup_tasks=_task_ids(tasks.warmup),
    )


def _task_ids(tasks: tuple[Task, ...]) -> tuple[m.TaskIds, ...]:
    return tuple(
        m.TaskIds(subtopology_id=name, partitions=cast("tuple[i32, ...]", partitions))
        for name, partitions in by_subtopology(tasks)
    )
