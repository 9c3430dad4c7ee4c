"""InitProducerId (API 22): an identity for an idempotent or a transactional producer.

Version notes: v2 flexible; v3 lets a producer pass its id and epoch to get the next epoch (KIP-360); v4 knows
PRODUCER_FENCED; v5 the transaction version 2; v6 (two-phase commit) is unstable in 4.3 and not served. Ids are never
given out twice, also after a crash. Without a transactional id Kafka, too, gives a fresh id instead of the next epoch.
"""

from __future__ import annotations

from collections.abc import Awaitable

from kio.schema.types import ProducerId
from kio.static.primitive import i16

from headrace.broker.coordinators.transaction_requests import answered, for_client
from headrace.broker.requests.request_context import RequestContext
from headrace.broker.services import NO_THROTTLE, Services
from headrace.coordinator.transactions.transaction_state import ProducerIdentity
from headrace.coordinator.transactions.transitions import Answer
from headrace.protocol import messages as m
from headrace.protocol.error_codes import ErrorCode
from headrace.protocol.kio_units import to_ms
from headrace.storage.errors import StorageError

Response = m.init_producer_id_response.InitProducerIdResponse
FENCED_SINCE = 4


def handle(
    request: m.init_producer_id_request.InitProducerIdRequest, call: RequestContext, broker: Services
) -> Response | Awaitable[Response]:
    """Answer one InitProducerId request; the response is awaitable where it has to wait."""
    if (request.producer_id == -1) != (request.producer_epoch == -1):
        return _response(Answer(code=ErrorCode.invalid_request))
    transactional_id = request.transactional_id
    if transactional_id is None:
        return _idempotent(broker)
    if transactional_id == "":
        return _response(Answer(code=ErrorCode.invalid_request))
    expected = None
    if request.producer_id != -1:
        expected = ProducerIdentity(producer_id=request.producer_id, producer_epoch=request.producer_epoch)
    timeout_ms = to_ms(request.transaction_timeout)
    return answered(
        broker,
        transactional_id,
        lambda: broker.transactions.init_producer_id(transactional_id, timeout_ms=timeout_ms, expected=expected),
        lambda answer: _response(answer, call.api_version),
    )


def _idempotent(broker: Services) -> Response:
    try:
        producer_id = broker.metadata.next_producer_id()
    except (OSError, StorageError):
        return _response(Answer(code=ErrorCode.coordinator_not_available))
    return _response(Answer(code=ErrorCode.none, producer_id=producer_id, producer_epoch=0))


def _response(answer: Answer, api_version: int = FENCED_SINCE) -> Response:
    return Response(
        throttle_time=NO_THROTTLE,
        error_code=for_client(answer.code, api_version, FENCED_SINCE),
        producer_id=ProducerId(answer.producer_id),
        producer_epoch=i16(answer.producer_epoch),
    )
