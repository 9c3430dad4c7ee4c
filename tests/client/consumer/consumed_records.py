"""The topic of the fixture `shared_broker`, and reading from it."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from headrace.client.consumer.consumer import Consumer
from headrace.client.consumer.consumer_types import TopicPartition

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


Make = Callable[..., Consumer]


def read_all(consumer: Consumer, count: int) -> list[Any]:
    found: list[Any] = []
    deadline = time.monotonic() + 20
    while len(found) < count and time.monotonic() < deadline:
        found += consumer.poll_records(1.0)
    return found
