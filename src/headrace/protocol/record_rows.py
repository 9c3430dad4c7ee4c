"""The records of one batch as plain tuples, in one loop: what small traffic and the consumer's records are made of.

A record, all numbers but the attributes zigzag varints, a length of -1 for null (Kafka's documentation, "Record"):

    length | attributes i8 | timestampDelta | offsetDelta | keyLength key | valueLength value | count (header)*

Varints of one and of two bytes, nearly all that there are, are read in place: a call costs as much as the rest of it.
"""

from __future__ import annotations

from typing import TypeAlias

from headrace.protocol import compression as compression_codecs
from headrace.protocol.batch_headers import BatchHeader, Bytes, CorruptBatch, records_section

__all__ = ["Headers", "Row", "rows_of_batch"]

Headers: TypeAlias = tuple[tuple[str, bytes | None], ...]
Row: TypeAlias = tuple[int, int, bytes | None, bytes | None, Headers]
"""offset, timestamp in ms, key, value, headers."""


def rows_of_batch(
    buffer: Bytes, header: BatchHeader, max_bytes: int = compression_codecs.MAX_DECOMPRESSED_BYTES
) -> list[Row]:
    """All of them, control batches included. Raises CorruptBatch; does not check the CRC."""
    if not header.records_count:
        return []
    section = bytes(records_section(buffer, header, max_bytes))
    try:
        return _rows(section, header)
    except (IndexError, ValueError) as error:
        if isinstance(error, CorruptBatch):
            raise
        raise CorruptBatch(f"a record is malformed ({error})", base_offset=header.base_offset) from None


def _rows(section: bytes, header: BatchHeader) -> list[Row]:
    base_offset, last_delta, size = header.base_offset, header.last_offset_delta, len(section)
    append_time = header.max_timestamp if header.has_append_time else None
    base_timestamp = header.base_timestamp
    rows: list[Row] = []
    position = 0
    for _ in range(header.records_count):
        byte = section[position]
        if byte < 0x80:
            length, position = (byte >> 1) ^ -(byte & 1), position + 1
        elif (more := section[position + 1]) < 0x80:
            length, position = ((byte & 0x7F | more << 7) >> 1) ^ -(byte & 1), position + 2
        else:
            length, position = _read_varint(section, position)
        end = position + length
        if length < 0 or end > size:
            raise CorruptBatch("a record ends behind it", base_offset=base_offset)
        position += 1  # the attributes say nothing in v2
        byte = section[position]
        if byte < 0x80:
            timestamp_delta, position = (byte >> 1) ^ -(byte & 1), position + 1
        else:
            timestamp_delta, position = _read_varint(section, position)
        byte = section[position]
        if byte < 0x80:
            offset_delta, position = (byte >> 1) ^ -(byte & 1), position + 1
        elif (more := section[position + 1]) < 0x80:
            offset_delta, position = ((byte & 0x7F | more << 7) >> 1) ^ -(byte & 1), position + 2
        else:
            offset_delta, position = _read_varint(section, position)
        if not 0 <= offset_delta <= last_delta:
            raise CorruptBatch(f"a record has offset delta {offset_delta}", base_offset=base_offset)
        key, position = _read_bytes(section, position)
        value, position = _read_bytes(section, position)
        headers: Headers = ()
        if section[position]:
            headers, position = _read_headers(section, position, end, base_offset)
        else:
            position += 1
        if position != end:
            raise CorruptBatch("a record is not as long as it says", base_offset=base_offset)
        timestamp = base_timestamp + timestamp_delta if append_time is None else append_time
        rows.append((base_offset + offset_delta, timestamp, key, value, headers))
    if position != size:
        raise CorruptBatch("it holds more bytes than records", base_offset=base_offset)
    return rows


def _read_headers(section: bytes, position: int, end: int, base_offset: int) -> tuple[Headers, int]:
    count, position = _read_varint(section, position)
    if not 0 <= count <= end - position:
        raise CorruptBatch(f"a record has {count} headers", base_offset=base_offset)
    headers = []
    for _ in range(count):
        name, position = _read_bytes(section, position)
        value, position = _read_bytes(section, position)
        if name is None:
            raise CorruptBatch("a record header has no key", base_offset=base_offset)
        headers.append((name.decode("utf-8", "replace"), value))
    return tuple(headers), position


def _read_bytes(section: bytes, position: int) -> tuple[bytes | None, int]:
    byte = section[position]
    if byte < 0x80:
        length, position = (byte >> 1) ^ -(byte & 1), position + 1
    elif (more := section[position + 1]) < 0x80:
        length, position = ((byte & 0x7F | more << 7) >> 1) ^ -(byte & 1), position + 2
    else:
        length, position = _read_varint(section, position)
    if length < 0:
        return None, position
    end = position + length
    if end > len(section):
        raise ValueError("a field ends behind the records")
    return section[position:end], end


def _read_varint(section: bytes, position: int) -> tuple[int, int]:
    byte = section[position]
    position += 1
    zigzag = byte & 0x7F
    shift = 7
    while byte & 0x80:
        if shift > 63:
            raise ValueError("a varint of more than ten bytes")
        byte = section[position]
        position += 1
        zigzag |= (byte & 0x7F) << shift
        shift += 7
    zigzag &= 0xFFFF_FFFF_FFFF_FFFF
    return (zigzag >> 1) ^ -(zigzag & 1), position
