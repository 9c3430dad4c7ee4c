"""EndTxn (API 26): commit or abort. The answer comes when the decision is in the log.

Version notes: v2 knows PRODUCER_FENCED; v3 flexible; v4 knows TRANSACTION_ABORTABLE; v5 is transaction version 2: each
end raises the epoch, and the answer carries the identity of the next transaction (KIP-890).
"""

from __future__ import annotations

from collections.abc import Awaitable

from kio.schema.types import ProducerId
from kio.static.primitive import i16

from headrace.broker.coordinators.transaction_requests import answered, for_client
from headrace.broker.requests.request_context import RequestContext
from headrace.broker.services import NO_THROTTLE, Services
from headrace.coordinator.transactions.transaction_state import EPOCH_BUMP_VERSION, ProducerIdentity
from headrace.coordinator.transactions.transitions import Answer
from headrace.protocol import messages as m
from headrace.protocol.error_codes import ErrorCode

Response = m.end_txn_response.EndTxnResponse
FENCED_SINCE = 2
LAST_WITHOUT_EPOCH_BUMP = 4


def handle(
    request: m.end_txn_request.EndTxnRequest, call: RequestContext, broker: Services
) -> Response | Awaitable[Response]:
    """Answer one EndTxn request; the response is awaitable where it has to wait."""

    def respond(answer: Answer) -> Response:
        return Response(
            throttle_time=NO_THROTTLE,
            error_code=for_client(answer.code, call.api_version, FENCED_SINCE),
            producer_id=ProducerId(answer.producer_id),
            producer_epoch=i16(answer.producer_epoch),
        )

    transactional_id = request.transactional_id
    if not transactional_id:
        return respond(Answer(code=ErrorCode.invalid_request))
    producer = ProducerIdentity(producer_id=request.producer_id, producer_epoch=request.producer_epoch)
    client_version = EPOCH_BUMP_VERSION if call.api_version > LAST_WITHOUT_EPOCH_BUMP else 0
    return answered(
        broker,
        transactional_id,
        lambda: broker.transactions.end_transaction(
            transactional_id, producer, committed=request.committed, client_version=client_version
        ),
        respond,
    )
