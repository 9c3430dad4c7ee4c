"""Access rules in front of handlers: a request is refused as a whole, or only the parts that are not authorized.

Each module in `handlers/` owns the rules of its APIs, as functions of a `GuardedRequest`, and lists them with the
handlers in its `APIS`. Where no authorizer is set they are not called at all. The part that is refused is answered by
`error_answer`, the rest by the handler; both go into one response. Operations and error codes are those of Kafka's
KafkaApis and ControllerApis (4.3.1); docs/how-to/security.md has them as a table.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias
from uuid import UUID

from headrace.broker.requests.error_responses import error_answer
from headrace.broker.requests.request_context import RequestContext
from headrace.broker.security.acls import Operation
from headrace.broker.security.authorizer import Authorizer
from headrace.broker.services import Services
from headrace.protocol.api_keys import ApiKey
from headrace.protocol.error_codes import ErrorCode

__all__ = [
    "MESSAGES",
    "Api",
    "Authorize",
    "GuardedRequest",
    "Message",
    "map_response",
    "require_cluster",
    "require_resources",
    "require_topics",
]

# org.apache.kafka.common.protocol.Errors
MESSAGES = {
    ErrorCode.topic_authorization_failed: "Topic authorization failed.",
    ErrorCode.group_authorization_failed: "Group authorization failed.",
    ErrorCode.cluster_authorization_failed: "Cluster authorization failed.",
    ErrorCode.transactional_id_authorization_failed: "Transactional Id authorization failed.",
}


Message: TypeAlias = Any
"""The newest request or response class of an API. The access rules of an API name their class."""


def map_response(answer: object, change: Callable[..., object]) -> object:
    """Apply `change` to a response or to that of an awaitable; None (no response is expected) stays None."""
    if isinstance(answer, Awaitable):
        return _later(answer, change)
    return None if answer is None else change(answer)


async def _later(answer: Awaitable[object], change: Callable[..., object]) -> object:
    found = await answer
    return None if found is None else change(found)


class GuardedRequest:
    """One request that is looked at, before the handler sees it."""

    __slots__ = ("_handle", "allow", "broker", "context", "key", "request")

    def __init__(
        self,
        key: ApiKey,
        request: Message,
        context: RequestContext,
        broker: Services,
        handle: Callable[[Message, RequestContext], object],
    ) -> None:
        self.key = key
        self.request = request
        self.context = context
        self.broker = broker
        self.allow: Authorizer = broker.authorizer
        self._handle = handle

    def topic_name(self, name: str | None, topic_id: UUID | None) -> str | None:
        """Return the name of a topic that is asked for by name or by id; None for an unknown id."""
        if topic_id is None:
            return name
        topic = self.broker.metadata.topic_by_id(topic_id)
        return topic.name if topic is not None else None

    def may_create_topic(self, name: str) -> bool:
        """Whether CREATE is allowed on the cluster or on this one topic."""
        allow, context = self.allow, self.context
        return allow.on_cluster(context, Operation.CREATE) or allow.on_topic(context, Operation.CREATE, name)

    def handle(self, **changes: object) -> object:
        """Return the handler's answer to the request with these changes."""
        return self._handle(dataclasses.replace(self.request, **changes) if changes else self.request, self.context)

    def refuse(self, code: ErrorCode, **changes: object) -> Message:
        """Return the answer that refuses the whole request (with these changes)."""
        request = dataclasses.replace(self.request, **changes) if changes else self.request
        answer: Message = error_answer(self.key, request, code)
        if getattr(answer, "error_message", "") is None:
            answer = dataclasses.replace(answer, error_message=MESSAGES.get(code))
        return answer

    def split(
        self,
        asked: str,
        answered: str,
        permitted: Callable[..., bool],
        code: ErrorCode,
        refuse: Callable[..., object] | None = None,
    ) -> object:
        """Refuse items of the request's list `asked`; their answers stand in the response's list `answered`.

        `refuse` makes the answer to one item where `error_answer` would not be Kafka's.
        """
        allowed: list[object] = []
        denied: list[object] = []
        # 1. Items are asked one by one; the order within each half is the request's.
        for item in getattr(self.request, asked) or ():
            (allowed if permitted(item) else denied).append(item)
        # 2. Everything is allowed: no copy of the request.
        if not denied:
            return self.handle()
        # 3. The response that would refuse all of the denied items; its list is taken, its own code is not.
        refusal = self.refuse(code, **{asked: tuple(denied) if refuse is None else ()})
        refusals = tuple(map(refuse, denied)) if refuse is not None else getattr(refusal, answered)
        # 4. Nothing is left for the handler. It must not see an empty list, which means "all" in some APIs.
        if not allowed:
            return dataclasses.replace(refusal, **{answered: refusals, **_no_code(refusal)})
        # 5. Both halves in one response, the refusals last.
        return map_response(
            self.handle(**{asked: tuple(allowed)}),
            lambda answer: dataclasses.replace(answer, **{answered: (*getattr(answer, answered), *refusals)}),
        )


def _no_code(answer: object) -> dict[str, object]:
    """Return the changes that take the code of the whole request out of a response."""
    # APIs differ in whether their responses carry a code for the whole request.
    changes: dict[str, object] = {}
    if hasattr(answer, "error_code"):
        changes["error_code"] = ErrorCode.none
    if hasattr(answer, "error_message"):
        changes["error_message"] = None
    return changes


Authorize = Callable[[GuardedRequest], object]
"""An access rule: returns the response, from the handler (`handle`), as a refusal (`refuse`), or of both (`split`)."""


@dataclass(frozen=True, slots=True)
class Api:
    """One API of a handler module.

    `handle(request, context, broker=…)` returns the response, or an awaitable of it. `authorize` None: no right is
    needed, or the handler itself checks item by item.
    """

    handle: Callable[..., object]
    authorize: Authorize | None = None


_TOPIC, _GROUP = 2, 32  # resource types of the configuration APIs


def require_cluster(*operations: Operation) -> Authorize:
    """Return the rule that refuses the whole request unless one of the operations is allowed on the cluster."""

    def check(guarded: GuardedRequest) -> object:
        if any(guarded.allow.on_cluster(guarded.context, operation) for operation in operations):
            return guarded.handle()
        return guarded.refuse(ErrorCode.cluster_authorization_failed)

    return check


def require_topics(
    operation: Operation, asked: str = "topics", answered: str = "topics", name: str = "name"
) -> Authorize:
    """Return the rule that refuses each topic of the list `asked` on which the operation is not allowed."""

    def check(guarded: GuardedRequest) -> object:
        return guarded.split(
            asked,
            answered,
            lambda item: guarded.allow.on_topic(guarded.context, operation, getattr(item, name)),
            ErrorCode.topic_authorization_failed,
        )

    return check


class _Resource(Protocol):
    """A resource in a request of the configuration APIs."""

    @property
    def resource_type(self) -> int: ...
    @property
    def resource_name(self) -> str: ...


def require_resources(operation: Operation, asked: str = "resources") -> Authorize:
    """Return the rule for settings: of topics and groups by their own names, of all else by the cluster."""

    def permitted(guarded: GuardedRequest, item: _Resource) -> bool:
        allow, context, name = guarded.allow, guarded.context, item.resource_name
        if item.resource_type == _TOPIC:
            return allow.on_topic(context, operation, name)
        if item.resource_type == _GROUP:
            return allow.on_group(context, operation, name)
        return allow.on_cluster(context, operation)

    def code(item: _Resource) -> ErrorCode:
        return {
            _TOPIC: ErrorCode.topic_authorization_failed,
            _GROUP: ErrorCode.group_authorization_failed,
        }.get(int(item.resource_type), ErrorCode.cluster_authorization_failed)

    def check(guarded: GuardedRequest) -> object:
        # The two configuration APIs that alter answer in `responses`, the one that describes in `results`.
        field = "results" if guarded.key is ApiKey.DESCRIBE_CONFIGS else "responses"

        def refuse(item: _Resource) -> object:
            refused = getattr(guarded.refuse(code(item), **{asked: (item,)}), field)[0]
            return dataclasses.replace(refused, error_message=MESSAGES[code(item)])

        return guarded.split(
            asked, field, lambda item: permitted(guarded, item), ErrorCode.topic_authorization_failed, refuse
        )

    return check
