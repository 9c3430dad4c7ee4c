"""ListPartitionReassignments (API 46): none. With one broker no replica ever moves."""

from __future__ import annotations

from headrace.broker.requests.request_context import RequestContext
from headrace.broker.services import NO_THROTTLE, Services
from headrace.protocol import messages as m
from headrace.protocol.error_codes import ErrorCode


def handle(
    _request: m.list_partition_reassignments_request.ListPartitionReassignmentsRequest,
    _call: RequestContext,
    broker: Services,  # noqa: ARG001 - a handler's
) -> m.list_partition_reassignments_response.ListPartitionReassignmentsResponse:
    """Answer one ListPartitionReassignments request."""
    return m.list_partition_reassignments_response.ListPartitionReassignmentsResponse(
        throttle_time=NO_THROTTLE, error_code=ErrorCode.none, error_message=None, topics=()
    )
