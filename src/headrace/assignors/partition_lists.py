"""Partitions as a mapping of topics to partition numbers, for reports. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from headrace.assignors.assignor import TopicPartition

__all__ = ["partitions_by_topic"]


def partitions_by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    """Topics and their partition numbers, both sorted."""
    by_topic: dict[str, list[int]] = {}
    for topic, partition in sorted(partitions):
        by_topic.setdefault(topic, []).append(partition)
    return by_topic
