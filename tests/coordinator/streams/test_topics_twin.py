"""Random topologies on random topics: what `configure_topology` says is what a naive twin finds by trying out.

The twin finds repartition counts by brute force: of all ways to give each undeclared topic the count of some input,
those that satisfy "as many as the widest input of its writers", and of these the least.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from random import Random
from uuid import UUID

import pytest
from tests.coordinator.coordinator_context import subtopology, topology

from headrace.coordinator.metadata_image import MetadataImage, TopicImage
from headrace.coordinator.streams.configured_topology import ConfiguredTopology, configure_topology
from headrace.coordinator.streams.heartbeat_messages import topology_of
from headrace.protocol.messages import streams_group_heartbeat_request as m

SOURCES, REPARTITIONS, MOST = ("a", "b", "c"), ("r", "s", "t"), 4
MISSING_SOURCE, WRONG_COUNT, MISSING_INTERNAL = 1, 2, 3


@dataclass(frozen=True, kw_only=True)
class Found:
    """`code`: the topic status, "invalid", or None when ready."""

    code: int | str | None
    tasks: Mapping[str, int]
    to_create: Mapping[str, int]


def random_case(random: Random) -> tuple[list[m.Subtopology], dict[str, int]]:
    explicit = {name: random.choice([0, 0, random.randint(1, MOST)]) for name in REPARTITIONS}
    subtopologies = []
    for number in range(random.randint(1, 4)):
        sources = [name for name in SOURCES if random.random() < 0.4]
        repartitions = [(name, explicit[name]) for name in REPARTITIONS if random.random() < 0.4]
        sinks = [name for name in REPARTITIONS if random.random() < 0.4]
        groups = []
        if random.random() < 0.3:
            chosen = tuple(index for index in range(len(sources)) if random.random() < 0.5)
            groups.append((chosen, tuple(index for index in range(len(repartitions)) if random.random() < 0.7)))
        changelogs = [f"log{number}"] if random.random() < 0.5 else []
        subtopologies.append(
            subtopology(
                str(number),
                sources=sources,
                repartitions=repartitions,
                sinks=sinks,
                changelogs=changelogs,
                copartitions=groups,
            )
        )
    topics = {name: random.randint(1, MOST) for name in SOURCES if random.random() < 0.9}
    for name in (*REPARTITIONS, *(f"log{number}" for number in range(4))):
        if random.random() < 0.2:
            topics[name] = random.randint(1, MOST)
    return subtopologies, topics


def twin(subtopologies: list[m.Subtopology], topics: Mapping[str, int]) -> Found:
    refused = Found(code=WRONG_COUNT, tasks={}, to_create={})
    sources = {name for each in subtopologies for name in each.source_topics}
    if sources - topics.keys():
        return Found(code=MISSING_SOURCE, tasks={}, to_create={})
    explicit = {topic.name: topic.partitions for each in subtopologies for topic in each.repartition_source_topics}
    counts = least_counts(subtopologies, {name: topics[name] for name in sources}, explicit)
    if counts is None or any(not each.source_topics + each.repartition_source_topics for each in subtopologies):
        if counts is not None and copartitioned(subtopologies, topics, counts, explicit) is None:
            return refused  # found before the count of tasks
        return Found(code="invalid", tasks={}, to_create={})
    agreed = copartitioned(subtopologies, topics, counts, explicit)
    if agreed is None:
        return refused
    wanted = {name: explicit[name] or agreed[name] for name in explicit}
    tasks = {}
    for each in subtopologies:
        inputs = [*each.source_topics, *(topic.name for topic in each.repartition_source_topics)]
        tasks[each.subtopology_id] = max(topics.get(name) or agreed[name] for name in inputs)
        wanted |= {topic.name: tasks[each.subtopology_id] for topic in each.state_changelog_topics}
    if any(topics[name] != wanted[name] for name in wanted if name in topics):
        return refused
    missing = {name: wanted[name] for name in wanted if name not in topics}
    return Found(code=MISSING_INTERNAL if missing else None, tasks=tasks, to_create=missing)


def least_counts(
    subtopologies: list[m.Subtopology], sources: Mapping[str, int], explicit: Mapping[str, int]
) -> dict[str, int] | None:
    undecided = sorted(name for name in explicit if not explicit[name])
    fitting = []
    for chosen in itertools.product(range(MOST + 1), repeat=len(undecided)):
        counts = {**explicit, **dict(zip(undecided, chosen, strict=True))}
        widest = {
            each.subtopology_id: max(
                [
                    *(sources[name] for name in each.source_topics),
                    *(counts[topic.name] for topic in each.repartition_source_topics),
                ],
                default=0,
            )
            for each in subtopologies
        }
        if all(
            counts[name]
            == max(
                (widest[each.subtopology_id] for each in subtopologies if name in each.repartition_sink_topics),
                default=0,
            )
            for name in undecided
        ):
            fitting.append(counts)
    least = min(fitting, key=lambda counts: sum(counts.values()))
    assert all(least[name] <= counts[name] for counts in fitting for name in least)
    return None if any(count == 0 for count in least.values()) else least


def copartitioned(
    subtopologies: list[m.Subtopology],
    topics: Mapping[str, int],
    counts: Mapping[str, int],
    explicit: Mapping[str, int],
) -> dict[str, int] | None:
    agreed = dict(counts)
    for each in subtopologies:
        for group in each.copartition_groups:
            external = [topics[each.source_topics[index]] for index in group.source_topics]
            names = [each.repartition_source_topics[index].name for index in group.repartition_source_topics]
            present = {name: topics.get(name) or agreed[name] for name in names}
            fixed = [present[name] for name in names if explicit[name]]
            decisive = external or fixed or ([max(present.values())] if names else [])
            if len({*decisive, *(fixed if external else [])}) > 1:
                return None
            agreed |= dict.fromkeys(names, max(decisive, default=0))
    return agreed


def image(topics: Mapping[str, int]) -> MetadataImage:
    return MetadataImage(
        topics={
            name: TopicImage(name=name, topic_id=UUID(int=number + 1), partitions=topics[name])
            for number, name in enumerate(sorted(topics))
        }
    )


def found(configured: ConfiguredTopology) -> Found:
    code: int | str | None = None if configured.status is None else int(configured.status.code)
    return Found(
        code="invalid" if configured.invalid else code,
        tasks={name: each.tasks for name, each in configured.subtopologies.items()},
        to_create={topic.name: topic.partitions for topic in configured.topics_to_create},
    )


@pytest.mark.parametrize("block", range(8))
def test_as_a_naive_twin(block: int) -> None:
    seen = set()
    for seed in range(block * 250, block * 250 + 250):
        random = Random(seed)
        subtopologies, topics = random_case(random)
        ours = found(configure_topology(topology_of(topology(*subtopologies)), image(topics)))
        assert ours == twin(subtopologies, topics), f"seed {seed}: {subtopologies} on {topics}"
        seen.add(ours.code)
        if not any(each.copartition_groups for each in subtopologies):
            random.shuffle(subtopologies)
            shuffled = found(configure_topology(topology_of(topology(*subtopologies)), image(topics)))
            assert shuffled == ours, f"seed {seed}: the order of subtopologies matters"
    assert seen == {None, "invalid", MISSING_SOURCE, WRONG_COUNT, MISSING_INTERNAL}


def has_narrow_group(subtopologies: list[m.Subtopology], configured: ConfiguredTopology) -> bool:
    """A copartition group without state, or with fewer partitions than its subtopology has tasks: an external topic
    that grows breaks it, since some tasks would read it without its partners."""
    for each in subtopologies:
        inputs = dict(configured.subtopologies[each.subtopology_id].inputs)
        for group in each.copartition_groups:
            names = [each.source_topics[index] for index in group.source_topics]
            names += [each.repartition_source_topics[index].name for index in group.repartition_source_topics]
            tasks = configured.subtopologies[each.subtopology_id].tasks
            if not each.state_changelog_topics or any(inputs[name] < tasks for name in names):
                return True
    return False


@pytest.mark.parametrize("block", range(4))
def test_running_tasks_are_kept_while_sources_grow(block: int) -> None:
    """Step by step: whatever external topics grow, tasks with state stay, all others follow, and nothing stops."""
    kept = 0
    for seed in range(block * 500, block * 500 + 500):
        random = Random(seed)
        subtopologies, topics = random_case(random)
        given = topology_of(topology(*subtopologies))
        before = configure_topology(given, image(topics))
        if before.status is not None and before.topics_to_create:
            topics |= {topic.name: topic.partitions for topic in before.topics_to_create}
            before = configure_topology(given, image(topics))
        if not before.is_ready or has_narrow_group(subtopologies, before):
            continue
        tasks = found(before).tasks
        for _ in range(2):
            external = sorted({name for each in subtopologies for name in each.source_topics} - set(REPARTITIONS))
            topics |= {name: topics[name] + random.choice([0, 1, topics[name]]) for name in external}
            after = configure_topology(given, image(topics), present_tasks=lambda tasks=tasks: tasks)  # type: ignore[misc]
            assert after.is_ready, f"seed {seed}: {after.status or after.invalid}"
            for each in subtopologies:
                name = each.subtopology_id
                inputs = dict(after.subtopologies[name].inputs)
                if each.state_changelog_topics:
                    assert after.subtopologies[name].tasks == before.subtopologies[name].tasks
                else:
                    assert after.subtopologies[name].tasks == max(inputs.values())
                for topic in each.repartition_source_topics:
                    assert inputs[topic.name] == topics[topic.name] <= after.subtopologies[name].tasks
            beyond = any(count > each.tasks for each in after.subtopologies.values() for _, count in each.inputs)
            assert (after.unread is not None) == beyond
            kept += beyond
    assert kept > 20
