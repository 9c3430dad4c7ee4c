"""SyncGroup (API 14): the leader of a classic group brings the assignment, every member gets its part.

Version notes: v3 instance ids; v4 flexible; v5 protocol type and name, which must be there.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TYPE_CHECKING

from headrace.broker.coordinators.classic_group_requests import ask, names_its_protocol
from headrace.broker.requests.request_context import RequestContext
from headrace.broker.services import Services
from headrace.coordinator.classic import replies
from headrace.protocol import messages as m
from headrace.protocol.api_keys import ApiKey
from headrace.protocol.error_codes import ErrorCode

if TYPE_CHECKING:
    Request = m.sync_group_request.SyncGroupRequest
    Response = m.sync_group_response.SyncGroupResponse


def handle(request: Request, call: RequestContext, broker: Services) -> Response | Awaitable[Response]:
    """Answer one SyncGroup request; the response is awaitable where it has to wait."""
    if not names_its_protocol(request, call):
        return replies.sync_error_reply(ErrorCode.inconsistent_group_protocol)
    answer: Response | Awaitable[Response] = ask(
        ApiKey.SYNC_GROUP,
        request,
        call,
        broker,
        lambda shard, now_ms: shard.sync_group(request, call.context, now_ms=now_ms),
    )
    return answer
