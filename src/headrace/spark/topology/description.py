"""A compiled topology as the streams group's heartbeat carries it (KIP-1071).

The broker compares topologies list by list, so everything is emitted sorted: two instances of the same code match.
"""

from __future__ import annotations

from headrace.client.membership.topology import InternalTopic, Subtopology, Topology
from headrace.spark.topology.nodes import (
    CompiledSubtopology,
    CompiledTopology,
    RepartitionSink,
    RepartitionSource,
    TopicSource,
)

# Purged by DeleteRecords once their rows are committed, so time must not delete what is not yet read.
REPARTITION_CONFIGS = (("cleanup.policy", "delete"), ("retention.ms", "-1"))
CHANGELOG_CONFIGS = (("cleanup.policy", "compact"),)


def description(compiled: CompiledTopology) -> Topology:
    parts = sorted(compiled.subtopologies, key=lambda subtopology: subtopology.subtopology_id)
    return Topology(epoch=0, subtopologies=tuple(_describe(subtopology) for subtopology in parts))


def _describe(subtopology: CompiledSubtopology) -> Subtopology:
    source_topics = {
        topic for source in subtopology.sources if isinstance(source, TopicSource) for topic in source.topics
    }
    repartition_sources = {source.topic for source in subtopology.sources if isinstance(source, RepartitionSource)}
    repartition_sinks = {
        branch.sink.topic for branch in subtopology.branches if isinstance(branch.sink, RepartitionSink)
    }
    changelogs = {aggregate.changelog_topic for aggregate in subtopology.aggregates}
    return Subtopology(
        subtopology_id=subtopology.subtopology_id,
        source_topics=tuple(sorted(source_topics)),
        repartition_source_topics=_internal(repartition_sources, REPARTITION_CONFIGS),
        repartition_sink_topics=tuple(sorted(repartition_sinks)),
        state_changelog_topics=_internal(changelogs, CHANGELOG_CONFIGS),
        copartition_groups=(),  # a task with several sources here has no state that joins them
    )


def _internal(topics: set[str], configs: tuple[tuple[str, str], ...]) -> tuple[InternalTopic, ...]:
    # 0 partitions and 0 replicas: the coordinator derives the former from the sources, the broker takes its default.
    return tuple(
        InternalTopic(name=topic, partitions=0, replication_factor=0, configs=configs) for topic in sorted(topics)
    )
