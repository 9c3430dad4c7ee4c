"""Topology of a streams application in plain values, and its form in a heartbeat (KIP-1071).

Everything is sent sorted: Kafka compares topologies including the order of lists, so two processes that built the same
topology in different orders must send the same bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TypedDict, cast

from kio.schema.types import TopicName
from kio.static.primitive import i16, i32

from headrace.protocol import messages as m

__all__ = ["CopartitionGroup", "InternalTopic", "Subtopology", "Topology"]


@dataclass(frozen=True, slots=True, kw_only=True)
class InternalTopic:
    """Repartition or changelog topic. 0 partitions: derived by the coordinator; 0 replicas: the broker's default."""

    name: str
    partitions: int = 0
    replication_factor: int = 0
    configs: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CopartitionGroup:
    """Source topics of one subtopology, by name, that must have the same number of partitions."""

    source_topics: tuple[str, ...] = ()
    repartition_source_topics: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Subtopology:
    """Part of a topology between topics; one task per partition of its sources."""

    subtopology_id: str
    source_topics: tuple[str, ...] = ()
    repartition_source_topics: tuple[InternalTopic, ...] = ()
    repartition_sink_topics: tuple[str, ...] = ()
    state_changelog_topics: tuple[InternalTopic, ...] = ()
    copartition_groups: tuple[CopartitionGroup, ...] = ()


class InternalTopicDocument(TypedDict):
    """An internal topic as JSON."""

    name: str
    partitions: int
    replication_factor: int
    configs: Sequence[tuple[str, str]]


class CopartitionDocument(TypedDict):
    """A copartition group as JSON."""

    source_topics: Sequence[str]
    repartition_source_topics: Sequence[str]


class SubtopologyDocument(TypedDict):
    """A subtopology as JSON."""

    subtopology_id: str
    source_topics: Sequence[str]
    repartition_source_topics: Sequence[InternalTopicDocument]
    repartition_sink_topics: Sequence[str]
    state_changelog_topics: Sequence[InternalTopicDocument]
    copartition_groups: Sequence[CopartitionDocument]


class TopologyDocument(TypedDict):
    """A topology as JSON."""

    epoch: int
    subtopologies: Sequence[SubtopologyDocument]


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """All subtopologies of an application. `epoch` stays 0 while Kafka refuses topology updates."""

    epoch: int = 0
    subtopologies: tuple[Subtopology, ...] = ()

    @property
    def internal_topics(self) -> tuple[InternalTopic, ...]:
        """The repartition and changelog topics of all subtopologies."""
        # Repartition sinks are left out: each is the source of another subtopology, with its settings there.
        return tuple(
            topic
            for each in self.subtopologies
            for topic in (*each.repartition_source_topics, *each.state_changelog_topics)
        )

    def to_heartbeat(self) -> m.streams_group_heartbeat_request.Topology:
        """Return the sorted structure of the heartbeat.

        Raises:
            ValueError: A copartition group names a topic of another subtopology.
        """
        return m.streams_group_heartbeat_request.Topology(
            epoch=i32(self.epoch),
            subtopologies=tuple(_subtopology(s) for s in sorted(self.subtopologies, key=lambda s: s.subtopology_id)),
        )

    def to_json(self) -> TopologyDocument:
        """Return plain dictionaries and lists, for a pipe to another process."""
        return cast("TopologyDocument", asdict(self))

    @staticmethod
    def from_json(document: TopologyDocument) -> Topology:
        """Return the topology of `to_json`, also after JSON turned tuples into lists."""
        return Topology(
            epoch=document["epoch"], subtopologies=tuple(_read_subtopology(s) for s in document["subtopologies"])
        )


def _subtopology(subtopology: Subtopology) -> m.streams_group_heartbeat_request.Subtopology:
    sources = tuple(sorted(subtopology.source_topics))
    repartition_sources = tuple(sorted(subtopology.repartition_source_topics, key=lambda topic: topic.name))
    names = tuple(topic.name for topic in repartition_sources)
    # Copartition groups refer to topics by their index in the sorted lists, so they are built after sorting (KIP-1071).
    groups = sorted(
        (
            tuple(sorted(_index(sources, name, subtopology) for name in group.source_topics)),
            tuple(sorted(_index(names, name, subtopology) for name in group.repartition_source_topics)),
        )
        for group in subtopology.copartition_groups
    )
    return m.streams_group_heartbeat_request.Subtopology(
        subtopology_id=subtopology.subtopology_id,
        source_topics=tuple(TopicName(name) for name in sources),
        state_changelog_topics=tuple(
            _internal(topic) for topic in sorted(subtopology.state_changelog_topics, key=lambda topic: topic.name)
        ),
        repartition_sink_topics=tuple(TopicName(name) for name in sorted(subtopology.repartition_sink_topics)),
        repartition_source_topics=tuple(_internal(topic) for topic in repartition_sources),
        copartition_groups=tuple(
            m.streams_group_heartbeat_request.CopartitionGroup(
                source_topics=tuple(i16(index) for index in source_indexes),
                repartition_source_topics=tuple(i16(index) for index in repartition_indexes),
            )
            for source_indexes, repartition_indexes in groups
        ),
    )


def _index(names: Sequence[str], name: str, subtopology: Subtopology) -> int:
    try:
        return names.index(name)
    except ValueError:
        raise ValueError(f"{name} is no source topic of subtopology {subtopology.subtopology_id}") from None


def _internal(topic: InternalTopic) -> m.streams_group_heartbeat_request.TopicInfo:
    return m.streams_group_heartbeat_request.TopicInfo(
        name=TopicName(topic.name),
        partitions=i32(topic.partitions),
        replication_factor=i16(topic.replication_factor),
        topic_configs=tuple(
            m.streams_group_heartbeat_request.KeyValue(key=key, value=value) for key, value in sorted(topic.configs)
        ),
    )


def _read_subtopology(document: SubtopologyDocument) -> Subtopology:
    return Subtopology(
        subtopology_id=document["subtopology_id"],
        source_topics=tuple(document["source_topics"]),
        repartition_source_topics=tuple(_read_internal(topic) for topic in document["repartition_source_topics"]),
        repartition_sink_topics=tuple(document["repartition_sink_topics"]),
        state_changelog_topics=tuple(_read_internal(topic) for topic in document["state_changelog_topics"]),
        copartition_groups=tuple(
            CopartitionGroup(
                source_topics=tuple(group["source_topics"]),
                repartition_source_topics=tuple(group["repartition_source_topics"]),
            )
            for group in document["copartition_groups"]
        ),
    )


def _read_internal(document: InternalTopicDocument) -> InternalTopic:
    return InternalTopic(
        name=document["name"],
        partitions=document["partitions"],
        replication_factor=document["replication_factor"],
        configs=tuple((key, value) for key, value in document["configs"]),
    )
