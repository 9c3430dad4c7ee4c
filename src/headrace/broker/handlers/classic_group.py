"""Members of classic groups: JoinGroup, SyncGroup, Heartbeat, LeaveGroup.

All four need READ of the group.
"""

from __future__ import annotations

import uuid
from collections.abc import Awaitable, Callable

from headrace.broker.requests.partial_response import Api, GuardedRequest, Message
from headrace.broker.requests.request_context import RequestContext
from headrace.broker.security.acls import Operation
from headrace.broker.services import Services
from headrace.coordinator.classic.transition import heartbeat_reply, join_error_reply, leave_reply, sync_error_reply
from headrace.coordinator.result import CoordinatorResult
from headrace.coordinator.shard import GroupCoordinatorShard
from headrace.protocol import messages as m
from headrace.protocol.api_keys import ApiKey
from headrace.protocol.error_codes import ErrorCode

__all__ = ["APIS", "handle_heartbeat", "handle_join_group", "handle_leave_group", "handle_sync_group"]

_NAMES_ITS_PROTOCOL_SINCE = 5


def run_rule(
    key: ApiKey,
    request: Message,
    context: RequestContext,
    broker: Services,
    rule: Callable[[GroupCoordinatorShard, int], CoordinatorResult],
) -> Message:
    """Run a rule of the group; a refusal becomes the API's response that carries only the error."""
    # One path for the four APIs: shard, rule, append, replay, reply. Only the layout of a refusal differs.
    return broker.coordinator.answer(request.group_id, context, rule, lambda code, _: refuse_member(key, code))


def refuse_member(key: ApiKey, code: ErrorCode) -> object:
    """Return a response of one of the four APIs with an error only."""
    # Four layouts for one refusal.
    match key:
        case ApiKey.JOIN_GROUP:
            return join_error_reply(code)
        case ApiKey.SYNC_GROUP:
            return sync_error_reply(code)
        case ApiKey.LEAVE_GROUP:
            return leave_reply((), code)
        case _:
            return heartbeat_reply(code)


def names_its_protocol(request: m.sync_group_request.SyncGroupRequest, context: RequestContext) -> bool:
    """Whether the request names its protocol.

    From version 5 on SyncGroup names protocol type and name, so that no member takes another protocol's bytes for its
    own.
    """
    named = request.protocol_type is not None and request.protocol_name is not None
    return named or context.api_version < _NAMES_ITS_PROTOCOL_SINCE


def handle_join_group(
    request: m.join_group_request.JoinGroupRequest, context: RequestContext, broker: Services
) -> m.join_group_response.JoinGroupResponse | Awaitable[m.join_group_response.JoinGroupResponse]:
    """JoinGroup (API 11): a client joins a classic group. The answer waits for the whole group.

    Version notes: v1 rebalance timeout; v4 a new member has to come again with the id it is given; v5 static members;
    v6 flexible; v7 protocol type, null instead of an empty protocol name; v8 reason; v9 skip_assignment.
    """
    # Chance is an argument of the rule, so that a history can be run again.
    fresh_id = str(uuid.uuid4())
    answer: m.join_group_response.JoinGroupResponse | Awaitable[m.join_group_response.JoinGroupResponse] = run_rule(
        ApiKey.JOIN_GROUP,
        request,
        context,
        broker,
        lambda shard, now_ms: shard.join_group(request, context.coordinator, fresh_id=fresh_id, now_ms=now_ms),
    )
    return answer


def handle_sync_group(
    request: m.sync_group_request.SyncGroupRequest, context: RequestContext, broker: Services
) -> m.sync_group_response.SyncGroupResponse | Awaitable[m.sync_group_response.SyncGroupResponse]:
    """SyncGroup (API 14): the leader of a classic group brings the assignment, every member gets its part.

    Version notes: v3 instance ids; v4 flexible; v5 protocol type and name, which must be there.
    """
    # Before the coordinator, as in KafkaApis: the group need not exist for this refusal.
    if not names_its_protocol(request, context):
        return sync_error_reply(ErrorCode.inconsistent_group_protocol)
    answer: m.sync_group_response.SyncGroupResponse | Awaitable[m.sync_group_response.SyncGroupResponse] = run_rule(
        ApiKey.SYNC_GROUP,
        request,
        context,
        broker,
        lambda shard, now_ms: shard.sync_group(request, context.coordinator, now_ms=now_ms),
    )
    return answer


def handle_heartbeat(
    request: m.heartbeat_request.HeartbeatRequest, context: RequestContext, broker: Services
) -> m.heartbeat_response.HeartbeatResponse | Awaitable[m.heartbeat_response.HeartbeatResponse]:
    """Heartbeat (API 12): a member of a classic group lives; REBALANCE_IN_PROGRESS asks it to join again.

    Version notes: v3 instance ids; v4 flexible.
    """
    answer: m.heartbeat_response.HeartbeatResponse | Awaitable[m.heartbeat_response.HeartbeatResponse] = run_rule(
        ApiKey.HEARTBEAT,
        request,
        context,
        broker,
        lambda shard, now_ms: shard.heartbeat(request, context.coordinator, now_ms=now_ms),
    )
    return answer


def handle_leave_group(
    request: m.leave_group_request.LeaveGroupRequest, context: RequestContext, broker: Services
) -> m.leave_group_response.LeaveGroupResponse | Awaitable[m.leave_group_response.LeaveGroupResponse]:
    """LeaveGroup (API 13): members of a classic group go.

    Version notes: v3 several members, each with its own error, and instance ids; v4 flexible; v5 reasons. Up to v2 the
    one member's error is the answer's own.
    """
    answer: m.leave_group_response.LeaveGroupResponse | Awaitable[m.leave_group_response.LeaveGroupResponse] = run_rule(
        ApiKey.LEAVE_GROUP,
        request,
        context,
        broker,
        lambda shard, now_ms: shard.leave_group(request, context.coordinator, now_ms=now_ms),
    )
    return answer


# --- access rules ---


def authorize_member(guarded: GuardedRequest) -> object:
    """Check READ of the group, for everything that members of classic groups send."""
    if guarded.allow.on_group(guarded.context, Operation.READ, guarded.request.group_id):
        return guarded.handle()
    return refuse_member(guarded.key, ErrorCode.group_authorization_failed)


def authorize_sync_group(guarded: GuardedRequest) -> object:
    """Check as `authorize_member`. A request that does not name its protocol is refused for that, as in Kafka."""
    return authorize_member(guarded) if names_its_protocol(guarded.request, guarded.context) else guarded.handle()


APIS = {
    ApiKey.JOIN_GROUP: Api(handle_join_group, authorize_member),
    ApiKey.SYNC_GROUP: Api(handle_sync_group, authorize_sync_group),
    ApiKey.HEARTBEAT: Api(handle_heartbeat, authorize_member),
    ApiKey.LEAVE_GROUP: Api(handle_leave_group, authorize_member),
}
