"""Partitions by topic: what the members of a consumer group are assigned.

`Partitions` are plain, each topic's sorted; `PartitionEpochs` have the epoch at which each one was assigned. Neither is
ever changed in place, none holds a topic without partitions, and topics are in the order of their ids.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeAlias
from uuid import UUID

from headrace.coordinator.records.consumer_schemas import CurrentTopicPartitions, TopicPartitions

__all__ = [
    "NO_PARTITIONS",
    "PartitionEpochs",
    "Partitions",
    "contains_any",
    "count",
    "epochs_of",
    "from_records",
    "merged",
    "partitions_of",
    "to_records",
    "with_epochs",
    "without_epochs",
]

Partitions: TypeAlias = Mapping[UUID, tuple[int, ...]]
PartitionEpochs: TypeAlias = Mapping[UUID, Mapping[int, int]]
NO_PARTITIONS: Mapping[UUID, tuple[int, ...]] = {}


def partitions_of(given: Iterable[tuple[UUID | None, Iterable[int]]]) -> Partitions:
    """From (topic id, partitions) in any order, a topic perhaps several times."""
    found: dict[UUID, set[int]] = {}
    for topic_id, partitions in given:
        if topic_id is not None:
            found.setdefault(topic_id, set()).update(partitions)
    return {topic_id: tuple(sorted(found[topic_id])) for topic_id in sorted(found) if found[topic_id]}


def with_epochs(partitions: Partitions, epoch: int) -> PartitionEpochs:
    return {topic_id: dict.fromkeys(of_topic, epoch) for topic_id, of_topic in partitions.items()}


def without_epochs(assigned: PartitionEpochs) -> Partitions:
    return {topic_id: tuple(sorted(of_topic)) for topic_id, of_topic in assigned.items()}


def contains_any(assigned: PartitionEpochs, partitions: Partitions) -> bool:
    """Whether some partition is in both."""
    return any(
        not assigned[topic_id].keys().isdisjoint(of_topic)
        for topic_id, of_topic in partitions.items()
        if topic_id in assigned
    )


def merged(one: PartitionEpochs, other: PartitionEpochs) -> PartitionEpochs:
    if not other:
        return one
    return {
        topic_id: dict(sorted({**one.get(topic_id, {}), **other.get(topic_id, {})}.items()))
        for topic_id in sorted({*one, *other})
    }


def count(partitions: PartitionEpochs | Partitions) -> int:
    return sum(map(len, partitions.values()))


def to_records(partitions: Partitions) -> tuple[TopicPartitions, ...]:
    return tuple(TopicPartitions(topic_id=each, partitions=partitions[each]) for each in partitions)


def from_records(records: Iterable[TopicPartitions]) -> Partitions:
    return partitions_of((each.topic_id, each.partitions) for each in records)


def epochs_of(records: Iterable[CurrentTopicPartitions], *, member_epoch: int) -> PartitionEpochs:
    """As the coordinator keeps them; where epochs lack or do not fit, the member's epoch stands in (0 for one that is
    away)."""
    found: dict[UUID, dict[int, int]] = {}
    stand_in = max(member_epoch, 0)
    for each in records:
        known = each.assignment_epochs
        if known is None or len(known) != len(each.partitions):
            known = (stand_in,) * len(each.partitions)
        if each.partitions:
            found.setdefault(each.topic_id, {}).update(zip(each.partitions, known, strict=True))
    return {topic_id: dict(sorted(found[topic_id].items())) for topic_id in sorted(found)}
