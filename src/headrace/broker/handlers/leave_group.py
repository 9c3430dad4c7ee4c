"""LeaveGroup (API 13): members of a classic group go.

Version notes: v3 several members, each with its own error, and instance ids; v4 flexible; v5 reasons. Up to v2 the one
member's error is the answer's own.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TYPE_CHECKING

from headrace.broker.coordinators.classic_group_requests import ask
from headrace.broker.requests.request_context import RequestContext
from headrace.broker.services import Services
from headrace.protocol import messages as m
from headrace.protocol.api_keys import ApiKey

if TYPE_CHECKING:
    Request = m.leave_group_request.LeaveGroupRequest
    Response = m.leave_group_response.LeaveGroupResponse


def handle(request: Request, call: RequestContext, broker: Services) -> Response | Awaitable[Response]:
    """Answer one LeaveGroup request; the response is awaitable where it has to wait."""
    answer: Response | Awaitable[Response] = ask(
        ApiKey.LEAVE_GROUP,
        request,
        call,
        broker,
        lambda shard, now_ms: shard.leave_group(request, call.context, now_ms=now_ms),
    )
    return answer
