"""Leaders of written partitions, as the brokers that send transaction markers know them.

A coordinator of Apache Kafka 4.1 to 4.4 leaves out the marker of a partition that has no leader in *its own* metadata
at that moment (KAFKA-20734). Whether that happened can be seen afterwards: a partition that lost its leader has a
higher leader epoch once it has one again. Two rules make the comparison sound:

1. Both views come from the broker that sends the markers. Metadata reaches brokers at different times, but what one
   broker knows only moves forward; a view from another broker may be newer than the coordinator's was.
2. The first view is read before the transaction ends, the second after the coordinator reports it as complete.

Equal views without a partition that lacks a leader then prove that no marker was left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from kio.schema.types import TopicName

from headrace.client.broker_errors import missing_topic
from headrace.client.cluster_metadata import NO_LEADER, ClusterMetadata, read_metadata
from headrace.client.connection import ConnectionLost
from headrace.client.network_client import NetworkClient
from headrace.errors import BrokerError
from headrace.protocol import messages as m
from headrace.protocol.error_codes import ErrorCode
from headrace.protocol.partition_hash import partition_for_group

__all__ = ["GROUP_OFFSETS", "LeaderView", "leader_view", "metadata_request", "no_leader", "read_leader_views"]

TopicPartition = tuple[str, int]
GROUP_OFFSETS: Final = "__consumer_offsets"


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderView:
    """The partitions that transactions write, as one broker knows them; `hosts`: the nodes that have their replicas."""

    epochs: Mapping[TopicPartition, int]
    leaderless: tuple[TopicPartition, ...] = ()
    hosts: frozenset[int] = frozenset()


def leader_view(cluster: ClusterMetadata, group_id: str) -> LeaderView:
    """Reduce metadata to the partitions of its topics and the group's partition of `__consumer_offsets`.

    Topics that are gone are left out, and so is `__consumer_offsets` for a user who may not describe it: its leader is
    the group's coordinator, whose connection is in use.
    """
    epochs: dict[TopicPartition, int] = {}
    leaderless: list[TopicPartition] = []
    hosts: set[int] = set()
    for name, topic in sorted(cluster.topics.items()):
        offsets = name == GROUP_OFFSETS and topic.partitions
        listed = [partition_for_group(group_id, len(topic.partitions))] if offsets else sorted(topic.partitions)
        for partition in listed:
            epochs[name, partition] = topic.leader_epochs.get(partition, -1)
            hosts.update(topic.replicas.get(partition, ()))
            if topic.partitions[partition] == NO_LEADER:
                leaderless.append((name, partition))
    return LeaderView(epochs=epochs, leaderless=tuple(leaderless), hosts=frozenset(hosts))


def metadata_request(topics: Iterable[str]) -> m.metadata_request.MetadataRequest:
    """A request for what `leader_view` reads."""
    return m.metadata_request.MetadataRequest(
        topics=tuple(
            m.metadata_request.MetadataRequestTopic(topic_id=None, name=TopicName(name))
            for name in dict.fromkeys((*topics, GROUP_OFFSETS))
        ),
        allow_auto_topic_creation=False,
        include_topic_authorized_operations=False,
    )


def read_leader_views(
    client: NetworkClient,
    nodes: Iterable[int],
    topics: Iterable[str],
    group_id: str,
    *,
    timeout_ms: float | None = None,
) -> dict[int, LeaderView]:
    """Ask each node for its view, all at the same time. Raises CannotConnect when one does not answer."""
    asked = sorted(set(nodes))
    request = metadata_request(topics)
    views: dict[int, LeaderView] = {}
    answers = client.attempt_all([(node, request) for node in asked], timeout_ms=timeout_ms)
    for node, answer in zip(asked, answers, strict=True):
        if isinstance(answer, ConnectionLost):
            raise client.unreachable(answer)
        views[node] = leader_view(read_metadata(answer), group_id)
    return views


def no_leader(where: TopicPartition) -> BrokerError:
    """The retriable error for a written partition without a leader."""
    error = missing_topic(ErrorCode.leader_not_available, *where)
    error.facts["retriable"] = True
    return error
