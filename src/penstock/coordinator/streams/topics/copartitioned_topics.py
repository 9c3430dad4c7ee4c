"""Copartition groups: topics that are joined must have as many partitions as one another."""

from __future__ import annotations

from collections.abc import Mapping

from penstock.coordinator.records.schemas import CopartitionGroup, StreamsGroupTopologyValue, Subtopology
from penstock.coordinator.streams.topics.topic_status import InvalidTopology, StatusCode, TopicProblem

__all__ = ["enforce_copartitioning"]


def enforce_copartitioning(
    topology: StreamsGroupTopologyValue,
    source_partitions: Mapping[str, int],
    repartition_counts: dict[str, int],
) -> dict[str, int]:
    """The repartition counts with those of copartition groups made equal.

    Raises TopicProblem(INCORRECTLY_PARTITIONED_TOPICS) when topics that cannot be changed differ, InvalidTopology when
    an index names no topic. As in Kafka, a group of repartition topics alone looks at the explicit counts of the whole
    topology, so that what runs here runs there.
    """
    counts = dict(repartition_counts)
    explicit = {
        topic.name: topic.partitions
        for each in topology.subtopologies
        for topic in each.repartition_source_topics
        if topic.partitions > 0
    }
    for subtopology in topology.subtopologies:
        for group in subtopology.copartition_groups:
            external, repartition = _names(subtopology, group)
            if external:
                count = _external_count(external, source_partitions)
                _check_explicit(repartition, explicit, count)
            elif repartition:
                count = _repartition_count(repartition, explicit, counts)
            else:
                continue
            counts.update(dict.fromkeys(repartition, count))
    return counts


def _names(subtopology: Subtopology, group: CopartitionGroup) -> tuple[list[str], list[str]]:
    sources, repartitions = subtopology.source_topics, subtopology.repartition_source_topics
    for indices, topics in ((group.source_topics, sources), (group.repartition_source_topics, repartitions)):
        if any(not 0 <= index < len(topics) for index in indices):
            raise InvalidTopology(
                f"A copartition group of subtopology {subtopology.subtopology_id} names a topic that the subtopology "
                "lacks."
            )
    external = [sources[index] for index in group.source_topics]
    return external, [repartitions[index].name for index in group.repartition_source_topics]


def _external_count(external: list[str], source_partitions: Mapping[str, int]) -> int:
    counts = {name: source_partitions[name] for name in sorted(external)}
    if len(set(counts.values())) > 1:
        raise _different(counts)
    return max(counts.values())


def _check_explicit(repartition: list[str], explicit: Mapping[str, int], count: int) -> None:
    for name in sorted(repartition):
        if explicit.get(name, count) != count:
            raise TopicProblem(
                StatusCode.INCORRECTLY_PARTITIONED_TOPICS,
                f"Number of partitions [{explicit[name]}] of repartition topic [{name}] doesn't match number of "
                f"partitions [{count}] of the source topic.",
            )


def _repartition_count(repartition: list[str], explicit: Mapping[str, int], counts: Mapping[str, int]) -> int:
    if explicit:
        if len(set(explicit.values())) > 1:
            raise _different(explicit)
        return max(explicit.values())
    return max(counts[name] for name in repartition)


def _different(counts: Mapping[str, int]) -> TopicProblem:
    listed = ", ".join(f"{name}={count}" for name, count in sorted(counts.items()))
    return TopicProblem(
        StatusCode.INCORRECTLY_PARTITIONED_TOPICS,
        f"Following topics do not have the same number of partitions: [{{{listed}}}]",
    )
