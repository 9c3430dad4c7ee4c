"""What a client knows of the cluster: brokers, topics with ids, leaders. A snapshot, replaced as a whole."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from uuid import UUID

from headrace.client.connection import BrokerAddress
from headrace.protocol import messages as m
from headrace.protocol.error_codes import ErrorCode

__all__ = ["NO_LEADER", "ClusterMetadata", "TopicMetadata", "read_metadata"]

NO_LEADER = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicMetadata:
    """One topic; `partitions` maps each partition to the node id of its leader (-1: none at the moment)."""

    name: str
    topic_id: UUID | None
    partitions: Mapping[int, int]
    internal: bool = False
    replicas: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    in_sync: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    leader_epochs: Mapping[int, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterMetadata:
    """A topic that does not exist is not in `topics`; `refused` says why one is not that the broker may know."""

    brokers: Mapping[int, BrokerAddress]
    topics: Mapping[str, TopicMetadata]
    controller: int | None = None
    cluster_id: str | None = None
    refused: Mapping[str, ErrorCode] = field(default_factory=dict)

    def leader(self, topic: str, partition: int) -> int | None:
        """The leader's node id, None when unknown."""
        metadata = self.topics.get(topic)
        leader = NO_LEADER if metadata is None else metadata.partitions.get(partition, NO_LEADER)
        return None if leader == NO_LEADER else leader

    def topic_name(self, topic_id: UUID | None) -> str | None:
        """The name that belongs to an id."""
        return next((t.name for t in self.topics.values() if t.topic_id == topic_id and topic_id is not None), None)


def read_metadata(response: m.metadata_response.MetadataResponse) -> ClusterMetadata:
    """A Metadata response as a snapshot of just what it tells."""
    topics: dict[str, TopicMetadata] = {}
    refused: dict[str, ErrorCode] = {}
    for topic in response.topics:
        if topic.name is None:
            continue
        if topic.error_code != ErrorCode.none:
            refused[str(topic.name)] = topic.error_code
            continue
        ordered = sorted(topic.partitions, key=lambda partition: partition.partition_index)
        topics[str(topic.name)] = TopicMetadata(
            name=str(topic.name),
            topic_id=topic.topic_id,
            partitions={int(p.partition_index): int(p.leader_id) for p in ordered},
            internal=topic.is_internal,
            replicas={int(p.partition_index): tuple(int(node) for node in p.replica_nodes) for p in ordered},
            in_sync={int(p.partition_index): tuple(int(node) for node in p.isr_nodes) for p in ordered},
            leader_epochs={int(p.partition_index): int(p.leader_epoch) for p in ordered},
        )
    return ClusterMetadata(
        brokers={int(b.node_id): BrokerAddress(b.host, int(b.port)) for b in response.brokers},
        topics=topics,
        controller=int(response.controller_id) if response.controller_id >= 0 else None,
        cluster_id=response.cluster_id,
        refused=refused,
    )
