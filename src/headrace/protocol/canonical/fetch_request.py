"""Fetch's request: kio's v18, its topics by name or by id."""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

from kio.schema.fetch.v18 import request as newest
from kio.schema.fetch.v18.request import FetchPartition, ReplicaState
from kio.schema.types import TopicName

from headrace.protocol.canonical import UNNAMED

__all__ = ["FetchPartition", "FetchRequest", "FetchTopic", "ForgottenTopic", "ReplicaState"]


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchTopic(newest.FetchTopic):
    """The name (`topic`, as Kafka has it) travels up to version 12, the id from 13."""

    topic: TopicName = UNNAMED
    topic_id: UUID | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ForgottenTopic(newest.ForgottenTopic):
    """As FetchTopic."""

    topic: TopicName = UNNAMED
    topic_id: UUID | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchRequest(newest.FetchRequest):
    """kio's newest class, with topics that have a name and an id."""

    topics: tuple[FetchTopic, ...]
    forgotten_topics_data: tuple[ForgottenTopic, ...] = ()
