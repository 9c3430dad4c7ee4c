"""OffsetCommit's request: kio's v10, its topics by name or by id."""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

from kio.schema.offset_commit.v10 import request as newest
from kio.schema.offset_commit.v10.request import OffsetCommitRequestPartition
from kio.schema.types import TopicName

from headrace.protocol.canonical import UNNAMED

__all__ = ["OffsetCommitRequest", "OffsetCommitRequestPartition", "OffsetCommitRequestTopic"]


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetCommitRequestTopic(newest.OffsetCommitRequestTopic):
    """The name travels up to version 9, the id in 10."""

    name: TopicName = UNNAMED
    topic_id: UUID | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetCommitRequest(newest.OffsetCommitRequest):
    """kio's newest class, with topics that have a name and an id."""

    topics: tuple[OffsetCommitRequestTopic, ...]
