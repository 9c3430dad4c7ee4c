"""Looks at the cluster's topics from time to time: which match a pattern, how many partitions the group's have.

Pure like the member itself. `due_ms` says when to look again: at `metadata.max.age.ms`, sooner while a topic that is
wanted does not exist.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from kio.schema.types import TopicName

from headrace.client.membership.request_manager import NEVER_MS
from headrace.protocol import messages as m
from headrace.protocol.error_codes import ErrorCode

__all__ = ["TopicLookup", "topics_request"]

MISSING_RETRY_MS = 2_000
FAILED_RETRY_MS = 500

Metadata = m.metadata_response.MetadataResponse


class TopicLookup:
    """Mutable: what was seen last, and when to look again."""

    def __init__(self, max_age_ms: int) -> None:
        self._max_age_ms = max_age_ms
        self.due_ms = NEVER_MS

    def stop(self) -> None:
        """Nobody needs to know."""
        self.due_ms = NEVER_MS

    def seen(self, now_ms: int, *, missing: bool) -> None:
        """An answer came."""
        self.due_ms = now_ms + (min(MISSING_RETRY_MS, self._max_age_ms) if missing else self._max_age_ms)

    def failed(self, now_ms: int) -> None:
        """None came."""
        self.due_ms = now_ms + FAILED_RETRY_MS


def topics_request(names: Iterable[str] | None) -> object:
    """Metadata of these topics, or of all; creates none."""
    request = m.metadata_request
    listed = None
    if names is not None:
        listed = tuple(request.MetadataRequestTopic(topic_id=None, name=TopicName(name)) for name in sorted(names))
    return request.MetadataRequest(
        topics=listed, allow_auto_topic_creation=False, include_topic_authorized_operations=False
    )


def partition_counts(response: Metadata) -> Mapping[str, int]:
    """Of every topic that exists, how many partitions it has."""
    return {
        str(topic.name): len(topic.partitions)
        for topic in response.topics
        if topic.name is not None and topic.error_code == ErrorCode.none
    }


def existing_topics(response: Metadata) -> list[tuple[str, bool]]:
    """(name, internal) of every topic."""
    return [
        (str(topic.name), topic.is_internal)
        for topic in response.topics
        if topic.name is not None and topic.error_code == ErrorCode.none
    ]
