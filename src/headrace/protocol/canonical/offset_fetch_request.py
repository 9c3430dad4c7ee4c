"""OffsetFetch's request: kio's v10, its topics by name or by id."""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

from kio.schema.offset_fetch.v10 import request as newest
from kio.schema.types import TopicName

from headrace.protocol.canonical import UNNAMED

__all__ = ["OffsetFetchRequest", "OffsetFetchRequestGroup", "OffsetFetchRequestTopics"]


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetFetchRequestTopics(newest.OffsetFetchRequestTopics):
    """The name travels up to version 9, the id in 10."""

    name: TopicName = UNNAMED
    topic_id: UUID | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetFetchRequestGroup(newest.OffsetFetchRequestGroup):
    """`topics` None asks for all topics of the group."""

    topics: tuple[OffsetFetchRequestTopics, ...] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetFetchRequest(newest.OffsetFetchRequest):
    """kio's newest class, with topics that have a name and an id."""

    groups: tuple[OffsetFetchRequestGroup, ...]
