"""Shared parts of the handlers of transaction APIs: durable answers, and codes that older clients understand."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from headrace.broker.logs.flusher import FlushFailed
from headrace.broker.services import Services
from headrace.coordinator.errors import CoordinatorError
from headrace.coordinator.transactions.transitions import Answer
from headrace.protocol.error_codes import ErrorCode

__all__ = ["answered", "for_client"]

Response = TypeVar("Response")


def answered(
    broker: Services,
    transactional_id: str,
    ask: Callable[[], Answer],
    respond: Callable[[Answer], Response],
) -> Response | Awaitable[Response]:
    """Return the answer of `ask` as the API's response; awaitable where what it wrote has to be on the disk first."""
    try:
        answer = ask()
    except CoordinatorError as error:
        return respond(Answer(code=error.code))
    if answer.code is ErrorCode.none and broker.transactions.wait_for_flush(transactional_id):
        return _durable(broker, transactional_id, answer, respond)
    return respond(answer)


async def _durable(
    broker: Services, transactional_id: str, answer: Answer, respond: Callable[[Answer], Response]
) -> Response:
    try:
        await broker.transactions.flushed(transactional_id)
    except FlushFailed:
        return respond(Answer(code=ErrorCode.coordinator_not_available))
    return respond(answer)


def for_client(code: ErrorCode, api_version: int, fenced_since: int) -> ErrorCode:
    """Clients below version `fenced_since` of an API do not know PRODUCER_FENCED."""
    if code is ErrorCode.producer_fenced and api_version < fenced_since:
        return ErrorCode.invalid_producer_epoch
    return code
