"""Partition counts of repartition topics: given, or as many as the widest subtopology that writes them has tasks."""

from __future__ import annotations

from collections.abc import Mapping

from headrace.coordinator.records.schemas import StreamsGroupTopologyValue, Subtopology
from headrace.coordinator.streams.topics.topic_status import InvalidTopology

__all__ = ["repartition_partitions"]

_UNDECIDED = 0


def repartition_partitions(topology: StreamsGroupTopologyValue, source_partitions: Mapping[str, int]) -> dict[str, int]:
    """Partition count by repartition topic; `source_partitions` are those of the external source topics.

    The least counts such that each undeclared one is the largest among the inputs of the subtopologies that write the
    topic, whatever the order of subtopologies, also around circles. Raises InvalidTopology when a count cannot be
    found: nobody writes the topic, or the topics wait for one another.
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
