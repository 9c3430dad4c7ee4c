"""ListGroups (API 16): all groups of this broker.

Version notes: v3 flexible; v4 filter by state; v5 filter by type. Names of filters are taken in any case.
"""

from __future__ import annotations

from headrace.broker.requests.request_context import RequestContext
from headrace.broker.services import NO_THROTTLE, Services
from headrace.protocol import messages as m
from headrace.protocol.error_codes import ErrorCode


def handle(
    request: m.list_groups_request.ListGroupsRequest, _call: RequestContext, broker: Services
) -> m.list_groups_response.ListGroupsResponse:
    """Answer one ListGroups request."""
    groups = [
        group
        for shard in broker.coordinator.shards()
        for group in shard.list_groups(request.states_filter, request.types_filter)
    ]
    return m.list_groups_response.ListGroupsResponse(
        throttle_time=NO_THROTTLE,
        error_code=ErrorCode.none,
        groups=tuple(sorted(groups, key=lambda group: group.group_id)),
    )
