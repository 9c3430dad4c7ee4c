"""Consumer groups of the new protocol (KIP-848): ConsumerGroupHeartbeat, ConsumerGroupDescribe."""

from __future__ import annotations

import base64
import dataclasses
import uuid
from collections.abc import Awaitable, Iterator

from kio.static.primitive import i32

from headrace.broker.handlers.groups import authorize_described_groups, hide_group
from headrace.broker.requests.partial_response import (
    MESSAGES,
    Api,
    GuardedRequest,
    map_response,
)
from headrace.broker.requests.request_context import RequestContext
from headrace.broker.security.acls import Operation
from headrace.broker.security.authorizer import ON_GROUP
from headrace.broker.services import CONSUMER_GROUPS_OFF, NO_THROTTLE, Services
from headrace.coordinator.request_context import CoordinatorError
from headrace.protocol import messages as m
from headrace.protocol.api_keys import ApiKey
from headrace.protocol.error_codes import ErrorCode

__all__ = ["APIS", "handle_consumer_group_describe", "handle_consumer_group_heartbeat"]

_JOIN_EPOCH = 0
_MADE_BY_MEMBER_SINCE = 1


def handle_consumer_group_heartbeat(
    request: m.consumer_group_heartbeat_request.ConsumerGroupHeartbeatRequest, context: RequestContext, broker: Services
) -> (
    m.consumer_group_heartbeat_response.ConsumerGroupHeartbeatResponse
    | Awaitable[m.consumer_group_heartbeat_response.ConsumerGroupHeartbeatResponse]
):
    """ConsumerGroupHeartbeat (API 68, KIP-848): a member of a consumer group joins, stays, acknowledges, leaves.

    Version notes: v1 brought regular expressions, and member ids made by the member; at v0 the broker makes one for a
    member that joins without. Topics that a member names it must be allowed to describe; of those that its regular
    expression matches, the others are left out.
    """
    if not broker.features.serves_consumer_groups:
        return refuse_heartbeat(ErrorCode.unsupported_version, CONSUMER_GROUPS_OFF)
    allow = broker.authorizer
    names = dict.fromkeys(request.subscribed_topic_names or ())
    if not all(allow.on_topic(context, Operation.DESCRIBE, name) for name in names):
        return refuse_heartbeat(ErrorCode.topic_authorization_failed, "Topic authorization failed.")
    # Version 0 clients get their id from the broker; later ones bring it, so that a lost response does not leave a
    # member behind.
    if not request.member_id and request.member_epoch == _JOIN_EPOCH and context.api_version < _MADE_BY_MEMBER_SINCE:
        request = dataclasses.replace(request, member_id=_new_member_id())
    asked = request
    return broker.coordinator.answer(
        asked.group_id,
        context,
        lambda shard, now_ms: shard.consumer_group_heartbeat(
            asked,
            context.coordinator,
            now_ms=now_ms,
            may_describe=(lambda name: allow.on_topic(context, Operation.DESCRIBE, name)) if allow.enabled else None,
        ),
        refuse_heartbeat,
    )


def _new_member_id() -> str:
    """Return a random id in the form of Kafka's."""
    # Kafka's tools take an argument that begins with a dash for an option.
    while True:
        text = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        if not text.startswith("-"):
            return text


def refuse_heartbeat(
    code: ErrorCode, message: str
) -> m.consumer_group_heartbeat_response.ConsumerGroupHeartbeatResponse:
    """Return the response of an error: its code and message only."""
    return m.consumer_group_heartbeat_response.ConsumerGroupHeartbeatResponse(
        throttle_time=NO_THROTTLE,
        error_code=code,
        error_message=message,
        member_id=None,
        member_epoch=i32(0),
        heartbeat_interval=NO_THROTTLE,
        assignment=None,
    )


def handle_consumer_group_describe(
    request: m.consumer_group_describe_request.ConsumerGroupDescribeRequest, context: RequestContext, broker: Services
) -> m.consumer_group_describe_response.ConsumerGroupDescribeResponse:
    """ConsumerGroupDescribe (API 69, KIP-848): members, assignments and targets of consumer groups.

    Version notes: v1 adds the member's type.
    """
    groups: list[m.consumer_group_describe_response.DescribedGroup] = []
    for group_id in request.group_ids:
        try:
            if not broker.features.serves_consumer_groups:
                raise CoordinatorError(ErrorCode.unsupported_version, CONSUMER_GROUPS_OFF)
            found = broker.coordinator.shard_of(group_id).consumer_group_describe((group_id,), context.coordinator)
            groups += found
        except CoordinatorError as error:
            groups.append(_refused_group(group_id, error.code, error.message))
    if request.include_authorized_operations:
        groups = [
            dataclasses.replace(group, authorized_operations=ON_GROUP) if group.error_code is ErrorCode.none else group
            for group in groups
        ]
    return m.consumer_group_describe_response.ConsumerGroupDescribeResponse(
        throttle_time=NO_THROTTLE, groups=tuple(groups)
    )


def _refused_group(group_id: str, code: ErrorCode, message: str) -> m.consumer_group_describe_response.DescribedGroup:
    return m.consumer_group_describe_response.DescribedGroup(
        error_code=code,
        error_message=message,
        group_id=group_id,  # type: ignore[arg-type]
        group_state="",
        group_epoch=i32(0),
        assignment_epoch=i32(0),
        assignor_name="",
        members=(),
    )


# --- access rules ---


def authorize_consumer_group_heartbeat(guarded: GuardedRequest) -> object:
    """Check READ of the group. The handler asks for DESCRIBE of the topics that the member names or matches."""
    if guarded.allow.on_group(guarded.context, Operation.READ, guarded.request.group_id):
        return guarded.handle()
    return refuse_heartbeat(ErrorCode.group_authorization_failed, MESSAGES[ErrorCode.group_authorization_failed])


def authorize_consumer_group_describe(guarded: GuardedRequest) -> object:
    """Check DESCRIBE of the group and of its topics, subscribed or assigned. One hidden topic hides the group."""

    def shown(
        group: m.consumer_group_describe_response.DescribedGroup,
    ) -> m.consumer_group_describe_response.DescribedGroup:
        # Subscribed, assigned and targeted topics: a regular expression may match one that the client may not see.
        names = dict.fromkeys(name for member in group.members for name in _topics_of_consumer(member))
        if all(guarded.allow.on_topic(guarded.context, Operation.DESCRIBE, name) for name in names):
            return group
        return hide_group(group, "The group has described topic(s) that the client is not authorized to describe.")

    return map_response(
        authorize_described_groups(guarded, "group_ids"),
        lambda answer: dataclasses.replace(answer, groups=tuple(shown(group) for group in answer.groups)),
    )


def _topics_of_consumer(member: m.consumer_group_describe_response.Member) -> Iterator[str]:
    yield from member.subscribed_topic_names
    yield from (each.topic_name for each in member.assignment.topic_partitions)
    yield from (each.topic_name for each in member.target_assignment.topic_partitions)


APIS = {
    ApiKey.CONSUMER_GROUP_HEARTBEAT: Api(handle_consumer_group_heartbeat, authorize_consumer_group_heartbeat),
    ApiKey.CONSUMER_GROUP_DESCRIBE: Api(handle_consumer_group_describe, authorize_consumer_group_describe),
}
