"""What a parallel consumer deals with, as values: one piece of work, its failure, and how the whole stands. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from headrace.client.consumer.consumer_types import ConsumerRecord, TopicPartition

__all__ = ["Counts", "Failure", "Order", "PipelineStats", "Work", "size_of"]

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


@dataclass(slots=True)
class Counts:
    """Mutable: how many records what happened to, since the start."""

    polled: int = 0
    done: int = 0
    retried: int = 0
    failed: int = 0
    dropped: int = 0
    known_finished: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineStats:
    """How it stands. Counters count records since the start.

    `buffered`: polled and not begun; `in_flight`: with handlers; `late`: handlers at work whose partition has gone.
    `known_finished`: polled again and not processed again, since a commit said that they were finished.
    `uncommitted`: finished, and no commit says so yet: with `in_flight` the most that a crash repeats.
    """

    assigned_partitions: int = 0
    paused_partitions: int = 0
    buffered: int = 0
    buffered_bytes: int = 0
    in_flight: int = 0
    late: int = 0
    uncommitted: int = 0
    oldest_in_flight_s: float = 0.0
    polled: int = 0
    done: int = 0
    retried: int = 0
    failed: int = 0
    skipped: int = 0
    dead_letters: int = 0
    dropped: int = 0
    known_finished: int = 0
    commits: int = 0
    failed_commits: int = 0


def size_of(record: ConsumerRecord) -> int:
    """What a record takes, about."""
    headers = sum(len(name) + len(value or b"") for name, value in record.headers) if record.headers else 0
    return len(record.key or b"") + len(record.value or b"") + headers + RECORD_OVERHEAD_BYTES
