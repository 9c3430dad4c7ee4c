"""Transactions as operators see them (KIP-664): what is open, who has written, and markers by hand."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Awaitable

from kio.schema.types import ProducerId, TopicName, TransactionalId
from kio.static.primitive import i16, i32, i64

from headrace.broker.coordinators.transaction_markers import TransactionMarker
from headrace.broker.logs.flusher import FlushFailed
from headrace.broker.metadata.cluster_metadata import TopicDescription
from headrace.broker.requests.partial_response import (
    MESSAGES,
    Api,
    GuardedRequest,
    map_response,
    require_cluster,
)
from headrace.broker.requests.request_context import RequestContext
from headrace.broker.security.acls import Operation
from headrace.broker.services import NO_THROTTLE, Services
from headrace.coordinator.re2_matcher import BadPattern, LinearPattern
from headrace.coordinator.request_context import CoordinatorError
from headrace.coordinator.transactions.shard import TransactionFilter, unknown_states
from headrace.coordinator.transactions.transaction_log import by_topic
from headrace.coordinator.transactions.transitions import TransactionLogValue, state_name, state_of
from headrace.protocol import messages as m
from headrace.protocol.api_keys import ApiKey
from headrace.protocol.error_codes import ErrorCode
from headrace.protocol.kio_units import from_ms, timestamp_from_ms
from headrace.storage.errors import StorageError

__all__ = [
    "APIS",
    "handle_describe_producers",
    "handle_describe_transactions",
    "handle_list_transactions",
    "handle_write_txn_markers",
]

# Fewer states than a group's subscription may have: all ids are looked at in one go, without a turn of the loop in
# between.
_MOST_STATES = 4_000
_Written = list[tuple[TopicDescription, int]]


def handle_describe_transactions(
    request: m.describe_transactions_request.DescribeTransactionsRequest, _context: RequestContext, broker: Services
) -> m.describe_transactions_response.DescribeTransactionsResponse:
    """DescribeTransactions (API 65, KIP-664): state, age and partitions of transactional ids.

    Version notes: v0 only. While markers are under way all partitions of the transaction are named, also those that
    have theirs.
    """
    return m.describe_transactions_response.DescribeTransactionsResponse(
        throttle_time=NO_THROTTLE,
        transaction_states=tuple(_describe_transaction(each, broker) for each in request.transactional_ids),
    )


def _describe_transaction(transactional_id: str, broker: Services) -> m.describe_transactions_response.TransactionState:
    try:
        value = broker.transactions.transaction(transactional_id)
    except CoordinatorError as error:
        return _refused_state(transactional_id, error.code)
    # An id that was never used, and one that expired, look alike.
    if value is None:
        return _refused_state(transactional_id, ErrorCode.transactional_id_not_found)
    return _transaction_state(transactional_id, value)


def _transaction_state(
    transactional_id: str, value: TransactionLogValue
) -> m.describe_transactions_response.TransactionState:
    return m.describe_transactions_response.TransactionState(
        error_code=ErrorCode.none,
        transactional_id=TransactionalId(transactional_id),
        transaction_state=state_name(state_of(value)),
        transaction_timeout=from_ms(value.transaction_timeout_ms),
        transaction_start_time=timestamp_from_ms(value.transaction_start_timestamp_ms),
        producer_id=ProducerId(value.producer_id),
        producer_epoch=i16(value.producer_epoch),
        topics=tuple(
            m.describe_transactions_response.TopicData(
                topic=TopicName(topic), partitions=tuple(i32(each) for each in partitions)
            )
            for topic, partitions in by_topic(value.transaction_partitions)
        ),
    )


def _refused_state(transactional_id: str, code: ErrorCode) -> m.describe_transactions_response.TransactionState:
    """The state of a transaction that is not described: the id and the error code alone."""
    return m.describe_transactions_response.TransactionState(
        error_code=code,
        transactional_id=TransactionalId(transactional_id),
        transaction_state="",
        transaction_timeout=from_ms(0),
        transaction_start_time=timestamp_from_ms(0),
        producer_id=ProducerId(0),
        producer_epoch=i16(0),
        topics=(),
    )


def handle_list_transactions(
    request: m.list_transactions_request.ListTransactionsRequest, _context: RequestContext, broker: Services
) -> m.list_transactions_response.ListTransactionsResponse:
    """ListTransactions (API 66, KIP-664): transactional ids of this broker.

    Version notes: v1 filters by how long the transaction is open (KIP-994); v2 by a pattern of the transactional id
    (KIP-1152), which is matched in time linear in the id.
    """
    # RE2 syntax, matched in linear time: a client's pattern must not hold the event loop.
    pattern = None
    if request.transactional_id_pattern:
        try:
            pattern = LinearPattern(request.transactional_id_pattern, most_states=_MOST_STATES)
        except BadPattern:
            return _list_response(ErrorCode.invalid_regular_expression)
    wanted = TransactionFilter(
        states=frozenset(request.state_filters),
        producer_ids=frozenset(request.producer_id_filters),
        longer_than_ms=int(request.duration_filter),
        matches=None if pattern is None else pattern.matches,
    )
    try:
        listed = list(broker.transactions.list_transactions(wanted))
    except CoordinatorError as error:
        return _list_response(error.code)
    states = tuple(
        m.list_transactions_response.TransactionState(
            transactional_id=TransactionalId(transactional_id),
            producer_id=ProducerId(value.producer_id),
            transaction_state=state_name(state_of(value)),
        )
        for transactional_id, value in listed
    )
    return _list_response(ErrorCode.none, unknown_states(request.state_filters), states)


def _list_response(
    code: ErrorCode,
    unknown: tuple[str, ...] = (),
    states: tuple[m.list_transactions_response.TransactionState, ...] = (),
) -> m.list_transactions_response.ListTransactionsResponse:
    return m.list_transactions_response.ListTransactionsResponse(
        throttle_time=NO_THROTTLE, error_code=code, unknown_state_filters=unknown, transaction_states=states
    )


def handle_describe_producers(
    request: m.describe_producers_request.DescribeProducersRequest, _context: RequestContext, broker: Services
) -> m.describe_producers_response.DescribeProducersResponse:
    """DescribeProducers (API 61, KIP-664): who has written to a partition, and who has a transaction open there.

    Version notes: v0 only. `kafka-transactions.sh find-hanging` and `describe-producers` send it.
    """
    return m.describe_producers_response.DescribeProducersResponse(
        throttle_time=NO_THROTTLE,
        topics=tuple(
            m.describe_producers_response.TopicResponse(
                name=topic.name,
                partitions=tuple(
                    _describe_producers_of(topic.name, index, broker) for index in topic.partition_indexes
                ),
            )
            for topic in request.topics
        ),
    )


def _describe_producers_of(
    name: str, partition: int, broker: Services
) -> m.describe_producers_response.PartitionResponse:
    topic = broker.metadata.topic(name)
    if topic is None or not 0 <= partition < topic.partitions:
        return _producers_response(partition, ErrorCode.unknown_topic_or_partition)
    try:
        log = broker.logs.log(topic, partition)
    except StorageError:
        return _producers_response(partition, ErrorCode.kafka_storage_error)
    # A partition that was never written has no log and no producers.
    if log is None:
        return _producers_response(partition, ErrorCode.none)
    return _producers_response(
        partition,
        ErrorCode.none,
        tuple(
            m.describe_producers_response.ProducerState(
                producer_id=ProducerId(producer.producer_id),
                producer_epoch=i32(producer.producer_epoch),
                last_sequence=i32(producer.last_sequence),
                last_timestamp=i64(producer.last_timestamp_ms),
                coordinator_epoch=i32(producer.coordinator_epoch),
                current_txn_start_offset=i64(producer.transaction_start_offset),
            )
            for producer in log.producers.describe()
        ),
    )


def _producers_response(
    partition: int, code: ErrorCode, producers: tuple[m.describe_producers_response.ProducerState, ...] = ()
) -> m.describe_producers_response.PartitionResponse:
    return m.describe_producers_response.PartitionResponse(
        partition_index=i32(partition), error_code=code, error_message=None, active_producers=producers
    )


def handle_write_txn_markers(
    request: m.write_txn_markers_request.WriteTxnMarkersRequest, _context: RequestContext, broker: Services
) -> (
    m.write_txn_markers_response.WriteTxnMarkersResponse
    | Awaitable[m.write_txn_markers_response.WriteTxnMarkersResponse]
):
    """WriteTxnMarkers (API 27): markers by hand, which end transactions that hang.

    Version notes: v1 flexible; v2 tells the transaction version. `kafka-transactions.sh abort` sends it.
    """
    written: _Written = []
    response = m.write_txn_markers_response.WriteTxnMarkersResponse(
        markers=tuple(_write_marker(each, broker, written) for each in request.markers)
    )
    # Only partitions whose flush policy demands it; elsewhere an appended marker is answered at once.
    waiting = [(topic, partition) for topic, partition in written if broker.logs.requires_flush(topic, partition)]
    return _answer_when_flushed(response, waiting, broker) if waiting else response


async def _answer_when_flushed(
    response: m.write_txn_markers_response.WriteTxnMarkersResponse, waiting: _Written, broker: Services
) -> m.write_txn_markers_response.WriteTxnMarkersResponse:
    """Leave out a marker that may not be on the disk: the operator's tool sends it again."""
    # The outcome on the disk is unknown, so no marker is reported: the tool asks again, and a marker written twice
    # changes nothing.
    try:
        await asyncio.gather(*(broker.logs.wait_until_flushed(topic, partition) for topic, partition in waiting))
    except FlushFailed:
        return m.write_txn_markers_response.WriteTxnMarkersResponse(markers=())
    return response


def _write_marker(
    asked: m.write_txn_markers_request.WritableTxnMarker, broker: Services, written: _Written
) -> m.write_txn_markers_response.WritableTxnMarkerResult:
    marker = TransactionMarker(
        producer_id=asked.producer_id,
        producer_epoch=asked.producer_epoch,
        committed=asked.transaction_result,
        coordinator_epoch=asked.coordinator_epoch,
        transaction_version=asked.transaction_version,
    )

    def write(name: str, partition: int) -> ErrorCode:
        topic = broker.metadata.topic(name)
        if topic is None or not 0 <= partition < topic.partitions:
            return ErrorCode.unknown_topic_or_partition
        # The log decides whether the marker may be written: epochs of the producer and of the coordinator
        # (`ProducerState.check_coordinators`).
        code = broker.markers.write_marker(topic, partition, marker)
        if code is ErrorCode.none:
            written.append((topic, partition))
        return code

    return m.write_txn_markers_response.WritableTxnMarkerResult(
        producer_id=asked.producer_id,
        topics=tuple(
            m.write_txn_markers_response.WritableTxnMarkerTopicResult(
                name=topic.name,
                partitions=tuple(
                    m.write_txn_markers_response.WritableTxnMarkerPartitionResult(
                        partition_index=i32(partition), error_code=write(topic.name, partition)
                    )
                    for partition in topic.partition_indexes
                ),
            )
            for topic in asked.topics
        ),
    )


# --- access rules ---


def authorize_describe_transactions(guarded: GuardedRequest) -> object:
    """Check DESCRIBE of the id; topics that may not be seen are left out."""
    allow, context = guarded.allow, guarded.context

    def refused(transactional_id: str) -> m.describe_transactions_response.TransactionState:
        # The same shape as an unknown id, with another code: nothing about the transaction is disclosed.
        return _refused_state(transactional_id, ErrorCode.transactional_id_authorization_failed)

    def shown(
        state: m.describe_transactions_response.TransactionState,
    ) -> m.describe_transactions_response.TransactionState:
        topics = tuple(each for each in state.topics if allow.on_topic(context, Operation.DESCRIBE, each.topic))
        return dataclasses.replace(state, topics=topics)

    return map_response(
        guarded.split(
            "transactional_ids",
            "transaction_states",
            lambda each: allow.on_transactional_id(context, Operation.DESCRIBE, each),
            ErrorCode.transactional_id_authorization_failed,
            refused,
        ),
        lambda answer: dataclasses.replace(answer, transaction_states=tuple(map(shown, answer.transaction_states))),
    )


def authorize_list_transactions(guarded: GuardedRequest) -> object:
    """List transactions with DESCRIBE of their id."""
    allow, context = guarded.allow, guarded.context
    return map_response(
        guarded.handle(),
        lambda answer: dataclasses.replace(
            answer,
            transaction_states=tuple(
                each
                for each in answer.transaction_states
                if allow.on_transactional_id(context, Operation.DESCRIBE, each.transactional_id)
            ),
        ),
    )


def authorize_describe_producers(guarded: GuardedRequest) -> object:
    """Check READ of each topic; the refusal of a topic stands in each of its partitions."""
    code = ErrorCode.topic_authorization_failed

    def refuse(item: m.describe_producers_request.TopicRequest) -> m.describe_producers_response.TopicResponse:
        refused: m.describe_producers_response.TopicResponse = guarded.refuse(code, topics=(item,)).topics[0]
        refused_partitions = tuple(
            dataclasses.replace(each, error_message=MESSAGES[code]) for each in refused.partitions
        )
        return dataclasses.replace(refused, partitions=refused_partitions)

    def permitted(item: m.describe_producers_request.TopicRequest) -> bool:
        return guarded.allow.on_topic(guarded.context, Operation.READ, item.name)

    return guarded.split("topics", "topics", permitted, code, refuse)


APIS = {
    ApiKey.DESCRIBE_TRANSACTIONS: Api(handle_describe_transactions, authorize_describe_transactions),
    ApiKey.LIST_TRANSACTIONS: Api(handle_list_transactions, authorize_list_transactions),
    ApiKey.DESCRIBE_PRODUCERS: Api(handle_describe_producers, authorize_describe_producers),
    ApiKey.WRITE_TXN_MARKERS: Api(handle_write_txn_markers, require_cluster(Operation.ALTER, Operation.CLUSTER_ACTION)),
}
