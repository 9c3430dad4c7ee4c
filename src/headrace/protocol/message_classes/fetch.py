"""Fetch: kio's version 18, with topics by name (up to version 12) or by id (from 13 on)."""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

from kio.schema.fetch.v18 import request as newest_request
from kio.schema.fetch.v18 import response as newest_response
from kio.schema.fetch.v18.request import FetchPartition, ReplicaState
from kio.schema.fetch.v18.response import (
    AbortedTransaction,
    EpochEndOffset,
    LeaderIdAndEpoch,
    NodeEndpoint,
    PartitionData,
    SnapshotId,
)
from kio.schema.types import TopicName

from headrace.protocol.message_classes import UNNAMED

__all__ = [
    "AbortedTransaction",
    "EpochEndOffset",
    "FetchPartition",
    "FetchRequest",
    "FetchResponse",
    "FetchTopic",
    "FetchableTopicResponse",
    "ForgottenTopic",
    "LeaderIdAndEpoch",
    "NodeEndpoint",
    "PartitionData",
    "ReplicaState",
    "SnapshotId",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchTopic(newest_request.FetchTopic):
    """The name (`topic`, as Kafka has it) travels up to version 12, the id from 13."""

    # Not on the wire of version 13 and later: kio's class of the older version reads or writes it.
    topic: TopicName = UNNAMED
    topic_id: UUID | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ForgottenTopic(newest_request.ForgottenTopic):
    """As FetchTopic."""

    topic: TopicName = UNNAMED
    topic_id: UUID | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchRequest(newest_request.FetchRequest):
    """kio's newest class, with topics that have a name and an id."""

    topics: tuple[FetchTopic, ...]
    forgotten_topics_data: tuple[ForgottenTopic, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchableTopicResponse(newest_response.FetchableTopicResponse):
    """The name (`topic`, as Kafka has it) travels up to version 12, the id from 13."""

    topic: TopicName = UNNAMED
    topic_id: UUID | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchResponse(newest_response.FetchResponse):
    """kio's newest class, with topics that have a name and an id."""

    responses: tuple[FetchableTopicResponse, ...]
