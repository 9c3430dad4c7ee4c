"""Internal topics of a topology: their partition counts, which are missing, which would remove too many records.

In Kafka: `InternalTopicManager`, `RepartitionTopics`, `ChangelogTopics` and `CopartitionedTopicsEnforcer` of
`org.apache.kafka.coordinator.group.streams.topics`.

A member sends the settings of each internal topic with its topology (`TopicInfo.topicConfigs`). An existing topic may
differ from them, for instance in `segment.bytes`, but must not remove more records than they do: a changelog without
compaction loses the state of old keys, a compacted repartition topic loses records that were not read yet. Apache Kafka
4.3 and 4.4 do not check this; the classic protocol does, in the client (`InternalTopicManager.validate`).

The broker does not change a topic that an operator has configured. The group is NOT_READY until the settings fit.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

from headrace.coordinator.metadata_image import MetadataImage, TopicRetention
from headrace.coordinator.records.schemas import CopartitionGroup, StreamsGroupTopologyValue, Subtopology, TopicInfo
from headrace.coordinator.result import CreatableTopic

__all__ = [
    "InvalidTopology",
    "RetentionChange",
    "StatusCode",
    "TopicProblem",
    "TopicStatus",
    "add_config",
    "configured_internal_topic",
    "copartitioned_names",
    "enforce_copartitioning",
    "missing_internal_topics",
    "missing_status",
    "repartition_partitions",
    "required_changes",
    "retention_of",
    "retention_status",
    "summary",
    "task_count",
]


class StatusCode(IntEnum):
    """Numbers of StreamsGroupHeartbeat's status list, in the order they are listed."""

    STALE_TOPOLOGY = 0
    MISSING_SOURCE_TOPICS = 1
    INCORRECTLY_PARTITIONED_TOPICS = 2
    MISSING_INTERNAL_TOPICS = 3
    SHUTDOWN_APPLICATION = 4
    ASSIGNMENT_DELAYED = 5
    MISSING_CLIENT_TAGS = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicStatus:
    """A status of a heartbeat's reply: code and detail."""

    code: StatusCode
    detail: str


class TopicProblem(Exception):
    """The topics do not fit the topology, which may change without the members doing anything."""

    def __init__(self, code: StatusCode, detail: str) -> None:
        super().__init__(detail)
        self.status = TopicStatus(code=code, detail=detail)


class InvalidTopology(Exception):
    """The topology cannot be configured whatever topics there are."""


def task_count(subtopology: Subtopology, partitions: Mapping[str, int]) -> int:
    """Return the largest partition count of the subtopology's inputs. Raises InvalidTopology when it has no input."""
    inputs = [*subtopology.source_topics, *(topic.name for topic in subtopology.repartition_source_topics)]
    if not inputs:
        raise InvalidTopology(f"No source topics found for subtopology {subtopology.subtopology_id}")
    return max(partitions[name] for name in inputs)


_UNDECIDED = 0


def repartition_partitions(topology: StreamsGroupTopologyValue, source_partitions: Mapping[str, int]) -> dict[str, int]:
    """Return the partition count by repartition topic; `source_partitions` are those of the external source topics.

    The least counts such that each undeclared one is the largest among the inputs of the subtopologies that write the
    topic, whatever the order of subtopologies, also around circles. Raises InvalidTopology when a count cannot be
    found: no subtopology writes the topic, or the topics depend on one another.
    """
    # 1. `partitions` 0 means that the member left the count to the broker (`repartition()` without a number).
    declared = [topic for each in topology.subtopologies for topic in each.repartition_source_topics]
    counts = {topic.name: topic.partitions for topic in declared}
    writers = {
        name: [each for each in topology.subtopologies if name in each.repartition_sink_topics]
        for name in sorted(counts)
        if counts[name] <= _UNDECIDED
    }
    # 2. A count can only come from the subtopologies that write the topic.
    if not all(writers.values()):
        raise InvalidTopology(
            "Failed to compute number of partitions for all repartition topics, because a repartition source topic "
            "is never used as a sink topic."
        )
    # 3. A least fixpoint: counts start at 0 and only rise, each to the largest input of its writers, so the loop ends
    #    and the order of subtopologies does not matter. Kafka 4.3.1 (RepartitionTopics.setup) takes the first count it
    #    meets and orders subtopologies by chance; with two writers the result may then be too small.
    raised = True
    while raised:
        raised = False
        for name, writing in writers.items():
            count = max(_widest_input(each, source_partitions, counts) for each in writing)
            if count > counts[name]:
                counts[name], raised = count, True
    # 4. What is still 0 depends on itself alone: a circle without any external topic.
    if any(counts[name] <= _UNDECIDED for name in writers):
        raise InvalidTopology(
            "Failed to compute number of partitions for all repartition topics. There may be loops in the "
            "topology that cannot be resolved."
        )
    return counts


def _widest_input(writer: Subtopology, source_partitions: Mapping[str, int], counts: Mapping[str, int]) -> int:
    known = [source_partitions.get(topic, _UNDECIDED) for topic in writer.source_topics]
    known += [counts[topic.name] for topic in writer.repartition_source_topics]
    return max(known, default=_UNDECIDED)


def enforce_copartitioning(
    topology: StreamsGroupTopologyValue,
    source_partitions: Mapping[str, int],
    repartition_counts: Mapping[str, int],
    existing: Mapping[str, int],
) -> dict[str, int]:
    """The repartition counts with those of copartition groups made equal. `existing`: counts of the repartition topics
    that are there already, which speak louder than wishes, as in Kafka.

    Raises TopicProblem(INCORRECTLY_PARTITIONED_TOPICS) when topics that cannot be changed differ, InvalidTopology when
    an index names no topic. In a group of repartition topics alone its own explicit counts decide; Kafka 4.3.1 takes
    those of the whole topology.
    """
    # Joined inputs must have equal counts, or a key would be in different tasks on both sides (Kafka:
    # CopartitionedTopicsEnforcer). External topics cannot be changed, topics with an explicit count should not be; all
    # other repartition topics take the count of the group.
    counts = dict(repartition_counts)
    explicit = frozenset(
        topic.name
        for each in topology.subtopologies
        for topic in each.repartition_source_topics
        if topic.partitions > 0
    )
    for subtopology in topology.subtopologies:
        for group in subtopology.copartition_groups:
            external, repartition = copartitioned_names(subtopology, group)
            present = {name: existing.get(name, counts[name]) for name in sorted(repartition)}
            # 1. External topics decide. Explicit counts that differ are an error of the application, not something to
            #    correct.
            if external:
                count = _equal_count({name: source_partitions[name] for name in sorted(external)})
                _check_explicit(present, explicit, count)
            # 2. Repartition topics alone: explicit counts of this group decide, else the largest, so that no topic
            #    loses partitions.
            elif present:
                fixed = {name: present[name] for name in present if name in explicit}
                count = _equal_count(fixed, listed=present) if fixed else max(present.values())
            else:
                continue
            counts.update(dict.fromkeys(repartition, count))
    return counts


def copartitioned_names(subtopology: Subtopology, group: CopartitionGroup) -> tuple[list[str], list[str]]:
    """Return the (external, repartition) topics of a copartition group. Raises InvalidTopology."""
    sources, repartitions = subtopology.source_topics, subtopology.repartition_source_topics
    for indices, topics in ((group.source_topics, sources), (group.repartition_source_topics, repartitions)):
        if any(not 0 <= index < len(topics) for index in indices):
            raise InvalidTopology(
                f"A copartition group of subtopology {subtopology.subtopology_id} names a topic that the subtopology "
                "lacks."
            )
    external = [sources[index] for index in group.source_topics]
    return external, [repartitions[index].name for index in group.repartition_source_topics]


def _equal_count(counts: Mapping[str, int], *, listed: Mapping[str, int] | None = None) -> int:
    if len(set(counts.values())) > 1:
        counts_text = ", ".join(f"{name}={count}" for name, count in (listed or counts).items())
        raise TopicProblem(
            StatusCode.INCORRECTLY_PARTITIONED_TOPICS,
            f"Following topics do not have the same number of partitions: [{{{counts_text}}}]",
        )
    return max(counts.values())


def _check_explicit(repartition: Mapping[str, int], explicit: frozenset[str], count: int) -> None:
    for name, wanted in repartition.items():
        if name in explicit and wanted != count:
            raise TopicProblem(
                StatusCode.INCORRECTLY_PARTITIONED_TOPICS,
                f"Number of partitions [{wanted}] of repartition topic [{name}] doesn't match number of "
                f"partitions [{count}] of the source topic.",
            )


_NAMED = 3
_BROKER_DEFAULT = -1


def configured_internal_topic(topic: TopicInfo, partitions: int) -> CreatableTopic:
    """Return an internal topic as it has to be created."""
    return CreatableTopic(
        name=topic.name,
        partitions=partitions,
        replication_factor=topic.replication_factor or _BROKER_DEFAULT,
        configs=topic.topic_configs,
    )


def missing_internal_topics(topics: Iterable[CreatableTopic], image: MetadataImage) -> tuple[CreatableTopic, ...]:
    """Return the topics that do not exist, by name.

    Raises TopicProblem for one that exists with another partition count.
    """
    missing: dict[str, CreatableTopic] = {}
    for topic in topics:
        existing = image.topics.get(topic.name)
        if existing is None:
            missing[topic.name] = topic
        elif existing.partitions != topic.partitions:
            raise TopicProblem(
                StatusCode.INCORRECTLY_PARTITIONED_TOPICS,
                f"Existing topic {topic.name} has different number of partitions: "
                f"expected {topic.partitions}, found {existing.partitions}",
            )
    return tuple(missing[name] for name in sorted(missing))


def missing_status(missing: tuple[CreatableTopic, ...]) -> TopicStatus | None:
    """Return the status of missing topics; None when nothing is missing."""
    if not missing:
        return None
    detail = f"Internal topics are missing: {summary([topic.name for topic in missing])}"
    return TopicStatus(code=StatusCode.MISSING_INTERNAL_TOPICS, detail=detail)


def summary(names: Sequence[str]) -> str:
    """Return a text with three of the names, and the number of others."""
    more = f" and {len(names) - _NAMED} additional topics" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more


_UNLIMITED = -1
_POLICIES = frozenset({"compact", "delete"})


class RetentionChange(NamedTuple):
    """A setting of an existing topic, the value that the topology needs and the one that was found."""

    name: str
    needed: str
    found: str

    def __str__(self) -> str:
        return f"{self.name}={self.needed}, found {self.found}"


def retention_status(topics: Iterable[CreatableTopic], image: MetadataImage) -> TopicStatus | None:
    """Return the status for internal topics that remove records the topology needs; None if every topic fits.

    The code is MISSING_INTERNAL_TOPICS: clients of Kafka 4.3 keep heartbeating with it until the topic is fixed, while
    INCORRECTLY_PARTITIONED_TOPICS stops them and an unknown code makes them fail.
    """
    problems: list[str] = []
    for topic in sorted(topics, key=lambda each: each.name):
        existing = image.topics.get(topic.name)
        if existing is not None and existing.retention is not None:
            changes = list(required_changes(dict(topic.configs), existing.retention))
            if changes:
                problems.append(f"{topic.name} ({', '.join(map(str, changes))})")
    if not problems:
        return None
    more = f" and {len(problems) - _NAMED} additional topics" if len(problems) > _NAMED else ""
    return TopicStatus(
        code=StatusCode.MISSING_INTERNAL_TOPICS,
        detail=f"Internal topics would remove records that are needed; set {'; '.join(problems[:_NAMED])}{more}.",
    )


def retention_of(settings: Mapping[str, str]) -> TopicRetention | None:
    """Return the retention that a topic's effective settings describe; None if they lack one of the three."""
    policy, age_ms, size = (settings.get(name) for name in ("cleanup.policy", "retention.ms", "retention.bytes"))
    if policy is None or age_ms is None or size is None:
        return None
    parts = frozenset(part.strip() for part in policy.split(",") if part.strip())
    return TopicRetention(cleanup_policy=parts, retention_ms=int(age_ms), retention_bytes=int(size))


def required_changes(required: Mapping[str, str], existing: TopicRetention) -> Iterator[RetentionChange]:
    """Yield each setting of an existing topic that removes more records than the required one.

    Settings the member does not send are not required: Kafka Streams sends cleanup.policy with every internal topic.
    """
    if "cleanup.policy" not in required:
        return
    policy = frozenset(part.strip() for part in required["cleanup.policy"].split(",") if part.strip())
    if not policy <= _POLICIES:
        return  # no topic can have it: the broker reports that when it creates the topic
    # 1. Compaction must be as required: without it old keys of a table expire, with it records of one key vanish.
    corrected = existing.cleanup_policy
    if ("compact" in policy) != ("compact" in existing.cleanup_policy):
        corrected = policy
        needed, found = (",".join(sorted(parts)) for parts in (policy, existing.cleanup_policy))
        yield RetentionChange("cleanup.policy", needed, found)
    # 2. Deletion by age or size is harmless as long as it keeps at least what the member asks for. A topic whose
    #    required policy has no `delete` keeps everything; with `delete` and no required limit, any limit fits. The
    #    limits are compared under the corrected policy, so that one command corrects all of it.
    if "delete" not in corrected:
        return
    for name, limit in (("retention.ms", existing.retention_ms), ("retention.bytes", existing.retention_bytes)):
        default = _UNLIMITED if "delete" not in policy else None
        least = int(required[name]) if required.get(name, "").lstrip("-").isdigit() else default
        if least is not None and _removes_more(limit, least):
            yield RetentionChange(name, str(least), str(limit))


def add_config(changes: Iterable[RetentionChange]) -> str:
    """Return the value of `--add-config` that makes these changes; lists stand in brackets, as in Kafka's tools."""
    return ",".join(f"{each.name}=" + (f"[{each.needed}]" if "," in each.needed else each.needed) for each in changes)


def _removes_more(limit: int, least: int) -> bool:
    return limit != _UNLIMITED and (least == _UNLIMITED or limit < least)
