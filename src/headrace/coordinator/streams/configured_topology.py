"""ConfiguredTopology: a topology on the existing topics, with its task counts or the reason why it cannot run.

A pure function of topology, image, and whether the topology runs already (in Kafka: `ConfiguredTopology` and
`InternalTopicManager.configureTopics`). Steps: 1 external sources exist, 2 repartition counts, 3 copartitioning, 4 task
and changelog counts, 5 internal topics and their retention. A failed step 1-3 leaves no subtopologies; missing or
wrongly configured internal topics do, but the topology is not ready before they fit. Counts that do not fit stop a
running topology only if more happened than that source topics grew (`retain_tasks`).

**Source topics that grew** under a running application with state: its tasks stay as they are, and a status reports it.
Kafka 4.3.1 finds the changelog "incorrectly partitioned" then, takes every task from every member, and its clients
stop. Here the topology continues if everything inside it is as it was:

- every internal topic exists; a repartition topic has its declared count, or at most the count that would be derived
  today (its writers may have more tasks than it has partitions), or the count of its copartition group;
- a subtopology with changelogs keeps its tasks, as many as these have partitions; only *external* topics may have more,
  and partitions beyond are not read. One without changelogs has a task for each partition, also the new ones;
- the topics of a copartition group have equal counts, or the repartition topics fit the tasks and the external ones
  have at least as many partitions.

No internal topic grows by itself: its keys would move away from the state that belongs to them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from headrace.coordinator.metadata_image import MetadataImage, group_hash
from headrace.coordinator.records.schemas import StreamsGroupTopologyValue, Subtopology
from headrace.coordinator.result import CreatableTopic
from headrace.coordinator.streams.internal_topics import (
    InvalidTopology,
    StatusCode,
    TopicProblem,
    TopicStatus,
    configured_internal_topic,
    copartitioned_names,
    enforce_copartitioning,
    missing_internal_topics,
    missing_status,
    repartition_partitions,
    retention_status,
    summary,
    task_count,
)

__all__ = [
    "ConfiguredSubtopology",
    "ConfiguredTopology",
    "RetainedTasks",
    "configure_topology",
    "required_topics",
    "retain_tasks",
]


_NAMED = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class RetainedTasks:
    """`tasks`: by subtopology. `partitions`: of all inputs, as they are. `unread` says what is left out, if any."""

    tasks: Mapping[str, int]
    partitions: Mapping[str, int]
    unread: TopicStatus | None


def retain_tasks(
    topology: StreamsGroupTopologyValue,
    source_partitions: Mapping[str, int],
    image: MetadataImage,
    present_tasks: Mapping[str, int],
) -> RetainedTasks | None:
    """Return the tasks and partitions with which the topology continues; None if more changed than source topics grew.

    `present_tasks`: assigned tasks by subtopology, without those that no member runs now. Raises InvalidTopology.
    """
    # 1. The internal topics as they are. A topic that is missing or was changed by hand is no growth of source topics.
    repartitions = _repartition_counts(topology, source_partitions, image)
    if repartitions is None:
        return None
    partitions = {**source_partitions, **repartitions}
    tasks: dict[str, int] = {}
    for subtopology in topology.subtopologies:
        # 2. Tasks by the state that exists: its partitions are the only ones that a task can continue from.
        count = _tasks(subtopology, partitions, image)
        if count is None or not _is_copartitioned(subtopology, partitions, count):
            return None
        # 3. The tasks that run now must be exactly these. A changelog with more partitions than there are tasks was
        #    prepared by an operator for a new count; the group then has to be assigned anew, and status MISSING or
        #    INCORRECT reports it.
        if subtopology.state_changelog_topics and present_tasks.get(subtopology.subtopology_id, count) != count:
            return None
        tasks[subtopology.subtopology_id] = count
    return RetainedTasks(tasks=tasks, partitions=partitions, unread=_unread(topology, partitions, tasks))


def _repartition_counts(
    topology: StreamsGroupTopologyValue, source_partitions: Mapping[str, int], image: MetadataImage
) -> dict[str, int] | None:
    """The existing counts; None when a topic is missing or is not what it was."""
    derived = repartition_partitions(topology, source_partitions)
    widened = {
        name
        for each in topology.subtopologies
        for group in each.copartition_groups
        for name in copartitioned_names(each, group)[1]
    }
    counts: dict[str, int] = {}
    for topic in (topic for each in topology.subtopologies for topic in each.repartition_source_topics):
        existing = image.topics.get(topic.name)
        # Copartitioning may have widened a repartition topic beyond what is derived from its own writers. Any other one
        # with more partitions was changed by hand.
        if existing is None or (existing.partitions > derived[topic.name] and topic.name not in widened):
            return None
        if topic.partitions > 0 and existing.partitions != topic.partitions:
            return None
        counts[topic.name] = existing.partitions
    return counts


def _tasks(subtopology: Subtopology, partitions: Mapping[str, int], image: MetadataImage) -> int | None:
    """Return the number of tasks: that of the inputs, or of the partitions of its state; None when its state does not
    fit.
    """
    # A changelog partition belongs to one task. With state, the number of tasks is therefore the number of changelog
    # partitions; without, the number of partitions of the widest input.
    widest = task_count(subtopology, partitions)
    changelogs = [image.topics.get(topic.name) for topic in subtopology.state_changelog_topics]
    if not changelogs:
        return widest
    counts = {topic.partitions for topic in changelogs if topic is not None}
    if None in changelogs or len(counts) != 1:
        return None
    (count,) = counts
    # Partitions of a *repartition* topic beyond the tasks would hold records that no task reads: data loss. Partitions
    # of an external topic beyond them are reported, and read once the operator widens the changelogs.
    all_are_read = all(partitions[topic.name] <= count for topic in subtopology.repartition_source_topics)
    return count if count <= widest and all_are_read else None


def _is_copartitioned(subtopology: Subtopology, partitions: Mapping[str, int], tasks: int) -> bool:
    for group in subtopology.copartition_groups:
        external, repartition = copartitioned_names(subtopology, group)
        counts = {partitions[name] for name in (*external, *repartition)}
        # Different counts are tolerated only with state, and only if no topic has fewer partitions than there are
        # tasks: every task keeps its partition of every topic. Keys that move are reported (`_left_out`).
        have_grown = min(counts, default=tasks) >= tasks and all(partitions[name] == tasks for name in repartition)
        if len(counts) > 1 and not (subtopology.state_changelog_topics and have_grown):
            return False
    return True


def _unread(
    topology: StreamsGroupTopologyValue, partitions: Mapping[str, int], tasks: Mapping[str, int]
) -> TopicStatus | None:
    """A code that members of Kafka 4.3.1 log and run on with: the other ones make them stop, a new one makes them
    fail."""
    left_out = list(_left_out(topology, partitions, tasks))
    if not left_out:
        return None
    detail = "; ".join(left_out[:_NAMED]) + (f"; and {len(left_out) - _NAMED} more" if len(left_out) > _NAMED else "")
    return TopicStatus(
        code=StatusCode.STALE_TOPOLOGY,
        detail=f"Source topics have grown beyond the state of their readers: {detail}. Nothing else is affected. "
        "Changelog topics with as many partitions let them be read, but keys that moved begin with empty state.",
    )


def _left_out(
    topology: StreamsGroupTopologyValue, partitions: Mapping[str, int], tasks: Mapping[str, int]
) -> Iterator[str]:
    for subtopology in sorted(topology.subtopologies, key=lambda each: each.subtopology_id):
        kept = tasks[subtopology.subtopology_id]
        for name in sorted(subtopology.source_topics):
            if partitions[name] > kept:
                # Keys are placed by hash modulo partitions. From 4 to 8 partitions, every key in the first 4 was in the
                # same one before: 1 mod 8 is 1 mod 4. From 4 to 6, hash 6 moves from partition 2 to 0, away from its
                # state.
                moved = "" if partitions[name] % kept == 0 else ", and keys move between those that are read"
                yield (
                    f"partitions {kept} to {partitions[name] - 1} of {name} are not read by the {kept} tasks of "
                    f"subtopology {subtopology.subtopology_id}{moved}"
                )


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
    `unread`: the topology runs, but not on all partitions of its source topics. `validated_epoch`: epoch for the
    group's metadata record, the topology's if it can run, else -1."""

    epoch: int
    metadata_hash: int
    subtopologies: Mapping[str, ConfiguredSubtopology] = field(default_factory=dict)
    topics_to_create: tuple[CreatableTopic, ...] = ()
    status: TopicStatus | None = None
    unread: TopicStatus | None = None
    invalid: str | None = None
    # Derived here and not with every heartbeat, which compares them with the group's metadata record.
    is_ready: bool = field(init=False, compare=False)
    validated_epoch: int = field(init=False, compare=False)

    def __post_init__(self) -> None:
        is_ready = self.status is None and self.invalid is None
        object.__setattr__(self, "is_ready", is_ready)
        object.__setattr__(self, "validated_epoch", self.epoch if is_ready else -1)


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
        # The two levels of `try`: a problem of the topics may be one that a running topology survives (`retain_tasks`);
        # the outer level turns what remains into a status, and errors of the topology itself into `invalid`.
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
    """Return the sorted names of sources, repartition sources and changelogs; plain sinks do not matter."""
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
    """Return the subtopologies in the order of their ids."""
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
