"""The little of a consumer's own protocol that a coordinator reads: which topics a subscription names.

Every version of ConsumerProtocolSubscription begins as version 0 does (version int16, topics, user data), so that is
all that is read, as in Kafka. Unreadable bytes are no error: the coordinator then does not know the topics.
"""

from __future__ import annotations

from headrace.coordinator.errors import CorruptRecord
from headrace.coordinator.records.fields import Cursor

__all__ = ["CONSUMER_PROTOCOL_TYPE", "subscribed_topics"]

CONSUMER_PROTOCOL_TYPE = "consumer"


def subscribed_topics(subscription: bytes) -> frozenset[str] | None:
    """None when the bytes are no subscription."""
    try:
        cursor = Cursor(subscription)
        if cursor.int16() < 0:
            return None
        topics = frozenset(cursor.array(Cursor.string))
        _skip_user_data(cursor)
    except CorruptRecord:
        return None
    return topics


def _skip_user_data(cursor: Cursor) -> None:
    length = cursor.int32()
    if length > 0:
        cursor.take(length)
