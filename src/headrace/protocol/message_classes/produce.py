"""Produce: kio's version 13, with topics by name (up to version 12) or by id (from 13 on)."""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

from kio.schema.produce.v13 import request as newest_request
from kio.schema.produce.v13 import response as newest_response
from kio.schema.produce.v13.request import PartitionProduceData
from kio.schema.produce.v13.response import (
    BatchIndexAndErrorMessage,
    LeaderIdAndEpoch,
    NodeEndpoint,
    PartitionProduceResponse,
)
from kio.schema.types import TopicName

from headrace.protocol.message_classes import UNNAMED

__all__ = [
    "BatchIndexAndErrorMessage",
    "LeaderIdAndEpoch",
    "NodeEndpoint",
    "PartitionProduceData",
    "PartitionProduceResponse",
    "ProduceRequest",
    "ProduceResponse",
    "TopicProduceData",
    "TopicProduceResponse",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicProduceData(newest_request.TopicProduceData):
    """The name travels up to version 12, the id from 13."""

    # Not on the wire of version 13: kio's class of the older version reads or writes it.
    name: TopicName = UNNAMED
    topic_id: UUID | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ProduceRequest(newest_request.ProduceRequest):
    """kio's newest class, with topics that have a name and an id."""

    topic_data: tuple[TopicProduceData, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicProduceResponse(newest_response.TopicProduceResponse):
    """The name travels up to version 12, the id from 13."""

    name: TopicName = UNNAMED
    topic_id: UUID | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ProduceResponse(newest_response.ProduceResponse):
    """kio's newest class, with topics that have a name and an id."""

    responses: tuple[TopicProduceResponse, ...]
