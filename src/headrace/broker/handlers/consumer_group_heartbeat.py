"""ConsumerGroupHeartbeat (API 68, KIP-848): a member of a consumer group joins, stays, acknowledges, leaves.

Version notes: v1 brought regular expressions, and member ids made by the member; at v0 the broker makes one for a
member that joins without. Topics that a member names it must be allowed to describe; of those that its regular
expression matches, the others are left out.
"""

from __future__ import annotations

import base64
import dataclasses
import uuid
from collections.abc import Awaitable
from typing import TYPE_CHECKING

from kio.static.primitive import i32

from headrace.broker.coordinators import group_requests
from headrace.broker.requests.request_context import RequestContext
from headrace.broker.security.acls import Operation
from headrace.broker.services import CONSUMER_GROUPS_OFF, NO_THROTTLE, Services
from headrace.protocol import messages as m
from headrace.protocol.error_codes import ErrorCode

_JOIN_EPOCH = 0
_MADE_BY_MEMBER_SINCE = 1

if TYPE_CHECKING:
    Request = m.consumer_group_heartbeat_request.ConsumerGroupHeartbeatRequest
    Response = m.consumer_group_heartbeat_response.ConsumerGroupHeartbeatResponse


def handle(request: Request, call: RequestContext, broker: Services) -> Response | Awaitable[Response]:
    """Answer one ConsumerGroupHeartbeat request; the response is awaitable where it has to wait."""
    if not broker.serves_consumer_groups:
        return refuse(ErrorCode.unsupported_version, CONSUMER_GROUPS_OFF)
    allow = broker.authorizer
    names = dict.fromkeys(request.subscribed_topic_names or ())
    if not all(allow.on_topic(call, Operation.DESCRIBE, name) for name in names):
        return refuse(ErrorCode.topic_authorization_failed, "Topic authorization failed.")
    if not request.member_id and request.member_epoch == _JOIN_EPOCH and call.api_version < _MADE_BY_MEMBER_SINCE:
        request = dataclasses.replace(request, member_id=_new_member_id())
    asked = request
    return group_requests.write(
        broker,
        asked.group_id,
        call,
        lambda shard, now_ms: shard.consumer_group_heartbeat(
            asked,
            call.context,
            now_ms=now_ms,
            may_describe=(lambda name: allow.on_topic(call, Operation.DESCRIBE, name)) if allow.enabled else None,
        ),
        refuse,
    )


def _new_member_id() -> str:
    """As Kafka writes its ids."""
    while True:
        text = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        if not text.startswith("-"):
            return text


def refuse(code: ErrorCode, message: str) -> Response:
    """An error's answer carries the code and the message only."""
    return m.consumer_group_heartbeat_response.ConsumerGroupHeartbeatResponse(
        throttle_time=NO_THROTTLE,
        error_code=code,
        error_message=message,
        member_id=None,
        member_epoch=i32(0),
        heartbeat_interval=NO_THROTTLE,
        assignment=None,
    )
