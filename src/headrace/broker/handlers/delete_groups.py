"""DeleteGroups (API 42): empty groups with all their positions, each with its own answer.

Version notes: v2 flexible. The groups may live in different shards, so each is its own write.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TYPE_CHECKING

from kio.schema.types import GroupId

from headrace.broker.coordinators import group_requests
from headrace.broker.requests.request_context import RequestContext
from headrace.broker.services import NO_THROTTLE, Services
from headrace.protocol import messages as m
from headrace.protocol.error_codes import ErrorCode

if TYPE_CHECKING:
    Response = m.delete_groups_response.DeleteGroupsResponse


def handle(
    request: m.delete_groups_request.DeleteGroupsRequest, call: RequestContext, broker: Services
) -> Response | Awaitable[Response]:
    """Answer one DeleteGroups request; the response is awaitable where it has to wait."""
    answers = [_delete(group_id, call, broker) for group_id in dict.fromkeys(request.groups_names)]
    if any(isinstance(answer, Awaitable) for answer in answers):
        return _merge_later(answers)
    return _merged([answer for answer in answers if not isinstance(answer, Awaitable)])


def _delete(group_id: GroupId, call: RequestContext, broker: Services) -> Response | Awaitable[Response]:
    def refuse(code: ErrorCode, _message: str) -> Response:
        r = m.delete_groups_response
        result = r.DeletableGroupResult(group_id=group_id, error_code=code)
        return r.DeleteGroupsResponse(throttle_time=NO_THROTTLE, results=(result,))

    answer: Response | Awaitable[Response] = group_requests.write(
        broker,
        group_id,
        call,
        lambda shard, now_ms: shard.delete_groups((group_id,), call.context, now_ms=now_ms),
        refuse,
    )
    return answer


async def _merge_later(answers: list[Response | Awaitable[Response]]) -> Response:
    return _merged([await answer if isinstance(answer, Awaitable) else answer for answer in answers])


def _merged(answers: list[Response]) -> Response:
    return m.delete_groups_response.DeleteGroupsResponse(
        throttle_time=NO_THROTTLE, results=tuple(result for answer in answers for result in answer.results)
    )
