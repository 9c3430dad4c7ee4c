"""The shortest way through all that is looked at in a produced batch: for the batches that nearly all producers send.

One that is usual has nothing that would be refused or set right: it is one whole batch, not compressed, with record
times of its own, of a log that takes such as they are. `usual_batch` judges no other: whatever is not certain is None,
and then `batch_validation` has the word. Both look equally closely, which a test holds against each other.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from google_crc32c import value as crc32c

from headrace.protocol.batch_headers import HEADER_BYTES
from headrace.storage.batch_layouts import FEWEST_ALIKE, timestamps_if_alike
from headrace.storage.log_config import NO_LIMIT, LogConfig
from headrace.storage.record_at import record_at
from headrace.storage.record_validation import FEW_RECORDS
from headrace.storage.record_walk import check_records

__all__ = ["UsualLimits", "head", "looks_usual", "usual_batch", "usual_limits"]

_HEADER = struct.Struct(">qiibIhiqqqhii")
_UNCHECKED = struct.Struct(">qiibI")  # what lies before the CRC's range, CRC included
_LOOK = struct.Struct(">qiibIh")
_CRC_FROM = 21
_LOG_OVERHEAD = 12
_MAGIC = 2


class UsualLimits(NamedTuple):
    """Of a log that takes usual batches as they are."""

    most_bytes: int
    after_max_ms: int


Fields = tuple[int, int, int, int, int, int, int, int, int, int, int, int, int]
"""Of a header, as they follow one another: those of BatchHeader without the position."""


def usual_limits(config: LogConfig) -> UsualLimits | None:
    """None: a log with these settings does not take a usual batch as it is."""
    if config.is_compacted or config.message_timestamp_type != "CreateTime":
        return None
    if config.message_timestamp_before_max_ms < NO_LIMIT:
        return None
    if config.compression_type not in ("producer", "uncompressed"):
        return None
    most_bytes = min(config.max_message_bytes, config.segment_bytes)
    return UsualLimits(most_bytes, config.message_timestamp_after_max_ms)


def looks_usual(frame: bytes, start: int, end: int) -> bool:
    """Whether one whole batch with base offset 0 lies there that is not compressed and of no transaction."""
    if end - start < HEADER_BYTES:
        return False
    base_offset, length, _, magic, _, attributes = _LOOK.unpack_from(frame, start)
    usual: bool = base_offset == attributes == 0 and magic == _MAGIC and length + _LOG_OVERHEAD == end - start
    return usual


def usual_batch(frame: bytes, start: int, end: int, limits: UsualLimits, now_ms: int) -> tuple[Fields, bytes] | None:
    """The batch in `frame[start:end]`, which `looks_usual`: the fields of its header, and the rest behind the CRC.

    `head` writes what lies before: the broker's part of the header is not what the CRC covers.
    """
    fields = _HEADER.unpack_from(frame, start)
    _, _, _, _, crc, _, last_offset_delta, base_timestamp, max_timestamp, producer_id, _, base_sequence, count = fields
    if count <= 0 or last_offset_delta != count - 1 or producer_id >= 0 > base_sequence:
        return None
    most_bytes, after_max_ms = limits
    if end - start > most_bytes or max_timestamp - now_ms > after_max_ms:
        return None
    checked = frame[start + _CRC_FROM : end]
    if crc32c(checked) != crc:
        return None
    try:
        if count > FEW_RECORDS:
            check_records(checked, count, HEADER_BYTES - _CRC_FROM)
        elif _largest_timestamp(checked, count, base_timestamp) != max_timestamp:
            return None
    except (IndexError, ValueError):
        return None
    return fields, checked


def head(fields: Fields, base_offset: int, leader_epoch: int) -> bytes:
    """The bytes up to the CRC, which is the last of them."""
    return _UNCHECKED.pack(base_offset, fields[1], leader_epoch, _MAGIC, fields[4])


def _largest_timestamp(checked: bytes, count: int, base_timestamp: int) -> int:
    """Of all `count` records, each looked at. Raises ValueError, IndexError."""
    position, largest = HEADER_BYTES - _CRC_FROM, -1
    if count >= FEWEST_ALIKE and (alike := timestamps_if_alike(checked, count, position)):
        deltas = [(byte >> 1) ^ -(byte & 1) for byte in alike]
        if base_timestamp + min(deltas) < 0:
            raise ValueError("a record has a negative timestamp")
        return base_timestamp + max(deltas)
    for index in range(count):
        delta, offset_delta, _, _, position = record_at(checked, position)
        if offset_delta != index or base_timestamp + delta < 0:
            raise ValueError(f"record {index} has offset delta {offset_delta}, timestamp delta {delta}")
        largest = max(largest, base_timestamp + delta)
    if position != len(checked):
        raise ValueError("it holds more bytes than records")
    return largest
