"""The one record batch of a partition in a Produce request: Kafka's rules about the bytes around it.

Exactly one batch, of format v2, with base offset 0. What is left of a second one that does not fit is cut off, as Kafka
does (ProduceRequest.validateRecords, UnifiedLog.trimInvalidBytes). The batch itself is judged by the log.
"""

from __future__ import annotations

import struct

from headrace.broker.logs.partition_logs import AppendRefused
from headrace.protocol.error_codes import ErrorCode

__all__ = ["sole_batch"]

_FRAME = struct.Struct(">qi")
_MAGIC_AT, _ATTRIBUTES_AT = 16, 21
_SMALLEST_LENGTH = 14
_MAGIC = 2
_ZSTD, _CODEC_BITS = 4, 0x07
_FIRST_VERSION_WITH_ZSTD = 7


def sole_batch(records: bytes | None, produce_version: int) -> bytes:
    """The batch, without anything behind it. Raises AppendRefused."""
    end = _end_of_batch(records, 0) if records else None
    if not records or end is None:
        raise AppendRefused(
            ErrorCode.invalid_record, "A Produce request has to carry a record batch for each of its partitions."
        )
    if records[_MAGIC_AT] != _MAGIC:
        raise AppendRefused(
            ErrorCode.invalid_record, f"A record batch has magic byte {records[_MAGIC_AT]}; only 2 may be produced."
        )
    if end < len(records):
        if _end_of_batch(records, end) is not None:
            raise AppendRefused(
                ErrorCode.invalid_record, "A Produce request has to carry exactly one record batch for each partition."
            )
        records = records[:end]
    (base_offset,) = struct.unpack_from(">q", records)
    if base_offset != 0:
        raise AppendRefused(
            ErrorCode.invalid_record, f"The base offset of a produced record batch must be 0, but it is {base_offset}."
        )
    codec = records[_ATTRIBUTES_AT + 1] & _CODEC_BITS if end > _ATTRIBUTES_AT + 1 else 0
    if codec == _ZSTD and produce_version < _FIRST_VERSION_WITH_ZSTD:
        raise AppendRefused(
            ErrorCode.unsupported_compression_type, f"Produce v{produce_version} does not know zstd; it came with v7."
        )
    return records


def _end_of_batch(records: bytes, position: int) -> int | None:
    """Behind the batch that begins at `position`; None when it is cut off. Raises AppendRefused for nonsense."""
    left = len(records) - position
    if left < _FRAME.size:
        return None
    _, length = _FRAME.unpack_from(records, position)
    if length < _SMALLEST_LENGTH:
        raise AppendRefused(ErrorCode.corrupt_message, f"A record batch has a length of {length}.")
    if left <= _MAGIC_AT:
        return None
    magic = records[position + _MAGIC_AT]
    if magic > _MAGIC:
        raise AppendRefused(ErrorCode.corrupt_message, f"A record batch has the unknown magic byte {magic}.")
    end = position + _FRAME.size + int(length)
    return end if end <= len(records) else None
