"""Task counts of subtopologies, which are the partition counts of their changelog topics."""

from __future__ import annotations

from collections.abc import Mapping

from headrace.coordinator.records.schemas import Subtopology
from headrace.coordinator.streams.topics.topic_status import InvalidTopology

__all__ = ["task_count"]


def task_count(subtopology: Subtopology, partitions: Mapping[str, int]) -> int:
    """The largest partition count of the subtopology's inputs. Raises InvalidTopology when it has no input."""
    inputs = [*subtopology.source_topics, *(topic.name for topic in subtopology.repartition_source_topics)]
    if not inputs:
        raise InvalidTopology(f"No source topics found for subtopology {subtopology.subtopology_id}")
    return max(partitions[name] for name in inputs)
