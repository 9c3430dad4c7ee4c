"""What may be appended: the checks Kafka's broker makes on a produced batch before it gives out offsets.

Headers and CRCs only; records stay bytes, but for the keys of compacted topics. A refusal names topic and partition
and changes nothing.
"""

from __future__ import annotations

from typing import Any, Literal

from penstock.protocol.raw_records import all_have_keys
from penstock.protocol.record_batches import HEADER_BYTES, BatchHeader, assign_offsets
from penstock.protocol.wire_errors import CorruptBatch
from penstock.storage.batch_scan import crc_fits, parse_header
from penstock.storage.errors import (
    CorruptRecordBatch,
    InvalidRecord,
    InvalidTimestamp,
    MessageTooLarge,
    RecordListTooLarge,
)
from penstock.storage.file_system import Buffer
from penstock.storage.log_config import LogConfig

__all__ = ["Origin", "numbered", "validated_headers"]

Origin = Literal["client", "coordinator"]


def validated_headers(
    batches: Buffer, *, topic: str, partition: int, config: LogConfig, origin: Origin, now_ms: int
) -> list[BatchHeader]:
    """The headers of `batches`, which is a row of whole, sound batches and nothing else.

    Raises CorruptRecordBatch, InvalidRecord, InvalidTimestamp, MessageTooLarge, RecordListTooLarge.
    """
    where = f"partition {topic}-{partition}"
    facts: dict[str, Any] = {"topic": topic, "partition": partition}
    headers: list[BatchHeader] = []
    position = 0
    if len(batches) > config.segment_bytes:
        raise RecordListTooLarge(
            "too-large",
            f"An append of {len(batches)} bytes to {where} exceeds the segment size of {config.segment_bytes} bytes.",
            "Raise segment.bytes, or send smaller batches.",
            **facts,
        )
    while position < len(batches):
        header = _sound_header(batches, position, where, facts)
        if headers and header.base_offset != headers[-1].last_offset + 1:
            raise InvalidRecord(
                "record-invalid",
                f"The batches of one append to {where} leave a gap: offset {header.base_offset} follows "
                f"{headers[-1].last_offset}.",
                **facts,
            )
        if header.size_bytes > config.max_message_bytes:
            raise MessageTooLarge(
                "too-large",
                f"A record batch of {header.size_bytes} bytes in {where} exceeds "
                f"max.message.bytes={config.max_message_bytes}.",
                "Raise max.message.bytes of the topic, or lower the producer's batch size.",
                **facts,
            )
        if origin == "client":
            _check_client_batch(header, where, facts)
            _check_timestamp(header, config, now_ms, where, facts)
            if config.is_compacted:
                _check_keys(batches, header, topic, partition, facts)
        headers.append(header)
        position += header.size_bytes
    if not headers:
        raise InvalidRecord("record-invalid", f"An append to {where} holds no record batch.", **facts)
    return headers


def _sound_header(batches: Buffer, position: int, where: str, facts: dict[str, Any]) -> BatchHeader:
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
        elif not crc_fits(memoryview(batches)[position : position + header.size_bytes], header.crc):
            why = f"the CRC {header.crc} is not that of its bytes"
    if why is not None or header is None:
        raise CorruptRecordBatch("record-batch-corrupt", f"A record batch sent to {where} is corrupt: {why}.", **facts)
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
    if header.producer_id >= 0 and (header.base_sequence < 0 or header.producer_epoch < 0):
        raise InvalidRecord(
            "record-invalid",
            f"Invalid sequence number {header.base_sequence} in a batch of producer {header.producer_id} "
            f"(epoch {header.producer_epoch}) sent to {where}.",
            **facts,
        )


def _check_keys(batches: Buffer, header: BatchHeader, topic: str, partition: int, facts: dict[str, Any]) -> None:
    """The one check that has to look at records: what has no key could never be compacted, and would be lost."""
    try:
        has_keys = all_have_keys(batches, header)
    except CorruptBatch as error:
        raise CorruptRecordBatch(
            "record-batch-corrupt",
            f"A record batch sent to partition {topic}-{partition} is corrupt: {error.why}.",
            **facts,
        ) from None
    if not has_keys:
        raise InvalidRecord(
            "record-invalid",
            f"Compacted topic cannot accept message without key in topic partition {topic}-{partition}.",
            "Give each record a key, or use a topic with cleanup.policy=delete.",
            **facts,
        )


def _check_timestamp(header: BatchHeader, config: LogConfig, now_ms: int, where: str, facts: dict[str, Any]) -> None:
    if config.message_timestamp_type != "CreateTime" or header.max_timestamp < 0:
        return
    ahead = header.max_timestamp - now_ms
    behind = now_ms - header.max_timestamp
    if ahead > config.message_timestamp_after_max_ms or behind > config.message_timestamp_before_max_ms:
        raise InvalidTimestamp(
            "timestamp-out-of-range",
            f"Timestamp {header.max_timestamp} of a batch sent to {where} is out of range: the broker's clock says "
            f"{now_ms}, message.timestamp.before.max.ms={config.message_timestamp_before_max_ms}, "
            f"message.timestamp.after.max.ms={config.message_timestamp_after_max_ms}.",
            "Set the producer's clock, or let the topic take it: message.timestamp.after.max.ms.",
            **facts,
        )


def numbered(
    data: bytearray, headers: list[BatchHeader], base_offset: int, leader_epoch: int, append_time_ms: int | None
) -> list[BatchHeader]:
    """Give the batches in `data` their offsets, in place; their headers as they are now (CRC left aside)."""
    numbered = []
    view = memoryview(data)
    for header in headers:
        assign_offsets(view[header.position : header.end], base_offset, leader_epoch, append_time_ms)
        max_timestamp = header.max_timestamp if append_time_ms is None else append_time_ms
        numbered.append(
            header._replace(base_offset=base_offset, leader_epoch=leader_epoch, max_timestamp=max_timestamp)
        )
        base_offset = numbered[-1].next_offset
    view.release()
    return numbered
