"""AddPartitionsToTxn (API 24): partitions become part of an open transaction, or are looked up in it.

Version notes: v0-3 come from producers, one transaction each; v2 knows PRODUCER_FENCED; v3 flexible. v4 and v5 come
from brokers that do it for a producer of transaction version 2: several transactions, `verify_only`. A partition
that does not exist refuses the whole transaction.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable, Mapping

from kio.schema.types import TopicName, TransactionalId
from kio.static.primitive import i32

from headrace.broker.coordinators.transaction_requests import answered, for_client
from headrace.broker.requests.request_context import RequestContext
from headrace.broker.services import NO_THROTTLE, Services
from headrace.coordinator.errors import CoordinatorError
from headrace.coordinator.records.transaction_log import by_topic
from headrace.coordinator.transactions.transaction_state import EPOCH_BUMP_VERSION, ProducerIdentity
from headrace.coordinator.transactions.transitions import Answer
from headrace.protocol import messages as m
from headrace.protocol.error_codes import ErrorCode

Transaction = m.add_partitions_to_txn_request.AddPartitionsToTxnTransaction
Result = m.add_partitions_to_txn_response.AddPartitionsToTxnResult
Response = m.add_partitions_to_txn_response.AddPartitionsToTxnResponse
Partition = tuple[str, int]

FENCED_SINCE = 2
LAST_WITHOUT_EPOCH_BUMP = 3


def handle(
    request: m.add_partitions_to_txn_request.AddPartitionsToTxnRequest, call: RequestContext, broker: Services
) -> Response | Awaitable[Response]:
    """Answer one AddPartitionsToTxn request; the response is awaitable where it has to wait."""
    results = [_result(transaction, call, broker) for transaction in request.transactions]
    if any(isinstance(result, Awaitable) for result in results):
        return _later(results)
    return _response(result for result in results if isinstance(result, Result))


async def _later(results: list[Result | Awaitable[Result]]) -> Response:
    waiting = (asyncio.ensure_future(result) for result in results if isinstance(result, Awaitable))
    done = iter(await asyncio.gather(*waiting))
    return _response([result if isinstance(result, Result) else next(done) for result in results])


def _result(transaction: Transaction, call: RequestContext, broker: Services) -> Result | Awaitable[Result]:
    asked: frozenset[Partition] = frozenset(
        (str(topic.name), int(index)) for topic in transaction.topics for index in topic.partitions
    )
    missing = {each for each in asked if not _exists(broker, each)}
    if missing:
        codes = {
            each: ErrorCode.unknown_topic_or_partition if each in missing else ErrorCode.operation_not_attempted
            for each in asked
        }
        return _as_result(transaction, codes)
    if not transaction.transactional_id:
        return _as_result(transaction, dict.fromkeys(asked, ErrorCode.invalid_request))
    if transaction.verify_only:
        return _verified(transaction, asked, broker)
    client_version = EPOCH_BUMP_VERSION if call.api_version > LAST_WITHOUT_EPOCH_BUMP else 0

    def respond(answer: Answer) -> Result:
        code = for_client(answer.code, call.api_version, FENCED_SINCE)
        return _as_result(transaction, dict.fromkeys(asked, code))

    return answered(
        broker,
        transaction.transactional_id,
        lambda: broker.transactions.add_partitions(
            transaction.transactional_id, _producer(transaction), asked, client_version=client_version
        ),
        respond,
    )


def _verified(transaction: Transaction, asked: frozenset[Partition], broker: Services) -> Result:
    try:
        code, missing = broker.transactions.missing(transaction.transactional_id, _producer(transaction), asked)
    except CoordinatorError as error:
        code, missing = error.code, asked
    if not missing:
        return _as_result(transaction, dict.fromkeys(asked, code))
    return _as_result(transaction, {each: code if each in missing else ErrorCode.none for each in asked})


def _exists(broker: Services, partition: Partition) -> bool:
    topic = broker.metadata.topic(partition[0])
    return topic is not None and 0 <= partition[1] < topic.partitions


def _producer(transaction: Transaction) -> ProducerIdentity:
    return ProducerIdentity(producer_id=transaction.producer_id, producer_epoch=transaction.producer_epoch)


def _as_result(transaction: Transaction, codes: Mapping[Partition, ErrorCode]) -> Result:
    r = m.add_partitions_to_txn_response
    return Result(
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


def _response(results: Iterable[Result]) -> Response:
    return Response(
        throttle_time=NO_THROTTLE,
        error_code=ErrorCode.none,
        results_by_transaction=tuple(results),
    )
