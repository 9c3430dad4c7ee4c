"""Partition counts of repartition topics: given, or as many as the subtopology that writes them has tasks."""

from __future__ import annotations

from collections.abc import Mapping

from penstock.coordinator.records.schemas import StreamsGroupTopologyValue, Subtopology
from penstock.coordinator.streams.topics.topic_status import InvalidTopology

__all__ = ["repartition_partitions"]


def repartition_partitions(topology: StreamsGroupTopologyValue, source_partitions: Mapping[str, int]) -> dict[str, int]:
    """Partition count by repartition topic; `source_partitions` are those of the external source topics.

    Raises InvalidTopology when a count cannot be found: nobody writes the topic, or the topics wait for one another.
    """
    declared = [topic for each in topology.subtopologies for topic in each.repartition_source_topics]
    counts = {topic.name: topic.partitions for topic in declared if topic.partitions > 0}
    written = {name for each in topology.subtopologies for name in each.repartition_sink_topics}
    undecided = sorted({topic.name for topic in declared} - counts.keys())
    if any(name not in written for name in undecided):
        raise InvalidTopology(
            "Failed to compute number of partitions for all repartition topics, because a repartition source topic "
            "is never used as a sink topic."
        )
    while undecided:
        decided = {
            name: count
            for name in undecided
            if (count := _upstream(name, topology, source_partitions, counts, frozenset(undecided)))
        }
        if not decided:  # only circles are left: one with a way in takes what is known
            decided = {
                name: count for name in undecided if (count := _upstream(name, topology, source_partitions, counts))
            }
        if not decided:
            raise InvalidTopology(
                "Failed to compute number of partitions for all repartition topics. There may be loops in the "
                "topology that cannot be resolved."
            )
        counts.update(decided)
        undecided = [name for name in undecided if name not in counts]
    return counts


def _upstream(
    name: str,
    topology: StreamsGroupTopologyValue,
    source_partitions: Mapping[str, int],
    counts: Mapping[str, int],
    awaited: frozenset[str] = frozenset(),
) -> int:
    """The largest known count among the inputs of the subtopologies that write `name`; 0 = none is known yet, or one
    of them reads a topic of `awaited`, whose count may be larger."""
    writers = [each for each in topology.subtopologies if name in each.repartition_sink_topics]
    if any(source.name in awaited for writer in writers for source in writer.repartition_source_topics):
        return 0
    return max((_inputs(writer, source_partitions, counts) for writer in writers), default=0)


def _inputs(writer: Subtopology, source_partitions: Mapping[str, int], counts: Mapping[str, int]) -> int:
    known = [source_partitions.get(topic, 0) for topic in writer.source_topics]
    known += [counts.get(topic.name, 0) for topic in writer.repartition_source_topics]
    return max(known, default=0)
