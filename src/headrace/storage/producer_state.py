"""Producers of one partition: epochs, sequence numbers and open transactions (Kafka's `ProducerStateManager`).

Rules for the batches of clients (KIP-98, KIP-185, KIP-360):

- A batch must follow the last one of its producer without a gap. Sequence numbers wrap from 2^31 - 1 to 0.
- A repeat of one of the last five batches gets the offsets of that batch and is not written.
- A smaller epoch is refused; a larger one starts at sequence 0.
- A producer of which nothing is known (expired, or its records were deleted) may start at any sequence. Under
  transaction version 2 (KIP-890) it must start at 0, as every transaction does.

Of the batches of a coordinator only the epochs are checked, the coordinator's own too: TxnOffsetCommit batches all
carry sequence 0. At transaction version 2 the end of a transaction raises the epoch, so a marker with the epoch of the
open transaction is a late one, of the transaction before (KIP-1228).

Producer ids are chosen by clients, so a hostile client can invent any number of them. Beyond `ProducerState.most`, and
the broker's `ProducerBudget`, those without an open transaction that wrote longest ago are forgotten, as if they had
expired.

`snapshot` and `load` write and read Kafka's `.snapshot` files (version 1), which hold the last batch of each producer.
"""

from __future__ import annotations

import struct
import weakref
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple, NoReturn

from google_crc32c import value as crc32c

from headrace.protocol.record_batches import BatchHeader, control_record
from headrace.storage.errors import (
    InvalidProducerEpoch,
    InvalidTransactionState,
    OutOfOrderSequence,
    TransactionCoordinatorFenced,
)
from headrace.storage.file_system import Buffer

__all__ = [
    "LARGEST_SEQUENCE",
    "MOST_PRODUCERS",
    "DescribedProducer",
    "ProducerBudget",
    "ProducerState",
    "SnapshotCorrupt",
    "WrittenBatch",
]

# As Kafka's NUM_BATCHES_TO_RETAIN: a producer may have five requests in flight (max.in.flight.requests.per.connection
# with idempotence), so a repeat is of one of the last five batches.
REMEMBERED_BATCHES = 5
MOST_PRODUCERS = 5_000
# transaction.version 2 (KIP-890): EndTxn raises the producer epoch, so every transaction has its own.
EPOCH_BUMP_VERSION = 2
LARGEST_SEQUENCE = 2**31 - 1
_HEAD = struct.Struct(">hIi")
_ENTRY = struct.Struct(">qhiqiqiq")
_SNAPSHOT_VERSION = 1
_CRC_END = 6


class SnapshotCorrupt(Exception):
    """The file is not a snapshot, or torn; the state is rebuilt from the log instead."""


class WrittenBatch(NamedTuple):
    """A batch that was written, by which a repeat is recognized and answered."""

    first_sequence: int
    last_sequence: int
    base_offset: int
    last_offset: int
    timestamp_ms: int


class DescribedProducer(NamedTuple):
    """A producer for DescribeProducers. -1 stands for unknown, or for no open transaction."""

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_timestamp_ms: int
    coordinator_epoch: int
    transaction_start_offset: int


class _Producer:
    """The state of one producer id. Mutable; every batch updates it."""

    __slots__ = ("batches", "coordinator_epoch", "epoch", "timestamp_ms", "transaction_start")

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        self.batches: list[WrittenBatch] = []  # the last ones; a deque would take 600 bytes more
        self.timestamp_ms = -1
        self.coordinator_epoch = -1
        self.transaction_start = -1

    def remember(self, batch: WrittenBatch) -> None:
        """Add a batch; forget the oldest beyond five."""
        if len(self.batches) == REMEMBERED_BATCHES:
            del self.batches[0]
        self.batches.append(batch)

    @property
    def last_sequence(self) -> int:
        """The last sequence number; -1 if no data batch is known."""
        return self.batches[-1].last_sequence if self.batches else -1


class ProducerBudget:
    """Bound on the producers of all partitions of a broker together. Mutable.

    Apache Kafka has no such bound before KIP-936: its defence is `producer.id.expiration.ms` alone. When the bound is
    reached, producers are forgotten in the partitions that know the most of them, so those that fill a few partitions
    with invented ids displace their own. Producers with an open transaction are not counted: their ids come from the
    transaction coordinator, which bounds them.
    """

    def __init__(self, most: int) -> None:
        """
        Args:
            most: Producers without an open transaction, in all partitions.
        """
        self.most = most
        self._partitions: weakref.WeakSet[ProducerState] = weakref.WeakSet()
        self._at_most = 0  # so many are known, or fewer: what is forgotten is not subtracted

    def add_partition(self, partition: ProducerState) -> None:
        """Count a partition from now on, with all that it knows already."""
        self._partitions.add(partition)
        # An upper bound instead of a count, so that no place that forgets a producer has to report it here. The true
        # number is computed when the bound seems to be reached.
        self._at_most += partition.idle
        if self._at_most > self.most:
            self._forget_down_to(self.most)

    def add_producer(self) -> None:
        """Make room for one more. A hundredth of the bound is freed at once, which pays for the search."""
        if self._at_most >= self.most:
            self._forget_down_to(self.most - max(1, self.most // 100))
        self._at_most += 1

    def _forget_down_to(self, count: int) -> None:
        # 1. The true number: the running one only grows, since nothing is subtracted when a producer expires.
        known = sum(partition.idle for partition in self._partitions)
        while known > count:
            # 2. The partitions with the most producers first, by name where they are equal, so that the choice does not
            #    depend on the order of a weak set.
            for partition in sorted(self._partitions, key=lambda each: (-each.idle, each.name)):
                if known <= count or not partition.idle:
                    break
                known -= partition.forget_oldest()
        self._at_most = known


class ProducerState:
    """The producers of one partition. Mutable, owned by its PartitionLog.

    Attributes:
        most: Producers known at once, besides those with an open transaction.
        budget: Bound on the producers of all partitions; None: no bound.
    """

    def __init__(self, topic: str, partition: int, most: int = MOST_PRODUCERS) -> None:
        """
        Args:
            topic: For messages.
            partition: For messages.
            most: Producers known at once, besides those with an open transaction.
        """
        self._topic = topic
        self._partition = partition
        self.most = most
        self.budget: ProducerBudget | None = None
        self._producers: dict[int, _Producer] = {}
        self._open: dict[int, int] = {}  # producer id → first offset of its open transaction, ascending

    def __len__(self) -> int:
        return len(self._producers)

    @property
    def name(self) -> tuple[str, int]:
        """Topic and partition."""
        return self._topic, self._partition

    @property
    def idle(self) -> int:
        """Number of producers without an open transaction."""
        return len(self._producers) - len(self._open)

    @property
    def first_unstable_offset(self) -> int | None:
        """First offset of the oldest open transaction; None if none is open."""
        return next(iter(self._open.values()), None)

    def check(self, headers: Iterable[BatchHeader], transaction_version: int = 0) -> WrittenBatch | None:
        """Check the batches of one append, in order, without a change.

        Args:
            headers: The batches; those without a producer id pass.
            transaction_version: Version that the producer uses, 0 to 2.

        Returns:
            The batch that the append repeats; None if it is to be written.

        Raises:
            OutOfOrderSequence: A batch does not follow the producer's last one.
            InvalidProducerEpoch: A newer instance of the producer has written.
            InvalidTransactionState: A batch is not part of the open transaction of its producer.
        """
        # Producer id → (epoch, last sequence) after the batches of this append that were checked so far.
        ahead: dict[int, tuple[int, int]] = {}
        for header in headers:
            if header.producer_id < 0:
                continue
            known = self._producers.get(header.producer_id)
            # 1. The first batch of a producer decides whether the append is a repeat: a client repeats a request as a
            #    whole, and it has one batch per producer and partition.
            if header.producer_id not in ahead:
                if known is not None and (repeated := _find_repeated(known, header)) is not None:
                    return repeated
                if known is not None:
                    ahead[header.producer_id] = (known.epoch, known.last_sequence)
                elif header.is_transactional and transaction_version >= EPOCH_BUMP_VERSION:
                    ahead[header.producer_id] = (header.producer_epoch, -1)
            # 2. Sequence and epoch. A producer without an entry is unknown and may start anywhere.
            if header.producer_id in ahead:
                self._check_follows(header, *ahead[header.producer_id])
            # 3. No batch outside of the open transaction: its end would decide about it, too.
            if known is not None and known.transaction_start >= 0 and not header.is_transactional:
                self._refuse_outside(header)
            ahead[header.producer_id] = (header.producer_epoch, header.last_sequence)
        return None

    def check_coordinators(self, batches: Buffer, headers: Iterable[BatchHeader], transaction_version: int) -> None:
        """Check the batches that a coordinator appends, without a change.

        Args:
            batches: The bytes in which the positions of the headers count.
            headers: The batches.
            transaction_version: Version under which a marker is written.

        Raises:
            InvalidProducerEpoch: A newer instance of the producer has written, or the marker is late.
            TransactionCoordinatorFenced: A newer coordinator has written markers of this producer.
        """
        for header in headers:
            known = self._producers.get(header.producer_id)
            if known is None:
                continue
            # With transactions v2 (KIP-890) each transaction has an epoch of its own, and the marker has the next one.
            # A marker with the epoch of the open transaction belongs to an earlier transaction and must not end this
            # one.
            may_be_late = (
                transaction_version >= EPOCH_BUMP_VERSION and header.is_control and known.transaction_start >= 0
            )
            if header.producer_epoch < known.epoch or (may_be_late and header.producer_epoch == known.epoch):
                self._refuse_epoch(header, known.epoch)
            if header.is_control and control_record(batches, header)[1] < known.coordinator_epoch:
                self._refuse_coordinator(header, control_record(batches, header)[1], known.coordinator_epoch)

    def is_next_in_sequence(self, producer_id: int, producer_epoch: int, base_sequence: int) -> bool:
        """Whether a non-transactional batch follows its producer's last one; on False `check` has to decide."""
        known = self._producers.get(producer_id)
        return (
            known is not None
            and known.epoch == producer_epoch
            and known.transaction_start < 0
            and bool(known.batches)
            and known.batches[-1].last_sequence + 1 == base_sequence
        )

    def record_next(self, producer_id: int, producer_epoch: int, batch: WrittenBatch, *, seen_ms: int) -> None:
        """Update the producer of a batch for which `is_next_in_sequence` was true."""
        producer = self._producers.get(producer_id)
        if producer is None:  # rolling the segment for this batch has expired it
            producer = self._add(producer_id, producer_epoch)
        if seen_ms > producer.timestamp_ms:
            producer.timestamp_ms = seen_ms
        producer.remember(batch)

    def _add(self, producer_id: int, epoch: int) -> _Producer:
        # Before the new producer is added, so that it cannot be among the forgotten ones: its timestamp is not set yet
        # and would sort first.
        if self.idle >= self.most:
            self.forget_oldest()
        if self.budget is not None:
            self.budget.add_producer()
        producer = self._producers[producer_id] = _Producer(epoch)
        return producer

    def forget_oldest(self) -> int:
        """Forget a tenth of those without an open transaction, at least one; return how many.

        A tenth at once, because the search is paid for by many additions.
        """
        idle = [producer_id for producer_id in self._producers if producer_id not in self._open]
        idle.sort(key=lambda producer_id: self._producers[producer_id].timestamp_ms)
        forgotten = idle[: max(1, len(idle) // 10)]
        for producer_id in forgotten:
            del self._producers[producer_id]
        return len(forgotten)

    def _check_follows(self, header: BatchHeader, epoch: int, sequence: int) -> None:
        # A new epoch starts at sequence 0.
        if header.producer_epoch < epoch:
            self._refuse_epoch(header, epoch)
        expected = 0 if header.producer_epoch > epoch else _sequence_after(sequence)
        if header.base_sequence != expected:
            raise OutOfOrderSequence(
                "sequence-out-of-order",
                f"Out of order sequence number {self._where(header)}: {header.base_sequence} (incoming), {expected} "
                f"(expected, epoch {epoch}).",
                "Batches of this producer were lost or reordered; start again with InitProducerId.",
                **self._facts(header),
            )

    def _refuse_epoch(self, header: BatchHeader, epoch: int) -> NoReturn:
        raise InvalidProducerEpoch(
            "producer-epoch-old",
            f"Epoch {header.producer_epoch} {self._where(header)} is too old: the last seen epoch is {epoch}.",
            "A newer instance of this producer is running; start again with InitProducerId.",
            **self._facts(header),
        )

    def _refuse_coordinator(self, header: BatchHeader, epoch: int, seen: int) -> NoReturn:
        raise TransactionCoordinatorFenced(
            "coordinator-epoch-old",
            f"A marker {self._where(header)} comes from a coordinator of epoch {epoch}, and one of epoch {seen} has "
            "written.",
            "Pass the coordinator epoch that `kafka-transactions describe-producers` shows, or a later one.",
            **self._facts(header),
        )

    def _refuse_outside(self, header: BatchHeader) -> NoReturn:
        raise InvalidTransactionState(
            "record-invalid",
            f"A batch {self._where(header)} is not transactional, while the producer has a transaction open there.",
            "End the transaction first, or send the records as a part of it.",
            **self._facts(header),
        )

    def _where(self, header: BatchHeader) -> str:
        return f"of producer {header.producer_id} in partition {self._topic}-{self._partition}"

    def _facts(self, header: BatchHeader) -> dict[str, Any]:
        return {"topic": self._topic, "partition": self._partition, "producer_id": header.producer_id}

    def update(self, header: BatchHeader, *, seen_ms: int, coordinator_epoch: int = -1) -> int:
        """Update the producer of a batch that is in the log, at its final offset.

        Args:
            header: The batch.
            seen_ms: Wall-clock time. Record timestamps would not do: a producer may send old records.
            coordinator_epoch: From the marker, if the batch is a control batch.

        Returns:
            The first offset of the transaction that the batch ends, else -1.
        """
        if header.producer_id < 0:
            return -1
        producer = self._producers.get(header.producer_id)
        if producer is None:
            producer = self._add(header.producer_id, header.producer_epoch)
        # Sequences start again at 0 with a new epoch, so batches of the old one can no longer be told from repeats.
        if header.producer_epoch > producer.epoch:
            producer.epoch = header.producer_epoch
            producer.batches.clear()
        producer.timestamp_ms = max(producer.timestamp_ms, seen_ms)
        if header.is_control:
            # A marker ends the transaction whatever its epoch is: `check_coordinators` has refused late ones before the
            # append.
            began, producer.transaction_start = producer.transaction_start, -1
            self._open.pop(header.producer_id, None)
            producer.coordinator_epoch = max(producer.coordinator_epoch, coordinator_epoch)
            return began
        last_offset = header.base_offset + header.last_offset_delta
        producer.remember(
            WrittenBatch(
                header.base_sequence, header.last_sequence, header.base_offset, last_offset, header.max_timestamp
            )
        )
        if header.is_transactional and producer.transaction_start < 0:
            producer.transaction_start = self._open[header.producer_id] = header.base_offset
        return -1

    def open_transactions(self) -> Iterator[tuple[int, int, int]]:
        """Yield (producer id, epoch, first offset) of each open transaction."""
        for producer_id, start in self._open.items():
            yield producer_id, self._producers[producer_id].epoch, start

    def describe(self) -> Iterator[DescribedProducer]:
        """Yield all producers, for DescribeProducers."""
        for producer_id, producer in self._producers.items():
            yield DescribedProducer(
                producer_id=producer_id,
                producer_epoch=producer.epoch,
                last_sequence=producer.last_sequence,
                last_timestamp_ms=producer.timestamp_ms,
                coordinator_epoch=producer.coordinator_epoch,
                transaction_start_offset=producer.transaction_start,
            )

    def next_sequence(self, producer_id: int) -> int:
        """Return the sequence that the next batch of a producer must have; 0 for an unknown producer."""
        producer = self._producers.get(producer_id)
        return 0 if producer is None else _sequence_after(producer.last_sequence)

    def last_batches(self) -> dict[int, tuple[int, int]]:
        """Return producer id → (last offset of its last data batch, epoch); -1 if only markers are known."""
        return {
            producer_id: (producer.batches[-1].last_offset if producer.batches else -1, producer.epoch)
            for producer_id, producer in self._producers.items()
        }

    def expire(self, older_than_ms: int) -> None:
        """Forget producers without an open transaction that wrote last before this time."""
        for producer_id, producer in list(self._producers.items()):
            if producer.timestamp_ms < older_than_ms and producer.transaction_start < 0:
                del self._producers[producer_id]

    def clear(self) -> None:
        """Forget all producers."""
        self._producers.clear()
        self._open.clear()

    def snapshot(self) -> bytes:
        """Return the state as a snapshot file (Kafka's ProducerSnapshot, version 1)."""
        body = bytearray()
        for producer_id, producer in self._producers.items():
            # -1 in sequence and offset: Kafka's ProducerStateEntry without batch metadata, for a producer that wrote
            # markers only.
            last = producer.batches[-1] if producer.batches else WrittenBatch(-1, -1, -1, -1, producer.timestamp_ms)
            body += _ENTRY.pack(
                producer_id,
                producer.epoch,
                last.last_sequence,
                last.last_offset,
                last.last_offset - last.base_offset,
                producer.timestamp_ms,
                producer.coordinator_epoch,
                producer.transaction_start,
            )
        content = struct.pack(">i", len(self._producers)) + bytes(body)
        return struct.pack(">hI", _SNAPSHOT_VERSION, crc32c(content)) + content

    def load(self, data: bytes) -> None:
        """Replace the state by that of a snapshot file. Raises SnapshotCorrupt; the state is unchanged then."""
        if len(data) < _HEAD.size:
            raise SnapshotCorrupt("too short")
        version, crc, count = _HEAD.unpack_from(data)
        if version != _SNAPSHOT_VERSION or len(data) != _HEAD.size + count * _ENTRY.size:
            raise SnapshotCorrupt(f"version {version} with {count} entries in {len(data)} bytes")
        if crc != crc32c(data[_CRC_END:]):
            raise SnapshotCorrupt("the CRC differs")
        producers: dict[int, _Producer] = {}
        for entry in _ENTRY.iter_unpack(data[_HEAD.size :]):
            producer_id, epoch, sequence, last_offset, delta, timestamp_ms, coordinator_epoch, transaction_start = entry
            producer = producers[producer_id] = _Producer(epoch)
            producer.timestamp_ms = timestamp_ms
            producer.coordinator_epoch = coordinator_epoch
            producer.transaction_start = transaction_start
            # A snapshot has the last batch alone, as Kafka's. -1: the producer wrote markers only.
            if sequence >= 0 and last_offset >= 0:
                # The first sequence is not stored. It follows from the number of offsets, across the wrap from 2³¹ - 1
                # to 0.
                first = sequence - delta if sequence >= delta else sequence - delta + LARGEST_SEQUENCE + 1
                producer.batches.append(WrittenBatch(first, sequence, last_offset - delta, last_offset, timestamp_ms))
        self._producers = producers
        # Offsets ascend, so that `first_unstable_offset` is the first value; a snapshot has no order.
        begun = sorted((p.transaction_start, i) for i, p in producers.items() if p.transaction_start >= 0)
        self._open = {producer_id: start for start, producer_id in begun}


def _sequence_after(sequence: int) -> int:
    """Return the sequence behind `sequence`, -1 for none: numbers wrap from 2^31 - 1 to 0."""
    return 0 if sequence == LARGEST_SEQUENCE else sequence + 1


def _find_repeated(known: _Producer, header: BatchHeader) -> WrittenBatch | None:
    if header.producer_epoch != known.epoch:
        return None
    last = header.last_sequence
    # Both ends must agree: a producer that splits a refused batch (MESSAGE_TOO_LARGE) sends its first half with the
    # same first sequence, and that is no repeat.
    for batch in known.batches:
        if batch.first_sequence == header.base_sequence and batch.last_sequence == last:
            return batch
    return None
