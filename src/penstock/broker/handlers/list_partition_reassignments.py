"""ListPartitionReassignments (API 46): none. With one broker no replica ever moves."""

from __future__ import annotations

from penstock.broker.call import Call
from penstock.broker.services import NO_THROTTLE, Services
from penstock.protocol import messages as m
from penstock.protocol.error_codes import ErrorCode


def handle(
    _request: m.list_partition_reassignments_request.ListPartitionReassignmentsRequest,
    _call: Call,
    broker: Services,  # noqa: ARG001 - a handler's
) -> m.list_partition_reassignments_response.ListPartitionReassignmentsResponse:
    return m.list_partition_reassignments_response.ListPartitionReassignmentsResponse(
        throttle_time=NO_THROTTLE, error_code=ErrorCode.none, error_message=None, topics=()
    )
