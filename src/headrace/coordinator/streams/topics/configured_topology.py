"""A topology on the topics there are: subtopologies with their task counts, or the reason why it cannot run.

A pure function of topology, image, and whether the topology runs already. Steps: 1 external sources exist,
2 repartition counts, 3 copartitioning, 4 task and changelog counts, 5 internal topics and their retention. A failed
step 1-3 leaves no subtopologies; missing or wrongly configured internal topics do, but the topology is not ready before
they fit. Counts that do not fit stop a topology that runs only if more happened than that source topics grew
(`retain_tasks`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from headrace.coordinator.metadata_image import MetadataImage, group_hash
from headrace.coordinator.records.schemas import StreamsGroupTopologyValue, Subtopology
from headrace.coordinator.result import CreatableTopic
from headrace.coordinator.streams.topics.internal_topics import (
    configured_internal_topic,
    missing_internal_topics,
    missing_status,
    retention_status,
    summary,
)
from headrace.coordinator.streams.topics.partition_counts import (
    enforce_copartitioning,
    repartition_partitions,
    task_count,
)
from headrace.coordinator.streams.topics.retained_tasks import retain_tasks
from headrace.coordinator.streams.topics.topic_status import (
    InvalidTopology,
    StatusCode,
    TopicProblem,
    TopicStatus,
)

__all__ = ["ConfiguredSubtopology", "ConfiguredTopology", "configure_topology", "required_topics"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfiguredSubtopology:
    """`inputs`: external and repartition source topics with their partition counts, by name."""

    subtopology_id: str
    tasks: int
    inputs: tuple[tuple[str, int], ...]
    repartition_source_topics: tuple[CreatableTopic, ...]
    changelog_topics: tuple[CreatableTopic, ...]

    @property
    def is_stateful(self) -> bool:
        return bool(self.changelog_topics)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfiguredTopology:
    """`subtopologies` is empty unless all steps but the last succeeded. `invalid` becomes STREAMS_INVALID_TOPOLOGY.
    `unread`: the topology runs, but not on all partitions of its source topics."""

    epoch: int
    metadata_hash: int
    subtopologies: Mapping[str, ConfiguredSubtopology] = field(default_factory=dict)
    topics_to_create: tuple[CreatableTopic, ...] = ()
    status: TopicStatus | None = None
    unread: TopicStatus | None = None
    invalid: str | None = None

    @property
    def is_ready(self) -> bool:
        return self.status is None and self.invalid is None

    @property
    def validated_epoch(self) -> int:
        """Epoch for the group's metadata record: the topology's if it can run, else -1."""
        return self.epoch if self.is_ready else -1


def configure_topology(
    topology: StreamsGroupTopologyValue,
    image: MetadataImage,
    *,
    present_tasks: Callable[[], Mapping[str, int]] | None = None,
) -> ConfiguredTopology:
    """Never raises: what does not fit is in `status` or `invalid`. `present_tasks` of a topology that was ready on an
    earlier image: how many tasks of each subtopology are assigned; not asked unless it matters."""
    topics = [image.topics[name] for name in required_topics(topology) if name in image.topics]
    metadata_hash = group_hash(topics)
    subtopologies: dict[str, ConfiguredSubtopology] = {}
    try:
        sources = _source_partitions(topology, image)
        try:
            subtopologies = _configure(topology, sources, image)
            internal = _all_internal_topics(subtopologies)
            missing = missing_internal_topics(internal, image)
        except TopicProblem:
            kept = retain_tasks(topology, sources, image, present_tasks()) if present_tasks is not None else None
            if kept is None:
                raise
            subtopologies = _configured(topology, kept.partitions, kept.tasks)
            return ConfiguredTopology(
                epoch=topology.epoch,
                metadata_hash=metadata_hash,
                subtopologies=subtopologies,
                status=retention_status(_all_internal_topics(subtopologies), image),
                unread=kept.unread,
            )
    except TopicProblem as problem:
        return ConfiguredTopology(epoch=topology.epoch, metadata_hash=metadata_hash, status=problem.status)
    except InvalidTopology as error:
        return ConfiguredTopology(epoch=topology.epoch, metadata_hash=metadata_hash, invalid=str(error))
    return ConfiguredTopology(
        epoch=topology.epoch,
        metadata_hash=metadata_hash,
        subtopologies=subtopologies,
        topics_to_create=missing,
        status=missing_status(missing) or retention_status(internal, image),
    )


def required_topics(topology: StreamsGroupTopologyValue) -> tuple[str, ...]:
    """Names, sorted, whose facts matter: sources, repartition sources, changelogs; not plain sinks."""
    names: dict[str, None] = {}
    for each in topology.subtopologies:
        names.update(dict.fromkeys(each.source_topics))
        names.update(dict.fromkeys(topic.name for topic in each.repartition_source_topics))
        names.update(dict.fromkeys(topic.name for topic in each.state_changelog_topics))
    return tuple(sorted(names))


def _configure(
    topology: StreamsGroupTopologyValue, sources: Mapping[str, int], image: MetadataImage
) -> dict[str, ConfiguredSubtopology]:
    counts = repartition_partitions(topology, sources)
    existing = {name: image.topics[name].partitions for name in counts if name in image.topics}
    counts = enforce_copartitioning(topology, sources, counts, existing)
    inputs = {**sources, **counts, **existing}
    tasks = {each.subtopology_id: task_count(each, inputs) for each in topology.subtopologies}
    return _configured(topology, {**sources, **counts}, tasks)


def _configured(
    topology: StreamsGroupTopologyValue, partitions: Mapping[str, int], tasks: Mapping[str, int]
) -> dict[str, ConfiguredSubtopology]:
    """By subtopology id, in that order."""
    ordered = sorted(topology.subtopologies, key=lambda each: each.subtopology_id)
    return {
        each.subtopology_id: _configured_subtopology(each, partitions, tasks[each.subtopology_id]) for each in ordered
    }


def _source_partitions(topology: StreamsGroupTopologyValue, image: MetadataImage) -> dict[str, int]:
    names = sorted({name for each in topology.subtopologies for name in each.source_topics})
    missing = [name for name in names if name not in image.topics]
    if missing:
        raise TopicProblem(StatusCode.MISSING_SOURCE_TOPICS, f"Source topics {summary(missing)} are missing.")
    return {name: image.topics[name].partitions for name in names}


def _configured_subtopology(
    subtopology: Subtopology, partitions: Mapping[str, int], tasks: int
) -> ConfiguredSubtopology:
    repartitions = subtopology.repartition_source_topics
    names = sorted({*subtopology.source_topics, *(topic.name for topic in repartitions)})
    return ConfiguredSubtopology(
        subtopology_id=subtopology.subtopology_id,
        tasks=tasks,
        inputs=tuple((name, partitions[name]) for name in names),
        repartition_source_topics=tuple(
            configured_internal_topic(t, t.partitions or partitions[t.name]) for t in repartitions
        ),
        changelog_topics=tuple(configured_internal_topic(t, tasks) for t in subtopology.state_changelog_topics),
    )


def _all_internal_topics(subtopologies: Mapping[str, ConfiguredSubtopology]) -> list[CreatableTopic]:
    return [topic for each in subtopologies.values() for topic in _internal_topics(each)]


def _internal_topics(subtopology: ConfiguredSubtopology) -> Iterator[CreatableTopic]:
    yield from subtopology.repartition_source_topics
    yield from subtopology.changelog_topics
