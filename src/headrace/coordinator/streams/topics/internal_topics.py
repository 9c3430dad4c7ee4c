"""Internal topics against the topics there are: which to create, and which exist with a wrong partition count."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from headrace.coordinator.metadata_image import MetadataImage
from headrace.coordinator.records.schemas import TopicInfo
from headrace.coordinator.result import CreatableTopic
from headrace.coordinator.streams.topics.topic_status import StatusCode, TopicProblem, TopicStatus

__all__ = ["configured_internal_topic", "missing_internal_topics", "missing_status", "summary"]

_NAMED = 3
_BROKER_DEFAULT = -1


def configured_internal_topic(topic: TopicInfo, partitions: int) -> CreatableTopic:
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
