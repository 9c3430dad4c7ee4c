"""TxnOffsetCommit: committed offsets as part of a transaction."""

from __future__ import annotations

import dataclasses
from collections.abc import Awaitable, Iterable

from headrace.broker.handlers.committed_offsets import merge_topics, split_existing
from headrace.broker.logs.flusher import FlushFailed
from headrace.broker.metadata.cluster_metadata import GROUP_METADATA_TOPIC
from headrace.broker.requests.partial_response import (
    Api,
    GuardedRequest,
)
from headrace.broker.requests.request_context import RequestContext
from headrace.broker.security.acls import Operation
from headrace.broker.services import NO_THROTTLE, Services
from headrace.protocol import messages as m
from headrace.protocol.api_keys import ApiKey
from headrace.protocol.error_codes import ErrorCode

__all__ = ["APIS", "handle_txn_offset_commit"]

LOAD_IN_PROGRESS_SINCE = 2
ABORTABLE_SINCE = 4
# The version stands for transaction version 2 of the client (KIP-890): it has not sent AddOffsetsToTxn.
ADDS_PARTITIONS_SINCE = 5


def handle_txn_offset_commit(
    request: m.txn_offset_commit_request.TxnOffsetCommitRequest, context: RequestContext, broker: Services
) -> (
    m.txn_offset_commit_response.TxnOffsetCommitResponse
    | Awaitable[m.txn_offset_commit_response.TxnOffsetCommitResponse]
):
    """TxnOffsetCommit (API 28): positions of a group as part of a transaction.

    Version notes: v2 leader epochs; v3 flexible, with member, instance and generation (KIP-447); v4 knows
    TRANSACTION_ABORTABLE; v5 adds the group's partition of `__consumer_offsets` to the transaction by itself
    (KIP-890), older clients have sent AddOffsetsToTxn. Topics and partitions that do not exist are refused here, each
    alone; what the transaction or the group refuses, is refused for all others together.
    """
    known, unknown = _split_topics(request.topics, broker)
    if not known:
        return _response(unknown)

    def refuse(code: ErrorCode, _message: str = "") -> m.txn_offset_commit_response.TxnOffsetCommitResponse:
        code = _code_for_client(code, context.api_version)
        return _response([*(_refuse_partitions(asked, code) for asked in known), *unknown])

    # 1. The transaction first: the group's partition must be part of it, or joins it (KIP-890).
    code = broker.transactions.verify(
        request.transactional_id,
        request.producer_id,
        request.producer_epoch,
        ((GROUP_METADATA_TOPIC, broker.coordinator.partition_of(request.group_id)),),
        add=context.api_version >= ADDS_PARTITIONS_SINCE,
    )
    if code is not ErrorCode.none:
        return refuse(code)
    resolved = dataclasses.replace(request, topics=tuple(known))
    # 2. Then the group: member, generation, and the pending offsets.
    answer = broker.coordinator.answer(
        request.group_id,
        context,
        lambda shard, now_ms: shard.txn_offset_commit(resolved, context.coordinator, now_ms=now_ms),
        lambda code, _message: refuse(code),
    )
    # 3. Both logs have to be on the disk where the flush policy asks for it.
    # The coordinator's answer waits for the offsets' log; this waits for the transaction's. An answer before both would
    # let a client commit offsets of a transaction that a power loss has taken the partition from.
    if isinstance(answer, Awaitable) or broker.transactions.requires_flush(request.transactional_id):
        return _complete_later(answer, request.transactional_id, known, unknown, context, broker)
    return _response([*answer.topics, *unknown])


async def _complete_later(
    answer: m.txn_offset_commit_response.TxnOffsetCommitResponse
    | Awaitable[m.txn_offset_commit_response.TxnOffsetCommitResponse],
    transactional_id: str,
    known: list[m.txn_offset_commit_request.TxnOffsetCommitRequestTopic],
    unknown: list[m.txn_offset_commit_response.TxnOffsetCommitResponseTopic],
    context: RequestContext,
    broker: Services,
) -> m.txn_offset_commit_response.TxnOffsetCommitResponse:
    """Complete the request when the offsets, and their partition as part of the transaction, are on the disk."""
    if isinstance(answer, Awaitable):
        answer = await answer
    try:
        if broker.transactions.requires_flush(transactional_id):
            await broker.transactions.wait_until_flushed(transactional_id)
    except FlushFailed:
        code = _code_for_client(ErrorCode.coordinator_not_available, context.api_version)
        return _response([*(_refuse_partitions(asked, code) for asked in known), *unknown])
    return _response([*answer.topics, *unknown])


def _split_topics(
    asked: Iterable[m.txn_offset_commit_request.TxnOffsetCommitRequestTopic], broker: Services
) -> tuple[
    list[m.txn_offset_commit_request.TxnOffsetCommitRequestTopic],
    list[m.txn_offset_commit_response.TxnOffsetCommitResponseTopic],
]:
    """Split the request into existing partitions and refusals of the others."""
    known: list[m.txn_offset_commit_request.TxnOffsetCommitRequestTopic] = []
    unknown: list[m.txn_offset_commit_response.TxnOffsetCommitResponseTopic] = []
    for topic in asked:
        description = broker.metadata.topic(topic.name)
        count = 0 if description is None else description.partitions
        there, missing = split_existing(topic.partitions, count)
        if there:
            known.append(dataclasses.replace(topic, partitions=there))
        if missing:
            gone = dataclasses.replace(topic, partitions=missing)
            unknown.append(_refuse_partitions(gone, ErrorCode.unknown_topic_or_partition))
    return known, unknown


def _code_for_client(code: ErrorCode, api_version: int) -> ErrorCode:
    """Translate a code to one that a client of this version knows, as Kafka does."""
    if code is ErrorCode.transaction_abortable and api_version < ABORTABLE_SINCE:
        return ErrorCode.invalid_txn_state
    # The markers of the transaction before are on their way. Older clients retry a coordinator that loads, and nothing
    # else.
    if code is ErrorCode.concurrent_transactions and api_version < ADDS_PARTITIONS_SINCE:
        code = ErrorCode.coordinator_load_in_progress
    if code is ErrorCode.coordinator_load_in_progress and api_version < LOAD_IN_PROGRESS_SINCE:
        return ErrorCode.coordinator_not_available
    return code


def _refuse_partitions(
    asked: m.txn_offset_commit_request.TxnOffsetCommitRequestTopic, code: ErrorCode
) -> m.txn_offset_commit_response.TxnOffsetCommitResponseTopic:
    r = m.txn_offset_commit_response
    return r.TxnOffsetCommitResponseTopic(
        name=asked.name,
        partitions=tuple(
            r.TxnOffsetCommitResponsePartition(partition_index=part.partition_index, error_code=code)
            for part in asked.partitions
        ),
    )


def _response(
    topics: Iterable[m.txn_offset_commit_response.TxnOffsetCommitResponseTopic],
) -> m.txn_offset_commit_response.TxnOffsetCommitResponse:
    """Merge the topics of a response, so that each occurs once."""
    return m.txn_offset_commit_response.TxnOffsetCommitResponse(throttle_time=NO_THROTTLE, topics=merge_topics(topics))


# --- access rules ---


def authorize_txn_offset_commit(guarded: GuardedRequest) -> object:
    """Check WRITE of the id, READ of the group and of each topic."""
    request, allow, context = guarded.request, guarded.allow, guarded.context
    if not allow.on_transactional_id(context, Operation.WRITE, request.transactional_id):
        return guarded.refuse(ErrorCode.transactional_id_authorization_failed)
    if not allow.on_group(context, Operation.READ, request.group_id):
        return guarded.refuse(ErrorCode.group_authorization_failed)
    return guarded.split(
        "topics",
        "topics",
        lambda item: allow.on_topic(context, Operation.READ, item.name),
        ErrorCode.topic_authorization_failed,
    )


APIS = {
    ApiKey.TXN_OFFSET_COMMIT: Api(handle_txn_offset_commit, authorize_txn_offset_commit),
}
