"""A heartbeat's topology and task lists in the coordinator's own terms."""

from __future__ import annotations

from headrace.coordinator.records.schemas import (
    CopartitionGroup,
    StreamsGroupTopologyValue,
    Subtopology,
    TopicInfo,
)
from headrace.coordinator.streams.tasks import Task, TasksTuple, sorted_tasks
from headrace.protocol.messages import streams_group_heartbeat_request as m

__all__ = ["is_same_topology", "owned_tasks", "topology_of"]


def owned_tasks(request: m.StreamsGroupHeartbeatRequest) -> TasksTuple | None:
    """What the member says it has; None when it says nothing (validation: all three lists or none)."""
    if request.active_tasks is None or request.standby_tasks is None or request.warmup_tasks is None:
        return None
    return TasksTuple(
        active=_tasks(request.active_tasks),
        standby=_tasks(request.standby_tasks),
        warmup=_tasks(request.warmup_tasks),
    )


def topology_of(topology: m.Topology) -> StreamsGroupTopologyValue:
    """As it is recorded: everything in the order the member gave."""
    subtopologies = tuple(_subtopology(each) for each in topology.subtopologies)
    return StreamsGroupTopologyValue(epoch=int(topology.epoch), subtopologies=subtopologies)


def is_same_topology(first: StreamsGroupTopologyValue, second: StreamsGroupTopologyValue) -> bool:
    """The order of subtopologies does not matter, that of the lists inside does (as in Kafka)."""

    def by_id(topology: StreamsGroupTopologyValue) -> dict[str, Subtopology]:
        return {each.subtopology_id: each for each in topology.subtopologies}

    return first == second or (first.epoch == second.epoch and by_id(first) == by_id(second))


def _subtopology(subtopology: m.Subtopology) -> Subtopology:
    return Subtopology(
        subtopology_id=subtopology.subtopology_id,
        source_topics=tuple(subtopology.source_topics),
        source_topic_regex=tuple(subtopology.source_topic_regex),
        state_changelog_topics=tuple(_topic(each) for each in subtopology.state_changelog_topics),
        repartition_sink_topics=tuple(subtopology.repartition_sink_topics),
        repartition_source_topics=tuple(_topic(each) for each in subtopology.repartition_source_topics),
        copartition_groups=tuple(
            CopartitionGroup(
                source_topics=tuple(group.source_topics),
                source_topic_regex=tuple(group.source_topic_regex),
                repartition_source_topics=tuple(group.repartition_source_topics),
            )
            for group in subtopology.copartition_groups
        ),
    )


def _topic(topic: m.TopicInfo) -> TopicInfo:
    return TopicInfo(
        name=topic.name,
        partitions=int(topic.partitions),
        replication_factor=int(topic.replication_factor),
        topic_configs=tuple((config.key, config.value) for config in topic.topic_configs),
    )


def _tasks(tasks: tuple[m.TaskIds, ...]) -> tuple[Task, ...]:
    return sorted_tasks((each.subtopology_id, int(partition)) for each in tasks for partition in each.partitions)
