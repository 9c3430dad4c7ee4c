"""Record batches in plain Python: records as objects, as tuples, or as raw slices. Headers: `batch_headers`.

For small traffic (coordinator records, console tools, the consumer's records, tests), and for readers of very many
small records (`raw_records`: the coordinator's load and the cleaner of the log). Bulk goes through `arrow_batches`.

A record, all numbers but the attributes zigzag varints, a length of -1 for null (Kafka's documentation, "Record"):

    length | attributes i8 | timestampDelta | offsetDelta | keyLength key | valueLength value | count (header)*

Varints of one and of two bytes, nearly all that there are, are read in place: a call costs as much as the rest of it.
Every contradiction between a batch and its records is a CorruptBatch.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from headrace.protocol import compression as compression_codecs
from headrace.protocol.batch_headers import (
    HEADER_BYTES,
    NO_PRODUCER,
    Aborted,
    AbortedTransaction,
    BatchHeader,
    Bytes,
    CorruptBatch,
    assign_offsets,
    assign_producer,
    build_batch,
    check_crc,
    control_batch,
    control_record,
    control_type,
    iter_batch_headers,
    records_section,
    surviving_batches,
)

__all__ = [
    "HEADER_BYTES",
    "NO_PRODUCER",
    "NO_TIMESTAMP",
    "AbortedTransaction",
    "BatchHeader",
    "CorruptBatch",
    "Headers",
    "PlainRecord",
    "RawRecord",
    "Row",
    "assign_offsets",
    "assign_producer",
    "build_batch",
    "check_crc",
    "control_batch",
    "control_record",
    "control_type",
    "decode_records",
    "encode_batch",
    "iter_batch_headers",
    "raw_records",
    "read_varint",
    "records_of_batch",
    "records_section",
    "rows_of_batch",
    "surviving_batches",
    "write_varint",
]


RawRecord: TypeAlias = tuple[int, int, int, int, bytes | None, bytes | None]
"""Start and end within the uncompressed section, timestamp delta, offset delta, key, value."""


def raw_records(
    buffer: Bytes, header: BatchHeader, max_bytes: int = compression_codecs.MAX_DECOMPRESSED_BYTES
) -> tuple[bytes, list[RawRecord]]:
    """Return the batch's uncompressed section, and its records. Raises CorruptBatch; does not check the CRC."""
    section = bytes(records_section(buffer, header, max_bytes)) if header.records_count else b""
    try:
        return section, _records(section, header)
    except (IndexError, ValueError) as error:
        if isinstance(error, CorruptBatch):
            raise
        raise CorruptBatch(f"a record is malformed ({error})", base_offset=header.base_offset) from None


def _records(section: bytes, header: BatchHeader) -> list[RawRecord]:
    """One loop, and the common varint of one byte inline: this is where a load of a million records spends its time."""
    # Bound to locals, because the loop runs a million times in a load and each attribute look-up would be repeated.
    found: list[RawRecord] = []
    append = found.append
    position, size, most = 0, len(section), header.last_offset_delta
    for _ in range(header.records_count):
        start = position
        length, position = read_varint(section, position)
        end = position + length
        if length < 0 or end > size:
            raise CorruptBatch("a record ends behind it", base_offset=header.base_offset)
        position += 1  # the attributes say nothing in v2
        byte = section[position]
        if byte < 0x80:
            timestamp_delta = (byte >> 1) ^ -(byte & 1)
            position += 1
        else:
            timestamp_delta, position = read_varint(section, position)
        byte = section[position]
        if byte < 0x80:
            offset_delta = (byte >> 1) ^ -(byte & 1)
            position += 1
        else:
            offset_delta, position = read_varint(section, position)
        if not 0 <= offset_delta <= most:
            raise CorruptBatch(f"a record has offset delta {offset_delta}", base_offset=header.base_offset)
        length, position = read_varint(section, position)
        key: bytes | None = None
        if length >= 0:
            key = section[position : position + length]
            position += length
        length, position = read_varint(section, position)
        value: bytes | None = None
        if length >= 0:
            value = section[position : position + length]
            position += length
        # At least the count of headers must be left: these readers of raw records do not parse headers.
        if position >= end:  # the count of headers is behind
            raise CorruptBatch("a record is not as long as it says", base_offset=header.base_offset)
        append((start, end, timestamp_delta, offset_delta, key, value))
        position = end
    if position != size:
        raise CorruptBatch("it holds more bytes than records", base_offset=header.base_offset)
    return found


def read_varint(data: bytes, position: int) -> tuple[int, int]:
    """Read (zigzag varint, position behind it). Raises IndexError at the end, ValueError beyond ten bytes."""
    byte = data[position]
    position += 1
    if byte < 0x80:
        return (byte >> 1) ^ -(byte & 1), position
    zigzag, shift = byte & 0x7F, 7
    while byte & 0x80:
        if shift > 63:
            raise ValueError("a varint of more than ten bytes")
        byte = data[position]
        position += 1
        zigzag |= (byte & 0x7F) << shift
        shift += 7
    # A tenth byte may carry more than the one bit that is left; Java's long drops them as well.
    zigzag &= 0xFFFF_FFFF_FFFF_FFFF
    return (zigzag >> 1) ^ -(zigzag & 1), position


def write_varint(out: bytearray, value: int) -> None:
    """Append a zigzag varint, as in the fields of records."""
    # Zigzag maps 0, -1, 1, -2 … to 0, 1, 2, 3 …, so small negative numbers are short too (Protocol Buffers, "sint64").
    zigzag = (value << 1) ^ (value >> 63)
    while zigzag > 0x7F:
        out.append(zigzag & 0x7F | 0x80)
        zigzag >>= 7
    out.append(zigzag)


Headers: TypeAlias = tuple[tuple[str, bytes | None], ...]
Row: TypeAlias = tuple[int, int, bytes | None, bytes | None, Headers]
"""offset, timestamp in ms, key, value, headers."""


def rows_of_batch(
    buffer: Bytes, header: BatchHeader, max_bytes: int = compression_codecs.MAX_DECOMPRESSED_BYTES
) -> list[Row]:
    """Yield all rows of a batch, control batches included. Raises CorruptBatch; does not check the CRC."""
    if not header.records_count:
        return []
    section = bytes(records_section(buffer, header, max_bytes))
    try:
        return _rows(section, header)
    except (IndexError, ValueError) as error:
        if isinstance(error, CorruptBatch):
            raise
        raise CorruptBatch(f"a record is malformed ({error})", base_offset=header.base_offset) from None


def _rows(section: bytes, header: BatchHeader) -> list[Row]:
    # Three kinds of checks keep a lying batch from being believed: a record ends within the section (length), each
    # offset lies within the batch (delta), and the records fill the section exactly (the two comparisons at the end). A
    # field that leaves its own record is found by the last one, or by an IndexError, which the caller turns into
    # CorruptBatch.
    base_offset, last_delta, size = header.base_offset, header.last_offset_delta, len(section)
    append_time = header.max_timestamp if header.has_append_time else None
    base_timestamp = header.base_timestamp
    rows: list[Row] = []
    position = 0
    for _ in range(header.records_count):
        byte = section[position]
        if byte < 0x80:
            length, position = (byte >> 1) ^ -(byte & 1), position + 1
        elif (more := section[position + 1]) < 0x80:
            length, position = ((byte & 0x7F | more << 7) >> 1) ^ -(byte & 1), position + 2
        else:
            length, position = read_varint(section, position)
        end = position + length
        if length < 0 or end > size:
            raise CorruptBatch("a record ends behind it", base_offset=base_offset)
        position += 1  # the attributes say nothing in v2
        byte = section[position]
        if byte < 0x80:
            timestamp_delta, position = (byte >> 1) ^ -(byte & 1), position + 1
        else:
            timestamp_delta, position = read_varint(section, position)
        byte = section[position]
        if byte < 0x80:
            offset_delta, position = (byte >> 1) ^ -(byte & 1), position + 1
        elif (more := section[position + 1]) < 0x80:
            offset_delta, position = ((byte & 0x7F | more << 7) >> 1) ^ -(byte & 1), position + 2
        else:
            offset_delta, position = read_varint(section, position)
        if not 0 <= offset_delta <= last_delta:
            raise CorruptBatch(f"a record has offset delta {offset_delta}", base_offset=base_offset)
        key, position = _read_bytes(section, position)
        value, position = _read_bytes(section, position)
        headers: Headers = ()
        if section[position]:
            headers, position = _read_headers(section, position, end, base_offset)
        else:
            position += 1
        if position != end:
            raise CorruptBatch("a record is not as long as it says", base_offset=base_offset)
        timestamp = base_timestamp + timestamp_delta if append_time is None else append_time
        rows.append((base_offset + offset_delta, timestamp, key, value, headers))
    if position != size:
        raise CorruptBatch("it holds more bytes than records", base_offset=base_offset)
    return rows


def _read_headers(section: bytes, position: int, end: int, base_offset: int) -> tuple[Headers, int]:
    count, position = read_varint(section, position)
    if not 0 <= count <= end - position:
        raise CorruptBatch(f"a record has {count} headers", base_offset=base_offset)
    headers = []
    for _ in range(count):
        name, position = _read_bytes(section, position)
        value, position = _read_bytes(section, position)
        if name is None:
            raise CorruptBatch("a record header has no key", base_offset=base_offset)
        # As Java: bytes that are not UTF-8 become U+FFFD; a reader must not fail on a foreign producer's header.
        headers.append((name.decode("utf-8", "replace"), value))
    return tuple(headers), position


def _read_bytes(section: bytes, position: int) -> tuple[bytes | None, int]:
    byte = section[position]
    if byte < 0x80:
        length, position = (byte >> 1) ^ -(byte & 1), position + 1
    elif (more := section[position + 1]) < 0x80:
        length, position = ((byte & 0x7F | more << 7) >> 1) ^ -(byte & 1), position + 2
    else:
        length, position = read_varint(section, position)
    if length < 0:
        return None, position
    end = position + length
    if end > len(section):
        raise ValueError("a field ends behind the records")
    return section[position:end], end


NO_TIMESTAMP = -1
"""The timestamp of a record that has none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainRecord:
    """`key` and `value` None are null; a null value is a tombstone. `offset` is not looked at when encoding."""

    value: bytes | None
    key: bytes | None = None
    timestamp_ms: int = NO_TIMESTAMP
    headers: tuple[tuple[str, bytes | None], ...] = ()
    offset: int = 0


def encode_batch(
    records: Iterable[PlainRecord],
    *,
    compression: str = "none",
    base_offset: int = 0,
    leader_epoch: int = -1,
    append_time_ms: int | None = None,
    transactional: bool = False,
    producer_id: int = NO_PRODUCER,
    producer_epoch: int = -1,
    base_sequence: int = -1,
) -> bytes:
    """Encode one batch with all the records, at consecutive offsets from `base_offset`.

    Args:
        records: at least one.
        compression: "none", "gzip", "snappy", "lz4" or "zstd".
        base_offset: offset of the first record.
        leader_epoch: partition leader epoch; -1: unknown.
        append_time_ms: timestamp of all records, as log append time; None: the records' own create time.
        transactional: the batch belongs to a transaction.
        producer_id: of an idempotent producer.
        producer_epoch: of that producer.
        base_sequence: sequence number of the first record.

    Raises:
        ValueError: there are no records.
    """
    records = list(records)
    # An empty batch is what compaction writes; a producer has no use for one.
    if not records:
        raise ValueError("a record batch needs at least one record")
    base_timestamp = records[0].timestamp_ms
    section = bytearray()
    for delta, record in enumerate(records):
        body = _encode_record(record, delta, record.timestamp_ms - base_timestamp)
        write_varint(section, len(body))
        section += body
    # Under log append time the broker's time stands in maxTimestamp, for all records of the batch.
    max_timestamp = max(record.timestamp_ms for record in records) if append_time_ms is None else append_time_ms
    return build_batch(
        section,
        records_count=len(records),
        base_timestamp=base_timestamp,
        max_timestamp=max_timestamp,
        compression_type=compression,
        base_offset=base_offset,
        leader_epoch=leader_epoch,
        append_time=append_time_ms is not None,
        transactional=transactional,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
    )


def decode_records(
    batches: Bytes,
    *,
    start_offset: int = 0,
    aborted_transactions: Sequence[Aborted] = (),
    max_batch_bytes: int = compression_codecs.MAX_DECOMPRESSED_BYTES,
) -> Iterator[PlainRecord]:
    """Decode records from `start_offset` on, ascending, without control, aborted and truncated batches.

    Raises CorruptBatch for a wrong CRC, for records that contradict their batch and for more than `max_batch_bytes`
    in one batch.
    """
    headers = iter_batch_headers(batches)
    for header in surviving_batches(batches, headers, aborted_transactions):
        if header.last_offset >= start_offset:
            check_crc(batches, header)
            for record in records_of_batch(batches, header, max_batch_bytes):
                # A batch is indivisible on the wire, so the first one may begin before the wanted offset.
                if record.offset >= start_offset:
                    yield record


def records_of_batch(
    buffer: Bytes, header: BatchHeader, max_bytes: int = compression_codecs.MAX_DECOMPRESSED_BYTES
) -> Iterator[PlainRecord]:
    """Return the records of one batch, control batches included. Raises CorruptBatch; does not check the CRC."""
    for offset, timestamp_ms, key, value, headers in rows_of_batch(buffer, header, max_bytes):
        yield PlainRecord(offset=offset, timestamp_ms=timestamp_ms, key=key, value=value, headers=headers)


def _encode_record(record: PlainRecord, offset_delta: int, timestamp_delta: int) -> bytearray:
    body = bytearray(1)
    write_varint(body, timestamp_delta)
    write_varint(body, offset_delta)
    _write_bytes(body, record.key)
    _write_bytes(body, record.value)
    write_varint(body, len(record.headers))
    for name, value in record.headers:
        _write_bytes(body, name.encode())
        _write_bytes(body, value)
    return body


def _write_bytes(body: bytearray, value: bytes | None) -> None:
    if value is None:
        # Null and empty differ: a null value is a tombstone for compaction.
        body.append(1)  # -1 in zigzag
    else:
        write_varint(body, len(value))
        body += value
