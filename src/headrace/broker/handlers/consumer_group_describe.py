"""ConsumerGroupDescribe (API 69, KIP-848): members, assignments and targets of consumer groups.

Version notes: v1 adds the member's type.
"""

from __future__ import annotations

import dataclasses

from kio.static.primitive import i32

from headrace.broker.requests.request_context import RequestContext
from headrace.broker.security.authorized_operations import ON_GROUP
from headrace.broker.services import CONSUMER_GROUPS_OFF, NO_THROTTLE, Services
from headrace.coordinator.errors import CoordinatorError
from headrace.protocol import messages as m
from headrace.protocol.error_codes import ErrorCode

_Described = m.consumer_group_describe_response.DescribedGroup


def handle(
    request: m.consumer_group_describe_request.ConsumerGroupDescribeRequest, call: RequestContext, broker: Services
) -> m.consumer_group_describe_response.ConsumerGroupDescribeResponse:
    """Answer one ConsumerGroupDescribe request."""
    groups: list[_Described] = []
    for group_id in request.group_ids:
        try:
            if not broker.serves_consumer_groups:
                raise CoordinatorError(ErrorCode.unsupported_version, CONSUMER_GROUPS_OFF)
            found = broker.coordinator.shard_of(group_id).consumer_group_describe((group_id,), call.context)
            groups += found
        except CoordinatorError as error:
            groups.append(_undescribed(group_id, error.code, error.message))
    if request.include_authorized_operations:
        groups = [
            dataclasses.replace(group, authorized_operations=ON_GROUP) if group.error_code is ErrorCode.none else group
            for group in groups
        ]
    return m.consumer_group_describe_response.ConsumerGroupDescribeResponse(
        throttle_time=NO_THROTTLE, groups=tuple(groups)
    )


def _undescribed(group_id: str, code: ErrorCode, message: str) -> _Described:
    return _Described(
        error_code=code,
        error_message=message,
        group_id=group_id,  # type: ignore[arg-type]
        group_state="",
        group_epoch=i32(0),
        assignment_epoch=i32(0),
        assignor_name="",
        members=(),
    )
