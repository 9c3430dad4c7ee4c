"""DeleteRecords (API 21): the log start offset moves up.

Version notes: v2 flexible. Offset -1 is the high watermark. Compacted-only topics are refused, as in Kafka: their
older records are state, not history.
"""

from __future__ import annotations

import logging

from kio.static.primitive import i64

from headrace.broker.config.topic_configuration import effective_value
from headrace.broker.logs.partition_logs import ReadRefused
from headrace.broker.metadata.cluster_metadata import TopicDescription
from headrace.broker.requests.request_context import RequestContext
from headrace.broker.services import NO_THROTTLE, Services
from headrace.protocol import messages as m
from headrace.protocol.error_codes import ErrorCode
from headrace.storage.errors import StorageError

logger = logging.getLogger("headrace.broker")

HIGH_WATERMARK = -1


def handle(
    request: m.delete_records_request.DeleteRecordsRequest, _call: RequestContext, broker: Services
) -> m.delete_records_response.DeleteRecordsResponse:
    """Answer one DeleteRecords request."""
    r = m.delete_records_response
    topics = tuple(
        r.DeleteRecordsTopicResult(
            name=asked.name,
            partitions=tuple(_partition(broker.metadata.topic(asked.name), part, broker) for part in asked.partitions),
        )
        for asked in request.topics
    )
    try:
        broker.logs.checkpoint()
    except OSError as error:
        # The records are gone for every reader; only a crash before the next checkpoint brings them back.
        logger.warning("The new log start offsets could not be noted: %s", error)
    return r.DeleteRecordsResponse(throttle_time=NO_THROTTLE, topics=topics)


def _partition(
    topic: TopicDescription | None, part: m.delete_records_request.DeleteRecordsPartition, broker: Services
) -> m.delete_records_response.DeleteRecordsPartitionResult:
    code, low_watermark = _delete(topic, part.partition_index, part.offset, broker)
    return m.delete_records_response.DeleteRecordsPartitionResult(
        partition_index=part.partition_index, low_watermark=i64(low_watermark), error_code=code
    )


def _delete(topic: TopicDescription | None, partition: int, offset: int, broker: Services) -> tuple[ErrorCode, int]:
    if topic is None or not 0 <= partition < topic.partitions:
        return ErrorCode.unknown_topic_or_partition, -1
    if topic.is_internal:
        return ErrorCode.invalid_topic_exception, -1
    if effective_value("cleanup.policy", topic.configs, broker.configuration) == "compact":
        return ErrorCode.policy_violation, -1
    try:
        high_watermark = broker.logs.view(topic, partition).high_watermark
    except ReadRefused as refused:
        return refused.code, -1
    before = high_watermark if offset == HIGH_WATERMARK else offset
    if not 0 <= before <= high_watermark:
        return ErrorCode.offset_out_of_range, -1
    try:
        return ErrorCode.none, broker.logs.delete_records_before(topic, partition, before)
    except StorageError:
        return ErrorCode.kafka_storage_error, -1
