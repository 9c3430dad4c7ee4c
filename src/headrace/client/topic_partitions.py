"""What brokers since 3.7 tell about partitions beyond Metadata: eligible leader replicas (KIP-966), page by page."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from kio.schema.types import TopicName
from kio.static.primitive import i32

from headrace.client.network_client import NetworkClient
from headrace.protocol import messages as m
from headrace.protocol.api_keys import ApiKey

__all__ = ["EligibleReplicas", "eligible_replicas"]

PARTITIONS_PER_PAGE = 2000


@dataclass(frozen=True, slots=True, kw_only=True)
class EligibleReplicas:
    """Nodes that may become leader though they are not in sync, and those that were known last."""

    eligible: tuple[int, ...]
    last_known: tuple[int, ...]


def eligible_replicas(
    client: NetworkClient, topics: Iterable[str]
) -> Mapping[tuple[str, int], EligibleReplicas] | None:
    """By (topic, partition); topics that are gone are missing. None where the broker does not know of them."""
    names = tuple(TopicName(name) for name in sorted(topics))
    if client.supported_range(ApiKey.DESCRIBE_TOPIC_PARTITIONS) is None:
        return None
    r = m.describe_topic_partitions_request
    found: dict[tuple[str, int], EligibleReplicas] = {}
    cursor = None
    while names:
        request = r.DescribeTopicPartitionsRequest(
            topics=tuple(r.TopicRequest(name=name) for name in names),
            response_partition_limit=i32(PARTITIONS_PER_PAGE),
            cursor=cursor,
        )
        response: m.describe_topic_partitions_response.DescribeTopicPartitionsResponse = client.call(request)
        for topic in response.topics:
            for partition in topic.partitions:
                found[str(topic.name), int(partition.partition_index)] = EligibleReplicas(
                    eligible=_nodes(partition.eligible_leader_replicas), last_known=_nodes(partition.last_known_elr)
                )
        after = response.next_cursor
        if after is None:
            break
        cursor = r.Cursor(topic_name=after.topic_name, partition_index=after.partition_index)
        names = tuple(name for name in names if name >= after.topic_name)
    return found


def _nodes(nodes: Sequence[int] | None) -> tuple[int, ...]:
    return tuple(int(node) for node in nodes or ())
