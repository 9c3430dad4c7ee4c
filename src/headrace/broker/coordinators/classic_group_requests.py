"""Requests of classic group members (JoinGroup, SyncGroup, Heartbeat, LeaveGroup): the responses when the coordinator
is not asked, and how they ask it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from headrace.broker.coordinators import group_requests
from headrace.broker.requests.request_context import RequestContext
from headrace.broker.services import Services
from headrace.coordinator.classic import replies
from headrace.coordinator.result import CoordinatorResult
from headrace.coordinator.shard import GroupCoordinatorShard
from headrace.protocol.api_keys import ApiKey
from headrace.protocol.error_codes import ErrorCode

__all__ = ["ask", "names_its_protocol", "refuse_member"]

_NAMES_ITS_PROTOCOL_SINCE = 5


def ask(
    key: ApiKey,
    request: Any,
    call: RequestContext,
    broker: Services,
    rule: Callable[[GroupCoordinatorShard, int], CoordinatorResult],
) -> Any | Awaitable[Any]:
    """Run a rule of the group; a refusal becomes the API's response that carries only the error."""
    return group_requests.write(broker, request.group_id, call, rule, lambda code, _: refuse_member(key, code))


def refuse_member(key: ApiKey, code: ErrorCode) -> object:
    """The answer of one of the four that carries nothing but an error."""
    match key:
        case ApiKey.JOIN_GROUP:
            return replies.join_error_reply(code)
        case ApiKey.SYNC_GROUP:
            return replies.sync_error_reply(code)
        case ApiKey.LEAVE_GROUP:
            return replies.leave_reply((), code)
        case _:
            return replies.heartbeat_reply(code)


def names_its_protocol(request: Any, call: RequestContext) -> bool:
    """From version 5 on SyncGroup names protocol type and name, so that no member takes another protocol's bytes for
    its own."""
    named = request.protocol_type is not None and request.protocol_name is not None
    return named or call.api_version < _NAMES_ITS_PROTOCOL_SINCE
