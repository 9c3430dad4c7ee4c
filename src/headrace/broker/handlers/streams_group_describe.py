"""StreamsGroupDescribe (API 89, KIP-1071): topology, members, assignments and targets of streams groups.

Version notes: v0 is Kafka 4.2's and 4.3's, v1 Kafka 4.4's.
"""

from __future__ import annotations

import dataclasses

from kio.static.primitive import i32

from headrace.broker.requests.request_context import RequestContext
from headrace.broker.security.authorized_operations import ON_GROUP
from headrace.broker.services import NO_THROTTLE, STREAMS_GROUPS_OFF, Services
from headrace.coordinator.errors import CoordinatorError
from headrace.protocol import messages as m
from headrace.protocol.error_codes import ErrorCode


def handle(
    request: m.streams_group_describe_request.StreamsGroupDescribeRequest, call: RequestContext, broker: Services
) -> m.streams_group_describe_response.StreamsGroupDescribeResponse:
    """Answer one StreamsGroupDescribe request."""
    groups: list[m.streams_group_describe_response.DescribedGroup] = []
    for group_id in request.group_ids:
        try:
            if not broker.serves_streams_groups:
                raise CoordinatorError(ErrorCode.unsupported_version, STREAMS_GROUPS_OFF)
            shard = broker.coordinator.shard_of(group_id)
            groups += shard.streams_group_describe(
                (group_id,), call.context, wants_description=request.include_topology_description
            )
        except CoordinatorError as error:
            groups.append(
                m.streams_group_describe_response.DescribedGroup(
                    error_code=error.code,
                    error_message=error.message,
                    group_id=group_id,
                    group_state="",
                    group_epoch=i32(0),
                    assignment_epoch=i32(0),
                    members=(),
                )
            )
    if request.include_authorized_operations:
        groups = [
            dataclasses.replace(group, authorized_operations=ON_GROUP) if group.error_code is ErrorCode.none else group
            for group in groups
        ]
    return m.streams_group_describe_response.StreamsGroupDescribeResponse(
        throttle_time=NO_THROTTLE, groups=tuple(groups)
    )
