"""A coordinator with topics, and consumers that join it."""

from __future__ import annotations

from typing import Any

import pytest
from tests.coordinator.consumer.consumer_histories import World

from headrace.coordinator.request_context import CoordinatorError
from headrace.protocol.error_codes import ErrorCode


def world(topics: dict[str, int] | None = None, **settings: int) -> World:
    made = World(settings=settings)
    for name, partitions in (topics or {"in": 4}).items():
        made.create(name, partitions)
    return made


def join(w: World, member_id: str, *names: str, **given: Any) -> Any:
    return w.beat(member_id, 0, owned=set(), timeout_ms=5_000, subscribed_topic_names=names, **given)


def refused(call: Any, *arguments: Any, **given: Any) -> ErrorCode:
    with pytest.raises(CoordinatorError) as error:
        call(*arguments, **given)
    return error.value.code
