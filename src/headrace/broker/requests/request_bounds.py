"""How many items one request may have, and which of its names count once.

A request is read, checked and answered in one turn of the event loop. Its price is its items (names, partitions,
settings), so those are bounded: `headrace.request.max.items` in units of the cheapest ones, some 7 µs each on a small
machine. Where an item costs more, a request may have fewer of them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from headrace.broker.requests.request_context import RequestContext
from headrace.protocol.api_keys import ApiKey

__all__ = ["answer_once", "most_items"]

# An item's price in units of the cheapest. Each item of Produce is a batch that is checked and written. DescribeConfigs
# and DeleteAcls bound their work themselves.
_WEIGHTS: Mapping[int, int] = MappingProxyType(
    {
        ApiKey.PRODUCE: 3,
        ApiKey.DESCRIBE_GROUPS: 2,
        ApiKey.CONSUMER_GROUP_DESCRIBE: 2,
        ApiKey.STREAMS_GROUP_DESCRIBE: 2,
        ApiKey.DESCRIBE_TRANSACTIONS: 2,
        ApiKey.DESCRIBE_CONFIGS: 2,
        ApiKey.ALTER_CONFIGS: 2,
        ApiKey.INCREMENTAL_ALTER_CONFIGS: 2,
        ApiKey.DELETE_ACLS: 12,
    }
)
# Questions whose answer grows with what they name: 1,600 times the same topic of 1,000 partitions would be 41 MB.
_NAMED_ONCE: Mapping[ApiKey, str] = MappingProxyType(
    {
        ApiKey.METADATA: "topics",
        ApiKey.OFFSET_FETCH: "groups",
        ApiKey.FIND_COORDINATOR: "coordinator_keys",
        ApiKey.DESCRIBE_GROUPS: "groups",
        ApiKey.CONSUMER_GROUP_DESCRIBE: "group_ids",
        ApiKey.STREAMS_GROUP_DESCRIBE: "group_ids",
        ApiKey.DESCRIBE_CONFIGS: "resources",
        ApiKey.DESCRIBE_LOG_DIRS: "topics",
        ApiKey.DESCRIBE_PRODUCERS: "topics",
        ApiKey.DESCRIBE_TRANSACTIONS: "transactional_ids",
        ApiKey.DESCRIBE_TOPIC_PARTITIONS: "topics",
    }
)


def most_items(api_key: int | None, limit: int) -> int:
    """How many items a request of this API may have where `headrace.request.max.items` is `limit`."""
    return limit // _WEIGHTS.get(api_key, 1) if api_key is not None else limit


def answer_once(key: ApiKey, handle: Callable[[Any, RequestContext], Any]) -> Callable[[Any, RequestContext], Any]:
    """The handler, which sees each thing that a question names once, in the order of its first appearance."""
    field = _NAMED_ONCE.get(key)
    if field is None:
        return handle

    def handle_each_once(request: Any, call: RequestContext) -> Any:
        items = getattr(request, field)
        if items is not None and len(items) > 1:
            different = tuple(dict.fromkeys(items))
            if len(different) < len(items):
                request = dataclasses.replace(request, **{field: different})
        return handle(request, call)

    return handle_each_once
