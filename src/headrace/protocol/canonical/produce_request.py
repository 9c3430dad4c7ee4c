"""Produce's request: kio's v13, its topics by name or by id."""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

from kio.schema.produce.v13 import request as newest
from kio.schema.produce.v13.request import PartitionProduceData
from kio.schema.types import TopicName

from headrace.protocol.canonical import UNNAMED

__all__ = ["PartitionProduceData", "ProduceRequest", "TopicProduceData"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicProduceData(newest.TopicProduceData):
    """The name travels up to version 12, the id from 13."""

    name: TopicName = UNNAMED
    topic_id: UUID | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ProduceRequest(newest.ProduceRequest):
    """kio's newest class, with topics that have a name and an id."""

    topic_data: tuple[TopicProduceData, ...]
