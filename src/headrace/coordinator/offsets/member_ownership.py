"""May a member of a streams group commit this partition with this epoch? KIP-1071, and stricter than Kafka.

Kafka looks at ownership only for epochs behind the member's own: with the current one it lets a member commit over
another's partition. Here a partition of the topology must be active at the member, assigned or not yet given up, and
not have been assigned to it after the epoch it names. Partitions outside the topology belong to nobody: the current
epoch may commit them. And a foreign partition fails alone, where Kafka fails the whole request.
"""

from __future__ import annotations

from headrace.coordinator.records.schemas import StreamsGroupTopologyValue
from headrace.coordinator.streams.group import StreamsGroup
from headrace.coordinator.streams.member import StreamsGroupMember

__all__ = ["may_commit", "subscribed_topics"]


def may_commit(group: StreamsGroup, member: StreamsGroupMember, epoch: int, topic: str, partition: int) -> bool:
    """`epoch` is at most the member's own."""
    subtopologies = _readers(group.topology, topic)
    if not subtopologies:
        return epoch == member.member_epoch
    for subtopology_id in subtopologies:
        task = (subtopology_id, partition)
        assigned_at = member.assigned.active.get(task, member.pending_revocation.active.get(task))
        if assigned_at is not None and assigned_at <= epoch:
            return True
    return False


def subscribed_topics(topology: StreamsGroupTopologyValue | None) -> frozenset[str]:
    """External and repartition source topics."""
    if topology is None:
        return frozenset()
    sources = {topic for each in topology.subtopologies for topic in each.source_topics}
    return frozenset(
        sources | {topic.name for each in topology.subtopologies for topic in each.repartition_source_topics}
    )


def _readers(topology: StreamsGroupTopologyValue | None, topic: str) -> list[str]:
    if topology is None:
        return []
    return [
        each.subtopology_id
        for each in topology.subtopologies
        if topic in each.source_topics or any(source.name == topic for source in each.repartition_source_topics)
    ]
