"""Produce (API 0): record batches are appended as they came.

Version notes: v3 first with v2 batches; v8 error message and record errors; v9 flexible; v10 leader hints (there is no
other leader); v12 adds partitions to the transaction by itself (KIP-890); v13 topic ids (KIP-516). acks=0 gets no
answer at all; acks=1 and acks=all are the same on one broker: appended, and on the disk too under
`headrace.flush.policy=always`. A partition gets exactly one batch a request.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TYPE_CHECKING

from kio.static.primitive import i32, i64

from headrace.broker.call import Call
from headrace.broker.cluster_metadata import TopicDescription
from headrace.broker.flusher import FlushFailed
from headrace.broker.partition_logs import AppendRefused
from headrace.broker.produced_records import sole_batch
from headrace.broker.services import NO_THROTTLE, Services
from headrace.broker.transactional_produce import check_transaction
from headrace.protocol import messages as m
from headrace.protocol.error_codes import ErrorCode
from headrace.protocol.units import timestamp_from_ms
from headrace.storage.partition_log import AppendResult

NO_ACKS = 0

if TYPE_CHECKING:
    Response = m.produce_response.ProduceResponse


def handle(
    request: m.produce_request.ProduceRequest, call: Call, broker: Services
) -> Response | Awaitable[Response | None] | None:
    appended: list[tuple[TopicDescription, int]] = []
    response = m.produce_response.ProduceResponse(
        responses=tuple(_topic(data, request, call, broker, appended) for data in request.topic_data),
        throttle_time=NO_THROTTLE,
    )
    if request.acks == NO_ACKS:
        return None
    if appended and request.transactional_id:
        # What is acknowledged must not be lost to its transaction: that the partition is in it comes to the disk too.
        appended.extend(filter(None, (broker.transactions.log_of(request.transactional_id),)))
    waiting = [(topic, partition) for topic, partition in appended if broker.logs.wait_for_flush(topic, partition)]
    return when_flushed(response, waiting, broker) if waiting else response


async def when_flushed(response: Response, appended: list[tuple[TopicDescription, int]], broker: Services) -> Response:
    """The answer when these partitions are on the disk, or that they are not."""
    try:
        await asyncio.gather(*(broker.logs.flushed(topic, partition) for topic, partition in appended))
    except FlushFailed as error:
        return _all_failed(response, str(error))
    return response


def _topic(
    data: m.produce_request.TopicProduceData,
    request: m.produce_request.ProduceRequest,
    call: Call,
    broker: Services,
    appended: list[tuple[TopicDescription, int]],
) -> m.produce_response.TopicProduceResponse:
    topic = (
        broker.metadata.topic_by_id(data.topic_id) if data.topic_id is not None else broker.metadata.topic(data.name)
    )
    unknown = ErrorCode.unknown_topic_id if call.api_version >= 13 else ErrorCode.unknown_topic_or_partition
    partitions = []
    for part in data.partition_data:
        if topic is None:
            partitions.append(_failed(part.index, unknown, None))
        else:
            partitions.append(_partition(topic, part, request, call, broker, appended))
    return m.produce_response.TopicProduceResponse(
        name=data.name, topic_id=data.topic_id, partition_responses=tuple(partitions)
    )


def _partition(
    topic: TopicDescription,
    part: m.produce_request.PartitionProduceData,
    request: m.produce_request.ProduceRequest,
    call: Call,
    broker: Services,
    appended: list[tuple[TopicDescription, int]],
) -> m.produce_response.PartitionProduceResponse:
    refusal = _refusal(topic, part, request)
    if refusal is not None:
        return _failed(part.index, *refusal)
    try:
        batch = sole_batch(part.records, call.api_version)
        version = check_transaction(
            batch, topic, part.index, request.transactional_id, call.api_version, broker.transactions
        )
        result = broker.logs.append(topic, part.index, batch, transaction_version=version)
    except AppendRefused as refused:
        return refused_part(part.index, refused)
    appended.append((topic, part.index))
    return appended_part(part.index, result)


def appended_part(index: int, result: AppendResult) -> m.produce_response.PartitionProduceResponse:
    """The answer for a partition that took its batch."""
    return m.produce_response.PartitionProduceResponse(
        index=i32(index),
        error_code=ErrorCode.none,
        base_offset=i64(result.base_offset),
        log_append_time=timestamp_from_ms(result.log_append_time_ms),
        log_start_offset=i64(result.log_start_offset),
        record_errors=(),
    )


def refused_part(index: int, refused: AppendRefused) -> m.produce_response.PartitionProduceResponse:
    """The answer for one whose log refused it."""
    return _failed(index, refused.code, refused.message, refused.log_start_offset, refused.record_errors)


def _refusal(
    topic: TopicDescription,
    part: m.produce_request.PartitionProduceData,
    request: m.produce_request.ProduceRequest,
) -> tuple[ErrorCode, str | None] | None:
    if request.acks not in (-1, 0, 1):
        return ErrorCode.invalid_required_acks, None
    if not 0 <= part.index < topic.partitions:
        return ErrorCode.unknown_topic_or_partition, None
    if topic.is_internal:
        return ErrorCode.invalid_topic_exception, f"Clients cannot produce to the internal topic {topic.name}."
    return None


def _failed(
    index: int,
    code: ErrorCode,
    message: str | None,
    log_start_offset: int = -1,
    record_errors: tuple[tuple[int, str], ...] = (),
) -> m.produce_response.PartitionProduceResponse:
    r = m.produce_response
    return r.PartitionProduceResponse(
        index=i32(index),
        error_code=code,
        base_offset=i64(-1),
        log_start_offset=i64(log_start_offset),
        record_errors=tuple(
            r.BatchIndexAndErrorMessage(batch_index=i32(record), batch_index_error_message=wrong)
            for record, wrong in record_errors
        ),
        error_message=message,
    )


def _all_failed(response: Response, message: str) -> Response:
    return m.produce_response.ProduceResponse(
        responses=tuple(
            m.produce_response.TopicProduceResponse(
                name=topic.name,
                topic_id=topic.topic_id,
                partition_responses=tuple(
                    part
                    if part.error_code is not ErrorCode.none
                    else _failed(part.index, ErrorCode.kafka_storage_error, message)
                    for part in topic.partition_responses
                ),
            )
            for topic in response.responses
        ),
        throttle_time=NO_THROTTLE,
    )
