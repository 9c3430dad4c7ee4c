"""The applications of the simulation: a few topologies that between them use every kind of topic."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from headrace.client.membership.topology import CopartitionGroup, InternalTopic, Subtopology, Topology

__all__ = ["SHAPES", "Shape", "Task"]

Task = tuple[str, int]
"""(subtopology id, partition)"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """A topology, its external topics with their partitions, and for each subtopology one topic that it reads."""

    name: str
    topology: Topology
    sources: Mapping[str, int]
    read_topic: Mapping[str, str]
    stateful: frozenset[str] = frozenset()

    def internal_topics(self) -> tuple[str, ...]:
        """Return repartition and changelog topics, in the topology's order."""
        return tuple(
            topic.name
            for subtopology in self.topology.subtopologies
            for topic in (*subtopology.repartition_source_topics, *subtopology.state_changelog_topics)
        )

    def tasks(self, partitions: Mapping[str, int]) -> tuple[Task, ...]:
        """Return the tasks of the topology for these partition counts."""
        return tuple(
            (subtopology.subtopology_id, partition)
            for subtopology in self.topology.subtopologies
            for partition in range(partitions[self.read_topic[subtopology.subtopology_id]])
        )


_STATELESS = Shape(
    name="stateless",
    topology=Topology(subtopologies=(Subtopology(subtopology_id="copy", source_topics=("in",)),)),
    sources=MappingProxyType({"in": 7}),
    read_topic=MappingProxyType({"copy": "in"}),
)

_COUNT = Shape(
    name="count",
    topology=Topology(
        subtopologies=(
            Subtopology(
                subtopology_id="by-key",
                repartition_source_topics=(InternalTopic(name="rep"),),
                state_changelog_topics=(InternalTopic(name="changelog"),),
            ),
            Subtopology(subtopology_id="in", source_topics=("in",), repartition_sink_topics=("rep",)),
        )
    ),
    sources=MappingProxyType({"in": 6}),
    read_topic=MappingProxyType({"by-key": "rep", "in": "in"}),
    stateful=frozenset({"by-key"}),
)

_JOIN = Shape(
    name="join",
    topology=Topology(
        subtopologies=(
            Subtopology(
                subtopology_id="join",
                source_topics=("left", "right"),
                state_changelog_topics=(InternalTopic(name="left-store"), InternalTopic(name="right-store")),
                copartition_groups=(CopartitionGroup(source_topics=("left", "right")),),
            ),
            Subtopology(subtopology_id="log", source_topics=("audit",)),
        )
    ),
    sources=MappingProxyType({"left": 5, "right": 5, "audit": 3}),
    read_topic=MappingProxyType({"join": "left", "log": "audit"}),
    stateful=frozenset({"join"}),
)

SHAPES = (_STATELESS, _COUNT, _JOIN)
