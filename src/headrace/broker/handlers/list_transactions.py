"""ListTransactions (API 66, KIP-664): transactional ids of this broker.

Version notes: v1 filters by how long the transaction is open (KIP-994); v2 by a pattern of the transactional id
(KIP-1152), which is matched in time linear in the id.
"""

from __future__ import annotations

from kio.schema.types import ProducerId, TransactionalId

from headrace.broker.requests.request_context import RequestContext
from headrace.broker.services import NO_THROTTLE, Services
from headrace.coordinator.errors import CoordinatorError
from headrace.coordinator.re2_matcher import BadPattern, LinearPattern
from headrace.coordinator.transactions.shard import TransactionFilter, unknown_states
from headrace.coordinator.transactions.transaction_state import state_name
from headrace.coordinator.transactions.transitions import state_of
from headrace.protocol import messages as m
from headrace.protocol.error_codes import ErrorCode

_MOST_STATES = 4_000  # all ids are looked at in one go

Response = m.list_transactions_response.ListTransactionsResponse


def handle(
    request: m.list_transactions_request.ListTransactionsRequest, _call: RequestContext, broker: Services
) -> Response:
    """Answer one ListTransactions request."""
    pattern = None
    if request.transactional_id_pattern:
        try:
            pattern = LinearPattern(request.transactional_id_pattern, most_states=_MOST_STATES)
        except BadPattern:
            return _response(ErrorCode.invalid_regular_expression)
    wanted = TransactionFilter(
        states=frozenset(request.state_filters),
        producer_ids=frozenset(request.producer_id_filters),
        longer_than_ms=int(request.duration_filter),
        matches=None if pattern is None else pattern.matches,
    )
    try:
        listed = list(broker.transactions.list_transactions(wanted))
    except CoordinatorError as error:
        return _response(error.code)
    states = tuple(
        m.list_transactions_response.TransactionState(
            transactional_id=TransactionalId(transactional_id),
            producer_id=ProducerId(value.producer_id),
            transaction_state=state_name(state_of(value)),
        )
        for transactional_id, value in listed
    )
    return _response(ErrorCode.none, unknown_states(request.state_filters), states)


def _response(
    code: ErrorCode,
    unknown: tuple[str, ...] = (),
    states: tuple[m.list_transactions_response.TransactionState, ...] = (),
) -> Response:
    return Response(
        throttle_time=NO_THROTTLE, error_code=code, unknown_state_filters=unknown, transaction_states=states
    )
