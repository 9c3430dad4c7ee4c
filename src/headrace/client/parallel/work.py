"""What a parallel consumer deals with, as values: one piece of work, its failure, and how the whole stands. Pure."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

from headrace.checked_api import checked_api
from headrace.client.consumer.consumer_types import ConsumerRecord, TopicPartition
from headrace.errors import ConfigError

__all__ = [
    "DeadLetterTopic",
    "Failure",
    "FailurePolicy",
    "KeyQueue",
    "Order",
    "QueueKey",
    "Retry",
    "Work",
    "queue_key",
    "size_of",
]

RECORD_OVERHEAD_BYTES = 200  # of the objects around a record's bytes

Order = Literal["key", "partition", "none"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """Records for one call of the handler. `epoch`: which assignment of the partition they belong to."""

    number: int
    partition: TopicPartition
    epoch: int
    records: tuple[ConsumerRecord, ...]
    attempt: int
    started_ms: int

    @property
    def name(self) -> str:
        """`orders-3@17`, for messages."""
        last = f"..{self.records[-1].offset}" if len(self.records) > 1 else ""
        return f"{self.partition.topic}-{self.partition.partition}@{self.records[0].offset}{last}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """Why one attempt failed: `why` is for people, `error` the exception itself where there is one.

    `still_running`: the handler could not be stopped, so nothing of this work may be tried again beside it.
    """

    why: str
    worth_retrying: bool
    still_running: bool = False
    error: BaseException | None = None


def size_of(record: ConsumerRecord) -> int:
    """What a record takes, about."""
    headers = sum(len(name) + len(value or b"") for name, value in record.headers) if record.headers else 0
    return len(record.key or b"") + len(record.value or b"") + headers + RECORD_OVERHEAD_BYTES


@checked_api()
@dataclass(frozen=True, slots=True, kw_only=True)
class Retry:
    """`attempts` in all; the first pause in seconds, doubled each time up to `max_delay`, with up to a fifth less.

    `on`: which exceptions are worth another attempt. A worker process that died, and a handler that was stopped for
    its time, are.
    """

    attempts: int = 3
    first_delay: float = 0.2
    max_delay: float = 60.0
    on: tuple[type[BaseException], ...] = (Exception,)

    def __post_init__(self) -> None:
        if self.attempts < 1 or self.first_delay < 0 or self.max_delay < self.first_delay:
            raise ConfigError(
                "bad-value",
                f"{self!r} cannot be: at least one attempt, and pauses from 0 seconds up",
                "give attempts >= 1, first_delay >= 0, max_delay >= first_delay",
            )

    def delay_ms(self, attempt: int, chance: float) -> int:
        """The pause behind this attempt (1 is the first); `chance` in [0, 1)."""
        pause = min(self.first_delay * float(2 ** min(attempt - 1, 40)), self.max_delay)
        return round(pause * 1000 * (1 - chance / 5))


@runtime_checkable
class DeadLetterTopic(Protocol):
    """`DeadLetter("orders.failed")`: the record goes, unchanged and with headers that say why, to this topic."""

    @property
    def topic(self) -> str: ...


FailurePolicy = Literal["stop", "skip"] | DeadLetterTopic


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
