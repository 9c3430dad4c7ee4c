"""Why a streams group is NotReady, and what to do: worked out from its topology and the topics that exist.

The group's description carries no reason (the status reaches members only), so the client looks for itself. The names
in brackets are the statuses of KIP-1071.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.client.near_names import nearest

if TYPE_CHECKING:
    from penstock.client.cluster_metadata import TopicMetadata
    from penstock.client.membership.topology import Subtopology, Topology

__all__ = ["Obstacle", "obstacles"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Obstacle:
    """One cause and its remedy; `status` is KIP-1071's name for it."""

    status: str
    why: str
    do: str


def obstacles(topology: Topology | None, topics: Mapping[str, TopicMetadata]) -> tuple[Obstacle, ...]:
    """All that keeps the group from its tasks, sources before internal topics."""
    if topology is None:
        return (
            Obstacle(
                status="NO_TOPOLOGY",
                why="no member has told the group its topology yet",
                do="start the application; the first member brings the topology",
            ),
        )
    found: list[Obstacle] = []
    for subtopology in topology.subtopologies:
        found += _missing_sources(subtopology, topics)
    if found:
        return tuple(dict.fromkeys(found))
    for subtopology in topology.subtopologies:
        found += _uneven_sources(subtopology, topics)
        found += _missing_internal_topics(subtopology, topics)
    return tuple(dict.fromkeys(found))


def _missing_sources(subtopology: Subtopology, topics: Mapping[str, TopicMetadata]) -> list[Obstacle]:
    missing = [topic for topic in subtopology.source_topics if topic not in topics]
    return [_missing_source(topic, topics) for topic in missing]


def _missing_source(topic: str, topics: Mapping[str, TopicMetadata]) -> Obstacle:
    near = nearest(topic, topics)
    hint = f'did you mean "{near}"?  else:  ' if near else ""
    return Obstacle(
        status="MISSING_SOURCE_TOPICS",
        why=f'topic "{topic}" does not exist (MISSING_SOURCE_TOPICS); all members hold no tasks until it does',
        do=f"{hint}penstock topics --create --topic {topic} --partitions 8",
    )


def _uneven_sources(subtopology: Subtopology, topics: Mapping[str, TopicMetadata]) -> list[Obstacle]:
    counts = {topic: len(topics[topic].partitions) for topic in subtopology.source_topics}
    if len(set(counts.values())) <= 1:
        return []
    listed = ", ".join(f'"{topic}" has {count}' for topic, count in sorted(counts.items()))
    widest = max(counts.values())
    narrow = next(topic for topic, count in sorted(counts.items()) if count < widest)
    return [
        Obstacle(
            status="INCORRECTLY_PARTITIONED_TOPICS",
            why=f"topics that are read together differ in partitions: {listed} (INCORRECTLY_PARTITIONED_TOPICS)",
            do=f"penstock topics --alter --topic {narrow} --partitions {widest}   (keys then move to other partitions)",
        )
    ]


def _missing_internal_topics(subtopology: Subtopology, topics: Mapping[str, TopicMetadata]) -> list[Obstacle]:
    internal = (*subtopology.repartition_source_topics, *subtopology.state_changelog_topics)
    return [
        Obstacle(
            status="MISSING_INTERNAL_TOPICS",
            why=f'the internal topic "{topic.name}" does not exist (MISSING_INTERNAL_TOPICS)',
            do="the broker creates it by itself; if it stays away, look into the broker's log: CREATE may be forbidden",
        )
        for topic in internal
        if topic.name not in topics
    ]
