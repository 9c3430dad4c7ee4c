"""One batch through the cleaner: which of its records stay, and the batch written anew without the others.

Offsets, sequences, epochs and codec stay as they were; a batch keeps its first and last offset although records between
are gone. A tombstone (or the marker of a transaction whose records are gone) first gets a *delete horizon*, the time
until which readers may still need it: Kafka's bit 6 of the attributes, with the time where the base timestamp was, so
that timestamp deltas count from it (KIP-534). After it the tombstone may go.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable

from google_crc32c import extend as crc32c_extend
from google_crc32c import value as crc32c

from headrace.protocol import compression
from headrace.protocol.batch_headers import HEADER_BYTES, BatchHeader
from headrace.protocol.raw_records import RawRecord, read_varint, write_varint

__all__ = ["Judge", "delete_horizon_ms", "emptied", "rewritten"]

_UNCHECKED = struct.Struct(">qiibI")
_CHECKED = struct.Struct(">hiqqqhii")
_CODEC_BITS = 0x07
_DELETE_HORIZON_BIT = 0x40
_NO_TIMESTAMP = -1
_LENGTH_OVERHEAD = 12

Judge = Callable[[bytes | None, bool, int], bool]
"""(key, whether it has a value, offset) → whether the record stays, were it no tombstone past its horizon."""


def delete_horizon_ms(header: BatchHeader) -> int | None:
    """Until when the batch's tombstones are kept; None when that was not decided yet."""
    return header.base_timestamp if header.attributes & _DELETE_HORIZON_BIT else None


def rewritten(
    batch: bytes,
    header: BatchHeader,
    section: bytes,
    records: list[RawRecord],
    stays: Judge,
    *,
    new_horizon_ms: int,
    keep_empty: bool,
    wants_horizon: bool = False,
) -> bytes | None:
    """The batch with the records that stay: the very bytes when all do, None when there is nothing left to keep.

    `new_horizon_ms` is given to tombstones that have no horizon yet, and with `wants_horizon` in any case.
    `keep_empty` leaves a header where nothing stays: its last offset and sequence are still needed.
    """
    kept = [each for each in records if stays(each[4], each[5] is not None, header.base_offset + each[3])]
    if not kept:
        return emptied(header) if keep_empty else None
    horizon_ms = delete_horizon_ms(header)
    if horizon_ms is None and (wants_horizon or any(each[5] is None for each in kept)):
        return _built(header, kept, (_shifted(section, each, header, new_horizon_ms) for each in kept), new_horizon_ms)
    if len(kept) == len(records):
        return batch
    return _built(header, kept, (section[each[0] : each[1]] for each in kept), horizon_ms)


def emptied(header: BatchHeader) -> bytes:
    """The header alone, as Kafka leaves it for the last batch of a producer or of a segment."""
    attributes = header.attributes & ~(_CODEC_BITS | _DELETE_HORIZON_BIT)
    return _packed(header, attributes, _NO_TIMESTAMP, header.max_timestamp, 0, b"")


def _built(header: BatchHeader, kept: list[RawRecord], parts: Iterable[bytes], horizon_ms: int | None) -> bytes:
    attributes, base_timestamp = header.attributes, header.base_timestamp
    if horizon_ms is not None:
        attributes, base_timestamp = attributes | _DELETE_HORIZON_BIT, horizon_ms
    max_timestamp = header.max_timestamp
    if not header.has_append_time:
        max_timestamp = max(header.base_timestamp + each[2] for each in kept)
    payload = b"".join(parts)
    if attributes & _CODEC_BITS:
        payload = bytes(compression.compress(header.compression, payload))
    return _packed(header, attributes, base_timestamp, max_timestamp, len(kept), payload)


def _shifted(section: bytes, record: RawRecord, header: BatchHeader, base_timestamp: int) -> bytes:
    """The record's bytes with its timestamp counted from another base."""
    start, end, timestamp_delta = record[:3]
    _, position = read_varint(section, start)
    _, behind = read_varint(section, position + 1)
    body = bytearray(section[position : position + 1])
    write_varint(body, header.base_timestamp + timestamp_delta - base_timestamp)
    body += section[behind:end]
    whole = bytearray()
    write_varint(whole, len(body))
    return bytes(whole + body)


def _packed(
    header: BatchHeader, attributes: int, base_timestamp: int, max_timestamp: int, count: int, payload: bytes
) -> bytes:
    checked = _CHECKED.pack(
        attributes,
        header.last_offset_delta,
        base_timestamp,
        max_timestamp,
        header.producer_id,
        header.producer_epoch,
        header.base_sequence,
        count,
    )
    crc = crc32c_extend(crc32c(checked), payload)
    length = HEADER_BYTES - _LENGTH_OVERHEAD + len(payload)
    return _UNCHECKED.pack(header.base_offset, length, header.leader_epoch, header.magic, crc) + checked + payload
