"""Heartbeat (API 12): a member of a classic group lives; REBALANCE_IN_PROGRESS asks it to join again.

Version notes: v3 instance ids; v4 flexible.
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
    Request = m.heartbeat_request.HeartbeatRequest
    Response = m.heartbeat_response.HeartbeatResponse


def handle(request: Request, call: RequestContext, broker: Services) -> Response | Awaitable[Response]:
    """Answer one Heartbeat request; the response is awaitable where it has to wait."""
    answer: Response | Awaitable[Response] = ask(
        ApiKey.HEARTBEAT,
        request,
        call,
        broker,
        lambda shard, now_ms: shard.heartbeat(request, call.context, now_ms=now_ms),
    )
    return answer
