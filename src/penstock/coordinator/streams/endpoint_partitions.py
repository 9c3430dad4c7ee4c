"""Which endpoint serves which partitions: what interactive queries are routed by. KIP-1071, partitionsByUserEndpoint.

One entry per member with an endpoint, in order of member ids. While the topology is not configured the lists are empty
(Kafka 4.4 fails such a heartbeat).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import cast

from kio.schema.types import TopicName
from kio.static.primitive import i32, u16

from penstock.coordinator.streams.member import StreamsGroupMember
from penstock.coordinator.streams.tasks import Task, sorted_tasks
from penstock.coordinator.streams.topics.configured_topology import ConfiguredTopology
from penstock.protocol.messages import streams_group_heartbeat_response as response

__all__ = ["partitions_by_user_endpoint"]


def partitions_by_user_endpoint(
    members: Iterable[StreamsGroupMember], configured: ConfiguredTopology
) -> tuple[response.EndpointToPartitions, ...]:
    """Source and repartition source partitions of the assigned tasks; warm-up tasks count as standbys (Kafka 4.4)."""
    ordered = sorted(members, key=lambda member: member.member_id)
    return tuple(
        response.EndpointToPartitions(
            user_endpoint=response.Endpoint(
                host=member.metadata.user_endpoint.host, port=cast("u16", member.metadata.user_endpoint.port)
            ),
            active_partitions=_partitions(member.assigned.active, configured),
            standby_partitions=_partitions(
                sorted_tasks((*member.assigned.standby, *member.assigned.warmup)), configured
            ),
        )
        for member in ordered
        if member.metadata.user_endpoint is not None
    )


def _partitions(tasks: Iterable[Task], configured: ConfiguredTopology) -> tuple[response.TopicPartition, ...]:
    by_topic: dict[str, list[int]] = {}
    for subtopology_id, partition in tasks:
        subtopology = configured.subtopologies.get(subtopology_id)
        for topic, count in subtopology.inputs if subtopology is not None else ():
            if partition < count:
                by_topic.setdefault(topic, []).append(partition)
    return tuple(
        response.TopicPartition(topic=cast("TopicName", topic), partitions=cast("tuple[i32, ...]", tuple(partitions)))
        for topic, partitions in sorted(by_topic.items())
    )
