"""Internal topics of a topology compared with existing topics: missing ones, wrong partition counts, retention.

A member sends the settings of each internal topic with its topology (`TopicInfo.topicConfigs`). An existing topic may
differ from them, for instance in `segment.bytes`, but must not remove more records than they do: a changelog without
compaction loses the state of old keys, a compacted repartition topic loses records that were not read yet. Apache Kafka
4.3 and 4.4 do not check this; the classic protocol does, in the client (`InternalTopicManager.validate`).

The broker does not change a topic that an operator has configured. The group is NOT_READY until the settings fit.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from headrace.coordinator.metadata_image import MetadataImage, TopicRetention
from headrace.coordinator.records.schemas import TopicInfo
from headrace.coordinator.result import CreatableTopic
from headrace.coordinator.streams.topics.topic_status import StatusCode, TopicProblem, TopicStatus

__all__ = [
    "RetentionChange",
    "add_config",
    "configured_internal_topic",
    "missing_internal_topics",
    "missing_status",
    "required_changes",
    "retention_of",
    "retention_status",
    "summary",
]

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
    """Those that do not exist, by name. Raises TopicProblem for one that exists with another partition count."""
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
    """None when nothing is missing."""
    if not missing:
        return None
    detail = f"Internal topics are missing: {summary([topic.name for topic in missing])}"
    return TopicStatus(code=StatusCode.MISSING_INTERNAL_TOPICS, detail=detail)


def summary(names: Sequence[str]) -> str:
    """Three of them, and how many more there are."""
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
