"""Fields of single records, read in place from the uncompressed records of a batch (Kafka's `DefaultRecord`).

A record is: length (varint), attributes (int8), timestamp delta (varlong), offset delta (varint), key length (varint)
and key, value length (varint) and value, number of headers (varint) and headers. All varints are zigzag encoded: an odd
encoded length is negative, and 1 (decoded: -1) means null.

These functions are on the path of every append. A varint of one byte, which nearly all are, is decoded inline: a call
costs more than the rest of the work.
"""

from __future__ import annotations

from headrace.protocol.record_batches import read_varint

__all__ = ["MIN_RECORD_BYTES", "find_fields", "read_record", "skip_plain_records"]

MIN_RECORD_BYTES = 6
"""Attributes, two deltas, two lengths and the number of headers, of one byte each."""


def read_record(section: bytes, position: int) -> tuple[int, int, int, int, int]:
    """Read the record at `position`, headers included.

    Returns:
        Timestamp delta, offset delta, key length and value length (negative for null), position after the record.

    Raises:
        ValueError, IndexError: The bytes are not a record by the rules of Kafka's `DefaultRecord`.
    """
    # 1. The length, with a fast path for two bytes (records of up to 8 KiB).
    length = section[position]
    if length < 0x80:
        length, position = (length >> 1) ^ -(length & 1), position + 1
    elif (second := section[position + 1]) < 0x80:
        length = length & 0x7F | second << 7
        length, position = (length >> 1) ^ -(length & 1), position + 2
    else:
        length, position = read_varint(section, position)
    end = position + length
    if length < MIN_RECORD_BYTES or end > len(section):
        raise ValueError(f"a record has a length of {length} where {len(section) - position} bytes are left")
    # 2. Attributes (skipped: no bit has a meaning), then the two deltas.
    timestamp_delta, position = section[position + 1], position + 2
    if timestamp_delta < 0x80:
        timestamp_delta = (timestamp_delta >> 1) ^ -(timestamp_delta & 1)
    else:
        timestamp_delta, position = read_varint(section, position - 1)
    offset_delta, position = section[position], position + 1
    if offset_delta < 0x80:
        offset_delta = (offset_delta >> 1) ^ -(offset_delta & 1)
    else:
        offset_delta, position = read_varint(section, position - 1)
    # 3. Key and value: their lengths are read, their bytes skipped.
    key, position = section[position], position + 1
    if key < 0x80:
        key = (key >> 1) ^ -(key & 1)
    else:
        key, position = read_varint(section, position - 1)
    if key > 0:
        position += key
    value, position = section[position], position + 1
    if value < 0x80:
        value = (value >> 1) ^ -(value & 1)
    else:
        value, position = read_varint(section, position - 1)
    if value > 0:
        position += value
    # 4. Most records have no headers: a single zero byte that ends the record.
    if position + 1 != end or section[position]:
        _check_headers(section, position, end)
    return timestamp_delta, offset_delta, key, value, end


def _check_headers(section: bytes, position: int, end: int) -> None:
    """Check that the headers of a record fill the rest of it. Raises ValueError, IndexError."""
    headers, position = read_varint(section, position)
    if not 0 <= headers <= end - position:
        raise ValueError(f"a record has {headers} headers")
    for _ in range(headers):
        name, position = read_varint(section, position)
        if name < 0:
            raise ValueError("a record header has no key")
        content, position = read_varint(section, position + name)
        position += max(content, 0)
    if position != end:
        raise ValueError("a record is not as long as its length field")


def skip_plain_records(section: bytes, count: int, position: int) -> tuple[int, int]:
    """Check and skip records at the start of a batch, up to the first one that is not plain.

    A plain record is sound, has no headers, and has fields of one byte, except that its own length and the value length
    may have two. `read_record` checks the same in several times the time: here no field is decoded that is not needed.

    Args:
        section: The records.
        count: How many records to look at.
        position: Where the first record (offset delta 0) begins.

    Returns:
        The number of plain records, and the position after them.

    Raises:
        IndexError: The section ends within a record.
    """
    for index in range(count):
        length, at = section[position], position + 1
        if length >= 0x80:
            if (more := section[at]) >= 0x80:
                return index, position
            length, at = length & 0x7F | more << 7, at + 1
        end = at + (length >> 1)
        timestamp, offset_delta, key = section[at + 1], section[at + 2], section[at + 3]
        if timestamp >= 0x80 or key >= 0x80 or offset_delta != 2 * index or length & 1:
            return index, position
        at += 4 if key & 1 else 4 + (key >> 1)  # odd means negative: null
        value, at = section[at], at + 1
        if value >= 0x80:
            if (more := section[at]) >= 0x80:
                return index, position
            value, at = value & 0x7F | more << 7, at + 1
        if not value & 1:
            at += value >> 1
        if at + 1 != end or section[at]:
            return index, position
        position = end
    return count, position


def find_fields(section: bytes, position: int, key: int, value: int) -> tuple[int, int, int, int, int]:
    """Return where the fields of a sound record begin.

    Args:
        section: The records.
        position: Where the record begins.
        key: Length of its key, negative for null.
        value: Length of its value, negative for null.

    Returns:
        Positions of timestamp delta, offset delta, key length, value length and number of headers.
    """
    timestamp = _after_varint(section, position) + 1
    offset = _after_varint(section, timestamp)
    key_length = _after_varint(section, offset)
    value_length = _after_varint(section, key_length) + max(key, 0)
    return timestamp, offset, key_length, value_length, _after_varint(section, value_length) + max(value, 0)


def _after_varint(section: bytes, position: int) -> int:
    while section[position] >= 0x80:
        position += 1
    return position + 1
