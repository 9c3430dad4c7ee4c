"""Why a streams group is NotReady, and what to do: worked out from its topology and the topics that exist.

The group's description carries no reason (the status reaches members only), so the client looks for itself, with the
coordinator's rules as far as a description shows them: it does not tell which sources are joined. What is certain comes
first; topics that merely might have to be equally partitioned are named only when nothing else is found. The names in
brackets are the statuses of KIP-1071.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headrace.coordinator.streams.internal_topics import add_config, required_changes, retention_of
from headrace.suggestions import nearest

if TYPE_CHECKING:
    from headrace.client.cluster_metadata import TopicMetadata
    from headrace.client.membership.topology import Subtopology, Topology

__all__ = ["Obstacle", "obstacles", "unread_partitions"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Obstacle:
    """One cause and its remedy; `status` is KIP-1071's name for it."""

    status: str
    why: str
    do: str


def obstacles(
    topology: Topology | None,
    topics: Mapping[str, TopicMetadata],
    settings: Mapping[str, Mapping[str, str]] | None = None,
) -> tuple[Obstacle, ...]:
    """Everything that keeps the group from its tasks, sources before internal topics.

    Args:
        topology: The group's topology, None if it has none yet.
        topics: All topics of the cluster by name.
        settings: Effective settings of the internal topics that exist, by topic.
    """
    if topology is None:
        return (
            Obstacle(
                status="NO_TOPOLOGY",
                why="no member has sent its topology to the group yet",
                do="start the application; the first member brings the topology",
            ),
        )
    found: list[Obstacle] = []
    for subtopology in topology.subtopologies:
        found += _missing_sources(subtopology, topics)
    if not found:
        wanted = _wanted_counts(topology, topics)
        found += _wrong_internal_topics(topology, topics, wanted)
        found += [_missing_internal_topic(name, wanted[name]) for name in wanted if name not in topics]
        found += _wrong_settings(topology, settings or {})
    if not found:
        for subtopology in topology.subtopologies:
            found += _uneven_sources(subtopology, topics)
    return tuple(dict.fromkeys(found)) or (_NOTHING_FOUND,)


def unread_partitions(topology: Topology, topics: Mapping[str, TopicMetadata]) -> tuple[Obstacle, ...]:
    """Return the sources of a ready group that have more partitions than its state. Kafka would be NotReady then."""
    found = []
    for subtopology in topology.subtopologies:
        kept = [topic.name for topic in subtopology.state_changelog_topics if topic.name in topics]
        if not kept:
            continue
        narrow = min(kept, key=lambda name: len(topics[name].partitions))
        width = len(topics[narrow].partitions)
        for source in subtopology.source_topics:
            count = len(topics[source].partitions) if source in topics else 0
            if count > width:
                found.append(_unread(source, count, narrow, width))
    return tuple(found)


def _unread(source: str, count: int, changelog: str, width: int) -> Obstacle:
    return Obstacle(
        status="STALE_TOPOLOGY",
        why=f'topic "{source}" has {count} partitions and {width} are read: the changelog "{changelog}" has {width} '
        "(STALE_TOPOLOGY)",
        do=f"headrace topics --alter --topic {changelog} --partitions {count}   "
        "(keys that moved then begin with empty state)",
    )


def _wanted_counts(topology: Topology, topics: Mapping[str, TopicMetadata]) -> dict[str, int]:
    """Internal topics with the partitions they need; 0 where it cannot be told. Source topics all exist."""
    # As in Kafka's RepartitionTopics and ChangelogTopics (group-coordinator 4.3.1), in three steps.
    # 1. Fixed counts: source topics as they are, repartition topics whose number the program gives.
    known = {topic: len(topics[topic].partitions) for each in topology.subtopologies for topic in each.source_topics}
    wanted = {
        topic.name: topic.partitions for each in topology.subtopologies for topic in each.repartition_source_topics
    }
    undecided = [name for name, count in wanted.items() if not count]
    # 2. The others depend on each other: a repartition topic may be written from one that is undecided itself. Each
    #    round decides at least the next topic of every chain, and no chain is longer than the number of topics. A
    #    cycle of undecided topics keeps 0, which is reported as "cannot be told" instead of a wrong number.
    for _ in undecided:
        for name in undecided:
            wanted[name] = _derived_count(name, topology, {**known, **wanted})
    # 3. A changelog has one partition per task, and the tasks of a subtopology are as many as the partitions of its
    #    widest input.
    for each in topology.subtopologies:
        inputs = [*each.source_topics, *(topic.name for topic in each.repartition_source_topics)]
        width = max(({**known, **wanted}[topic] for topic in inputs), default=0)
        wanted |= {topic.name: width for topic in each.state_changelog_topics}
    return wanted


def _derived_count(name: str, topology: Topology, known: Mapping[str, int]) -> int:
    """Return the number of partitions: as many as the sources it is read with, else as many as the widest input of
    those who write it.
    """
    # Read together with source topics: copartitioning requires their count (KIP-1071), whatever the writers have.
    for each in topology.subtopologies:
        if each.source_topics and any(topic.name == name for topic in each.repartition_source_topics):
            return max(known[topic] for topic in each.source_topics)
    # Otherwise the widest input of its writers. The topic itself is left out: a subtopology may write what it reads.
    writers = [each for each in topology.subtopologies if name in each.repartition_sink_topics]
    inputs = [
        topic
        for each in writers
        for topic in (*each.source_topics, *(one.name for one in each.repartition_source_topics))
    ]
    return max((known[topic] for topic in inputs if topic != name), default=0)


def _wrong_internal_topics(
    topology: Topology, topics: Mapping[str, TopicMetadata], wanted: Mapping[str, int]
) -> list[Obstacle]:
    changelogs = {topic.name for each in topology.subtopologies for topic in each.state_changelog_topics}
    found = []
    for name, count in wanted.items():
        present = len(topics[name].partitions) if name in topics else count
        if not count or present == count:
            continue
        kind = "changelog" if name in changelogs else "repartition"
        why = f'the {kind} topic "{name}" has {present} partitions, {count} are needed (INCORRECTLY_PARTITIONED_TOPICS)'
        found.append(Obstacle(status="INCORRECTLY_PARTITIONED_TOPICS", why=why, do=_remedy(name, kind, present, count)))
    return found


def _remedy(name: str, kind: str, present: int, count: int) -> str:
    if present < count:
        return f"headrace topics --alter --topic {name} --partitions {count}   (keys then move to other partitions)"
    lost = "the state in it is lost" if kind == "changelog" else "unread records in it are lost"
    return f"stop the members, then  headrace topics --delete --topic {name}   ({lost}; the broker creates it again)"


def _wrong_settings(topology: Topology, settings: Mapping[str, Mapping[str, str]]) -> list[Obstacle]:
    found = []
    for topic in topology.internal_topics:
        existing = retention_of(settings.get(topic.name, {}))
        changes = () if existing is None else tuple(required_changes(dict(topic.configs), existing))
        if changes:
            why = f'the internal topic "{topic.name}" would remove records that are needed: ' + "; ".join(
                map(str, changes)
            )
            do = f"headrace configs --alter --topic {topic.name} --add-config {add_config(changes)}"
            found.append(Obstacle(status="MISSING_INTERNAL_TOPICS", why=f"{why} (MISSING_INTERNAL_TOPICS)", do=do))
    return found


def _missing_internal_topic(name: str, count: int) -> Obstacle:
    partitions = f", {count} partitions" if count else ""
    return Obstacle(
        status="MISSING_INTERNAL_TOPICS",
        why=f'the internal topic "{name}"{partitions}, does not exist (MISSING_INTERNAL_TOPICS)',
        do="the broker creates it by itself; if it stays away, look into the broker's log: CREATE may be forbidden",
    )


_NOTHING_FOUND = Obstacle(
    status="UNKNOWN",
    why="every topic of the topology is there, as far as a client can see",
    do="look again after the next heartbeat; if it stays so, the members' logs have the status",
)


def _missing_sources(subtopology: Subtopology, topics: Mapping[str, TopicMetadata]) -> list[Obstacle]:
    missing = [topic for topic in subtopology.source_topics if topic not in topics]
    return [_missing_source(topic, topics) for topic in missing]


def _missing_source(topic: str, topics: Mapping[str, TopicMetadata]) -> Obstacle:
    near = nearest(topic, topics)
    hint = f'did you mean "{near}"?  else:  ' if near else ""
    return Obstacle(
        status="MISSING_SOURCE_TOPICS",
        why=f'topic "{topic}" does not exist (MISSING_SOURCE_TOPICS); all members hold no tasks until it does',
        do=f"{hint}headrace topics --create --topic {topic} --partitions 8",
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
            do=f"headrace topics --alter --topic {narrow} --partitions {widest}   (keys then move to other partitions)",
        )
    ]
