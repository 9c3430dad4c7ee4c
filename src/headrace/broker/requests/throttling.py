"""Throttling by quotas: of one request that was answered, and of topics about to be created or deleted.

The answer goes out at once with the time the client has to wait; that long nothing more of its connection is read
(KIP-219). Unlike Kafka's, the answer to a fetch that was too much has its records: they are read already, and the wait
that follows makes up for them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from kio.static.primitive import i32Timedelta

from headrace.broker.requests.quotas import CONSUME, PRODUCE, Quotas
from headrace.broker.requests.request_context import RequestContext
from headrace.protocol.api_keys import ApiKey
from headrace.protocol.error_codes import ErrorCode
from headrace.protocol.kio_units import from_ms

if TYPE_CHECKING:
    from headrace.broker.services import Services

__all__ = ["counted", "throttle_ms"]

# From this version on a client understands THROTTLING_QUOTA_EXCEEDED; older ones are let through, and wait.
_STRICT_SINCE = {ApiKey.CREATE_TOPICS: 6, ApiKey.DELETE_TOPICS: 5, ApiKey.CREATE_PARTITIONS: 3}
_ANSWERED = {ApiKey.CREATE_TOPICS: "topics", ApiKey.DELETE_TOPICS: "responses", ApiKey.CREATE_PARTITIONS: "results"}
_MESSAGE = "The throttling quota has been exceeded."


def throttle_ms(
    quotas: Quotas,
    call: RequestContext,
    api_key: int,
    *,
    request_bytes: int,
    answer_bytes: int,
    seconds: float,
    now_ms: float,
) -> int:
    """How long this client has to wait after this answer: for bytes or for time, whichever is longer."""
    user, client_id = call.principal.name, call.client_id
    waiting_ms = 0
    if api_key == ApiKey.PRODUCE:
        waiting_ms = quotas.bytes_throttle_ms(PRODUCE, user, client_id, request_bytes, now_ms)
    elif api_key == ApiKey.FETCH:
        waiting_ms = quotas.bytes_throttle_ms(CONSUME, user, client_id, answer_bytes, now_ms)
    return max(waiting_ms, quotas.request_throttle_ms(user, client_id, seconds, now_ms))


def counted(
    key: ApiKey, handle: Callable[[Any, RequestContext], Any], broker: Services
) -> Callable[[Any, RequestContext], Any]:
    """The handler behind `controller_mutation_rate` (KIP-599), for APIs that make or remove partitions."""
    if key not in _STRICT_SINCE:
        return handle

    def metered(request: Any, call: RequestContext) -> Any:
        if not broker.quotas.active or getattr(request, "validate_only", False):
            return handle(request, call)
        return _metered(key, request, call, handle, broker)

    return metered


def _metered(
    key: ApiKey, request: Any, call: RequestContext, handle: Callable[[Any, RequestContext], Any], broker: Services
) -> Any:
    import dataclasses

    from headrace.broker.security.partial_response import Checked, then

    waited = 0

    def permitted(item: Any) -> bool:
        nonlocal waited
        count = _partitions(key, item, broker)
        now_ms = broker.clock.now_ms()
        waiting_ms = broker.quotas.mutation_throttle_ms(call.principal.name, call.client_id, count, now_ms)
        waited = max(waited, waiting_ms)
        return not waiting_ms or call.api_version < _STRICT_SINCE[key]

    def told(answer: Any) -> Any:
        refused = (
            dataclasses.replace(item, error_message=_MESSAGE)
            if item.error_code is ErrorCode.throttling_quota_exceeded
            else item
            for item in getattr(answer, _ANSWERED[key])
        )
        wait: i32Timedelta = from_ms(waited)
        return dataclasses.replace(answer, throttle_time=wait, **{_ANSWERED[key]: tuple(refused)})

    checked = Checked(key, request, call, broker, handle)
    answer = checked.split("topics", _ANSWERED[key], permitted, ErrorCode.throttling_quota_exceeded)
    return then(answer, told) if waited else answer


def _partitions(key: ApiKey, item: Any, broker: Services) -> int:
    """How many partitions it makes or removes."""
    if key is ApiKey.CREATE_TOPICS:
        default = broker.configuration.integer("num.partitions")
        return len(item.assignments) or (item.num_partitions if item.num_partitions > 0 else default)
    metadata = broker.metadata
    by_id = getattr(item, "topic_id", None)
    topic = metadata.topic_by_id(by_id) if by_id is not None else metadata.topic(item.name)
    if topic is None:
        return 0
    return topic.partitions if key is ApiKey.DELETE_TOPICS else max(0, item.count - topic.partitions)
