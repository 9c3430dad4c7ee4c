"""DescribeTransactions (API 65, KIP-664): state, age and partitions of transactional ids.

Version notes: v0 only. While markers are under way all partitions of the transaction are named, also those that have
theirs.
"""

from __future__ import annotations

from kio.schema.types import ProducerId, TopicName, TransactionalId
from kio.static.primitive import i16, i32

from headrace.broker.requests.request_context import RequestContext
from headrace.broker.services import NO_THROTTLE, Services
from headrace.coordinator.errors import CoordinatorError
from headrace.coordinator.records.transaction_log import TransactionLogValue, by_topic
from headrace.coordinator.transactions.transaction_state import state_name
from headrace.coordinator.transactions.transitions import state_of
from headrace.protocol import messages as m
from headrace.protocol.error_codes import ErrorCode
from headrace.protocol.kio_units import from_ms, timestamp_from_ms

State = m.describe_transactions_response.TransactionState


def handle(
    request: m.describe_transactions_request.DescribeTransactionsRequest, _call: RequestContext, broker: Services
) -> m.describe_transactions_response.DescribeTransactionsResponse:
    """Answer one DescribeTransactions request."""
    return m.describe_transactions_response.DescribeTransactionsResponse(
        throttle_time=NO_THROTTLE,
        transaction_states=tuple(_described(each, broker) for each in request.transactional_ids),
    )


def _described(transactional_id: str, broker: Services) -> State:
    try:
        value = broker.transactions.transaction(transactional_id)
    except CoordinatorError as error:
        return refused_state(transactional_id, error.code)
    if value is None:
        return refused_state(transactional_id, ErrorCode.transactional_id_not_found)
    return _state(transactional_id, value)


def _state(transactional_id: str, value: TransactionLogValue) -> State:
    return State(
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


def refused_state(transactional_id: str, code: ErrorCode) -> State:
    """The state of a transaction that is not described: the id and the error code alone."""
    return State(
        error_code=code,
        transactional_id=TransactionalId(transactional_id),
        transaction_state="",
        transaction_timeout=from_ms(0),
        transaction_start_time=timestamp_from_ms(0),
        producer_id=ProducerId(0),
        producer_epoch=i16(0),
        topics=(),
    )
