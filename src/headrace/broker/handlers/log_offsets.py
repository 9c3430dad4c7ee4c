"""Offsets of partition logs: ListOffsets, OffsetForLeaderEpoch, DeleteRecords."""

from __future__ import annotations

import logging
from collections import Counter

from kio.static.primitive import i32, i64

from headrace.broker.config.topic_configuration import effective_value
from headrace.broker.logs.partition_logs import LogView, ReadRefused, end_of_epoch, leader_epoch_error
from headrace.broker.metadata.cluster_metadata import TopicDescription
from headrace.broker.requests.partial_response import (
    Api,
    require_topics,
)
from headrace.broker.requests.request_context import RequestContext
from headrace.broker.security.acls import Operation
from headrace.broker.services import NO_THROTTLE, Services
from headrace.protocol import messages as m
from headrace.protocol.api_keys import ApiKey
from headrace.protocol.error_codes import ErrorCode
from headrace.storage.errors import StorageError

__all__ = ["APIS", "handle_delete_records", "handle_list_offsets", "handle_offset_for_leader_epoch"]

LATEST, EARLIEST, MAX_TIMESTAMP, EARLIEST_LOCAL, LATEST_TIERED, EARLIEST_PENDING_UPLOAD = -1, -2, -3, -4, -5, -6
# KIP-734 (-3), KIP-405 (-4), KIP-1005 (-5), KIP-1023 (-6).
_LOWEST_VERSION = {MAX_TIMESTAMP: 7, EARLIEST_LOCAL: 8, LATEST_TIERED: 9, EARLIEST_PENDING_UPLOAD: 11}
_NO_POSITION = (-1, -1)
READ_COMMITTED = 1
logger = logging.getLogger("headrace.broker")
HIGH_WATERMARK = -1


def handle_list_offsets(
    request: m.list_offsets_request.ListOffsetsRequest, context: RequestContext, broker: Services
) -> m.list_offsets_response.ListOffsetsResponse:
    """ListOffsets (API 2): positions by time, or by one of Kafka's negative timestamps.

    Version notes: v1 one offset per partition; v2 isolation level; v4 leader epochs; v6 flexible; v7 adds -3 (the
    record with the largest timestamp), v8 -4 (earliest local), v9 -5 (latest tiered), v11 -6 (earliest not yet
    tiered). There is no tiered storage: -4 is the earliest, and -5 and -6 have no answer (-1), as on a Kafka without
    it.
    """
    r = m.list_offsets_response
    # Kafka refuses a partition that is asked twice. A look-up by time unpacks a batch, so it also bounds the work.
    times = Counter((asked.name, part.partition_index) for asked in request.topics for part in asked.partitions)
    committed_only = request.isolation_level == READ_COMMITTED
    return r.ListOffsetsResponse(
        throttle_time=NO_THROTTLE,
        topics=tuple(
            r.ListOffsetsTopicResponse(
                name=asked.name,
                partitions=tuple(
                    _list_partition(broker.metadata.topic(asked.name), part, committed_only, context, broker)
                    if times[asked.name, part.partition_index] == 1
                    else _refused_offset(part, ErrorCode.invalid_request)  # as Kafka: a look-up by time unpacks a batch
                    for part in asked.partitions
                ),
            )
            for asked in request.topics
        ),
    )


def _list_partition(
    topic: TopicDescription | None,
    part: m.list_offsets_request.ListOffsetsPartition,
    committed_only: bool,
    context: RequestContext,
    broker: Services,
) -> m.list_offsets_response.ListOffsetsPartitionResponse:
    if topic is None or not 0 <= part.partition_index < topic.partitions:
        return _refused_offset(part, ErrorCode.unknown_topic_or_partition)
    if (code := leader_epoch_error(part.current_leader_epoch, broker.metadata.leader_epoch)) is not None:
        return _refused_offset(part, code)
    # Negative timestamps are questions that came with later versions; an older client that sends one gets an error, not
    # a time in 1969.
    if part.timestamp < 0 and context.api_version < _LOWEST_VERSION.get(part.timestamp, 1):
        return _refused_offset(part, ErrorCode.unsupported_version)
    if part.timestamp < EARLIEST_PENDING_UPLOAD:
        return _refused_offset(part, ErrorCode.unsupported_version)
    try:
        log = broker.logs.view(topic, part.partition_index)
        offset, timestamp = _position(log, part.timestamp, committed_only=committed_only)
    except (ReadRefused, OSError):
        return _refused_offset(part, ErrorCode.kafka_storage_error)
    return m.list_offsets_response.ListOffsetsPartitionResponse(
        partition_index=part.partition_index,
        error_code=ErrorCode.none,
        timestamp=i64(timestamp),
        offset=i64(offset),
        leader_epoch=i32(_epoch_at(log, part.timestamp, offset, broker.metadata.leader_epoch)),
    )


def _position(log: LogView, timestamp: int, *, committed_only: bool) -> tuple[int, int]:
    """(offset, timestamp); -1 where there is none. Who reads what is committed does not hear of what lies behind."""
    # A reader of committed records must not be sent to an offset that it cannot read yet.
    end_offset = log.last_stable_offset if committed_only else log.high_watermark
    if timestamp == LATEST:
        return end_offset, -1
    if timestamp in (EARLIEST, EARLIEST_LOCAL):
        return log.log_start_offset, -1
    if timestamp == MAX_TIMESTAMP:
        return _up_to(end_offset, log.max_timestamp_offset())
    if timestamp in (LATEST_TIERED, EARLIEST_PENDING_UPLOAD):
        return _NO_POSITION
    return _up_to(end_offset, log.offset_for_timestamp(timestamp))


def _up_to(end_offset: int, found: tuple[int, int] | None) -> tuple[int, int]:
    return found if found is not None and found[0] < end_offset else _NO_POSITION


def _epoch_at(log: LogView, timestamp: int, offset: int, current: int) -> int:
    """The epoch of the record at the offset; at the end and in an empty log, the epoch that would write there."""
    if offset < 0:
        return -1
    # KIP-320: clients pass it back to detect that the log was cut below them.
    return (
        current if timestamp == LATEST or log.high_watermark == log.log_start_offset else log.leader_epoch_for(offset)
    )


def _refused_offset(
    part: m.list_offsets_request.ListOffsetsPartition, code: ErrorCode
) -> m.list_offsets_response.ListOffsetsPartitionResponse:
    return m.list_offsets_response.ListOffsetsPartitionResponse(partition_index=part.partition_index, error_code=code)


def handle_offset_for_leader_epoch(
    request: m.offset_for_leader_epoch_request.OffsetForLeaderEpochRequest, _context: RequestContext, broker: Services
) -> m.offset_for_leader_epoch_response.OffsetForLeaderEpochResponse:
    """OffsetForLeaderEpoch (API 23): where the records of a leader epoch end, which is how clients see that a log was
    cut.

    Version notes: v2 throttle time; v3 replica id, of which nothing depends here; v4 flexible. An epoch that nothing
    is known of has the answer (-1, -1) (KIP-101, KIP-320).
    """
    r = m.offset_for_leader_epoch_response
    return r.OffsetForLeaderEpochResponse(
        throttle_time=NO_THROTTLE,
        topics=tuple(
            r.OffsetForLeaderTopicResult(
                topic=asked.topic, partitions=tuple(_epoch_end(asked.topic, part, broker) for part in asked.partitions)
            )
            for asked in request.topics
        ),
    )


def _epoch_end(
    name: str, part: m.offset_for_leader_epoch_request.OffsetForLeaderPartition, broker: Services
) -> m.offset_for_leader_epoch_response.EpochEndOffset:
    r = m.offset_for_leader_epoch_response
    topic = broker.metadata.topic(name)
    if topic is None or not 0 <= part.partition < topic.partitions:
        return r.EpochEndOffset(error_code=ErrorCode.unknown_topic_or_partition, partition=part.partition)
    if (code := leader_epoch_error(part.current_leader_epoch, broker.metadata.leader_epoch)) is not None:
        return r.EpochEndOffset(error_code=code, partition=part.partition)
    try:
        log = broker.logs.view(topic, part.partition)
    except ReadRefused as refused:
        return r.EpochEndOffset(error_code=refused.code, partition=part.partition)
    epoch, end_offset = end_of_epoch(log, part.leader_epoch, broker.metadata.leader_epoch)
    return r.EpochEndOffset(
        error_code=ErrorCode.none, partition=part.partition, leader_epoch=i32(epoch), end_offset=i64(end_offset)
    )


def handle_delete_records(
    request: m.delete_records_request.DeleteRecordsRequest, _context: RequestContext, broker: Services
) -> m.delete_records_response.DeleteRecordsResponse:
    """DeleteRecords (API 21): the log start offset moves up.

    Version notes: v2 flexible. Offset -1 is the high watermark. Compacted-only topics are refused, as in Kafka: their
    older records are state, not history.
    """
    r = m.delete_records_response
    topics = tuple(
        r.DeleteRecordsTopicResult(
            name=asked.name,
            partitions=tuple(
                _delete_in_partition(broker.metadata.topic(asked.name), part, broker) for part in asked.partitions
            ),
        )
        for asked in request.topics
    )
    try:
        # The new start offsets are noted once for all partitions of the request.
        broker.logs.checkpoint()
    except OSError as error:
        # The records are gone for every reader; only a crash before the next checkpoint brings them back.
        logger.warning(
            "New log start offsets could not be checkpointed (%s); a crash before the next checkpoint restores the "
            "deleted records.",
            error,
        )
    return r.DeleteRecordsResponse(throttle_time=NO_THROTTLE, topics=topics)


def _delete_in_partition(
    topic: TopicDescription | None, part: m.delete_records_request.DeleteRecordsPartition, broker: Services
) -> m.delete_records_response.DeleteRecordsPartitionResult:
    code, low_watermark = _delete_before(topic, part.partition_index, part.offset, broker)
    return m.delete_records_response.DeleteRecordsPartitionResult(
        partition_index=part.partition_index, low_watermark=i64(low_watermark), error_code=code
    )


def _delete_before(
    topic: TopicDescription | None, partition: int, offset: int, broker: Services
) -> tuple[ErrorCode, int]:
    if topic is None or not 0 <= partition < topic.partitions:
        return ErrorCode.unknown_topic_or_partition, -1
    if topic.is_internal:
        return ErrorCode.invalid_topic_exception, -1
    # A compacted topic's oldest records may be the only ones of their keys.
    if effective_value("cleanup.policy", topic.configs, broker.configuration) == "compact":
        return ErrorCode.policy_violation, -1
    try:
        high_watermark = broker.logs.view(topic, partition).high_watermark
    except ReadRefused as refused:
        return refused.code, -1
    # -1 in the request stands for everything that there is now.
    before = high_watermark if offset == HIGH_WATERMARK else offset
    if not 0 <= before <= high_watermark:
        return ErrorCode.offset_out_of_range, -1
    try:
        return ErrorCode.none, broker.logs.delete_records_before(topic, partition, before)
    except StorageError:
        return ErrorCode.kafka_storage_error, -1


APIS = {
    ApiKey.LIST_OFFSETS: Api(handle_list_offsets, require_topics(Operation.DESCRIBE)),
    ApiKey.OFFSET_FOR_LEADER_EPOCH: Api(
        handle_offset_for_leader_epoch, require_topics(Operation.DESCRIBE, name="topic")
    ),
    ApiKey.DELETE_RECORDS: Api(handle_delete_records, require_topics(Operation.DELETE)),
}
