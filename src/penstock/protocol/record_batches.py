"""Record batches in plain Python: their headers (from `batch_headers`) and their records one by one.

For brokers, which look at headers only, and for small traffic: coordinator records, console tools, tests. Bulk goes
through `arrow_batches`. A record:

    length | attributes i8 | timestampDelta | offsetDelta | keyLength key | valueLength value | count (header)*

All numbers but the attributes are zigzag varints; a length of -1 means null. Source: Kafka's documentation, "Record".
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from penstock.protocol import compression as compression_codecs
from penstock.protocol.batch_headers import (
    HEADER_BYTES,
    NO_PRODUCER,
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
    "PlainRecord",
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
    "records_of_batch",
    "records_section",
    "surviving_batches",
]

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
    """One batch with all the records, at consecutive offsets from `base_offset`.

    `append_time_ms` makes it a batch of log append time. Raises ValueError without records.
    """
    records = list(records)
    if not records:
        raise ValueError("a record batch needs at least one record")
    base_timestamp = records[0].timestamp_ms
    section = bytearray()
    for delta, record in enumerate(records):
        body = _encode_record(record, delta, record.timestamp_ms - base_timestamp)
        _write_varint(section, len(body))
        section += body
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
    aborted_transactions: Sequence[AbortedTransaction] = (),
    max_batch_bytes: int = compression_codecs.MAX_DECOMPRESSED_BYTES,
) -> Iterator[PlainRecord]:
    """All records from `start_offset` on, ascending; no control batches, no aborted ones, no truncated last batch.

    Raises CorruptBatch for a wrong CRC, for records that contradict their batch and for more than `max_batch_bytes`
    in one batch.
    """
    headers = iter_batch_headers(batches)
    for header in surviving_batches(batches, headers, aborted_transactions):
        if header.last_offset >= start_offset:
            check_crc(batches, header)
            for record in records_of_batch(batches, header, max_batch_bytes):
                if record.offset >= start_offset:
                    yield record


def records_of_batch(
    buffer: Bytes, header: BatchHeader, max_bytes: int = compression_codecs.MAX_DECOMPRESSED_BYTES
) -> Iterator[PlainRecord]:
    """The records of one batch, control batches included. Raises CorruptBatch; does not check the CRC."""
    if not header.records_count:
        return
    section = bytes(records_section(buffer, header, max_bytes))
    position = 0
    try:
        for _ in range(header.records_count):
            length, start = _read_varint(section, position)
            position = start + length
            if length < 0 or position > len(section):
                raise CorruptBatch("a record ends behind it", base_offset=header.base_offset)
            yield _decode_record(section, start, position, header)
    except (IndexError, ValueError) as error:
        if isinstance(error, CorruptBatch):
            raise
        raise CorruptBatch(f"a record is malformed ({error})", base_offset=header.base_offset) from None
    if position != len(section):
        raise CorruptBatch("it holds more bytes than records", base_offset=header.base_offset)


def _decode_record(section: bytes, position: int, end: int, header: BatchHeader) -> PlainRecord:
    timestamp_delta, position = _read_varint(section, position + 1)  # the attributes say nothing in v2
    offset_delta, position = _read_varint(section, position)
    if not 0 <= offset_delta <= header.last_offset_delta:
        raise CorruptBatch(f"a record has offset delta {offset_delta}", base_offset=header.base_offset)
    key, position = _read_bytes(section, position)
    value, position = _read_bytes(section, position)
    count, position = _read_varint(section, position)
    if not 0 <= count <= end - position:
        raise CorruptBatch(f"a record has {count} headers", base_offset=header.base_offset)
    headers = []
    for _ in range(count):
        name, position = _read_bytes(section, position)
        header_value, position = _read_bytes(section, position)
        if name is None:
            raise CorruptBatch("a record header has no key", base_offset=header.base_offset)
        headers.append((name.decode("utf-8", "replace"), header_value))
    if position != end:
        raise CorruptBatch("a record is not as long as it says", base_offset=header.base_offset)
    timestamp = header.max_timestamp if header.has_append_time else header.base_timestamp + timestamp_delta
    return PlainRecord(
        offset=header.base_offset + offset_delta,
        timestamp_ms=timestamp,
        key=key,
        value=value,
        headers=tuple(headers),
    )


def _encode_record(record: PlainRecord, offset_delta: int, timestamp_delta: int) -> bytearray:
    body = bytearray(1)
    _write_varint(body, timestamp_delta)
    _write_varint(body, offset_delta)
    _write_bytes(body, record.key)
    _write_bytes(body, record.value)
    _write_varint(body, len(record.headers))
    for name, value in record.headers:
        _write_bytes(body, name.encode())
        _write_bytes(body, value)
    return body


def _write_bytes(body: bytearray, value: bytes | None) -> None:
    if value is None:
        body.append(1)  # -1 in zigzag
    else:
        _write_varint(body, len(value))
        body += value


def _read_bytes(section: bytes, position: int) -> tuple[bytes | None, int]:
    length, position = _read_varint(section, position)
    if length < 0:
        return None, position
    end = position + length
    if end > len(section):
        raise ValueError("a field ends behind the records")
    return section[position:end], end


def _write_varint(body: bytearray, value: int) -> None:
    zigzag = (value << 1) ^ (value >> 63)
    while zigzag > 0x7F:
        body.append(zigzag & 0x7F | 0x80)
        zigzag >>= 7
    body.append(zigzag)


def _read_varint(section: bytes, position: int) -> tuple[int, int]:
    byte = section[position]
    position += 1
    zigzag = byte & 0x7F
    shift = 7
    while byte & 0x80:
        if shift > 63:
            raise ValueError("a varint of more than ten bytes")
        byte = section[position]
        position += 1
        zigzag |= (byte & 0x7F) << shift
        shift += 7
    zigzag &= 0xFFFF_FFFF_FFFF_FFFF
    return (zigzag >> 1) ^ -(zigzag & 1), position
