"""The shortest way through all that is looked at in a produced batch: for the batches that nearly all producers send.

One that is usual has nothing that would be refused or set right: it is one whole batch, not compressed, with record
times of its own, of a log that takes such as they are. `usual_batch` judges no other: whatever is not certain is None,
and then `batch_validation` has the word. Both look equally closely, which a test holds against each other.
"""

from __future__ import annotations

import struct

from google_crc32c import value as crc32c

from penstock.protocol.batch_headers import HEADER_BYTES, BatchHeader
from penstock.storage.log_config import NO_LIMIT, LogConfig
from penstock.storage.record_validation import FEW_RECORDS
from penstock.storage.record_walk import check_records, record_at

__all__ = ["head", "looks_usual", "takes_usual", "usual_batch"]

_HEADER = struct.Struct(">qiibIhiqqqhii")
_UNCHECKED = struct.Struct(">qiibI")  # what lies before the CRC's range, CRC included
_LOOK = struct.Struct(">qiibIh")
_CRC_FROM = 21
_LOG_OVERHEAD = 12
_MAGIC = 2


def takes_usual(config: LogConfig) -> bool:
    """Whether a log with these settings takes a usual batch as it is."""
    return (
        not config.is_compacted
        and config.message_timestamp_type == "CreateTime"
        and config.message_timestamp_before_max_ms >= NO_LIMIT
        and config.compression_type in ("producer", "uncompressed")
    )


def looks_usual(frame: bytes, start: int, end: int) -> bool:
    """Whether one whole batch with base offset 0 lies there that is not compressed and of no transaction."""
    if end - start < HEADER_BYTES:
        return False
    base_offset, length, _, magic, _, attributes = _LOOK.unpack_from(frame, start)
    return bool(base_offset == 0 and magic == _MAGIC and attributes == 0 and length + _LOG_OVERHEAD == end - start)


def usual_batch(
    frame: bytes, start: int, end: int, config: LogConfig, now_ms: int, *, base_offset: int, leader_epoch: int
) -> tuple[BatchHeader, bytes] | None:
    """The batch in `frame[start:end]`, which `looks_usual`, as it is written: its header, and the rest behind the CRC.

    `head` writes what lies before: the broker's part of the header is not what the CRC covers.
    """
    _, length, _, *fields = _HEADER.unpack_from(frame, start)
    header = BatchHeader._make((base_offset, length, leader_epoch, *fields, 0))
    count = header.records_count
    size = end - start
    if count <= 0 or header.last_offset_delta != count - 1 or header.producer_id >= 0 > header.base_sequence:
        return None
    if size > config.max_message_bytes or size > config.segment_bytes:
        return None
    if header.max_timestamp - now_ms > config.message_timestamp_after_max_ms:
        return None
    checked = frame[start + _CRC_FROM : end]
    if crc32c(checked) != header.crc:
        return None
    try:
        if count > FEW_RECORDS:
            check_records(checked, count, HEADER_BYTES - _CRC_FROM)
        elif _largest_timestamp(checked, count, header.base_timestamp) != header.max_timestamp:
            return None
    except (IndexError, ValueError):
        return None
    return header, checked


def head(header: BatchHeader) -> bytes:
    """The bytes up to the CRC, which is the last of them."""
    return _UNCHECKED.pack(header.base_offset, header.batch_length, header.leader_epoch, _MAGIC, header.crc)


def _largest_timestamp(checked: bytes, count: int, base_timestamp: int) -> int:
    """Of all `count` records, each looked at. Raises ValueError, IndexError."""
    position, largest = HEADER_BYTES - _CRC_FROM, -1
    for index in range(count):
        delta, offset_delta, _, _, position = record_at(checked, position)
        if offset_delta != index or base_timestamp + delta < 0:
            raise ValueError(f"record {index} has offset delta {offset_delta}, timestamp delta {delta}")
        largest = max(largest, base_timestamp + delta)
    if position != len(checked):
        raise ValueError("it holds more bytes than records")
    return largest
