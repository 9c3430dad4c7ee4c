"""Produce's response: kio's v13, its topics by name or by id."""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

from kio.schema.produce.v13 import response as newest
from kio.schema.produce.v13.response import (
    BatchIndexAndErrorMessage,
    LeaderIdAndEpoch,
    NodeEndpoint,
    PartitionProduceResponse,
)
from kio.schema.types import TopicName

from headrace.protocol.canonical import UNNAMED

__all__ = [
    "BatchIndexAndErrorMessage",
    "LeaderIdAndEpoch",
    "NodeEndpoint",
    "PartitionProduceResponse",
    "ProduceResponse",
    "TopicProduceResponse",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicProduceResponse(newest.TopicProduceResponse):
    """The name travels up to version 12, the id from 13."""

    name: TopicName = UNNAMED
    topic_id: UUID | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ProduceResponse(newest.ProduceResponse):
    """kio's newest class, with topics that have a name and an id."""

    responses: tuple[TopicProduceResponse, ...]
