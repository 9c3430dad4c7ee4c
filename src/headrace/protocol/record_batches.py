"""Record batches in plain Python: their headers (from `batch_headers`) and their records one by one.

For brokers, which look at headers only, and for small traffic: coordinator records, console tools, tests. Bulk goes
through `arrow_batches`. How a record is laid out and read: `record_rows`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from headrace.protocol import compression as compression_codecs
from headrace.protocol.batch_headers import (
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
from headrace.protocol.record_rows import rows_of_batch

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
    for offset, timestamp_ms, key, value, headers in rows_of_batch(buffer, header, max_bytes):
        yield PlainRecord(offset=offset, timestamp_ms=timestamp_ms, key=key, value=value, headers=headers)


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


def _write_varint(body: bytearray, value: int) -> None:
    zigzag = (value << 1) ^ (value >> 63)
    while zigzag > 0x7F:
        body.append(zigzag & 0x7F | 0x80)
        zigzag >>= 7
    body.append(zigzag)
