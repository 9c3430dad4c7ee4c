"""Partition counts of a topology: tasks of subtopologies, repartition topics, copartition groups."""

from __future__ import annotations

from collections.abc import Mapping

from headrace.coordinator.records.schemas import CopartitionGroup, StreamsGroupTopologyValue, Subtopology
from headrace.coordinator.streams.topics.topic_status import InvalidTopology, StatusCode, TopicProblem

__all__ = ["copartitioned_names", "enforce_copartitioning", "repartition_partitions", "task_count"]


def task_count(subtopology: Subtopology, partitions: Mapping[str, int]) -> int:
    """The largest partition count of the subtopology's inputs. Raises InvalidTopology when it has no input."""
    inputs = [*subtopology.source_topics, *(topic.name for topic in subtopology.repartition_source_topics)]
    if not inputs:
        raise InvalidTopology(f"No source topics found for subtopology {subtopology.subtopology_id}")
    return max(partitions[name] for name in inputs)


_UNDECIDED = 0


def repartition_partitions(topology: StreamsGroupTopologyValue, source_partitions: Mapping[str, int]) -> dict[str, int]:
    """Partition count by repartition topic; `source_partitions` are those of the external source topics.

    The least counts such that each undeclared one is the largest among the inputs of the subtopologies that write the
    topic, whatever the order of subtopologies, also around circles. Raises InvalidTopology when a count cannot be
    found: no subtopology writes the topic, or the topics depend on one another.
    """
    declared = [topic for each in topology.subtopologies for topic in each.repartition_source_topics]
    counts = {topic.name: topic.partitions for topic in declared}
    writers = {
        name: [each for each in topology.subtopologies if name in each.repartition_sink_topics]
        for name in sorted(counts)
        if counts[name] <= _UNDECIDED
    }
    if not all(writers.values()):
        raise InvalidTopology(
            "Failed to compute number of partitions for all repartition topics, because a repartition source topic "
            "is never used as a sink topic."
        )
    raised = True
    while raised:
        raised = False
        for name, writing in writers.items():
            count = max(_widest_input(each, source_partitions, counts) for each in writing)
            if count > counts[name]:
                counts[name], raised = count, True
    if any(counts[name] <= _UNDECIDED for name in writers):
        raise InvalidTopology(
            "Failed to compute number of partitions for all repartition topics. There may be loops in the "
            "topology that cannot be resolved."
        )
    return counts


def _widest_input(writer: Subtopology, source_partitions: Mapping[str, int], counts: Mapping[str, int]) -> int:
    known = [source_partitions.get(topic, _UNDECIDED) for topic in writer.source_topics]
    known += [counts[topic.name] for topic in writer.repartition_source_topics]
    return max(known, default=_UNDECIDED)


def enforce_copartitioning(
    topology: StreamsGroupTopologyValue,
    source_partitions: Mapping[str, int],
    repartition_counts: Mapping[str, int],
    existing: Mapping[str, int],
) -> dict[str, int]:
    """The repartition counts with those of copartition groups made equal. `existing`: counts of the repartition topics
    that are there already, which speak louder than wishes, as in Kafka.

    Raises TopicProblem(INCORRECTLY_PARTITIONED_TOPICS) when topics that cannot be changed differ, InvalidTopology when
    an index names no topic. In a group of repartition topics alone its own explicit counts decide; Kafka 4.3.1 takes
    those of the whole topology.
    """
    counts = dict(repartition_counts)
    explicit = frozenset(
        topic.name
        for each in topology.subtopologies
        for topic in each.repartition_source_topics
        if topic.partitions > 0
    )
    for subtopology in topology.subtopologies:
        for group in subtopology.copartition_groups:
            external, repartition = copartitioned_names(subtopology, group)
            present = {name: existing.get(name, counts[name]) for name in sorted(repartition)}
            if external:
                count = _equal_count({name: source_partitions[name] for name in sorted(external)})
                _check_explicit(present, explicit, count)
            elif present:
                fixed = {name: present[name] for name in present if name in explicit}
                count = _equal_count(fixed, listed=present) if fixed else max(present.values())
            else:
                continue
            counts.update(dict.fromkeys(repartition, count))
    return counts


def copartitioned_names(subtopology: Subtopology, group: CopartitionGroup) -> tuple[list[str], list[str]]:
    """(external, repartition) topics of a group. Raises InvalidTopology."""
    sources, repartitions = subtopology.source_topics, subtopology.repartition_source_topics
    for indices, topics in ((group.source_topics, sources), (group.repartition_source_topics, repartitions)):
        if any(not 0 <= index < len(topics) for index in indices):
            raise InvalidTopology(
                f"A copartition group of subtopology {subtopology.subtopology_id} names a topic that the subtopology "
                "lacks."
            )
    external = [sources[index] for index in group.source_topics]
    return external, [repartitions[index].name for index in group.repartition_source_topics]


def _equal_count(counts: Mapping[str, int], *, listed: Mapping[str, int] | None = None) -> int:
    if len(set(counts.values())) > 1:
        told = ", ".join(f"{name}={count}" for name, count in (listed or counts).items())
        raise TopicProblem(
            StatusCode.INCORRECTLY_PARTITIONED_TOPICS,
            f"Following topics do not have the same number of partitions: [{{{told}}}]",
        )
    return max(counts.values())


def _check_explicit(repartition: Mapping[str, int], explicit: frozenset[str], count: int) -> None:
    for name, wanted in repartition.items():
        if name in explicit and wanted != count:
            raise TopicProblem(
                StatusCode.INCORRECTLY_PARTITIONED_TOPICS,
                f"Number of partitions [{wanted}] of repartition topic [{name}] doesn't match number of "
                f"partitions [{count}] of the source topic.",
            )
