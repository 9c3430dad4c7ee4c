"""Record batches in a log file: their headers, found without reading a record.

A header of format v2 is 61 bytes (KIP-98). `walk` trusts the length fields and is for parts of a log that were checked
before. `scan` trusts nothing and is for what a crash left behind: it checks every CRC and stops at the first byte that
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
# A recovery reads the whole file, so it reads in large blocks; a walk needs 27 of each batch's bytes.
_SCAN_BLOCK = 4 * 1024**2


class Span(NamedTuple):
    """The place of a batch in a log: first and last offset, first file position and the position after it."""

    base_offset: int
    last_offset: int
    position: int
    end: int


class TornLog(Exception):
    """`scan` found bytes that are not a batch: everything from `position` on is lost.

    Attributes:
        position: Where the sound batches end.
        why: What is wrong there.
    """

    def __init__(self, position: int, why: str) -> None:
        super().__init__(f"{why} at position {position}")
        self.position = position
        self.why = why


def parse_header(buffer: Buffer, at: int, position: int) -> BatchHeader:
    """Return the header at index `at` of the buffer, which must hold at least 61 bytes from there.

    `position` becomes the header's position, which is usually one in a file.
    """
    return BatchHeader._make((*_HEADER.unpack_from(buffer, at), position))


def compute_crc(batch: Buffer) -> int:
    """Return the CRC32C of one whole batch: over everything after the CRC field."""
    # `bytes` copies once; google_crc32c accepts no memoryview.
    return int(crc32c(bytes(memoryview(batch)[_CRC_FROM:])))


def crc_matches(batch: Buffer, crc: int) -> bool:
    """Whether one whole batch has this CRC."""
    return compute_crc(batch) == crc


def walk(file: File, position: int, end: int) -> Iterator[Span]:
    """Yield the batches from `position`, where one must begin, to `end`; a part of a batch at the end is left out."""
    # Headers are read a block at a time: in logs of small batches one block of 8 KiB holds dozens of them.
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
    """Yield checked headers of the batches from `position` to `end`.

    Args:
        file: The `.log` file of a segment.
        position: Where a batch begins.
        end: Size of the file.
        base_offset: Of the segment: offsets must not be smaller, and must fit an index entry relative to it.

    Raises:
        TornLog: At the first byte that does not belong to a whole, sound batch.
        OSError: The file cannot be read.
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
        if (why := _find_defect(header, end, next_offset, base_offset)) is not None:
            raise TornLog(position, why)
        # The CRC needs the whole batch. A block of 4 MiB usually has it; a larger batch is read by itself.
        if at + header.size_bytes > len(block):
            size = min(max(_SCAN_BLOCK, header.size_bytes), end - position)
            block, block_at, at = memoryview(file.read_at(size, position)), position, 0
        if not crc_matches(block[at : at + header.size_bytes], header.crc):
            raise TornLog(position, f"a wrong CRC in the batch of offset {header.base_offset}")
        yield header
        position += header.size_bytes
        next_offset = header.next_offset


def _find_defect(header: BatchHeader, end: int, next_offset: int, base_offset: int) -> str | None:
    if header.size_bytes < HEADER_BYTES or header.magic != 2:
        return "not a record batch"
    if header.position + header.size_bytes > end:
        return "a torn batch"
    # Zero records are sound: compaction leaves bare headers.
    if header.last_offset_delta < 0 or header.records_count < 0:
        return "a batch with a negative count"
    # Larger is fine: compaction leaves gaps. Whether a gap is a hole is `log_recovery`'s question.
    if header.base_offset < next_offset:
        return f"offset {header.base_offset} where at least {next_offset} was expected"
    if header.last_offset - base_offset > _MAX_RELATIVE_OFFSET:
        return f"offset {header.last_offset}, too far from its segment's"
    return None
