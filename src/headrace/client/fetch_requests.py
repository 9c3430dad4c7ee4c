"""The Fetch request of everybody who reads: partitions in the order of their priority."""

from __future__ import annotations

from collections.abc import Iterable

from kio.schema.types import TopicName
from kio.static.primitive import i8, i32, i64

from headrace.client.cluster_metadata import ClusterMetadata
from headrace.protocol import messages as m
from headrace.protocol.kio_units import from_ms

__all__ = ["fetch_request"]


def fetch_request(
    wanted: Iterable[tuple[str, int, int]],
    cluster: ClusterMetadata,
    *,
    isolation_level: int,
    max_wait_ms: int,
    min_bytes: int,
    max_bytes: int,
    max_partition_bytes: int,
) -> object:
    """`wanted`: (topic, partition, offset). The broker fills its answer from the front, so the order is kept, and a
    topic is named again where another stands between."""
    request = m.fetch_request
    topics: list[tuple[str, list[tuple[int, int]]]] = []
    for topic, partition, offset in wanted:
        if not topics or topics[-1][0] != topic:
            topics.append((topic, []))
        topics[-1][1].append((partition, offset))
    return request.FetchRequest(
        max_wait=from_ms(max_wait_ms),
        min_bytes=i32(min_bytes),
        max_bytes=i32(max_bytes),
        isolation_level=i8(isolation_level),
        topics=tuple(
            request.FetchTopic(
                topic=TopicName(topic),
                topic_id=cluster.topics[topic].topic_id,
                partitions=tuple(
                    request.FetchPartition(
                        partition=i32(partition), fetch_offset=i64(offset), partition_max_bytes=i32(max_partition_bytes)
                    )
                    for partition, offset in same
                ),
            )
            for topic, same in topics
        ),
    )
