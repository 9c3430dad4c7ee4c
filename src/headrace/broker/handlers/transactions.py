"""Transactional and idempotent producers: InitProducerId, AddPartitionsToTxn, AddOffsetsToTxn, EndTxn."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import TypeVar

from kio.schema.types import ProducerId, TopicName, TransactionalId
from kio.static.primitive import i16, i32

from headrace.broker.logs.flusher import FlushFailed
from headrace.broker.metadata.cluster_metadata import GROUP_METADATA_TOPIC
from headrace.broker.requests.partial_response import (
    Api,
    GuardedRequest,
)
from headrace.broker.requests.request_context import RequestContext
from headrace.broker.security.acls import Operation, ResourceType
from headrace.broker.services import NO_THROTTLE, Services
from headrace.coordinator.request_context import CoordinatorError
from headrace.coordinator.transactions.transaction_log import by_topic
from headrace.coordinator.transactions.transitions import EPOCH_BUMP_VERSION, Answer, ProducerIdentity
from headrace.protocol import messages as m
from headrace.protocol.api_keys import ApiKey
from headrace.protocol.error_codes import ErrorCode
from headrace.protocol.kio_units import to_ms
from headrace.storage.errors import StorageError

__all__ = [
    "APIS",
    "handle_add_offsets_to_txn",
    "handle_add_partitions_to_txn",
    "handle_end_txn",
    "handle_init_producer_id",
]

_Response = TypeVar("_Response")
# Versions from which clients know PRODUCER_FENCED (KIP-588): of InitProducerId, and of the three other requests.
_INIT_FENCED_SINCE = 4
_FENCED_SINCE = 2
_Partition = tuple[str, int]
_LAST_ADD_OF_PRODUCERS = 3
_LAST_END_WITHOUT_EPOCH_BUMP = 4


def answer_durably(
    broker: Services,
    transactional_id: str,
    ask: Callable[[], Answer],
    respond: Callable[[Answer], _Response],
) -> _Response | Awaitable[_Response]:
    """Return the answer of `ask` as the API's response; awaitable where what it wrote has to be on the disk first."""
    try:
        answer = ask()
    except CoordinatorError as error:
        return respond(Answer(code=error.code))
    # Only success waits: a refusal tells of nothing that a power loss could take back.
    if answer.code is ErrorCode.none and broker.transactions.requires_flush(transactional_id):
        return _answer_when_flushed(broker, transactional_id, answer, respond)
    return respond(answer)


async def _answer_when_flushed(
    broker: Services, transactional_id: str, answer: Answer, respond: Callable[[Answer], _Response]
) -> _Response:
    try:
        # The record may or may not be on the disk. COORDINATOR_NOT_AVAILABLE makes the client ask again, and the rules
        # recognise the repetition.
        await broker.transactions.wait_until_flushed(transactional_id)
    except FlushFailed:
        return respond(Answer(code=ErrorCode.coordinator_not_available))
    return respond(answer)


def code_for_client(code: ErrorCode, api_version: int, fenced_since: int) -> ErrorCode:
    """Translate PRODUCER_FENCED for clients below version `fenced_since` of an API, which do not know it."""
    # KIP-588 split INVALID_PRODUCER_EPOCH in two; older clients know the one.
    if code is ErrorCode.producer_fenced and api_version < fenced_since:
        return ErrorCode.invalid_producer_epoch
    return code


def handle_init_producer_id(
    request: m.init_producer_id_request.InitProducerIdRequest, context: RequestContext, broker: Services
) -> m.init_producer_id_response.InitProducerIdResponse | Awaitable[m.init_producer_id_response.InitProducerIdResponse]:
    """InitProducerId (API 22): an identity for an idempotent or a transactional producer.

    Version notes: v2 flexible; v3 lets a producer pass its id and epoch to get the next epoch (KIP-360); v4 knows
    PRODUCER_FENCED; v5 the transaction version 2; v6 (two-phase commit) is unstable in 4.3 and not served. Ids are
    never given out twice, also after a crash. Without a transactional id Kafka, too, gives a fresh id instead of the
    next epoch.
    """
    # An id without an epoch, or the other way round, is neither a new producer nor a known one.
    if (request.producer_id == -1) != (request.producer_epoch == -1):
        return _init_response(Answer(code=ErrorCode.invalid_request))
    transactional_id = request.transactional_id
    if transactional_id is None:
        return _init_idempotent(broker)
    # Kafka refuses the empty id, which is not the same as none.
    if transactional_id == "":
        return _init_response(Answer(code=ErrorCode.invalid_request))
    # KIP-360: a producer that passes its identity gets the next epoch only if it is still the current one.
    expected = None
    if request.producer_id != -1:
        expected = ProducerIdentity(producer_id=request.producer_id, producer_epoch=request.producer_epoch)
    timeout_ms = to_ms(request.transaction_timeout)
    return answer_durably(
        broker,
        transactional_id,
        lambda: broker.transactions.init_producer_id(transactional_id, timeout_ms=timeout_ms, expected=expected),
        lambda answer: _init_response(answer, context.api_version),
    )


def _init_idempotent(broker: Services) -> m.init_producer_id_response.InitProducerIdResponse:
    try:
        # Ids are taken from a block that is on the disk before the first of them is used, so a crash wastes ids and
        # repeats none.
        producer_id = broker.metadata.next_producer_id()
    except (OSError, StorageError):
        return _init_response(Answer(code=ErrorCode.coordinator_not_available))
    return _init_response(Answer(code=ErrorCode.none, producer_id=producer_id, producer_epoch=0))


def _init_response(
    answer: Answer, api_version: int = _INIT_FENCED_SINCE
) -> m.init_producer_id_response.InitProducerIdResponse:
    return m.init_producer_id_response.InitProducerIdResponse(
        throttle_time=NO_THROTTLE,
        error_code=code_for_client(answer.code, api_version, _INIT_FENCED_SINCE),
        producer_id=ProducerId(answer.producer_id),
        producer_epoch=i16(answer.producer_epoch),
    )


def handle_add_partitions_to_txn(
    request: m.add_partitions_to_txn_request.AddPartitionsToTxnRequest, context: RequestContext, broker: Services
) -> (
    m.add_partitions_to_txn_response.AddPartitionsToTxnResponse
    | Awaitable[m.add_partitions_to_txn_response.AddPartitionsToTxnResponse]
):
    """AddPartitionsToTxn (API 24): partitions become part of an open transaction, or are looked up in it.

    Version notes: v0-3 come from producers, one transaction each; v2 knows PRODUCER_FENCED; v3 flexible. v4 and v5
    come from brokers that do it for a producer of transaction version 2: several transactions, `verify_only`. A
    partition that does not exist refuses the whole transaction.
    """
    # From version 4 on brokers ask, for several transactions at once.
    results = [_add_for(transaction, context, broker) for transaction in request.transactions]
    if any(isinstance(result, Awaitable) for result in results):
        return _add_later(results)
    return _add_response(
        result for result in results if isinstance(result, m.add_partitions_to_txn_response.AddPartitionsToTxnResult)
    )


async def _add_later(
    results: list[
        m.add_partitions_to_txn_response.AddPartitionsToTxnResult
        | Awaitable[m.add_partitions_to_txn_response.AddPartitionsToTxnResult]
    ],
) -> m.add_partitions_to_txn_response.AddPartitionsToTxnResponse:
    # Together and not one after the other: all of them wait for the same round of the flusher.
    waiting = (asyncio.ensure_future(result) for result in results if isinstance(result, Awaitable))
    done = iter(await asyncio.gather(*waiting))
    return _add_response(
        [
            result if isinstance(result, m.add_partitions_to_txn_response.AddPartitionsToTxnResult) else next(done)
            for result in results
        ]
    )


def _add_for(
    transaction: m.add_partitions_to_txn_request.AddPartitionsToTxnTransaction,
    context: RequestContext,
    broker: Services,
) -> (
    m.add_partitions_to_txn_response.AddPartitionsToTxnResult
    | Awaitable[m.add_partitions_to_txn_response.AddPartitionsToTxnResult]
):
    asked: frozenset[_Partition] = frozenset(
        (str(topic.name), int(index)) for topic in transaction.topics for index in topic.partitions
    )
    missing = {each for each in asked if not _exists(broker, each)}
    # One partition that does not exist refuses the whole transaction, as in Kafka: half of it added would be half of an
    # atomic write.
    if missing:
        codes = {
            each: ErrorCode.unknown_topic_or_partition if each in missing else ErrorCode.operation_not_attempted
            for each in asked
        }
        return _add_result(transaction, codes)
    if not transaction.transactional_id:
        return _add_result(transaction, dict.fromkeys(asked, ErrorCode.invalid_request))
    if transaction.verify_only:
        return _verify_only(transaction, asked, broker)
    # Version 4 and later come from brokers on behalf of producers of transaction version 2 (KIP-890).
    client_version = EPOCH_BUMP_VERSION if context.api_version > _LAST_ADD_OF_PRODUCERS else 0

    def respond(answer: Answer) -> m.add_partitions_to_txn_response.AddPartitionsToTxnResult:
        code = code_for_client(answer.code, context.api_version, _FENCED_SINCE)
        return _add_result(transaction, dict.fromkeys(asked, code))

    return answer_durably(
        broker,
        transaction.transactional_id,
        lambda: broker.transactions.add_partitions(
            transaction.transactional_id, _producer(transaction), asked, client_version=client_version
        ),
        respond,
    )


def _verify_only(
    transaction: m.add_partitions_to_txn_request.AddPartitionsToTxnTransaction,
    asked: frozenset[_Partition],
    broker: Services,
) -> m.add_partitions_to_txn_response.AddPartitionsToTxnResult:
    try:
        code, missing = broker.transactions.missing(transaction.transactional_id, _producer(transaction), asked)
    except CoordinatorError as error:
        code, missing = error.code, asked
    # An error of the whole transaction is each partition's; else only missing ones are refused.
    if not missing:
        return _add_result(transaction, dict.fromkeys(asked, code))
    return _add_result(transaction, {each: code if each in missing else ErrorCode.none for each in asked})


def _exists(broker: Services, partition: _Partition) -> bool:
    topic = broker.metadata.topic(partition[0])
    return topic is not None and 0 <= partition[1] < topic.partitions


def _producer(transaction: m.add_partitions_to_txn_request.AddPartitionsToTxnTransaction) -> ProducerIdentity:
    return ProducerIdentity(producer_id=transaction.producer_id, producer_epoch=transaction.producer_epoch)


def _add_result(
    transaction: m.add_partitions_to_txn_request.AddPartitionsToTxnTransaction, codes: Mapping[_Partition, ErrorCode]
) -> m.add_partitions_to_txn_response.AddPartitionsToTxnResult:
    r = m.add_partitions_to_txn_response
    return m.add_partitions_to_txn_response.AddPartitionsToTxnResult(
        transactional_id=TransactionalId(transaction.transactional_id),
        topic_results=tuple(
            r.AddPartitionsToTxnTopicResult(
                name=TopicName(topic),
                results_by_partition=tuple(
                    r.AddPartitionsToTxnPartitionResult(
                        partition_index=i32(index), partition_error_code=codes[topic, index]
                    )
                    for index in partitions
                ),
            )
            for topic, partitions in by_topic(codes)
        ),
    )


def _add_response(
    results: Iterable[m.add_partitions_to_txn_response.AddPartitionsToTxnResult],
) -> m.add_partitions_to_txn_response.AddPartitionsToTxnResponse:
    return m.add_partitions_to_txn_response.AddPartitionsToTxnResponse(
        throttle_time=NO_THROTTLE,
        error_code=ErrorCode.none,
        results_by_transaction=tuple(results),
    )


def handle_add_offsets_to_txn(
    request: m.add_offsets_to_txn_request.AddOffsetsToTxnRequest, context: RequestContext, broker: Services
) -> (
    m.add_offsets_to_txn_response.AddOffsetsToTxnResponse
    | Awaitable[m.add_offsets_to_txn_response.AddOffsetsToTxnResponse]
):
    """AddOffsetsToTxn (API 25): the group's partition of `__consumer_offsets` becomes part of the transaction.

    Version notes: v2 knows PRODUCER_FENCED; v3 flexible; v4 knows TRANSACTION_ABORTABLE. Clients at transaction
    version 2 do not send it: TxnOffsetCommit adds the partition.
    """

    def respond(answer: Answer) -> m.add_offsets_to_txn_response.AddOffsetsToTxnResponse:
        return m.add_offsets_to_txn_response.AddOffsetsToTxnResponse(
            throttle_time=NO_THROTTLE, error_code=code_for_client(answer.code, context.api_version, _FENCED_SINCE)
        )

    transactional_id = request.transactional_id
    if not transactional_id:
        return respond(Answer(code=ErrorCode.invalid_request))
    producer = ProducerIdentity(producer_id=request.producer_id, producer_epoch=request.producer_epoch)
    # The partition, not the group, takes part: its marker decides about the offsets of all groups in it that this
    # producer wrote.
    partition = GROUP_METADATA_TOPIC, broker.coordinator.partition_of(request.group_id)
    return answer_durably(
        broker,
        transactional_id,
        lambda: broker.transactions.add_partitions(transactional_id, producer, (partition,), client_version=0),
        respond,
    )


def handle_end_txn(
    request: m.end_txn_request.EndTxnRequest, context: RequestContext, broker: Services
) -> m.end_txn_response.EndTxnResponse | Awaitable[m.end_txn_response.EndTxnResponse]:
    """EndTxn (API 26): commit or abort. The answer comes when the decision is in the log.

    Version notes: v2 knows PRODUCER_FENCED; v3 flexible; v4 knows TRANSACTION_ABORTABLE; v5 is transaction version 2:
    each end raises the epoch, and the answer carries the identity of the next transaction (KIP-890).
    """

    def respond(answer: Answer) -> m.end_txn_response.EndTxnResponse:
        return m.end_txn_response.EndTxnResponse(
            throttle_time=NO_THROTTLE,
            error_code=code_for_client(answer.code, context.api_version, _FENCED_SINCE),
            producer_id=ProducerId(answer.producer_id),
            producer_epoch=i16(answer.producer_epoch),
        )

    transactional_id = request.transactional_id
    if not transactional_id:
        return respond(Answer(code=ErrorCode.invalid_request))
    producer = ProducerIdentity(producer_id=request.producer_id, producer_epoch=request.producer_epoch)
    # The version of EndTxn tells how the client counts epochs (KIP-890), whatever the cluster's feature level is.
    client_version = EPOCH_BUMP_VERSION if context.api_version > _LAST_END_WITHOUT_EPOCH_BUMP else 0
    return answer_durably(
        broker,
        transactional_id,
        lambda: broker.transactions.end_transaction(
            transactional_id, producer, committed=request.committed, client_version=client_version
        ),
        respond,
    )


# --- access rules ---


def authorize_init_producer_id(guarded: GuardedRequest) -> object:
    """Check WRITE of the transactional id; without one IDEMPOTENT_WRITE of the cluster, or WRITE of any topic
    (KIP-679).
    """
    allow, context, transactional_id = guarded.allow, guarded.context, guarded.request.transactional_id
    if transactional_id is not None:
        return (
            guarded.handle()
            if _may_write(guarded, transactional_id)
            else guarded.refuse(ErrorCode.transactional_id_authorization_failed)
        )
    # KIP-679: a client that may write to any topic at all may be idempotent.
    if allow.on_cluster(context, Operation.IDEMPOTENT_WRITE) or allow.allowed_on_any(
        context, Operation.WRITE, ResourceType.TOPIC
    ):
        return guarded.handle()
    return guarded.refuse(ErrorCode.cluster_authorization_failed)


def authorize_add_partitions_to_txn(guarded: GuardedRequest) -> object:
    """Check, for producers, WRITE of the id and of each topic; one topic refused keeps the others from being added.

    From brokers (v4): CLUSTER_ACTION.
    """
    allow, context = guarded.allow, guarded.context
    if context.api_version > _LAST_ADD_OF_PRODUCERS:
        if allow.on_cluster(context, Operation.CLUSTER_ACTION):
            return guarded.handle()
        refusal = guarded.refuse(ErrorCode.cluster_authorization_failed)
        return dataclasses.replace(refusal, results_by_transaction=())
    # One topic without WRITE keeps the others from being added: they report OPERATION_NOT_ATTEMPTED.
    for transaction in guarded.request.transactions:
        if not _may_write(guarded, transaction.transactional_id):
            return _refuse_partitions(guarded, lambda _name: ErrorCode.transactional_id_authorization_failed)
        allowed = {topic.name: allow.on_topic(context, Operation.WRITE, topic.name) for topic in transaction.topics}
        if not all(allowed.values()):
            return _refuse_partitions(
                guarded,
                lambda name, allowed=allowed: (
                    ErrorCode.operation_not_attempted if allowed[name] else ErrorCode.topic_authorization_failed
                ),
            )
    return guarded.handle()


def _refuse_partitions(guarded: GuardedRequest, code: Callable[..., ErrorCode]) -> object:
    r = m.add_partitions_to_txn_response
    refusal = guarded.refuse(ErrorCode.topic_authorization_failed)
    return dataclasses.replace(
        refusal,
        error_code=ErrorCode.none,
        results_by_transaction=tuple(
            r.AddPartitionsToTxnResult(
                transactional_id=transaction.transactional_id,
                topic_results=tuple(
                    r.AddPartitionsToTxnTopicResult(
                        name=topic.name,
                        results_by_partition=tuple(
                            r.AddPartitionsToTxnPartitionResult(
                                partition_index=partition, partition_error_code=code(topic.name)
                            )
                            for partition in topic.partitions
                        ),
                    )
                    for topic in transaction.topics
                ),
            )
            for transaction in guarded.request.transactions
        ),
    )


def authorize_add_offsets_to_txn(guarded: GuardedRequest) -> object:
    """Check WRITE of the id, READ of the group."""
    if not _may_write(guarded, guarded.request.transactional_id):
        return guarded.refuse(ErrorCode.transactional_id_authorization_failed)
    if not guarded.allow.on_group(guarded.context, Operation.READ, guarded.request.group_id):
        return guarded.refuse(ErrorCode.group_authorization_failed)
    return guarded.handle()


def authorize_end_txn(guarded: GuardedRequest) -> object:
    """Check WRITE of the transactional id."""
    return (
        guarded.handle()
        if _may_write(guarded, guarded.request.transactional_id)
        else guarded.refuse(ErrorCode.transactional_id_authorization_failed)
    )


def _may_write(guarded: GuardedRequest, transactional_id: str) -> bool:
    return guarded.allow.on_transactional_id(guarded.context, Operation.WRITE, transactional_id)


APIS = {
    ApiKey.INIT_PRODUCER_ID: Api(handle_init_producer_id, authorize_init_producer_id),
    ApiKey.ADD_PARTITIONS_TO_TXN: Api(handle_add_partitions_to_txn, authorize_add_partitions_to_txn),
    ApiKey.ADD_OFFSETS_TO_TXN: Api(handle_add_offsets_to_txn, authorize_add_offsets_to_txn),
    ApiKey.END_TXN: Api(handle_end_txn, authorize_end_txn),
}
