"""How the handlers of group APIs context a rule: through the runtime, and durable when the flush policy asks for it.

An answer waits for all that the log of its shard holds, not only for what its own request wrote: it may tell of what
another one wrote a moment before, and must not be known to a client and forgotten by the broker.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from headrace.broker.logs.flusher import FlushFailed
from headrace.broker.requests.request_context import RequestContext
from headrace.broker.services import Services
from headrace.coordinator.request_context import CoordinatorError
from headrace.coordinator.result import CoordinatorResult
from headrace.coordinator.shard import GroupCoordinatorShard
from headrace.protocol.error_codes import ErrorCode

__all__ = ["write"]


def write(
    broker: Services,
    group_id: str,
    context: RequestContext,
    rule: Callable[[GroupCoordinatorShard, int], CoordinatorResult],
    refuse: Callable[[ErrorCode, str], Any],
) -> Any | Awaitable[Any]:
    """The rule's answer, or `refuse(code, message)` when it raised CoordinatorError; awaitable where it has to wait."""
    try:
        if not broker.coordinator.shard_of(group_id).has_group(group_id):
            most = broker.configuration.integer("headrace.max.groups")
            if sum(shard.group_count for shard in broker.coordinator.shards()) >= most:
                return refuse(ErrorCode.policy_violation, f"There are {most} groups already: headrace.max.groups.")
        written = broker.coordinator.write(group_id, context.coordinator, rule)
    except CoordinatorError as error:
        return refuse(error.code, str(error))
    if isinstance(written.response, asyncio.Future) or broker.coordinator.wait_for_flush(group_id):
        return _wait(broker, group_id, context, written.response, refuse)
    context.steady = written.steady
    return written.response


async def _wait(
    broker: Services,
    group_id: str,
    context: RequestContext,
    response: Any,
    refuse: Callable[[ErrorCode, str], Any],
) -> Any:
    try:
        answer = await response if isinstance(response, asyncio.Future) else response
        if broker.coordinator.wait_for_flush(group_id):
            await broker.coordinator.flushed(group_id)
    except FlushFailed as error:
        return refuse(ErrorCode.coordinator_not_available, str(error))
    else:
        return answer
    finally:
        broker.coordinator.forget(context.token)
