"""Record batches as the disk sees them: headers found by walking over files, never a record.

A batch v2 header is 61 bytes (KIP-98). `walk` trusts lengths and is for parts of a log that were checked before;
`scan` trusts nothing and is for what a crash left behind: it checks every CRC and stops at the first byte that
cannot be right.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

from google_crc32c import value as crc32c

from headrace.protocol.record_batches import HEADER_BYTES, BatchHeader
from headrace.storage.file_system import Buffer, File

__all__ = ["Span", "TornLog", "compute_crc", "crc_matches", "parse_header", "scan", "walk"]

_HEADER = struct.Struct(">qiibIhiqqqhii")
_SPAN = struct.Struct(">qi")
_LAST_OFFSET_DELTA = struct.Struct(">i")
LOG_OVERHEAD = _SPAN.size
_CRC_FROM = 21
_DELTA_AT = 23
_MAX_RELATIVE_OFFSET = 2**31 - 1
_WALK_BLOCK = 8192
_SCAN_BLOCK = 4 * 1024**2


class Span(NamedTuple):
    """Where a batch lies: offsets and file positions, both ends. `end` is the position behind it."""

    base_offset: int
    last_offset: int
    position: int
    end: int


class TornLog(Exception):
    """`scan` met bytes that are no batch: everything from `position` on is lost."""

    def __init__(self, position: int, why: str) -> None:
        super().__init__(f"{why} at position {position}")
        self.position = position
        self.why = why


def parse_header(buffer: Buffer, at: int, position: int) -> BatchHeader:
    """The header at index `at` of the buffer, which holds at least 61 bytes from there."""
    return BatchHeader._make((*_HEADER.unpack_from(buffer, at), position))


def compute_crc(batch: Buffer) -> int:
    """CRC32C over everything behind the CRC field. `batch` is one whole batch."""
    return int(crc32c(bytes(memoryview(batch)[_CRC_FROM:])))


def crc_matches(batch: Buffer, crc: int) -> bool:
    """Whether the CRC of one whole batch is what its header says."""
    return compute_crc(batch) == crc


def walk(file: File, position: int, end: int) -> Iterator[Span]:
    """The batches from `position`, a batch's start, to `end`; a part of a batch at the end is left out."""
    block, block_at = b"", position
    while position + HEADER_BYTES <= end:
        at = position - block_at
        if at < 0 or at + HEADER_BYTES > len(block):
            block, block_at, at = file.read_at(min(_WALK_BLOCK, end - position), position), position, 0
            if len(block) < HEADER_BYTES:
                return
        base_offset, length = _SPAN.unpack_from(block, at)
        (delta,) = _LAST_OFFSET_DELTA.unpack_from(block, at + _DELTA_AT)
        behind = position + length + LOG_OVERHEAD
        if length + LOG_OVERHEAD < HEADER_BYTES or behind > end:
            return
        yield Span(base_offset, base_offset + delta, position, behind)
        position = behind


def scan(file: File, position: int, end: int, *, base_offset: int) -> Iterator[BatchHeader]:
    """Checked headers of the batches from `position` to `end` of the segment that begins at `base_offset`.

    Raises TornLog at the first byte that does not belong to a whole, sound batch.
    """
    block, block_at = memoryview(b""), position
    next_offset = base_offset
    while position < end:
        if position + HEADER_BYTES > end:
            raise TornLog(position, "a torn batch header")
        at = position - block_at
        if at + HEADER_BYTES > len(block):
            block, block_at, at = memoryview(file.read_at(min(_SCAN_BLOCK, end - position), position)), position, 0
        if at + HEADER_BYTES > len(block):
            raise TornLog(position, "the file is shorter than it was")
        header = parse_header(block, at, position)
        if (why := _unsound(header, end, next_offset, base_offset)) is not None:
            raise TornLog(position, why)
        if at + header.size_bytes > len(block):
            size = min(max(_SCAN_BLOCK, header.size_bytes), end - position)
            block, block_at, at = memoryview(file.read_at(size, position)), position, 0
        if not crc_matches(block[at : at + header.size_bytes], header.crc):
            raise TornLog(position, f"a wrong CRC in the batch of offset {header.base_offset}")
        yield header
        position += header.size_bytes
        next_offset = header.next_offset


def _unsound(header: BatchHeader, end: int, next_offset: int, base_offset: int) -> str | None:
    if header.size_bytes < HEADER_BYTES or header.magic != 2:
        return "no record batch"
    if header.position + header.size_bytes > end:
        return "a torn batch"
    if header.last_offset_delta < 0 or header.records_count < 0:
        return "a batch with a negative count"
    if header.base_offset < next_offset:
        return f"offset {header.base_offset} where {next_offset} or more was due"
    if header.last_offset - base_offset > _MAX_RELATIVE_OFFSET:
        return f"offset {header.last_offset}, too far from its segment's"
    return None
