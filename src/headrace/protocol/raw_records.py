"""Records of a batch as cheaply as plain Python can: tuples with key and value, without headers, names or timestamps.

For who looks at very many small records: the coordinator's load and the cleaner of the log. The layout is in
`record_batches`. Everything a batch may get wrong about its records is a CorruptBatch, as there.
"""

from __future__ import annotations

from typing import TypeAlias

from headrace.protocol import compression as compression_codecs
from headrace.protocol.batch_headers import BatchHeader, Bytes, CorruptBatch, records_section

__all__ = ["RawRecord", "raw_records", "read_varint", "write_varint"]

RawRecord: TypeAlias = tuple[int, int, int, int, bytes | None, bytes | None]
"""Start and end within the uncompressed section, timestamp delta, offset delta, key, value."""


def raw_records(
    buffer: Bytes, header: BatchHeader, max_bytes: int = compression_codecs.MAX_DECOMPRESSED_BYTES
) -> tuple[bytes, list[RawRecord]]:
    """The batch's uncompressed section, and its records. Raises CorruptBatch; does not check the CRC."""
    section = bytes(records_section(buffer, header, max_bytes)) if header.records_count else b""
    try:
        return section, _records(section, header)
    except (IndexError, ValueError) as error:
        if isinstance(error, CorruptBatch):
            raise
        raise CorruptBatch(f"a record is malformed ({error})", base_offset=header.base_offset) from None


def _records(section: bytes, header: BatchHeader) -> list[RawRecord]:
    """One loop, and the common varint of one byte inline: this is where a load of a million records spends its time."""
    found: list[RawRecord] = []
    append = found.append
    position, size, most = 0, len(section), header.last_offset_delta
    for _ in range(header.records_count):
        start = position
        length, position = read_varint(section, position)
        end = position + length
        if length < 0 or end > size:
            raise CorruptBatch("a record ends behind it", base_offset=header.base_offset)
        position += 1  # the attributes say nothing in v2
        byte = section[position]
        if byte < 0x80:
            timestamp_delta = (byte >> 1) ^ -(byte & 1)
            position += 1
        else:
            timestamp_delta, position = read_varint(section, position)
        byte = section[position]
        if byte < 0x80:
            offset_delta = (byte >> 1) ^ -(byte & 1)
            position += 1
        else:
            offset_delta, position = read_varint(section, position)
        if not 0 <= offset_delta <= most:
            raise CorruptBatch(f"a record has offset delta {offset_delta}", base_offset=header.base_offset)
        length, position = read_varint(section, position)
        key: bytes | None = None
        if length >= 0:
            key = section[position : position + length]
            position += length
        length, position = read_varint(section, position)
        value: bytes | None = None
        if length >= 0:
            value = section[position : position + length]
            position += length
        if position >= end:  # the count of headers is behind
            raise CorruptBatch("a record is not as long as it says", base_offset=header.base_offset)
        append((start, end, timestamp_delta, offset_delta, key, value))
        position = end
    if position != size:
        raise CorruptBatch("it holds more bytes than records", base_offset=header.base_offset)
    return found


def read_varint(data: bytes, position: int) -> tuple[int, int]:
    """A zigzag varint, and the position behind it. Raises IndexError at the end, ValueError beyond ten bytes."""
    byte = data[position]
    position += 1
    if byte < 0x80:
        return (byte >> 1) ^ -(byte & 1), position
    zigzag, shift = byte & 0x7F, 7
    while byte & 0x80:
        if shift > 63:
            raise ValueError("a varint of more than ten bytes")
        byte = data[position]
        position += 1
        zigzag |= (byte & 0x7F) << shift
        shift += 7
    zigzag &= 0xFFFF_FFFF_FFFF_FFFF
    return (zigzag >> 1) ^ -(zigzag & 1), position


def write_varint(out: bytearray, value: int) -> None:
    """Append a zigzag varint, as in the fields of records."""
    zigzag = (value << 1) ^ (value >> 63)
    while zigzag > 0x7F:
        out.append(zigzag & 0x7F | 0x80)
        zigzag >>= 7
    out.append(zigzag)
