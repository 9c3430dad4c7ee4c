"""FindCoordinator (API 10): who coordinates this group, or this transactional id.

Version notes: v1 key type (0 group, 1 transaction, 2 share); v3 flexible; v4 several keys (KIP-699). There is one
broker, so it coordinates everything. The first question for a transactional id makes `__transaction_state`, as in
Kafka.
"""

from __future__ import annotations

from kio.schema.types import BrokerId
from kio.static.primitive import i32

from headrace.broker.requests.request_context import RequestContext
from headrace.broker.services import NO_THROTTLE, Services
from headrace.coordinator.errors import CoordinatorError
from headrace.protocol import messages as m
from headrace.protocol.error_codes import ErrorCode

GROUP, TRANSACTION, SHARE = 0, 1, 2


def handle(
    request: m.find_coordinator_request.FindCoordinatorRequest, call: RequestContext, broker: Services
) -> m.find_coordinator_response.FindCoordinatorResponse:
    """Answer one FindCoordinator request."""
    r = m.find_coordinator_response
    host, port = broker.address_of(call)
    code, message = _answer(request.key_type, broker)
    found = code is ErrorCode.none
    return r.FindCoordinatorResponse(
        throttle_time=NO_THROTTLE,
        coordinators=tuple(
            r.Coordinator(
                key=key,
                node_id=broker.node_id if found else BrokerId(-1),
                host=host if found else "",
                port=i32(port if found else -1),
                error_code=code,
                error_message=message,
            )
            for key in request.coordinator_keys
        ),
    )


def _answer(key_type: int, broker: Services) -> tuple[ErrorCode, str | None]:
    if key_type == GROUP:
        return ErrorCode.none, None
    if key_type == TRANSACTION:
        try:
            broker.transactions.ready()
        except CoordinatorError as error:
            return error.code, error.message
        return ErrorCode.none, None
    if key_type == SHARE:
        return ErrorCode.unsupported_version, "Share groups are not supported by this broker."
    return ErrorCode.invalid_request, f"Unknown coordinator key type {key_type}."
