"""InitProducerId (API 22): an id for an idempotent producer.

Version notes: v2 flexible; v3 lets a producer pass its id and epoch to get the next epoch (KIP-360). Ids are never
given out twice, also after a crash. A transactional id is refused with UNSUPPORTED_VERSION: there are no transactions
here, the transaction APIs are not advertised, and "API version not supported" is what a client then tells its user.
"""

from __future__ import annotations

from kio.schema.types import ProducerId
from kio.static.primitive import i16

from penstock.broker.call import Call
from penstock.broker.services import NO_THROTTLE, Services
from penstock.protocol import messages as m
from penstock.protocol.error_codes import ErrorCode
from penstock.storage.errors import StorageError


def handle(
    request: m.init_producer_id_request.InitProducerIdRequest, _call: Call, broker: Services
) -> m.init_producer_id_response.InitProducerIdResponse:
    if request.transactional_id == "":
        return _answer(ErrorCode.invalid_request)
    if request.transactional_id is not None:
        return _answer(ErrorCode.unsupported_version)
    try:
        # Kafka, too, gives an idempotent producer a fresh id instead of raising its epoch.
        return _answer(ErrorCode.none, broker.metadata.next_producer_id(), 0)
    except (OSError, StorageError):
        return _answer(ErrorCode.coordinator_not_available)


def _answer(
    code: ErrorCode, producer_id: int = -1, producer_epoch: int = -1
) -> m.init_producer_id_response.InitProducerIdResponse:
    return m.init_producer_id_response.InitProducerIdResponse(
        throttle_time=NO_THROTTLE,
        error_code=code,
        producer_id=ProducerId(producer_id),
        producer_epoch=i16(producer_epoch),
    )
