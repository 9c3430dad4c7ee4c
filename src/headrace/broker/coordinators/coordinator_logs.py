"""Partitions of the internal topics as logs of coordinator shards: Kafka's own keys and values.

`coordinator_records` is how a shard is loaded: for each key its last record, as if the log had been compacted. Imported
with the first group or transactional id, as the rules are (docs/internals/broker.md, "What a start imports").
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import cast

from headrace.broker.coordinators.coordinator_runtime import AppendFailed, LogUnreadable
from headrace.broker.logs.partition_logs import AppendRefused, PartitionLogs, ReadRefused, end_of
from headrace.broker.metadata.cluster_metadata import TopicDescription
from headrace.coordinator.offsets.committed_offsets import OpenTransactions
from headrace.coordinator.records import serde
from headrace.coordinator.result import CoordinatorRecord
from headrace.coordinator.transactions import transaction_log
from headrace.coordinator.transactions.transitions import TransactionLogKey, TransactionLogValue
from headrace.protocol.record_batches import (
    BatchHeader,
    PlainRecord,
    check_crc,
    control_type,
    encode_batch,
    iter_batch_headers,
    raw_records,
)

__all__ = ["GroupMetadataLog", "TransactionLog", "coordinator_records"]


# Kafka's offsets.load.buffer.size.
READ_BYTES = 5 * 1024 * 1024
Decode = Callable[[bytes, bytes | None], CoordinatorRecord | None]
MOST_HELD = 1_000_000
"""Keys held at a time while a log is read: what a very large one has beyond is replayed in portions."""


class GroupMetadataLog:
    """One shard's log. A partition comes to the disk with its first record."""

    def __init__(self, logs: PartitionLogs, topic: TopicDescription, partition: int) -> None:
        self._logs = logs
        self._topic = topic
        self._partition = partition

    def append(self, records: Sequence[CoordinatorRecord], *, now_ms: int) -> None:
        plain = [
            PlainRecord(
                key=serde.encode_key(record.key),
                value=None if record.value is None else serde.encode_value(record.value),
                timestamp_ms=now_ms,
            )
            for record in records
        ]
        # Kafka's coordinator batches carry base sequence 0: without a producer id, and in transactions every time.
        # All records of one append have the same producer: TxnOffsetCommit is an append of its own
        # (`CoordinatorResult`).
        producer_id, producer_epoch = records[0].producer_id, records[0].producer_epoch
        batch = encode_batch(
            plain,
            base_sequence=0,
            transactional=producer_id >= 0,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
        )
        try:
            self._logs.append(self._topic, self._partition, batch, origin="coordinator")
        except AppendRefused as refused:
            raise AppendFailed(refused.message) from refused

    def read_all(self) -> Iterator[CoordinatorRecord]:
        try:
            view = self._logs.view(self._topic, self._partition)
            yield from coordinator_records(view.read, view.log_start_offset, view.high_watermark)
        except ReadRefused as refused:
            raise LogUnreadable(str(refused)) from refused


def coordinator_records(
    read: Callable[[int, int], bytes], position: int, end_offset: int, decode: Decode = serde.decode
) -> Iterator[CoordinatorRecord]:
    """Yield the records from which a shard is loaded: for each key its last record, in the order of the log, as if it
    had been compacted.

    Most of a log are offsets that were committed again; they cost a look at their key, and are never decoded. Types
    that are not ours are passed over. `read(offset, max_bytes)` answers whole batches. Raises CorruptBatch,
    CorruptRecord.

    Records of transactions count from their marker on, at the place of the record, not of the marker; aborted ones
    never. Those without a marker come with their producer id: what a later record has overtaken before everything
    else, so that it is overtaken again, the others last.
    """
    # 1. The newest value of each key, in the order of the log: a dictionary keeps insertion order, and a key that comes
    #    again is taken out first, so that it moves to its new place.
    last: dict[bytes, bytes | None] = {}
    transactions: OpenTransactions[bytes, bytes] = OpenTransactions()
    while position < end_offset:
        chunk = read(position, READ_BYTES)
        if not chunk:
            break
        # 2. Batch by batch, with its checksum: a shard must not be built from bytes that changed on the disk.
        for header in iter_batch_headers(chunk):
            check_crc(chunk, header)
            # 3. A marker ends a transaction: its records count from here on, or never.
            if header.is_control:
                _end(chunk, header, last, transactions)
                continue
            # 4. The log may start in the middle of its first batch (DeleteRecords, compaction).
            skipped = position - header.base_offset  # of the first batch: what lies before the position
            # 5. Without transactions, which is nearly always, a record costs two dictionary operations.
            is_usual = not transactions and not header.is_transactional
            for _, _, _, delta, key, value in raw_records(chunk, header)[1]:
                if key is None or delta < skipped:
                    continue
                if is_usual:
                    last.pop(key, None)
                    last[key] = value
                else:
                    _note(header, key, value, last, transactions)
        position = max(end_of(chunk), position + 1)
        # 6. A bound on memory. Not within a transaction, whose outcome decides about keys already seen.
        if len(last) >= MOST_HELD and not transactions:
            yield from _decoded(last, decode)
            last = {}
    # 7. Transactions without a marker. Offsets that a later commit has overtaken go first, so that replaying overtakes
    #    them again; pending ones last.
    yield from _undecided(transactions, decode, counts=False)
    yield from _decoded(last, decode)
    yield from _undecided(transactions, decode, counts=True)


def _note(
    header: BatchHeader,
    key: bytes,
    value: bytes | None,
    last: dict[bytes, bytes | None],
    transactions: OpenTransactions[bytes, bytes],
) -> None:
    if header.is_transactional:
        if value is not None:  # no transaction writes a tombstone
            transactions.write(header.producer_id, key, value)
        return
    if key in transactions:
        if value is None:
            transactions.drop(key)
        else:
            transactions.supersede(key)
    last.pop(key, None)
    last[key] = value


def _end(
    chunk: bytes,
    header: BatchHeader,
    last: dict[bytes, bytes | None],
    transactions: OpenTransactions[bytes, bytes],
) -> None:
    outcome = control_type(chunk, header)
    if outcome == "other":
        return
    for key, value in transactions.end(header.producer_id, committed=outcome == "commit")[0]:
        last.pop(key, None)
        last[key] = value


def _undecided(
    transactions: OpenTransactions[bytes, bytes], decode: Decode, *, counts: bool
) -> Iterator[CoordinatorRecord]:
    for producer_id, key, value in transactions.undecided(counts=counts):
        record = decode(key, value)
        if record is not None:
            yield replace(record, producer_id=producer_id)


def _decoded(records: dict[bytes, bytes | None], decode: Decode) -> Iterator[CoordinatorRecord]:
    for key, value in records.items():
        record = decode(key, value)
        if record is not None:
            yield record


class TransactionLog:
    """One shard's log. `transaction_version` decides the version of the values."""

    def __init__(
        self, logs: PartitionLogs, topic: TopicDescription, partition: int, transaction_version: Callable[[], int]
    ) -> None:
        self._logs = logs
        self._topic = topic
        self._partition = partition
        self._transaction_version = transaction_version

    def append(self, records: Sequence[CoordinatorRecord], *, now_ms: int) -> None:
        # Asked at each append: the feature transaction.version can be changed while the broker runs.
        version = transaction_log.value_version(self._transaction_version())
        plain = [
            PlainRecord(
                key=transaction_log.encode_key(cast("TransactionLogKey", record.key)),
                value=None
                if record.value is None
                else transaction_log.encode_value(cast("TransactionLogValue", record.value), version),
                timestamp_ms=now_ms,
            )
            for record in records
        ]
        try:
            self._logs.append(self._topic, self._partition, encode_batch(plain), origin="coordinator")
        except AppendRefused as refused:
            raise AppendFailed(refused.message) from refused

    def read_all(self) -> Iterator[CoordinatorRecord]:
        try:
            view = self._logs.view(self._topic, self._partition)
            yield from coordinator_records(
                view.read, view.log_start_offset, view.high_watermark, transaction_log.decode
            )
        except ReadRefused as refused:
            raise LogUnreadable(str(refused)) from refused
