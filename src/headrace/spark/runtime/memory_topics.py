"""Topics in the memory of this process, for tests without a broker: the same record batches that brokers store.

Records are encoded and decoded by the code that serves a cluster (`RecordEncoder`, `decode_fetched`), so keys, null
values, headers, timestamps and compression are those of real topics. There are no control batches: offsets count
records only. One transaction is open at a time, that of the micro-batch under way; aborting it removes its records.
"""

from __future__ import annotations

import bisect
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from headrace.client.broker_errors import missing_topic
from headrace.client.cluster_metadata import ClusterMetadata, TopicMetadata
from headrace.client.fetch_loop import FetchedBytes
from headrace.client.fetcher import FetchedBatch, decode_fetched
from headrace.client.producer import RecordEncoder
from headrace.protocol.arrow_batches import ALL_COLUMNS
from headrace.protocol.error_codes import ErrorCode
from headrace.protocol.record_batches import assign_offsets, iter_batch_headers
from headrace.spark.runtime.batches.plan import MicroBatchPlan, SlotPlan
from headrace.spark.runtime.batches.stage_reports import StageReports
from headrace.spark.runtime.topic_access import NO_LIMIT_BYTES, RangeReader, RecordWriter

__all__ = ["MemoryTopics", "MemoryWriter"]

TopicPartition = tuple[str, int]

_NODE = 0  # that leads all partitions
_NAMESPACE = uuid.UUID("6ba7b812-9dad-11d1-80b4-00c04fd430c8")  # ids of topics follow from their names


@dataclass(slots=True)
class _PartitionLog:
    """Record batches of one partition. Mutable."""

    starts: list[int] = field(default_factory=list)  # base offset of each batch
    batches: list[bytes] = field(default_factory=list)
    end: int = 0

    def append(self, batch: bytes) -> int:
        """Append one record batch. Return its base offset."""
        header = next(iter_batch_headers(batch))
        stored, base = bytearray(batch), self.end
        assign_offsets(stored, base, leader_epoch=0)
        self.starts.append(base)
        self.batches.append(bytes(stored))
        self.end = base + header.last_offset_delta + 1
        return base

    def truncate(self, end: int) -> None:
        """Remove the batches from `end` on, which is the start of one."""
        kept = bisect.bisect_left(self.starts, end)
        del self.starts[kept:], self.batches[kept:]
        self.end = end

    def read(self, start: int, end: int) -> bytes:
        """Return the batches that hold offsets in [start, end)."""
        first = max(0, bisect.bisect_right(self.starts, start) - 1)
        return b"".join(self.batches[first : bisect.bisect_left(self.starts, end)])


class MemoryTopics:
    """Topics of one test: `TopicAccess` for stages, and topic lookup for plans. Mutable; one thread."""

    def __init__(self, partitions: Mapping[str, int], now_ms: int) -> None:
        """Create empty topics.

        Args:
            partitions: Number of partitions of each topic.
            now_ms: The processing time to begin with.
        """
        self.clock_ms = now_ms
        self._logs = {
            (topic, partition): _PartitionLog() for topic, count in partitions.items() for partition in range(count)
        }
        self._topics = {
            topic: TopicMetadata(
                name=topic,
                topic_id=uuid.uuid5(_NAMESPACE, topic),
                partitions=dict.fromkeys(range(count), _NODE),
            )
            for topic, count in partitions.items()
        }
        self._appended: dict[str, list[tuple[int, int]]] = {topic: [] for topic in partitions}  # partition, base offset
        self._open: dict[TopicPartition, int] | None = None  # ends before the open transaction

    # -- what stages see ----------------------------------------------------------------------------------------------

    @property
    def reconnects(self) -> int:
        return 0

    def reader(self, *, max_bytes: int, max_partition_bytes: int) -> RangeReader:
        del max_bytes, max_partition_bytes  # nothing travels
        return self

    def writer(self, plan: MicroBatchPlan, slot: SlotPlan, stage_reports: StageReports) -> RecordWriter:
        del slot, stage_reports
        return MemoryWriter(self, compression=plan.compression)

    def topic_id(self, topic: str) -> str | None:
        return str(self._topics[topic].topic_id)

    def log_range(self, where: TopicPartition) -> tuple[int, int]:
        return 0, self.end(where)

    def most_record_bytes(self, topic: str) -> int:
        del topic
        return NO_LIMIT_BYTES

    def now_ms(self) -> int:
        return self.clock_ms

    def fetch_ranges(
        self, ranges: Mapping[TopicPartition, tuple[int, int]], *, columns: Sequence[str] = ALL_COLUMNS
    ) -> Iterator[FetchedBatch]:
        """As `Fetcher.fetch_ranges`."""
        for (topic, partition), (start, end) in ranges.items():
            fetched = FetchedBytes(
                topic=topic,
                partition=partition,
                data=self._log((topic, partition)).read(start, end),
                start_offset=start,
                next_offset=end,
                aborted_transactions=(),
            )
            yield from decode_fetched(fetched, columns)

    # -- what the driver sees -----------------------------------------------------------------------------------------

    def known_topics(self, names: Iterable[str], *, refresh: bool = False) -> ClusterMetadata:
        """As `NetworkClient.known_topics`."""
        del refresh
        wanted = list(names)
        for name in wanted:
            if name not in self._topics:
                raise missing_topic(ErrorCode.unknown_topic_or_partition, name)
        return ClusterMetadata(brokers={}, topics={name: self._topics[name] for name in wanted})

    @property
    def names(self) -> list[str]:
        return sorted(self._topics)

    def partition_count(self, topic: str) -> int:
        return len(self.known_topics([topic]).topics[topic].partitions)

    def end(self, where: TopicPartition) -> int:
        """Return the offset behind the last record of a partition."""
        return self._log(where).end

    def append(self, topic: str, partition: int, batch: bytes) -> int:
        """Append one record batch. Return the offset of its last record."""
        log = self._log((topic, partition))
        if self._open is not None:
            self._open.setdefault((topic, partition), log.end)
        self._appended[topic].append((partition, log.append(batch)))
        return log.end - 1

    def batches(self, topic: str, first: int = 0) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Yield (partition, records) in the order in which batches were appended, from batch number `first` on."""
        for partition, base in self._appended[topic][first:]:
            log = self._log((topic, partition))
            at = bisect.bisect_left(log.starts, base)
            end = log.starts[at + 1] if at + 1 < len(log.starts) else log.end
            for fetched in self.fetch_ranges({(topic, partition): (base, end)}):
                yield partition, fetched.table

    def batch_count(self, topic: str) -> int:
        return len(self._appended[topic])

    # -- transactions -------------------------------------------------------------------------------------------------

    def begin_transaction(self) -> None:
        self._open = {}

    def commit_transaction(self) -> None:
        self._open = None

    def abort_transaction(self) -> None:
        """Remove the records of the open transaction, if there is one."""
        for (topic, partition), end in (self._open or {}).items():
            self._log((topic, partition)).truncate(end)
            self._appended[topic] = [row for row in self._appended[topic] if row[0] != partition or row[1] < end]
        self._open = None

    def _log(self, where: TopicPartition) -> _PartitionLog:
        if where not in self._logs:
            raise missing_topic(ErrorCode.unknown_topic_or_partition, *where)
        return self._logs[where]


class MemoryWriter(RecordEncoder):
    """Writer of Arrow columns into memory. `send` and `flush` as in `Producer`."""

    def __init__(self, topics: MemoryTopics, *, compression: str = "none") -> None:
        super().__init__(compression=compression)
        self._topics = topics
        self._written: dict[TopicPartition, int] = {}

    def flush(self) -> dict[TopicPartition, int]:
        written, self._written = self._written, {}
        return written

    def _partition_count(self, topic: str) -> int:
        return self._topics.partition_count(topic)

    def _add_batch(self, topic: str, partition: int, batch: bytes) -> None:
        self._written[topic, partition] = self._topics.append(topic, partition, batch)
