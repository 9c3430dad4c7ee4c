"""Lanes: records that must be processed one after the other wait in one lane, in order. Pure.

`order="key"`: a lane for each key of a partition; records without a key have no order. `"partition"`: one lane each.
`"none"`: nothing waits for anything. A lane stays busy until its work ended for good, retries included, also when its
partition went away and came back meanwhile: so no two records of a lane are ever with handlers at the same time.
"""

from __future__ import annotations

from collections import deque

from headrace.client.consumer.consumer_types import ConsumerRecord, TopicPartition
from headrace.client.parallel.work import Order

__all__ = ["KeyQueue", "QueueKey", "queue_key"]

QueueKey = tuple[TopicPartition, bytes | None, bool]
"""Partition, key, and whether the lane has an order."""

Waiting = tuple[ConsumerRecord, int]
"""A record and its ordinal in the partition."""


class KeyQueue:
    """Mutable. `singles`: of a batch that failed, each to be tried alone, before everything else."""

    __slots__ = ("behind", "busy", "key", "queued", "singles", "urgent", "waiting")

    def __init__(self, key: QueueKey) -> None:
        self.key = key
        self.waiting: deque[Waiting] = deque()
        self.singles: deque[ConsumerRecord] = deque()
        self.busy = False
        self.queued = False  # among the lanes that may begin
        self.urgent = False  # among the lanes whose singles may begin
        self.behind = False  # among those whose next record lies behind the window

    @property
    def partition(self) -> TopicPartition:
        return self.key[0]

    @property
    def in_order(self) -> bool:
        return self.key[2]

    @property
    def may_begin(self) -> bool:
        """Has something, and nothing of it is under way that must end first."""
        return bool(self.waiting) and not self.behind and not (self.in_order and (self.busy or self.singles))

    def clear(self) -> int:
        """Forgets what waits; how many records that were."""
        count = len(self.waiting) + len(self.singles)
        self.waiting.clear()
        self.singles.clear()
        return count


def queue_key(order: Order, partition: TopicPartition, record: ConsumerRecord) -> QueueKey:
    match order:
        case "key" if record.key is not None:
            return partition, record.key, True
        case "partition":
            return partition, None, True
        case _:
            return partition, None, False
