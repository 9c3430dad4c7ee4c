"""ListOffsets (API 2): positions by time, or by one of Kafka's negative timestamps.

Version notes: v1 one offset per partition; v2 isolation level; v4 leader epochs; v6 flexible; v7 adds -3 (the record
with the largest timestamp), v8 -4 (earliest local), v9 -5 (latest tiered), v11 -6 (earliest not yet tiered). There is
no tiered storage: -4 is the earliest, and -5 and -6 have no answer (-1), as on a Kafka without it.
"""

from __future__ import annotations

from collections import Counter

from kio.static.primitive import i32, i64

from headrace.broker.logs.leader_epochs import leader_epoch_error
from headrace.broker.logs.partition_logs import LogView, ReadRefused
from headrace.broker.metadata.cluster_metadata import TopicDescription
from headrace.broker.requests.request_context import RequestContext
from headrace.broker.services import NO_THROTTLE, Services
from headrace.protocol import messages as m
from headrace.protocol.error_codes import ErrorCode

LATEST, EARLIEST, MAX_TIMESTAMP, EARLIEST_LOCAL, LATEST_TIERED, EARLIEST_PENDING_UPLOAD = -1, -2, -3, -4, -5, -6
_LOWEST_VERSION = {MAX_TIMESTAMP: 7, EARLIEST_LOCAL: 8, LATEST_TIERED: 9, EARLIEST_PENDING_UPLOAD: 11}
_UNKNOWN = (-1, -1)
READ_COMMITTED = 1


def handle(
    request: m.list_offsets_request.ListOffsetsRequest, call: RequestContext, broker: Services
) -> m.list_offsets_response.ListOffsetsResponse:
    """Answer one ListOffsets request."""
    r = m.list_offsets_response
    times = Counter((asked.name, part.partition_index) for asked in request.topics for part in asked.partitions)
    committed_only = request.isolation_level == READ_COMMITTED
    return r.ListOffsetsResponse(
        throttle_time=NO_THROTTLE,
        topics=tuple(
            r.ListOffsetsTopicResponse(
                name=asked.name,
                partitions=tuple(
                    _partition(broker.metadata.topic(asked.name), part, committed_only, call, broker)
                    if times[asked.name, part.partition_index] == 1
                    else _refused(part, ErrorCode.invalid_request)  # as Kafka: a look-up by time unpacks a batch
                    for part in asked.partitions
                ),
            )
            for asked in request.topics
        ),
    )


def _partition(
    topic: TopicDescription | None,
    part: m.list_offsets_request.ListOffsetsPartition,
    committed_only: bool,
    call: RequestContext,
    broker: Services,
) -> m.list_offsets_response.ListOffsetsPartitionResponse:
    if topic is None or not 0 <= part.partition_index < topic.partitions:
        return _refused(part, ErrorCode.unknown_topic_or_partition)
    if (code := leader_epoch_error(part.current_leader_epoch, broker)) is not None:
        return _refused(part, code)
    if part.timestamp < 0 and call.api_version < _LOWEST_VERSION.get(part.timestamp, 1):
        return _refused(part, ErrorCode.unsupported_version)
    if part.timestamp < EARLIEST_PENDING_UPLOAD:
        return _refused(part, ErrorCode.unsupported_version)
    try:
        log = broker.logs.view(topic, part.partition_index)
        offset, timestamp = _position(log, part.timestamp, committed_only=committed_only)
    except (ReadRefused, OSError):
        return _refused(part, ErrorCode.kafka_storage_error)
    return m.list_offsets_response.ListOffsetsPartitionResponse(
        partition_index=part.partition_index,
        error_code=ErrorCode.none,
        timestamp=i64(timestamp),
        offset=i64(offset),
        leader_epoch=i32(_epoch(log, part.timestamp, offset, broker.metadata.leader_epoch)),
    )


def _position(log: LogView, timestamp: int, *, committed_only: bool) -> tuple[int, int]:
    """(offset, timestamp); -1 where there is none. Who reads what is committed does not hear of what lies behind."""
    end_offset = log.last_stable_offset if committed_only else log.high_watermark
    if timestamp == LATEST:
        return end_offset, -1
    if timestamp in (EARLIEST, EARLIEST_LOCAL):
        return log.log_start_offset, -1
    if timestamp == MAX_TIMESTAMP:
        return _up_to(end_offset, log.max_timestamp_offset())
    if timestamp in (LATEST_TIERED, EARLIEST_PENDING_UPLOAD):
        return _UNKNOWN
    return _up_to(end_offset, log.offset_for_timestamp(timestamp))


def _up_to(end_offset: int, found: tuple[int, int] | None) -> tuple[int, int]:
    return found if found is not None and found[0] < end_offset else _UNKNOWN


def _epoch(log: LogView, timestamp: int, offset: int, current: int) -> int:
    """The epoch of the record at the offset; at the end and in an empty log, the epoch that would write there."""
    if offset < 0:
        return -1
    return (
        current if timestamp == LATEST or log.high_watermark == log.log_start_offset else log.leader_epoch_for(offset)
    )


def _refused(
    part: m.list_offsets_request.ListOffsetsPartition, code: ErrorCode
) -> m.list_offsets_response.ListOffsetsPartitionResponse:
    return m.list_offsets_response.ListOffsetsPartitionResponse(partition_index=part.partition_index, error_code=code)
