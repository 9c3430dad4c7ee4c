"""How the steps of a stage reach topics: the one seam between stages and where records are stored.

`BrokerTopics` reads and writes a Kafka cluster. `memory_topics.MemoryTopics` keeps the same record batches in this
process, for `TopologyTest`. Steps see `TopicAccess` and do not know which of the two it is.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from headrace.errors import BrokerError
from headrace.spark.runtime.worker_process import client_for

if TYPE_CHECKING:
    from headrace.client.fetcher import FetchedBatch
    from headrace.spark.runtime.batches.plan import MicroBatchPlan, SlotPlan
    from headrace.spark.runtime.batches.stage_reports import StageReports

__all__ = ["NO_LIMIT_BYTES", "BrokerTopics", "RangeReader", "RecordWriter", "TopicAccess", "now_ms"]

NO_LIMIT_BYTES = 1 << 62

TopicPartition = tuple[str, int]


def now_ms() -> int:
    """Return the wall-clock time in milliseconds, the timestamp of produced records."""
    return int(time.time() * 1000)


class RangeReader(Protocol):
    """Reader of offset ranges. See `Fetcher`."""

    def fetch_ranges(
        self, ranges: Mapping[TopicPartition, tuple[int, int]], *, columns: Sequence[str] = ...
    ) -> Iterator[FetchedBatch]:
        """Yield everything with from ≤ offset < to, in ascending order within each partition."""


class RecordWriter(Protocol):
    """Writer of records. See `Producer`."""

    def send(
        self,
        topic: str,
        partition: int | None,
        keys: Any,
        values: Any,
        *,
        timestamps_ms: Any = ...,
        headers: Any = ...,
    ) -> None:
        """Queue the rows of binary columns; a null value is a tombstone."""

    def flush(self) -> dict[TopicPartition, int]:
        """Wait until everything is stored. Return the last offset of each partition written since the last flush."""


class TopicAccess(Protocol):
    """Topics as the steps of one stage see them."""

    @property
    def reconnects(self) -> int:
        """How often a connection to a broker was opened again."""

    def reader(self, *, max_bytes: int, max_partition_bytes: int) -> RangeReader:
        """Return a reader of committed records.

        Args:
            max_bytes: The most bytes of a response.
            max_partition_bytes: The most bytes of one partition.
        """

    def writer(self, plan: MicroBatchPlan, slot: SlotPlan, stage_reports: StageReports) -> RecordWriter:
        """Return the writer of one stage of one slot of a micro-batch."""

    def topic_id(self, topic: str) -> str | None:
        """Return the id of a topic as it is known now, without asking; None if it is unknown."""

    def partition_count(self, topic: str) -> int:
        """Return the number of partitions of a topic. Raises BrokerError: topic-missing."""

    def log_range(self, where: TopicPartition) -> tuple[int, int]:
        """Return the first offset of a partition, and the offset behind its last record, committed or not."""

    def most_record_bytes(self, topic: str) -> int:
        """Return the largest record batch that a topic takes."""

    def now_ms(self) -> int:
        """Return the processing time: the timestamp of records that stages write."""


class BrokerTopics:
    """Topics of a Kafka cluster, through the clients of this Python worker."""

    def __init__(self, bootstrap_servers: str) -> None:
        self._servers = bootstrap_servers

    @property
    def reconnects(self) -> int:
        return client_for(self._servers).reconnects

    def reader(self, *, max_bytes: int, max_partition_bytes: int) -> RangeReader:
        from headrace.client.fetcher import Fetcher

        return Fetcher(
            client_for(self._servers),
            isolation_level="read_committed",
            max_bytes=max_bytes,
            max_partition_bytes=max_partition_bytes,
        )

    def writer(self, plan: MicroBatchPlan, slot: SlotPlan, stage_reports: StageReports) -> RecordWriter:
        from headrace.spark.runtime.slots.slot_producer import SlotProducer

        return SlotProducer(plan, slot, stage_reports)

    def topic_id(self, topic: str) -> str | None:
        known = client_for(self._servers).known_topics([topic]).topics.get(topic)
        return None if known is None else str(known.topic_id)

    def partition_count(self, topic: str) -> int:
        return len(client_for(self._servers).known_topics([topic]).topics[topic].partitions)

    def log_range(self, where: TopicPartition) -> tuple[int, int]:
        from headrace.client.admin import Admin

        admin = Admin(client_for(self._servers))
        first = admin.list_offsets({where: "earliest"})[where].offset
        return first, admin.list_offsets({where: "latest"})[where].offset

    def most_record_bytes(self, topic: str) -> int:
        # Imported here: workers that never trace a failure need no admin client.
        from headrace.client.admin import Admin

        try:
            found = Admin(client_for(self._servers)).describe_configs([("topic", topic)])["topic", topic]
            return int(found["max.message.bytes"].value or NO_LIMIT_BYTES)
        except (BrokerError, KeyError):  # without the right to ask, the broker's own refusal stays
            return NO_LIMIT_BYTES

    def now_ms(self) -> int:
        return now_ms()
