"""The headers of record batches (format v2): parse, check, number, build. Nothing here looks at a single record.

    baseOffset i64 | batchLength i32 | partitionLeaderEpoch i32 | magic i8 | crc u32 | attributes i16
    lastOffsetDelta i32 | baseTimestamp i64 | maxTimestamp i64 | producerId i64 | producerEpoch i16 | baseSequence i32
    recordsCount i32 | records …

The CRC-32C covers everything from the attributes on, so a broker sets base offset and leader epoch without touching it.
Source: Kafka's documentation, "Record Batch"; DefaultRecordBatch. `record_batches` passes all of this on.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, Literal, NamedTuple, Protocol

import google_crc32c

from headrace.protocol import compression
from headrace.protocol.framing import CorruptBatch

__all__ = [
    "HEADER_BYTES",
    "NO_PRODUCER",
    "Aborted",
    "AbortedTransaction",
    "BatchHeader",
    "Bytes",
    "CorruptBatch",
    "assign_offsets",
    "assign_producer",
    "build_batch",
    "check_crc",
    "control_batch",
    "control_record",
    "control_type",
    "iter_batch_headers",
    "records_section",
    "surviving_batches",
]

Bytes = bytes | bytearray | memoryview

HEADER_BYTES: Final = 61
NO_PRODUCER: Final = -1

_HEADER = struct.Struct(">qiibIhiqqqhii")
_PREFIX = struct.Struct(">qi")  # base offset and batch length, which the batch length does not count
_UNCHECKED = struct.Struct(">qiibI")  # what lies before the CRC's range, CRC included
_CHECKED = struct.Struct(">hiqqqhii")
_CRC_AT = 17
_CRC_FROM = 21
_TIMESTAMP_TYPE_BIT = 0x08
_TRANSACTIONAL_BIT = 0x10
_CONTROL_BIT = 0x20
_CODEC_BITS = 0x07

ControlType = Literal["abort", "commit", "other"]


class Aborted(Protocol):
    """An aborted transaction as a Fetch response lists it: kio's class, or `AbortedTransaction`."""

    @property
    def producer_id(self) -> int: ...
    @property
    def first_offset(self) -> int: ...


class AbortedTransaction(NamedTuple):
    """An aborted transaction: its records begin at `first_offset`."""

    producer_id: int
    first_offset: int


class BatchHeader(NamedTuple):
    """One batch's header and where the batch lies: `position` … `position + size_bytes` of the buffer it came from."""

    base_offset: int
    batch_length: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    records_count: int
    position: int

    @property
    def size_bytes(self) -> int:
        return self.batch_length + _PREFIX.size

    @property
    def end(self) -> int:
        """The position behind the batch."""
        return self.position + self.batch_length + _PREFIX.size

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> int:
        return self.base_offset + self.last_offset_delta + 1

    @property
    def last_sequence(self) -> int:
        """Sequence numbers wrap at 2³¹ (DefaultRecordBatch.incrementSequence)."""
        if self.base_sequence < 0:
            return self.base_sequence
        return (self.base_sequence + self.last_offset_delta) & 0x7FFF_FFFF

    @property
    def is_control(self) -> bool:
        return bool(self.attributes & _CONTROL_BIT)

    @property
    def is_transactional(self) -> bool:
        return bool(self.attributes & _TRANSACTIONAL_BIT)

    @property
    def has_append_time(self) -> bool:
        """Log append time: `max_timestamp` is the timestamp of every record."""
        return bool(self.attributes & _TIMESTAMP_TYPE_BIT)

    @property
    def compression(self) -> str:
        """One of `compression.CODECS`. Raises CorruptBatch for a number without a codec."""
        return compression.codec_name(self.attributes & _CODEC_BITS)


def iter_batch_headers(buffer: Bytes, position: int = 0) -> Iterator[BatchHeader]:
    """Yield the headers of all whole batches from `position` on; a truncated last one ends the iteration silently.

    Raises CorruptBatch for what cannot be a batch of format v2. Does not check the CRC.
    """
    # A Fetch response ends where the byte limit was reached, often inside a batch (KIP-74). A whole batch that is not
    # format v2 is an error: brokers that could send older formats convert them.
    size = len(buffer)
    while size - position >= _PREFIX.size:
        base_offset, batch_length = _PREFIX.unpack_from(buffer, position)
        if batch_length < HEADER_BYTES - _PREFIX.size:
            raise CorruptBatch(f"its length is {batch_length}", base_offset=base_offset)
        if position + _PREFIX.size + batch_length > size:
            return
        header = BatchHeader._make((*_HEADER.unpack_from(buffer, position), position))
        if header.magic != 2:
            raise CorruptBatch(f"its format is version {header.magic}, not 2", base_offset=base_offset)
        if base_offset < 0 or header.last_offset_delta < 0 or header.records_count < 0:
            raise CorruptBatch("it has a negative offset or count", base_offset=base_offset)
        yield header
        position = header.end


def check_crc(buffer: Bytes, header: BatchHeader) -> None:
    """Check the CRC-32C of a batch. Raises CorruptBatch."""
    crc = google_crc32c.value(bytes(memoryview(buffer)[header.position + _CRC_FROM : header.end]))
    if crc != header.crc:
        raise CorruptBatch(f"its CRC is {crc:#010x}, not {header.crc:#010x}", base_offset=header.base_offset)


def assign_offsets(
    batch: bytearray | memoryview, base_offset: int, leader_epoch: int, append_time_ms: int | None = None
) -> None:
    """Set, in place, what the broker decides about one batch that starts at `batch[0]`.

    With `append_time_ms` the batch becomes one of log append time, which lies under the CRC: it is computed anew.
    """
    struct.pack_into(">q", batch, 0, base_offset)
    struct.pack_into(">i", batch, 12, leader_epoch)
    if append_time_ms is not None:
        (attributes,) = struct.unpack_from(">h", batch, 21)
        struct.pack_into(">h", batch, 21, attributes | _TIMESTAMP_TYPE_BIT)
        struct.pack_into(">q", batch, 35, append_time_ms)
        _write_crc(batch)


def assign_producer(
    batch: bytearray | memoryview,
    producer_id: int,
    producer_epoch: int,
    base_sequence: int,
    *,
    transactional: bool = False,
) -> None:
    """Set, in place, the producer identity of one batch that starts at `batch[0]`, and its CRC."""
    (attributes,) = struct.unpack_from(">h", batch, 21)
    attributes = attributes | _TRANSACTIONAL_BIT if transactional else attributes & ~_TRANSACTIONAL_BIT
    struct.pack_into(">h", batch, 21, attributes)
    struct.pack_into(">qhi", batch, 43, producer_id, producer_epoch, base_sequence)
    _write_crc(batch)


def build_batch(
    records: Bytes,
    *,
    records_count: int,
    base_timestamp: int,
    max_timestamp: int,
    compression_type: str = "none",
    base_offset: int = 0,
    last_offset_delta: int | None = None,
    leader_epoch: int = -1,
    append_time: bool = False,
    transactional: bool = False,
    control: bool = False,
    producer_id: int = NO_PRODUCER,
    producer_epoch: int = -1,
    base_sequence: int = -1,
) -> bytes:
    """Build one batch of format v2 around encoded, uncompressed records, and compress them.

    Args:
        records: the records section, not compressed.
        records_count: number of records.
        base_timestamp: ms; deltas of the records' timestamps refer to it.
        max_timestamp: ms.
        compression_type: "none", "gzip", "snappy", "lz4" or "zstd".
        base_offset: offset of the first record.
        last_offset_delta: offset of the last record less `base_offset`; None: there are no gaps.
        leader_epoch: partition leader epoch; -1: unknown.
        append_time: the timestamps are log append time.
        transactional: the batch belongs to a transaction.
        control: the batch is a transaction marker.
        producer_id: of an idempotent producer.
        producer_epoch: of that producer.
        base_sequence: sequence number of the first record.

    Returns:
        The batch with its CRC-32C.
    """
    # 1. The records section is compressed as a whole; the header never is.
    payload = records if compression_type == "none" else compression.compress(compression_type, records)
    attributes = compression.codec_number(compression_type)
    attributes |= _TIMESTAMP_TYPE_BIT if append_time else 0
    attributes |= _TRANSACTIONAL_BIT if transactional else 0
    attributes |= _CONTROL_BIT if control else 0
    delta = records_count - 1 if last_offset_delta is None else last_offset_delta
    payload = bytes(payload)
    # 2. The CRC covers attributes to the end of the records. Base offset, length and leader epoch lie before it,
    #    because the broker sets them after the producer has computed the CRC (DefaultRecordBatch.writeHeader).
    checked = _CHECKED.pack(
        attributes,
        delta,
        base_timestamp,
        max_timestamp,
        producer_id,
        producer_epoch,
        base_sequence,
        records_count,
    )
    # `extend` continues over the payload without joining header and payload first: one copy of the records less.
    crc = google_crc32c.extend(google_crc32c.value(checked), payload)
    length = HEADER_BYTES - _PREFIX.size + len(payload)
    return _UNCHECKED.pack(base_offset, length, leader_epoch, 2, crc) + checked + payload


def control_batch(
    control: Literal["abort", "commit"],
    *,
    producer_id: int,
    producer_epoch: int,
    timestamp_ms: int,
    coordinator_epoch: int = 0,
    base_offset: int = 0,
    leader_epoch: int = -1,
) -> bytes:
    """Build a transaction marker: a batch with one control record.

    Args:
        control: type of the marker.
        producer_id: producer of the transaction.
        producer_epoch: its epoch.
        timestamp_ms: time of the marker.
        coordinator_epoch: leader epoch of the coordinator's partition, for EndTxnMarker version 0.
        base_offset: offset of the record.
        leader_epoch: partition leader epoch; -1: unknown.
    """
    key = struct.pack(">hh", 0, 1 if control == "commit" else 0)
    value = struct.pack(">hi", 0, coordinator_epoch)
    # attributes, timestamp delta, offset delta; key and value with zigzag lengths; no headers
    body = b"\x00\x00\x00" + bytes([len(key) << 1]) + key + bytes([len(value) << 1]) + value + b"\x00"
    return build_batch(
        bytes([len(body) << 1]) + body,
        records_count=1,
        base_timestamp=timestamp_ms,
        max_timestamp=timestamp_ms,
        base_offset=base_offset,
        leader_epoch=leader_epoch,
        transactional=True,
        control=True,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
    )


def control_type(buffer: Bytes, header: BatchHeader) -> ControlType:
    """Return the type of a control batch: the end of a transaction, or "other" (leader changes, …)."""
    return control_record(buffer, header)[0]


def control_record(buffer: Bytes, header: BatchHeader) -> tuple[ControlType, int]:
    """Return the type of a control batch and the epoch of the coordinator that wrote it (-1: none)."""
    # Control batches hold one uncompressed record: a length, attributes and two deltas, then the key's length and key,
    # the value's length and value.
    record = memoryview(buffer)[header.position + HEADER_BYTES : header.end]
    position = 0
    for skip_attributes in (1, 0, 0, 0):  # length (and attributes behind it), timestamp, offset, key length
        while position < len(record) and record[position] & 0x80:
            position += 1
        position += 1 + skip_attributes
    if position + 4 > len(record):
        return "other", -1
    kind = int.from_bytes(record[position + 2 : position + 4], "big")
    if kind > 1:
        return "other", -1
    value = record[position + 5 : position + 11]  # a version and the epoch, behind one byte of length
    epoch = int.from_bytes(value[2:6], "big", signed=True) if len(value) == 6 else -1
    return ("commit" if kind else "abort"), epoch


def surviving_batches(
    buffer: Bytes, headers: Iterable[BatchHeader], aborted_transactions: Sequence[Aborted] = ()
) -> Iterator[BatchHeader]:
    """Yield the batches with a consumer's records: without control batches and without those of aborted transactions.

    A producer's batches count as aborted from the transaction's first offset until its abort marker, as in Kafka's
    CompletedFetch.
    """
    # Kafka: CompletedFetch.nextFetchedRecord with its priority queue of aborted transactions. A producer can have
    # several transactions in one fetch, so a set of producer ids for the whole fetch would drop committed records: an
    # id is in the set only between the first offset of an aborted transaction and its abort marker.
    waiting = sorted(aborted_transactions, key=lambda transaction: transaction.first_offset, reverse=True)
    aborted_producers: set[int] = set()
    for header in headers:
        while waiting and waiting[-1].first_offset <= header.last_offset:
            aborted_producers.add(waiting.pop().producer_id)
        if header.is_control:
            # A commit marker of that producer would belong to an earlier transaction, which is not in the list, so only
            # an abort ends the state.
            if header.producer_id in aborted_producers and control_type(buffer, header) == "abort":
                aborted_producers.discard(header.producer_id)
        elif not (header.is_transactional and header.producer_id in aborted_producers):
            yield header


def records_section(
    buffer: Bytes, header: BatchHeader, max_bytes: int = compression.MAX_DECOMPRESSED_BYTES
) -> memoryview:
    """Return the batch's records, uncompressed. Raises CorruptBatch."""
    section = memoryview(buffer)[header.position + HEADER_BYTES : header.end]
    if not header.attributes & _CODEC_BITS:
        return section
    try:
        return compression.decompress(header.compression, section, max_bytes)
    except CorruptBatch as error:
        raise CorruptBatch(error.why, base_offset=header.base_offset) from None


def _write_crc(batch: bytearray | memoryview) -> None:
    struct.pack_into(">I", batch, _CRC_AT, google_crc32c.value(bytes(memoryview(batch)[_CRC_FROM:])))
