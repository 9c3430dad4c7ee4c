"""Which endpoint serves which partitions: what interactive queries are routed by. KIP-1071, partitionsByUserEndpoint.

One entry per member with an endpoint, in order of member ids. While the topology is not configured the lists are empty
(Kafka 4.4 fails such a heartbeat).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import cast

from kio.schema.types import TopicName
from kio.static.primitive import i32, u16

from headrace.coordinator.records.schemas import Endpoint
from headrace.coordinator.streams.member import StreamsGroupMember
from headrace.coordinator.streams.tasks import AssignedTasks, Task, sorted_tasks
from headrace.coordinator.streams.topics.configured_topology import ConfiguredTopology
from headrace.protocol.messages import streams_group_heartbeat_response as response

__all__ = ["EndpointPartitions"]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Entry:
    """What is told of a member, and the objects that it was made from."""

    told: response.EndpointToPartitions
    endpoint: Endpoint
    assigned: AssignedTasks
    configured: ConfiguredTopology


class EndpointPartitions:
    """Mutable: remembers what it told of each member, since after a change everybody asks for everybody."""

    def __init__(self) -> None:
        self._entries: dict[str, _Entry] = {}

    def of(
        self, members: Iterable[StreamsGroupMember], configured: ConfiguredTopology
    ) -> tuple[response.EndpointToPartitions, ...]:
        """Source and repartition source partitions of the assigned active tasks, and of standby and warm-up tasks."""
        entries: dict[str, _Entry] = {}
        for member in sorted(members, key=lambda member: member.member_id):
            endpoint, known = member.metadata.user_endpoint, self._entries.get(member.member_id)
            if endpoint is None:
                continue
            if (
                known is None
                or known.assigned is not member.assigned
                or known.configured is not configured
                or known.endpoint != endpoint
            ):
                known = _Entry(
                    told=_told(endpoint, member.assigned, configured),
                    endpoint=endpoint,
                    assigned=member.assigned,
                    configured=configured,
                )
            entries[member.member_id] = known
        self._entries = entries
        return tuple(entry.told for entry in entries.values())


def _told(endpoint: Endpoint, assigned: AssignedTasks, configured: ConfiguredTopology) -> response.EndpointToPartitions:
    return response.EndpointToPartitions(
        user_endpoint=response.Endpoint(host=endpoint.host, port=cast("u16", endpoint.port)),
        active_partitions=_partitions(assigned.active, configured),
        standby_partitions=_partitions(sorted_tasks((*assigned.standby, *assigned.warmup)), configured),
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
