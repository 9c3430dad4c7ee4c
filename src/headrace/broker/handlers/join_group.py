"""JoinGroup (API 11): a client joins a classic group. The answer waits for the whole group.

Version notes: v1 rebalance timeout; v4 a new member has to come again with the id it is given; v5 static members; v6
flexible; v7 protocol type, null instead of an empty protocol name; v8 reason; v9 skip_assignment.
"""

from __future__ import annotations

import uuid
from collections.abc import Awaitable
from typing import TYPE_CHECKING

from headrace.broker.coordinators.classic_group_requests import ask
from headrace.broker.requests.request_context import RequestContext
from headrace.broker.services import Services
from headrace.protocol import messages as m
from headrace.protocol.api_keys import ApiKey

if TYPE_CHECKING:
    Request = m.join_group_request.JoinGroupRequest
    Response = m.join_group_response.JoinGroupResponse


def handle(request: Request, call: RequestContext, broker: Services) -> Response | Awaitable[Response]:
    """Answer one JoinGroup request; the response is awaitable where it has to wait."""
    fresh_id = str(uuid.uuid4())
    answer: Response | Awaitable[Response] = ask(
        ApiKey.JOIN_GROUP,
        request,
        call,
        broker,
        lambda shard, now_ms: shard.join_group(request, call.context, fresh_id=fresh_id, now_ms=now_ms),
    )
    return answer
