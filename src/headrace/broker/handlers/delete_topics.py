"""DeleteTopics (API 20): by name, or by id.

Version notes: v4 flexible; v5 error message; v6 topics by name or id.
"""

from __future__ import annotations

from uuid import UUID

from kio.schema.types import TopicName

from headrace.broker.metadata.topic_administration import TopicRefused
from headrace.broker.requests.request_context import RequestContext
from headrace.broker.services import NO_THROTTLE, Services
from headrace.protocol import messages as m
from headrace.protocol.error_codes import ErrorCode


def handle(
    request: m.delete_topics_request.DeleteTopicsRequest, _call: RequestContext, broker: Services
) -> m.delete_topics_response.DeleteTopicsResponse:
    """Answer one DeleteTopics request."""
    results = tuple(_delete(asked, broker) for asked in request.topics)
    return m.delete_topics_response.DeleteTopicsResponse(throttle_time=NO_THROTTLE, responses=results)


def _delete(
    asked: m.delete_topics_request.DeleteTopicState, broker: Services
) -> m.delete_topics_response.DeletableTopicResult:
    if asked.topic_id is not None:
        if asked.name is not None:
            return _result(
                asked.name,
                asked.topic_id,
                ErrorCode.invalid_request,
                "You may not specify both topic name and topic id.",
            )
        topic, missing = broker.metadata.topic_by_id(asked.topic_id), ErrorCode.unknown_topic_id
    elif asked.name is not None:
        topic, missing = broker.metadata.topic(asked.name), ErrorCode.unknown_topic_or_partition
    else:
        return _result(None, None, ErrorCode.invalid_request, "Neither topic name nor id were specified.")
    if topic is None:
        return _result(asked.name, asked.topic_id, missing, None)
    try:
        broker.topics.delete(topic)
    except TopicRefused as refusal:
        return _result(asked.name, asked.topic_id, refusal.code, refusal.message)
    return _result(TopicName(topic.name), topic.topic_id, ErrorCode.none, None)


def _result(
    name: TopicName | None, topic_id: UUID | None, code: ErrorCode, message: str | None
) -> m.delete_topics_response.DeletableTopicResult:
    return m.delete_topics_response.DeletableTopicResult(
        name=name, topic_id=topic_id, error_code=code, error_message=message
    )
