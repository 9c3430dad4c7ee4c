"""OffsetCommit's response: kio's v10, its topics by name or by id."""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

from kio.schema.offset_commit.v10 import response as newest
from kio.schema.offset_commit.v10.response import OffsetCommitResponsePartition
from kio.schema.types import TopicName

from headrace.protocol.canonical import UNNAMED

__all__ = ["OffsetCommitResponse", "OffsetCommitResponsePartition", "OffsetCommitResponseTopic"]


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetCommitResponseTopic(newest.OffsetCommitResponseTopic):
    """The name travels up to version 9, the id in 10."""

    name: TopicName = UNNAMED
    topic_id: UUID | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetCommitResponse(newest.OffsetCommitResponse):
    """kio's newest class, with topics that have a name and an id."""

    topics: tuple[OffsetCommitResponseTopic, ...]
