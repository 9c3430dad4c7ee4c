"""The consumer's own protocol inside JoinGroup and SyncGroup, to and from what a consumer group keeps: topics by name
there, by id here. A topic that the image does not have is left out, as in Kafka.

A member is answered in the version that its subscription has, 3 at most.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from uuid import UUID

from headrace.assignors.assignor import Assignment, TopicPartition
from headrace.assignors.consumer_protocol import Reader, encode_assignment
from headrace.coordinator.consumer.member import Partitions, partitions_of
from headrace.coordinator.metadata_image import MetadataImage, TopicImage

__all__ = ["assignment_bytes", "partitions_by_id"]


def partitions_by_id(named: Iterable[TopicPartition], image: MetadataImage) -> Partitions:
    """Return partitions by topic id; topics that the image lacks are left out."""
    return partitions_of(
        (image.topics[topic].topic_id, (partition,)) for topic, partition in named if topic in image.topics
    )


def assignment_bytes(partitions: Partitions, topics: Mapping[UUID, TopicImage], subscription: bytes) -> bytes:
    """`topics` by id; `subscription`: of the member who is to read it. Raises MalformedUserData when that has no
    version."""
    named = [
        (topics[topic_id].name, partition)
        for topic_id, of_topic in partitions.items()
        if topic_id in topics
        for partition in of_topic
    ]
    return encode_assignment(Assignment(partitions=tuple(named)), Reader(subscription).version())
