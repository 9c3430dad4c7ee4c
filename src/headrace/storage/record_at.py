"""One record of a batch read where it lies, as Kafka's DefaultRecord reads it; and a walk over plain ones."""

from __future__ import annotations

from headrace.protocol.raw_records import read_varint

__all__ = ["SMALLEST_RECORD", "fields_at", "over_plain", "record_at"]

SMALLEST_RECORD = 6


def record_at(section: bytes, position: int) -> tuple[int, int, int, int, int]:
    """Timestamp delta, offset delta, lengths of key and value (negative for null), the position behind the record.

    Raises ValueError, IndexError when it is not as Kafka's DefaultRecord reads it. Varints of one byte, and a length of
    two, are read without a call.
    """
    length = section[position]
    if length < 0x80:
        length, position = (length >> 1) ^ -(length & 1), position + 1
    elif (second := section[position + 1]) < 0x80:
        length = length & 0x7F | second << 7
        length, position = (length >> 1) ^ -(length & 1), position + 2
    else:
        length, position = read_varint(section, position)
    end = position + length
    if length < SMALLEST_RECORD or end > len(section):
        raise ValueError(f"a record has a length of {length} where {len(section) - position} bytes are left")
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
    if position + 1 != end or section[position]:  # nearly all records have no headers
        _check_headers(section, position, end)
    return timestamp_delta, offset_delta, key, value, end


def _check_headers(section: bytes, position: int, end: int) -> None:
    """That the headers of a record fill what is left of it. Raises ValueError, IndexError."""
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
        raise ValueError("a record is not as long as it says")


def over_plain(section: bytes, count: int, position: int) -> tuple[int, int]:
    """How many of the first `count` records are sound, without headers, and their fields short, up to one that is not;
    and the position behind them. What `record_at` would do for each, without a call. Raises IndexError.
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
        at += 4 if key & 1 else 4 + (key >> 1)  # odd is negative: null
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


def fields_at(section: bytes, position: int, key: int, value: int) -> tuple[int, int, int, int, int]:
    """Where the timestamp delta, the offset delta, the lengths of key and value, and the headers of a record begin.

    `key`, `value`: their lengths, negative for null.
    """
    timestamp = _behind_varint(section, position) + 1
    offset = _behind_varint(section, timestamp)
    key_length = _behind_varint(section, offset)
    value_length = _behind_varint(section, key_length) + max(key, 0)
    return timestamp, offset, key_length, value_length, _behind_varint(section, value_length) + max(value, 0)


def _behind_varint(section: bytes, position: int) -> int:
    while section[position] >= 0x80:
        position += 1
    return position + 1
