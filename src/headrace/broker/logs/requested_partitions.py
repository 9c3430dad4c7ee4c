"""Partitions that a request names: those that exist, those that do not, and topics that are named more than once."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any, Protocol, TypeVar

__all__ = ["divided", "merge_topics"]


class _Asked(Protocol):
    @property
    def partition_index(self) -> int: ...


Part = TypeVar("Part", bound=_Asked)
Topic = TypeVar("Topic")


def divided(asked: Iterable[Part], count: int) -> tuple[tuple[Part, ...], tuple[Part, ...]]:
    """Split what is asked of a topic with `count` partitions into what exists and what does not, in one pass."""
    there: list[Part] = []
    missing: list[Part] = []
    for part in asked:
        (there if 0 <= part.partition_index < count else missing).append(part)
    return tuple(there), tuple(missing)


def merge_topics(topics: Iterable[Topic]) -> tuple[Topic, ...]:
    """Each topic once, with the partitions of all its appearances; told apart by name and id."""
    first: dict[object, Any] = {}
    partitions: dict[object, list[Any]] = {}
    for topic in topics:
        found: Any = topic
        key = found.name, getattr(found, "topic_id", None)
        first.setdefault(key, found)
        partitions.setdefault(key, []).extend(found.partitions)
    return tuple(dataclasses.replace(topic, partitions=tuple(partitions[key])) for key, topic in first.items())
