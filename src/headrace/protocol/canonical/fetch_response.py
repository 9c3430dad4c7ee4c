"""Fetch's response: kio's v18, its topics by name or by id."""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

from kio.schema.fetch.v18 import response as newest
from kio.schema.fetch.v18.response import (
    AbortedTransaction,
    EpochEndOffset,
    LeaderIdAndEpoch,
    NodeEndpoint,
    PartitionData,
    SnapshotId,
)
from kio.schema.types import TopicName

from headrace.protocol.canonical import UNNAMED

__all__ = [
    "AbortedTransaction",
    "EpochEndOffset",
    "FetchResponse",
    "FetchableTopicResponse",
    "LeaderIdAndEpoch",
    "NodeEndpoint",
    "PartitionData",
    "SnapshotId",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchableTopicResponse(newest.FetchableTopicResponse):
    """The name (`topic`, as Kafka has it) travels up to version 12, the id from 13."""

    topic: TopicName = UNNAMED
    topic_id: UUID | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchResponse(newest.FetchResponse):
    """kio's newest class, with topics that have a name and an id."""

    responses: tuple[FetchableTopicResponse, ...]
