"""What was finished beyond a committed offset, as text for the commit's metadata: so a crash repeats little.

Pure. Runs of finished offsets, as a bitmap or as run lengths, whichever is shorter; a version, a kind and a checksum
over them, the committed offset and the topic id in front, so that anybody else's metadata, or ours beside another
offset or of a deleted topic of the same name, counts as none. Never longer than Kafka's default
`offset.metadata.max.bytes` (4096): `offset_tracker` sees to that by its window.
"""

from __future__ import annotations

import base64
import binascii
import struct
import zlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Final
from uuid import UUID

__all__ = [
    "LONGEST_TEXT",
    "MOST_OFFSETS",
    "MOST_SPARSE_RECORDS",
    "Run",
    "decode_finished",
    "encode_finished",
]

Run = tuple[int, int]
"""Finished offsets: the first, and the one behind the last."""

LONGEST_TEXT: Final = 4096
_MARK: Final = "headrace-finished:"
_VERSION: Final = 2  # 1: the checksum did not cover the topic id
_BITMAP, _RUNS = 0, 1
_HEAD: Final = struct.Struct(">BBI")  # version, kind, checksum
_MOST_BYTES: Final = (LONGEST_TEXT - len(_MARK)) * 3 // 4 - _HEAD.size
MOST_OFFSETS: Final = 24_000
"""A bitmap of so many offsets always fits."""
MOST_SPARSE_RECORDS: Final = 320
"""Run lengths of so many records always fit, however far apart their offsets: every second one may begin a run."""
_LARGEST_OFFSET: Final = (1 << 63) - 1

assert MOST_OFFSETS // 8 <= _MOST_BYTES
assert (MOST_SPARSE_RECORDS // 2 + 1) * 18 <= _MOST_BYTES


def encode_finished(committed: int, runs: Sequence[Run], topic_id: UUID | None) -> str:
    """`runs` in order, apart from one another, all behind `committed`; none: the empty string."""
    if not runs:
        return ""
    lengths = _as_lengths(committed, runs)
    span = runs[-1][1] - committed
    if (span + 7) // 8 < len(lengths):
        kind, body = _BITMAP, _as_bitmap(committed, runs)
    else:
        kind, body = _RUNS, lengths
    head = _HEAD.pack(_VERSION, kind, _checksum(committed, topic_id, kind, body))
    return _MARK + base64.b64encode(head + body).decode()


def decode_finished(committed: int, metadata: str, topic_id: UUID | None) -> tuple[Run, ...] | None:
    """The runs beside this committed offset; None when the metadata is not ours, damaged, or of another offset or topic
    id."""
    if not metadata:
        return ()
    if not metadata.startswith(_MARK) or len(metadata) > LONGEST_TEXT:
        return None
    try:
        data = base64.b64decode(metadata[len(_MARK) :], validate=True)
    except (binascii.Error, ValueError):
        return None
    if len(data) < _HEAD.size:
        return None
    version, kind, checksum = _HEAD.unpack_from(data)
    body = data[_HEAD.size :]
    if version != _VERSION or checksum != _checksum(committed, topic_id, kind, body):
        return None
    runs = tuple(_from_bitmap(committed, body) if kind == _BITMAP else _from_lengths(committed, body))
    return runs if _in_order(committed, runs) else None


def _checksum(committed: int, topic_id: UUID | None, kind: int, body: bytes) -> int:
    incarnation = bytes(16) if topic_id is None else topic_id.bytes  # zeros: a broker without topic ids (before 2.8)
    return zlib.crc32(body, zlib.crc32(struct.pack(">qB", committed, kind) + incarnation))


def _in_order(committed: int, runs: Iterable[Run]) -> bool:
    behind = committed
    for start, end in runs:
        if start <= behind or end <= start or end > _LARGEST_OFFSET:
            return False
        behind = end
    return True


def _as_bitmap(committed: int, runs: Iterable[Run]) -> bytes:
    bits = 0
    for start, end in runs:
        bits |= ((1 << end - start) - 1) << start - committed
    return bits.to_bytes((bits.bit_length() + 7) // 8, "little")


def _from_bitmap(committed: int, body: bytes) -> Iterator[Run]:
    bits = int.from_bytes(body, "little")
    at = committed
    while bits:
        gap = (bits & -bits).bit_length() - 1
        bits >>= gap
        at += gap
        length = (~bits & bits + 1).bit_length() - 1
        yield at, at + length
        bits >>= length
        at += length


def _as_lengths(committed: int, runs: Iterable[Run]) -> bytes:
    found = bytearray()
    behind = committed
    for start, end in runs:
        _write_varint(found, start - behind)
        _write_varint(found, end - start)
        behind = end
    return bytes(found)


def _from_lengths(committed: int, body: bytes) -> Iterator[Run]:
    numbers = list(_varints(body))
    at = committed
    for gap, length in zip(numbers[::2], numbers[1::2], strict=False):
        start = at + gap
        at = start + length
        yield start, at


def _write_varint(found: bytearray, number: int) -> None:
    while number > 0x7F:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    found.append(number)


def _varints(body: bytes) -> Iterator[int]:
    number = shift = 0
    for byte in body:
        number |= (byte & 0x7F) << shift
        shift += 7
        if not byte & 0x80:
            yield number
            number = shift = 0
