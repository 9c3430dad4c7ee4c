"""The small parts under the shard: partition of a group, metadata hash, timers, settings."""

from __future__ import annotations

from uuid import UUID

import pytest

from headrace.coordinator.metadata_image import TopicImage, group_hash, topic_hash
from headrace.protocol.partitioner import partition_for_group


@pytest.mark.parametrize(
    ("group_id", "partition"),
    [("", 0), ("a", 97 % 50), ("flight-delays", 43), ("polygenelubricants", 0), ("größe-🚀", 49)],
)
def test_the_partition_of_a_group(group_id: str, partition: int) -> None:
    """As a JVM says. "polygenelubricants" hashes to INT_MIN, whose absolute value Kafka calls 0."""
    assert partition_for_group(group_id) == partition


def test_the_metadata_hash_is_kafkas() -> None:
    topic_id = UUID("01234567-89ab-cdef-1122-334455667788")
    topic = TopicImage(name="in", topic_id=topic_id, partitions=4)
    assert topic_hash(topic) == 5518723589746575815
    assert group_hash([topic]) == 1364400081024103826
    assert group_hash([]) == 0
    other = TopicImage(name="a", topic_id=topic_id, partitions=4)
    assert group_hash([topic, other]) == group_hash([other, topic]) != group_hash([topic])
