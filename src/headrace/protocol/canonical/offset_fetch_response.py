"""OffsetFetch's response: kio's v10, its topics by name or by id."""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

from kio.schema.offset_fetch.v10 import response as newest
from kio.schema.offset_fetch.v10.response import OffsetFetchResponsePartitions
from kio.schema.types import TopicName

from headrace.protocol.canonical import UNNAMED

__all__ = [
    "OffsetFetchResponse",
    "OffsetFetchResponseGroup",
    "OffsetFetchResponsePartitions",
    "OffsetFetchResponseTopics",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetFetchResponseTopics(newest.OffsetFetchResponseTopics):
    """The name travels up to version 9, the id in 10."""

    name: TopicName = UNNAMED
    topic_id: UUID | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetFetchResponseGroup(newest.OffsetFetchResponseGroup):
    """The offsets of one group."""

    topics: tuple[OffsetFetchResponseTopics, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetFetchResponse(newest.OffsetFetchResponse):
    """kio's newest class, with topics that have a name and an id."""

    groups: tuple[OffsetFetchResponseGroup, ...]
