"""Source topics that grew under a running application with state: its tasks stay as they are, and a status reports it.

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

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from headrace.coordinator.metadata_image import MetadataImage
from headrace.coordinator.records.schemas import StreamsGroupTopologyValue, Subtopology
from headrace.coordinator.streams.topics.partition_counts import copartitioned_names, repartition_partitions, task_count
from headrace.coordinator.streams.topics.topic_status import StatusCode, TopicStatus

__all__ = ["RetainedTasks", "retain_tasks"]

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
    repartitions = _repartition_counts(topology, source_partitions, image)
    if repartitions is None:
        return None
    partitions = {**source_partitions, **repartitions}
    tasks: dict[str, int] = {}
    for subtopology in topology.subtopologies:
        count = _tasks(subtopology, partitions, image)
        if count is None or not _is_copartitioned(subtopology, partitions, count):
            return None
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
        if existing is None or (existing.partitions > derived[topic.name] and topic.name not in widened):
            return None
        if topic.partitions > 0 and existing.partitions != topic.partitions:
            return None
        counts[topic.name] = existing.partitions
    return counts


def _tasks(subtopology: Subtopology, partitions: Mapping[str, int], image: MetadataImage) -> int | None:
    """As many as there are inputs, or as its state has partitions; None when its state does not fit."""
    widest = task_count(subtopology, partitions)
    changelogs = [image.topics.get(topic.name) for topic in subtopology.state_changelog_topics]
    if not changelogs:
        return widest
    counts = {topic.partitions for topic in changelogs if topic is not None}
    if None in changelogs or len(counts) != 1:
        return None
    (count,) = counts
    all_are_read = all(partitions[topic.name] <= count for topic in subtopology.repartition_source_topics)
    return count if count <= widest and all_are_read else None


def _is_copartitioned(subtopology: Subtopology, partitions: Mapping[str, int], tasks: int) -> bool:
    for group in subtopology.copartition_groups:
        external, repartition = copartitioned_names(subtopology, group)
        counts = {partitions[name] for name in (*external, *repartition)}
        have_grown = min(counts, default=tasks) >= tasks and all(partitions[name] == tasks for name in repartition)
        if len(counts) > 1 and not (subtopology.state_changelog_topics and have_grown):
            return False
    return True


def _unread(
    topology: StreamsGroupTopologyValue, partitions: Mapping[str, int], tasks: Mapping[str, int]
) -> TopicStatus | None:
    """A code that members of Kafka 4.3.1 log and run on with: the other ones make them stop, a new one makes them
    fail."""
    told = list(_left_out(topology, partitions, tasks))
    if not told:
        return None
    detail = "; ".join(told[:_NAMED]) + (f"; and {len(told) - _NAMED} more" if len(told) > _NAMED else "")
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
                moved = "" if partitions[name] % kept == 0 else ", and keys move between those that are read"
                yield (
                    f"partitions {kept} to {partitions[name] - 1} of {name} are not read by the {kept} tasks of "
                    f"subtopology {subtopology.subtopology_id}{moved}"
                )
