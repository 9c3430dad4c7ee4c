"""Ledger of a random history: what clients requested, what was acknowledged, what the logs held at the last crash."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

__all__ = [
    "GROUPS",
    "KEPT",
    "SESSION_SECONDS",
    "STREAMS_GROUP",
    "TABLE",
    "IdempotentProducer",
    "Ledger",
    "Partition",
    "SentBatch",
    "Violation",
]

Partition = tuple[str, int]
KEPT, TABLE = "kept", "table"
"""A topic that is never deleted, and one that is compacted."""
GROUPS = ("g0", "g1", "g2")
STREAMS_GROUP = "streams"
SESSION_SECONDS = 40


class Violation(AssertionError):
    """An invariant does not hold."""


@dataclass(slots=True, kw_only=True)
class SentBatch:
    """One batch of a Produce request."""

    partition: Partition
    values: tuple[str, ...]
    acks: int
    records: bytes
    topic_id: Any = None


@dataclass(slots=True, kw_only=True)
class IdempotentProducer:
    """A producer with one batch in flight. A batch of unknown outcome is repeated before anything else is sent."""

    producer_id: int = -1
    next_sequence: dict[Partition, int] = field(default_factory=dict)
    unresolved: SentBatch | None = None
    in_flight: bool = False
    lost_since_sent: bool = False  # acknowledged data was lost since, so its sequence may be refused


@dataclass(slots=True, kw_only=True)
class Ledger:
    """What must be found again after a start.

    "Requested" values are upper bounds: an unanswered request may have taken effect or not.

    Attributes:
        stored: Partition → offset → value, as the log held them when the broker last ended.
        flushed: Partition → recovery point at that time.
        log_starts: Partition → log start offset at that time.
        acknowledged: Partition → offset → value of acknowledged records.
        sent_values: Values of all records that were ever sent.
        refused_values: Values of records that were refused because the disk was full.
        topics: Topic → number of partitions; None once it was deleted.
        uncertain_topics: Topics whose creation or deletion was requested and not acknowledged.
        commits: (group, partition) → acknowledged offset.
        requested_commits: (group, partition) → largest requested offset.
        epochs: Member → acknowledged epoch in the streams group.
        last_heartbeats: Member → time of its last acknowledged heartbeat.
        retention: Acknowledged change of `retention.ms` of `KEPT`.
        requested_retention: Last requested change of it.
        producer_ids: Every producer id that was handed out.
        acknowledgements: How many requests were acknowledged.
    """

    stored: dict[Partition, dict[int, str]] = field(default_factory=dict)
    flushed: dict[Partition, int] = field(default_factory=dict)
    log_starts: dict[Partition, int] = field(default_factory=dict)
    acknowledged: dict[Partition, dict[int, str]] = field(default_factory=dict)
    sent_values: set[str] = field(default_factory=set)
    refused_values: set[str] = field(default_factory=set)
    topics: dict[str, int | None] = field(default_factory=dict)
    uncertain_topics: set[str] = field(default_factory=set)
    commits: dict[tuple[str, int], int] = field(default_factory=dict)
    requested_commits: dict[tuple[str, int], int] = field(default_factory=dict)
    epochs: dict[str, int] = field(default_factory=dict)
    last_heartbeats: dict[str, float] = field(default_factory=dict)
    retention: int = 0
    requested_retention: int = 0
    producer_ids: set[int] = field(default_factory=set)
    acknowledgements: int = 0

    def forget_logs(self, topic: str) -> None:
        """Drop what is known of the logs of a topic that was deleted."""
        for known in (self.stored, self.acknowledged, self.flushed, self.log_starts):
            for partition in [partition for partition in known if partition[0] == topic]:
                del known[partition]

    def acknowledge_records(self, sent: SentBatch, base_offset: int) -> None:
        """Record an acknowledged batch. Raises Violation if an offset was assigned twice."""
        self.acknowledgements += 1
        offsets = self.acknowledged.setdefault(sent.partition, {})
        for at, value in enumerate(sent.values):
            if offsets.setdefault(base_offset + at, value) != value:
                raise Violation(f"{sent.partition}: offset {base_offset + at} was assigned to two records")

    def acknowledge_topic(self, topic: str, partitions: int | None) -> None:
        """Record an acknowledged creation, or with None a deletion."""
        self.topics[topic] = partitions
        self.uncertain_topics.discard(topic)
