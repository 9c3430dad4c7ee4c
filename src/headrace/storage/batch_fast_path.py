"""Fast path for the validation of a produced batch, for what nearly all producers send.

Eligible is one whole batch, uncompressed, without a transaction, with CreateTime timestamps, for a log whose settings
accept such batches unchanged. `check_batch` returns None whenever a batch is not certain to be valid and unchanged; the
caller then takes the full path (`batch_validation`), which decides. Both check equally closely:
tests/storage/test_batch_fast_path.py compares them batch by batch.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from google_crc32c import value as crc32c

from headrace.protocol.batch_headers import HEADER_BYTES
from headrace.storage.log_config import NO_LIMIT, LogConfig
from headrace.storage.record_checks import MIN_UNIFORM_RECORDS, check_records, uniform_timestamps
from headrace.storage.record_reader import read_record
from headrace.storage.record_validation import FULLY_CHECKED_RECORDS

__all__ = ["FastPathLimits", "HeaderFields", "check_batch", "fast_path_limits", "is_candidate", "pack_header_start"]

_HEADER = struct.Struct(">qiibIhiqqqhii")
_HEADER_START = struct.Struct(">qiibI")  # everything before the range of the CRC, with the CRC itself
_HEADER_TO_ATTRIBUTES = struct.Struct(">qiibIh")
_CRC_RANGE_START = 21
_LOG_OVERHEAD = 12
_MAGIC = 2


class FastPathLimits(NamedTuple):
    """Limits of a log on the fast path: batch size in bytes, and how far timestamps may be in the future."""

    max_bytes: int
    timestamp_after_max_ms: int


HeaderFields = tuple[int, int, int, int, int, int, int, int, int, int, int, int, int]
"""The fields of a batch header in their order: those of BatchHeader without the position."""


def fast_path_limits(config: LogConfig) -> FastPathLimits | None:
    """Return the limits for logs with these settings; None if their batches need the full path."""
    # Compacted topics need the key of every record, and LogAppendTime rewrites the header inside the CRC's range.
    if config.is_compacted or config.message_timestamp_type != "CreateTime":
        return None
    # A lower bound on timestamps needs the smallest one, which only a look at every record finds.
    if config.message_timestamp_before_max_ms < NO_LIMIT:
        return None
    # Candidates are uncompressed, so "uncompressed" leaves them as they are, like "producer".
    if config.compression_type not in ("producer", "uncompressed"):
        return None
    max_bytes = min(config.max_message_bytes, config.segment_bytes)
    return FastPathLimits(max_bytes, config.message_timestamp_after_max_ms)


def is_candidate(frame: bytes, start: int, end: int) -> bool:
    """Whether `frame[start:end]` looks like one uncompressed batch with base offset 0 outside of a transaction."""
    if end - start < HEADER_BYTES:
        return False
    base_offset, length, _, magic, _, attributes = _HEADER_TO_ATTRIBUTES.unpack_from(frame, start)
    # attributes == 0: no codec, CreateTime, not transactional, no control batch.
    found: bool = base_offset == attributes == 0 and magic == _MAGIC and length + _LOG_OVERHEAD == end - start
    return found


def check_batch(
    frame: bytes, start: int, end: int, limits: FastPathLimits, now_ms: int
) -> tuple[HeaderFields, bytes] | None:
    """Check the candidate batch in `frame[start:end]`.

    Args:
        frame: The request.
        start: Where the batch begins; `is_candidate` holds.
        end: Where it ends.
        limits: Those of the log.
        now_ms: Wall-clock time.

    Returns:
        The fields of the header, and the bytes in the range of the CRC. The header's start is written anew by
        `pack_header_start`. None if the full path has to decide.
    """
    fields = _HEADER.unpack_from(frame, start)
    _, _, _, _, crc, _, last_offset_delta, base_timestamp, max_timestamp, producer_id, _, base_sequence, count = fields
    # 1. The header is consistent, and within the limits of the log.
    if count <= 0 or last_offset_delta != count - 1 or producer_id >= 0 > base_sequence:
        return None
    max_bytes, timestamp_after_max_ms = limits
    if end - start > max_bytes or max_timestamp - now_ms > timestamp_after_max_ms:
        return None
    # 2. The CRC. The slice is the only copy that is made of the batch.
    in_crc_range = frame[start + _CRC_RANGE_START : end]
    if crc32c(in_crc_range) != crc:
        return None
    # 3. The records; in small batches also that the header's largest timestamp is theirs, as the full path would
    #    correct it.
    try:
        if count > FULLY_CHECKED_RECORDS:
            check_records(in_crc_range, count, HEADER_BYTES - _CRC_RANGE_START)
        elif _largest_timestamp(in_crc_range, count, base_timestamp) != max_timestamp:
            return None
    except (IndexError, ValueError):
        return None
    return fields, in_crc_range


def pack_header_start(fields: HeaderFields, base_offset: int, leader_epoch: int) -> bytes:
    """Return the header up to its CRC, with the offset and the leader epoch that the broker assigns."""
    return _HEADER_START.pack(base_offset, fields[1], leader_epoch, _MAGIC, fields[4])


def _largest_timestamp(in_crc_range: bytes, count: int, base_timestamp: int) -> int:
    """Check every record and return the largest timestamp. Raises ValueError, IndexError."""
    position, largest = HEADER_BYTES - _CRC_RANGE_START, -1
    if count >= MIN_UNIFORM_RECORDS and (uniform := uniform_timestamps(in_crc_range, count, position)):
        deltas = [(byte >> 1) ^ -(byte & 1) for byte in uniform]
        if base_timestamp + min(deltas) < 0:
            raise ValueError("a record has a negative timestamp")
        return base_timestamp + max(deltas)
    for index in range(count):
        delta, offset_delta, _, _, position = read_record(in_crc_range, position)
        if offset_delta != index or base_timestamp + delta < 0:
            raise ValueError(f"record {index} has offset delta {offset_delta}, timestamp delta {delta}")
        largest = max(largest, base_timestamp + delta)
    if position != len(in_crc_range):
        raise ValueError("it holds more bytes than records")
    return largest
