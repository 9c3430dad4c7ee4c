"""Rewriting of one batch by compaction: drop records, keep everything else.

Offsets, sequence numbers, epochs and codec do not change; a batch keeps its first and last offset although records in
between are gone. A tombstone (or the marker of a transaction without records) first gets a *delete horizon*, the time
until which a reader may still need it. As in Kafka (KIP-534) it is stored in the batch itself: bit 6 of the attributes
is set, and the base timestamp field holds the horizon, so that timestamp deltas count from it. After that time the
tombstone may go.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable

from google_crc32c import extend as crc32c_extend
from google_crc32c import value as crc32c

from headrace.protocol import compression
from headrace.protocol.batch_headers import HEADER_BYTES, BatchHeader
from headrace.protocol.record_batches import RawRecord, read_varint, write_varint

__all__ = ["RecordFilter", "delete_horizon_ms", "empty_batch", "filter_batch"]

_BEFORE_CRC_RANGE = struct.Struct(">qiibI")
_CRC_RANGE = struct.Struct(">hiqqqhii")
_CODEC_BITS = 0x07
_DELETE_HORIZON_BIT = 0x40
_NO_TIMESTAMP = -1
_LENGTH_OVERHEAD = 12

RecordFilter = Callable[[bytes | None, bool, int], bool]
"""(key, has a value, offset) → whether the record is kept."""


def delete_horizon_ms(header: BatchHeader) -> int | None:
    """Return the time until which the batch's tombstones are kept; None if it has not been set yet."""
    return header.base_timestamp if header.attributes & _DELETE_HORIZON_BIT else None


def filter_batch(
    batch: bytes,
    header: BatchHeader,
    section: bytes,
    records: list[RawRecord],
    is_kept: RecordFilter,
    *,
    new_horizon_ms: int,
    keep_empty: bool,
    force_horizon: bool = False,
) -> bytes | None:
    """Return the batch with the records that are kept: the same bytes if all are, None if nothing remains.

    Args:
        batch: The whole batch.
        header: Its header.
        section: Its records, uncompressed.
        records: Their positions and fields within `section`.
        is_kept: Decides for each record.
        new_horizon_ms: Delete horizon for tombstones that have none yet.
        keep_empty: Return a bare header where no record is kept; its last offset and sequence are still needed.
        force_horizon: Set the horizon even if no kept record is a tombstone (for transaction markers).
    """
    kept = [each for each in records if is_kept(each[4], each[5] is not None, header.base_offset + each[3])]
    if not kept:
        return empty_batch(header) if keep_empty else None
    # 1. A first tombstone: set the horizon. The base timestamp changes, so every delta is written anew.
    horizon_ms = delete_horizon_ms(header)
    if horizon_ms is None and (force_horizon or any(each[5] is None for each in kept)):
        rebased = (_rebase_timestamp(section, each, header, new_horizon_ms) for each in kept)
        return _build_batch(header, kept, rebased, new_horizon_ms)
    # 2. Nothing was dropped: the same bytes, so that a group in which nothing changes is not rewritten.
    if len(kept) == len(records):
        return batch
    # 3. Copy the records that are kept as bytes.
    return _build_batch(header, kept, (section[each[0] : each[1]] for each in kept), horizon_ms)


def empty_batch(header: BatchHeader) -> bytes:
    """Return the bare header, as Kafka leaves it for the last batch of a producer or of a segment."""
    # An empty payload has no codec, and without records there is nothing that a horizon could delete.
    attributes = header.attributes & ~(_CODEC_BITS | _DELETE_HORIZON_BIT)
    return _pack_batch(header, attributes, _NO_TIMESTAMP, header.max_timestamp, 0, b"")


def _build_batch(header: BatchHeader, kept: list[RawRecord], parts: Iterable[bytes], horizon_ms: int | None) -> bytes:
    attributes, base_timestamp = header.attributes, header.base_timestamp
    if horizon_ms is not None:
        attributes, base_timestamp = attributes | _DELETE_HORIZON_BIT, horizon_ms
    max_timestamp = header.max_timestamp
    if not header.has_append_time:
        # The record with the largest timestamp may be gone; under LogAppendTime the header's timestamp is that of all
        # records.
        max_timestamp = max(header.base_timestamp + each[2] for each in kept)
    payload = b"".join(parts)
    if attributes & _CODEC_BITS:
        payload = bytes(compression.compress(header.compression, payload))
    return _pack_batch(header, attributes, base_timestamp, max_timestamp, len(kept), payload)


def _rebase_timestamp(section: bytes, record: RawRecord, header: BatchHeader, base_timestamp: int) -> bytes:
    """Return the record's bytes with its timestamp delta counted from another base."""
    start, end, timestamp_delta = record[:3]
    _, position = read_varint(section, start)
    _, behind = read_varint(section, position + 1)
    body = bytearray(section[position : position + 1])
    write_varint(body, header.base_timestamp + timestamp_delta - base_timestamp)
    body += section[behind:end]
    whole = bytearray()
    write_varint(whole, len(body))
    return bytes(whole + body)


def _pack_batch(
    header: BatchHeader, attributes: int, base_timestamp: int, max_timestamp: int, count: int, payload: bytes
) -> bytes:
    in_crc_range = _CRC_RANGE.pack(
        attributes,
        header.last_offset_delta,
        base_timestamp,
        max_timestamp,
        header.producer_id,
        header.producer_epoch,
        header.base_sequence,
        count,
    )
    crc = crc32c_extend(crc32c(in_crc_range), payload)
    length = HEADER_BYTES - _LENGTH_OVERHEAD + len(payload)
    before = _BEFORE_CRC_RANGE.pack(header.base_offset, length, header.leader_epoch, header.magic, crc)
    return before + in_crc_range + payload
