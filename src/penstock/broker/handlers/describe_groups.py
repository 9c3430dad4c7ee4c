"""DescribeGroups (API 15): classic groups. A group of another kind, or none, is Dead.

Version notes: v4 instance ids; v5 flexible; v6 GROUP_ID_NOT_FOUND with a message instead of a silent Dead.
"""

from __future__ import annotations

from penstock.broker.call import Call
from penstock.broker.services import NO_THROTTLE, Services
from penstock.protocol import messages as m


def handle(
    request: m.describe_groups_request.DescribeGroupsRequest, call: Call, broker: Services
) -> m.describe_groups_response.DescribeGroupsResponse:
    groups: list[m.describe_groups_response.DescribedGroup] = []
    for group_id in request.groups:
        groups += broker.coordinator.shard_of(group_id).describe_groups((group_id,), call.context)
    return m.describe_groups_response.DescribeGroupsResponse(throttle_time=NO_THROTTLE, groups=tuple(groups))
