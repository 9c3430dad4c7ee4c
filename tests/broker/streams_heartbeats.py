"""Heartbeats of streams groups, made by hand, and the settings with which groups do not wait."""

from __future__ import annotations

from typing import Any

from headrace.protocol import messages as m
from headrace.protocol.api_keys import ApiKey
from headrace.protocol.kio_units import from_ms

FAST = {
    "group.streams.initial.rebalance.delay.ms": 0,
    "group.streams.assignment.interval.ms": 0,
    "group.streams.heartbeat.interval.ms": 100,
    "group.streams.min.heartbeat.interval.ms": 100,
}


h = m.streams_group_heartbeat_request


def topology(repartition: str | None = None) -> Any:
    subtopologies = [
        h.Subtopology(
            subtopology_id="0",
            source_topics=("flights",),
            state_changelog_topics=(),
            repartition_sink_topics=(repartition,) if repartition else (),
            repartition_source_topics=(),
            copartition_groups=(),
        )
    ]
    if repartition:
        info = h.TopicInfo(name=repartition, partitions=3, replication_factor=-1, topic_configs=())
        subtopologies.append(
            h.Subtopology(
                subtopology_id="1",
                source_topics=(),
                state_changelog_topics=(),
                repartition_sink_topics=(),
                repartition_source_topics=(info,),
                copartition_groups=(),
            )
        )
    return h.Topology(epoch=0, subtopologies=tuple(subtopologies))


def heartbeat(member_id: str, epoch: int, **fields: Any) -> Any:
    joining = epoch == 0
    return h.StreamsGroupHeartbeatRequest(
        group_id="delays",
        member_id=member_id,
        member_epoch=epoch,
        endpoint_information_epoch=-1,
        rebalance_timeout=from_ms(60_000 if joining else -1),
        topology=fields.get("topology"),
        active_tasks=fields.get("active_tasks", () if joining else None),
        standby_tasks=() if joining or "active_tasks" in fields else None,
        warmup_tasks=() if joining or "active_tasks" in fields else None,
        process_id="process-of-" + member_id if joining else None,
        user_endpoint=None,
        client_tags=None,
        task_offsets=None,
        task_end_offsets=None,
    )


def tasks_of(answer: Any) -> dict[str, tuple[int, ...]]:
    return {task.subtopology_id: tuple(task.partitions) for task in answer.active_tasks or ()}


def commit(member_id: str, epoch: int, offset: int, topic_id: Any, name: str = "flights") -> Any:
    c = m.offset_commit_request
    part = c.OffsetCommitRequestPartition(partition_index=0, committed_offset=offset, committed_metadata="note")
    return c.OffsetCommitRequest(
        group_id="delays",
        generation_id_or_member_epoch=epoch,
        member_id=member_id,
        topics=(c.OffsetCommitRequestTopic(name=name, topic_id=topic_id, partitions=(part,)),),
    )


def fetch(topic_id: Any) -> Any:
    f = m.offset_fetch_request
    group = f.OffsetFetchRequestGroup(
        group_id="delays",
        topics=(f.OffsetFetchRequestTopics(name="flights", topic_id=topic_id, partition_indexes=(0, 1)),),
    )
    return f.OffsetFetchRequest(groups=(group,))


def topic_id(client: Any, name: str) -> Any:
    asked = m.metadata_request.MetadataRequestTopic(topic_id=None, name=name)
    answer = client.call(
        ApiKey.METADATA,
        m.metadata_request.MetadataRequest(
            topics=(asked,), allow_auto_topic_creation=False, include_topic_authorized_operations=False
        ),
    )
    return answer.topics[0].topic_id
