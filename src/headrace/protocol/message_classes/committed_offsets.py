"""OffsetCommit and OffsetFetch: kio's versions 10, with topics by name (up to version 9) or by id (in 10)."""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

from kio.schema.offset_commit.v10 import request as newest_commit_request
from kio.schema.offset_commit.v10 import response as newest_commit_response
from kio.schema.offset_commit.v10.request import OffsetCommitRequestPartition
from kio.schema.offset_commit.v10.response import OffsetCommitResponsePartition
from kio.schema.offset_fetch.v10 import request as newest_fetch_request
from kio.schema.offset_fetch.v10 import response as newest_fetch_response
from kio.schema.offset_fetch.v10.response import OffsetFetchResponsePartitions
from kio.schema.types import TopicName

from headrace.protocol.message_classes import UNNAMED

__all__ = [
    "OffsetCommitRequest",
    "OffsetCommitRequestPartition",
    "OffsetCommitRequestTopic",
    "OffsetCommitResponse",
    "OffsetCommitResponsePartition",
    "OffsetCommitResponseTopic",
    "OffsetFetchRequest",
    "OffsetFetchRequestGroup",
    "OffsetFetchRequestTopics",
    "OffsetFetchResponse",
    "OffsetFetchResponseGroup",
    "OffsetFetchResponsePartitions",
    "OffsetFetchResponseTopics",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetCommitRequestTopic(newest_commit_request.OffsetCommitRequestTopic):
    """The name travels up to version 9, the id in 10."""

    # Overrides of inherited fields keep their place, so the order on the wire is that of kio's class; the added field
    # is never written by this class.
    name: TopicName = UNNAMED
    topic_id: UUID | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetCommitRequest(newest_commit_request.OffsetCommitRequest):
    """kio's newest class, with topics that have a name and an id."""

    topics: tuple[OffsetCommitRequestTopic, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetCommitResponseTopic(newest_commit_response.OffsetCommitResponseTopic):
    """The name travels up to version 9, the id in 10."""

    name: TopicName = UNNAMED
    topic_id: UUID | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetCommitResponse(newest_commit_response.OffsetCommitResponse):
    """kio's newest class, with topics that have a name and an id."""

    topics: tuple[OffsetCommitResponseTopic, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetFetchRequestTopics(newest_fetch_request.OffsetFetchRequestTopics):
    """The name travels up to version 9, the id in 10."""

    name: TopicName = UNNAMED
    topic_id: UUID | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetFetchRequestGroup(newest_fetch_request.OffsetFetchRequestGroup):
    """`topics` None asks for all topics of the group."""

    topics: tuple[OffsetFetchRequestTopics, ...] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetFetchRequest(newest_fetch_request.OffsetFetchRequest):
    """kio's newest class, with topics that have a name and an id."""

    groups: tuple[OffsetFetchRequestGroup, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetFetchResponseTopics(newest_fetch_response.OffsetFetchResponseTopics):
    """The name travels up to version 9, the id in 10."""

    name: TopicName = UNNAMED
    topic_id: UUID | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetFetchResponseGroup(newest_fetch_response.OffsetFetchResponseGroup):
    """The offsets of one group."""

    topics: tuple[OffsetFetchResponseTopics, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetFetchResponse(newest_fetch_response.OffsetFetchResponse):
    """kio's newest class, with topics that have a name and an id."""

    groups: tuple[OffsetFetchResponseGroup, ...]
