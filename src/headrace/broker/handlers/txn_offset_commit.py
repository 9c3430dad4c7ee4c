"""TxnOffsetCommit (API 28): positions of a group as part of a transaction.

Version notes: v2 leader epochs; v3 flexible, with member, instance and generation (KIP-447); v4 knows
TRANSACTION_ABORTABLE; v5 adds the group's partition of `__consumer_offsets` to the transaction by itself (KIP-890),
older clients have sent AddOffsetsToTxn. Topics and partitions that do not exist are refused here, each alone; what the
transaction or the group refuses, is refused for all others together.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Awaitable, Iterable
from typing import TYPE_CHECKING

from headrace.broker.coordinators import group_requests
from headrace.broker.logs.flusher import FlushFailed
from headrace.broker.logs.requested_partitions import divided, merge_topics
from headrace.broker.metadata.cluster_metadata import GROUP_METADATA_TOPIC
from headrace.broker.requests.request_context import RequestContext
from headrace.broker.services import NO_THROTTLE, Services
from headrace.protocol import messages as m
from headrace.protocol.error_codes import ErrorCode

if TYPE_CHECKING:
    Request = m.txn_offset_commit_request.TxnOffsetCommitRequest
    RequestTopic = m.txn_offset_commit_request.TxnOffsetCommitRequestTopic
    Response = m.txn_offset_commit_response.TxnOffsetCommitResponse
    ResponseTopic = m.txn_offset_commit_response.TxnOffsetCommitResponseTopic

LOAD_IN_PROGRESS_SINCE = 2
ABORTABLE_SINCE = 4
ADDS_PARTITIONS_SINCE = 5


def handle(request: Request, call: RequestContext, broker: Services) -> Response | Awaitable[Response]:
    """Answer one TxnOffsetCommit request; the response is awaitable where it has to wait."""
    known, unknown = _resolved(request.topics, broker)
    if not known:
        return _response(unknown)

    def refuse(code: ErrorCode, _message: str = "") -> Response:
        code = _for_client(code, call.api_version)
        return _response([*(_all_partitions(asked, code) for asked in known), *unknown])

    code = broker.transactions.verify(
        request.transactional_id,
        request.producer_id,
        request.producer_epoch,
        ((GROUP_METADATA_TOPIC, broker.coordinator.partition_of(request.group_id)),),
        add=call.api_version >= ADDS_PARTITIONS_SINCE,
    )
    if code is not ErrorCode.none:
        return refuse(code)
    resolved = dataclasses.replace(request, topics=tuple(known))
    answer = group_requests.write(
        broker,
        request.group_id,
        call,
        lambda shard, now_ms: shard.txn_offset_commit(resolved, call.context, now_ms=now_ms),
        lambda code, _message: refuse(code),
    )
    if isinstance(answer, Awaitable) or broker.transactions.wait_for_flush(request.transactional_id):
        return _complete_later(answer, request.transactional_id, known, unknown, call, broker)
    return _response([*answer.topics, *unknown])


async def _complete_later(
    answer: Response | Awaitable[Response],
    transactional_id: str,
    known: list[RequestTopic],
    unknown: list[ResponseTopic],
    call: RequestContext,
    broker: Services,
) -> Response:
    """On the disk are then the offsets, and that their partition is part of the transaction."""
    if isinstance(answer, Awaitable):
        answer = await answer
    try:
        if broker.transactions.wait_for_flush(transactional_id):
            await broker.transactions.flushed(transactional_id)
    except FlushFailed:
        code = _for_client(ErrorCode.coordinator_not_available, call.api_version)
        return _response([*(_all_partitions(asked, code) for asked in known), *unknown])
    return _response([*answer.topics, *unknown])


def _resolved(asked: Iterable[RequestTopic], broker: Services) -> tuple[list[RequestTopic], list[ResponseTopic]]:
    """Split the request into existing partitions and refusals of the others."""
    known: list[RequestTopic] = []
    unknown: list[ResponseTopic] = []
    for topic in asked:
        description = broker.metadata.topic(topic.name)
        count = 0 if description is None else description.partitions
        there, missing = divided(topic.partitions, count)
        if there:
            known.append(dataclasses.replace(topic, partitions=there))
        if missing:
            gone = dataclasses.replace(topic, partitions=missing)
            unknown.append(_all_partitions(gone, ErrorCode.unknown_topic_or_partition))
    return known, unknown


def _for_client(code: ErrorCode, api_version: int) -> ErrorCode:
    """Codes that a client of this version knows, as Kafka translates them."""
    if code is ErrorCode.transaction_abortable and api_version < ABORTABLE_SINCE:
        return ErrorCode.invalid_txn_state
    if code is ErrorCode.concurrent_transactions and api_version < ADDS_PARTITIONS_SINCE:
        code = ErrorCode.coordinator_load_in_progress
    if code is ErrorCode.coordinator_load_in_progress and api_version < LOAD_IN_PROGRESS_SINCE:
        return ErrorCode.coordinator_not_available
    return code


def _all_partitions(asked: RequestTopic, code: ErrorCode) -> ResponseTopic:
    r = m.txn_offset_commit_response
    return r.TxnOffsetCommitResponseTopic(
        name=asked.name,
        partitions=tuple(
            r.TxnOffsetCommitResponsePartition(partition_index=part.partition_index, error_code=code)
            for part in asked.partitions
        ),
    )


def _response(topics: Iterable[ResponseTopic]) -> Response:
    """Each topic once."""
    return m.txn_offset_commit_response.TxnOffsetCommitResponse(throttle_time=NO_THROTTLE, topics=merge_topics(topics))
