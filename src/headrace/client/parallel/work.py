"""Values of a parallel consumer: units of work, failures, the retry policy, and queues of records per key. Pure."""

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

# So that empty records count: the buffer's limit is memory, not payload.
RECORD_OVERHEAD_BYTES = 200  # of the objects around a record's bytes

Order = Literal["key", "partition", "none"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """Records for one call of the handler.

    Attributes:
        number: Unique within the consumer.
        epoch: The assignment of the partition that the records belong to; a result under another epoch does not count.
        attempt: 1 for the first call.
        started_ms: When the call began.
    """

    number: int
    partition: TopicPartition
    epoch: int
    records: tuple[ConsumerRecord, ...]
    attempt: int
    started_ms: int

    @property
    def name(self) -> str:
        """A name for messages, such as `orders-3@17` or `orders-3@17..19`."""
        last = f"..{self.records[-1].offset}" if len(self.records) > 1 else ""
        return f"{self.partition.topic}-{self.partition.partition}@{self.records[0].offset}{last}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """Reason why one attempt failed.

    Attributes:
        why: The reason as text.
        worth_retrying: Whether another attempt may succeed.
        still_running: The handler could not be stopped, so nothing of this work may be retried beside it.
        error: The exception, if there is one.
    """

    why: str
    worth_retrying: bool
    still_running: bool = False
    error: BaseException | None = None


def size_of(record: ConsumerRecord) -> int:
    """Return the approximate memory of a record, in bytes."""
    headers = sum(len(name) + len(value or b"") for name, value in record.headers) if record.headers else 0
    return len(record.key or b"") + len(record.value or b"") + headers + RECORD_OVERHEAD_BYTES


@checked_api()
@dataclass(frozen=True, slots=True, kw_only=True)
class Retry:
    """Retry policy of a parallel consumer's handlers.

    Example:
        `Retry(attempts=5, first_delay=1.0, on=(TimeoutError, ConnectionError))`

    Attributes:
        attempts: Calls of the handler in all, the first included.
        first_delay: Seconds before the second attempt; doubled before each further one.
        max_delay: The longest delay in seconds. Each delay is shortened by up to a fifth (jitter).
        on: Exceptions that are retried. A worker process that died and a handler that exceeded its time always are.
    """

    attempts: int = 3
    first_delay: float = 0.2
    max_delay: float = 60.0
    on: tuple[type[BaseException], ...] = (Exception,)

    def __post_init__(self) -> None:
        if self.attempts < 1 or self.first_delay < 0 or self.max_delay < self.first_delay:
            raise ConfigError(
                "bad-value",
                f"Invalid {self!r}: expected at least one attempt, and delays of 0 seconds or more.",
                "Set attempts >= 1, first_delay >= 0 and max_delay >= first_delay.",
            )

    def delay_ms(self, attempt: int, chance: float) -> int:
        """Return the delay after this attempt in milliseconds.

        Args:
            attempt: The attempt that failed; 1 is the first.
            chance: A random number in [0, 1).
        """
        # 2 to the 40th is beyond any delay; without the bound a large number of attempts would overflow the float.
        pause = min(self.first_delay * float(2 ** min(attempt - 1, 40)), self.max_delay)
        return round(pause * 1000 * (1 - chance / 5))


@runtime_checkable
class DeadLetterTopic(Protocol):
    """Dead-letter topic as failure policy, such as `DeadLetter("orders.failed")`.

    A record that failed for good is written there unchanged, with headers that give its origin and the reason.
    """

    @property
    def topic(self) -> str: ...


FailurePolicy = Literal["stop", "skip"] | DeadLetterTopic


QueueKey = tuple[TopicPartition, bytes | None, bool]
"""Partition, key, and whether the queue's records have an order."""

Waiting = tuple[ConsumerRecord, int]
"""A record and its ordinal in the partition."""


class KeyQueue:
    """Records of one key that wait for their turn. Mutable.

    With `order="key"` each key of a partition has a queue and records without a key have no order; with `"partition"`
    each partition has one; with `"none"` nothing waits. A queue stays busy until its work has ended for good, retries
    included, even if its partition was revoked and assigned again meanwhile: no two records of a queue are ever with
    handlers at the same time.

    Attributes:
        singles: Records of a failed batch, each retried alone and before everything else.
    """

    __slots__ = ("behind", "busy", "key", "queued", "singles", "urgent", "waiting")

    def __init__(self, key: QueueKey) -> None:
        self.key = key
        self.waiting: deque[Waiting] = deque()
        self.singles: deque[ConsumerRecord] = deque()
        self.busy = False
        self.queued = False  # in `WorkPlan._ready`
        self.urgent = False  # in `WorkPlan._urgent`: singles wait
        self.behind = False  # in `_Assigned.behind`: the next record is outside the window of the offset tracker

    @property
    def partition(self) -> TopicPartition:
        return self.key[0]

    @property
    def in_order(self) -> bool:
        return self.key[2]

    @property
    def may_begin(self) -> bool:
        """Whether a record waits and nothing that must end first is running."""
        # Singles come first: they are older than everything that waits, and in an ordered queue nothing may pass them.
        return bool(self.waiting) and not self.behind and not (self.in_order and (self.busy or self.singles))

    def clear(self) -> int:
        """Drop the waiting records and return their number."""
        count = len(self.waiting) + len(self.singles)
        self.waiting.clear()
        self.singles.clear()
        return count


def queue_key(order: Order, partition: TopicPartition, record: ConsumerRecord) -> QueueKey:
    """Return the queue that a record belongs to."""
    match order:
        case "key" if record.key is not None:
            return partition, record.key, True
        case "partition":
            return partition, None, True
        case _:
            return partition, None, False
