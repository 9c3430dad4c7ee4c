"""Validation of produced batches before offsets are assigned: headers and CRCs (Kafka's LogValidator).

The records inside are checked by `record_validation`. A refusal names topic and partition and changes nothing.
"""

from __future__ import annotations

from typing import Any, Literal

from headrace.protocol.record_batches import HEADER_BYTES, BatchHeader, assign_offsets
from headrace.storage.batch_scan import crc_matches, parse_header
from headrace.storage.errors import (
    CorruptRecordBatch,
    InvalidRecord,
    MessageTooLarge,
    RecordListTooLarge,
)
from headrace.storage.file_system import Buffer
from headrace.storage.log_config import LogConfig
from headrace.storage.record_validation import DecompressionBudget, validate_records

__all__ = ["Origin", "assign_batch_offsets", "validate_batches"]

Origin = Literal["client", "coordinator"]
"""Whose batches are appended (Kafka's AppendOrigin). Those of coordinators may be control batches and are not checked
record by record."""


def validate_batches(
    batches: Buffer,
    *,
    topic: str,
    partition: int,
    config: LogConfig,
    origin: Origin,
    now_ms: int,
    budget: DecompressionBudget | None = None,
) -> tuple[Buffer, list[BatchHeader]]:
    """Check the batches of one append.

    Args:
        batches: Whole record batches of format v2, one after another.
        topic: For messages.
        partition: For messages.
        config: Settings of the topic.
        origin: Who appends.
        now_ms: Wall-clock time.
        budget: What the request may decompress to.

    Returns:
        The bytes to write, which are `batches` unless a batch was corrected, and the headers of the batches in them.

    Raises:
        CorruptRecordBatch, InvalidRecord, InvalidTimestamp, MessageTooLarge, RecordListTooLarge: An append is refused
            as a whole.
        DecompressionTooLarge: A batch must be decompressed in a thread.
    """
    where = f"partition {topic}-{partition}"
    facts: dict[str, Any] = {"topic": topic, "partition": partition}
    headers: list[BatchHeader] = []
    replaced: dict[int, bytes] = {}
    position = 0
    while position < len(batches):
        header = _check_header(batches, position, where, facts)
        # Offsets within an append are relative and must be contiguous, or two records would get the same one.
        if headers and header.base_offset != headers[-1].last_offset + 1:
            raise InvalidRecord(
                "record-invalid",
                f"The batches of one append to {where} leave a gap: offset {header.base_offset} follows "
                f"{headers[-1].last_offset}.",
                **facts,
            )
        _check_size(header.size_bytes, config, where, facts)
        if origin == "client":
            _check_client_batch(header, where, facts)
            corrected = validate_records(batches, header, config, now_ms, topic, partition, budget)
            if corrected is not None:
                _check_size(len(corrected), config, where, facts)
                replaced[len(headers)] = corrected
        headers.append(header)
        position += header.size_bytes
    if not headers:
        raise InvalidRecord("record-invalid", f"An append to {where} holds no record batch.", **facts)
    data, headers = (batches, headers) if not replaced else _replace_batches(batches, headers, replaced)
    # One append is one write into one segment. Kafka checks the same, after recompression as here.
    if len(data) > config.segment_bytes:
        raise RecordListTooLarge(
            "too-large",
            f"An append of {len(data)} bytes to {where} exceeds the segment size of {config.segment_bytes} bytes.",
            "Raise segment.bytes, or send smaller batches.",
            **facts,
        )
    return data, headers


def _replace_batches(
    batches: Buffer, headers: list[BatchHeader], replaced: dict[int, bytes]
) -> tuple[bytearray, list[BatchHeader]]:
    data = bytearray()
    for index, header in enumerate(headers):
        position = len(data)
        data += replaced.get(index) or memoryview(batches)[header.position : header.end]
        headers[index] = parse_header(data, position, position)
    return data, headers


def _check_size(size: int, config: LogConfig, where: str, facts: dict[str, Any]) -> None:
    if size > config.max_message_bytes:
        raise MessageTooLarge(
            "too-large",
            f"A record batch of {size} bytes in {where} exceeds max.message.bytes={config.max_message_bytes}.",
            "Raise max.message.bytes of the topic, or lower the producer's batch size.",
            **facts,
        )


def _check_header(batches: Buffer, position: int, where: str, facts: dict[str, Any]) -> BatchHeader:
    left = len(batches) - position
    why = None
    header = None
    if left < HEADER_BYTES:
        why = f"{left} bytes are no record batch"
    else:
        header = parse_header(batches, position, position)
        if header.magic != 2:
            why = f"magic byte {header.magic} instead of 2"
        elif header.size_bytes < HEADER_BYTES or header.size_bytes > left:
            why = f"a length of {header.batch_length} in {left} bytes"
        elif not crc_matches(memoryview(batches)[position : position + header.size_bytes], header.crc):
            why = f"the CRC {header.crc} does not match its bytes"
    if why is not None or header is None:
        raise CorruptRecordBatch("record-batch-corrupt", f"A record batch sent to {where} is corrupt: {why}.", **facts)
    # A compacted batch may have fewer records than offsets; a produced one may not.
    if header.records_count <= 0 or header.last_offset_delta != header.records_count - 1:
        raise InvalidRecord(
            "record-invalid",
            f"Inconsistent count of records in a batch sent to {where}: {header.records_count} records, last offset "
            f"delta {header.last_offset_delta}.",
            **facts,
        )
    return header


def _check_client_batch(header: BatchHeader, where: str, facts: dict[str, Any]) -> None:
    if header.is_control:
        raise InvalidRecord(
            "record-invalid", f"Clients are not allowed to write control records (sent to {where}).", **facts
        )
    if header.producer_id >= 0 and header.base_sequence < 0:
        raise InvalidRecord(
            "record-invalid",
            f"Invalid sequence number {header.base_sequence} in a batch of producer {header.producer_id} "
            f"(epoch {header.producer_epoch}) sent to {where}.",
            **facts,
        )


def assign_batch_offsets(
    data: bytearray, headers: list[BatchHeader], base_offset: int, leader_epoch: int, append_time_ms: int | None
) -> list[BatchHeader]:
    """Assign offsets, leader epoch and append time to the batches in `data`, in place.

    Args:
        data: The batches to write.
        headers: Their headers.
        base_offset: Offset of the first record.
        leader_epoch: Epoch of this leader.
        append_time_ms: Timestamp of all records under LogAppendTime; None under CreateTime.

    Returns:
        The new headers, except that their CRC field is the old one.
    """
    assigned: list[BatchHeader] = []
    # `assign_offsets` writes through a view: a slice of a bytearray would be a copy.
    view = memoryview(data)
    for header in headers:
        assign_offsets(view[header.position : header.end], base_offset, leader_epoch, append_time_ms)
        max_timestamp = header.max_timestamp if append_time_ms is None else append_time_ms
        assigned.append(
            header._replace(base_offset=base_offset, leader_epoch=leader_epoch, max_timestamp=max_timestamp)
        )
        base_offset = assigned[-1].next_offset
    view.release()
    return assigned
