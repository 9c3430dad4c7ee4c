"""Partial responses: refuse a request as a whole, or only the parts of it that are not authorized.

The part that is refused is answered by `error_answer`, the rest by the handler; both go into one answer.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Awaitable, Callable
from typing import Any

from headrace.broker.requests.error_responses import error_answer
from headrace.broker.requests.request_context import RequestContext
from headrace.broker.security.authorizer import Authorizer
from headrace.broker.services import Services
from headrace.protocol.api_keys import ApiKey
from headrace.protocol.error_codes import ErrorCode

__all__ = ["MESSAGES", "Check", "Checked", "then"]

# org.apache.kafka.common.protocol.Errors
MESSAGES = {
    ErrorCode.topic_authorization_failed: "Topic authorization failed.",
    ErrorCode.group_authorization_failed: "Group authorization failed.",
    ErrorCode.cluster_authorization_failed: "Cluster authorization failed.",
    ErrorCode.transactional_id_authorization_failed: "Transactional Id authorization failed.",
}


def then(answer: Any, change: Callable[[Any], Any]) -> Any:
    """`change` of an answer that is there, or will be; None (no response is expected) stays None."""
    if isinstance(answer, Awaitable):
        return _later(answer, change)
    return None if answer is None else change(answer)


async def _later(answer: Awaitable[Any], change: Callable[[Any], Any]) -> Any:
    found = await answer
    return None if found is None else change(found)


class Checked:
    """One request that is looked at, before the handler sees it."""

    __slots__ = ("_handle", "allow", "broker", "call", "key", "request")

    def __init__(
        self,
        key: ApiKey,
        request: Any,
        call: RequestContext,
        broker: Services,
        handle: Callable[[Any, RequestContext], Any],
    ) -> None:
        self.key = key
        self.request = request
        self.call = call
        self.broker = broker
        self.allow: Authorizer = broker.authorizer
        self._handle = handle

    def handled(self, **changes: Any) -> Any:
        """The handler's answer, to the request with these changes."""
        return self._handle(dataclasses.replace(self.request, **changes) if changes else self.request, self.call)

    def refused(self, code: ErrorCode, **changes: Any) -> Any:
        """The answer that refuses all of it (with these changes)."""
        request = dataclasses.replace(self.request, **changes) if changes else self.request
        answer: Any = error_answer(self.key, request, code)
        if getattr(answer, "error_message", "") is None:
            answer = dataclasses.replace(answer, error_message=MESSAGES.get(code))
        return answer

    def split(
        self,
        asked: str,
        answered: str,
        permitted: Callable[[Any], bool],
        code: ErrorCode,
        refuse: Callable[[Any], Any] | None = None,
    ) -> Any:
        """Refuses items of the request's list `asked`; their answers stand in the response's list `answered`.

        `refuse` makes the answer to one item where `error_answer` would not be Kafka's.
        """
        allowed: list[Any] = []
        denied: list[Any] = []
        for item in getattr(self.request, asked) or ():
            (allowed if permitted(item) else denied).append(item)
        if not denied:
            return self.handled()
        refusal = self.refused(code, **{asked: tuple(denied) if refuse is None else ()})
        refusals = tuple(map(refuse, denied)) if refuse is not None else getattr(refusal, answered)
        if not allowed:
            return dataclasses.replace(refusal, **{answered: refusals, **_no_code(refusal)})
        return then(
            self.handled(**{asked: tuple(allowed)}),
            lambda answer: dataclasses.replace(answer, **{answered: (*getattr(answer, answered), *refusals)}),
        )


def _no_code(answer: Any) -> dict[str, Any]:
    """Items are refused one by one, not the request as a whole."""
    changes: dict[str, Any] = {}
    if hasattr(answer, "error_code"):
        changes["error_code"] = ErrorCode.none
    if hasattr(answer, "error_message"):
        changes["error_message"] = None
    return changes


Check = Callable[[Checked], Any]
