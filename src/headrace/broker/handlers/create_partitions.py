"""CreatePartitions (API 37): a topic grows.

Version notes: v2 flexible. `count` is the new total.
"""

from __future__ import annotations

from kio.schema.types import TopicName

from headrace.broker.metadata.topic_administration import TopicRefused
from headrace.broker.requests.request_context import RequestContext
from headrace.broker.services import NO_THROTTLE, Services
from headrace.protocol import messages as m
from headrace.protocol.error_codes import ErrorCode


def handle(
    request: m.create_partitions_request.CreatePartitionsRequest, _call: RequestContext, broker: Services
) -> m.create_partitions_response.CreatePartitionsResponse:
    """Answer one CreatePartitions request."""
    results = []
    for asked in request.topics:
        code, message = _grow(asked, broker, validate_only=request.validate_only)
        results.append(
            m.create_partitions_response.CreatePartitionsTopicResult(
                name=TopicName(asked.name), error_code=code, error_message=message
            )
        )
    return m.create_partitions_response.CreatePartitionsResponse(throttle_time=NO_THROTTLE, results=tuple(results))


def _grow(
    asked: m.create_partitions_request.CreatePartitionsTopic, broker: Services, *, validate_only: bool
) -> tuple[ErrorCode, str | None]:
    topic = broker.metadata.topic(asked.name)
    if topic is None:
        return ErrorCode.unknown_topic_or_partition, f"The topic '{asked.name}' does not exist."
    listed = len(asked.assignments) if asked.assignments is not None else None
    try:
        broker.topics.grow(topic, asked.count, listed, validate_only=validate_only)
    except TopicRefused as refusal:
        return refusal.code, refusal.message
    return ErrorCode.none, None
