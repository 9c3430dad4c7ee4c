"""DescribeGroups (API 15): classic groups. A group of another kind, or none, is Dead.

Version notes: v4 instance ids; v5 flexible; v6 GROUP_ID_NOT_FOUND with a message instead of a silent Dead.
"""

from __future__ import annotations

import dataclasses

from headrace.broker.requests.request_context import RequestContext
from headrace.broker.security.authorized_operations import ON_GROUP
from headrace.broker.services import NO_THROTTLE, Services
from headrace.coordinator.errors import CoordinatorError
from headrace.protocol import messages as m
from headrace.protocol.error_codes import ErrorCode


def handle(
    request: m.describe_groups_request.DescribeGroupsRequest, call: RequestContext, broker: Services
) -> m.describe_groups_response.DescribeGroupsResponse:
    """Answer one DescribeGroups request."""
    groups: list[m.describe_groups_response.DescribedGroup] = []
    for group_id in request.groups:
        try:
            groups += broker.coordinator.shard_of(group_id).describe_groups((group_id,), call.context)
        except CoordinatorError as error:
            groups.append(
                m.describe_groups_response.DescribedGroup(
                    error_code=error.code,
                    error_message=error.message,
                    group_id=group_id,
                    group_state="",
                    protocol_type="",
                    protocol_data="",
                    members=(),
                )
            )
    if request.include_authorized_operations:
        groups = [
            dataclasses.replace(group, authorized_operations=ON_GROUP) if group.error_code is ErrorCode.none else group
            for group in groups
        ]
    return m.describe_groups_response.DescribeGroupsResponse(throttle_time=NO_THROTTLE, groups=tuple(groups))
