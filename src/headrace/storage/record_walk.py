"""All records of a batch looked at in as few steps as plain Python can: is each as it says it is?

A step costs a microsecond where it looks at one record, and next to nothing where it looks at a column: records of one
length that are laid out alike, which is what many producers send, have each field at the same distance, so that one
slice holds that byte of all of them (`_alike`; `batch_layouts` for the few of a small batch). Records that are not
alike are looked at one by one, `MOST_ONE_BY_ONE` of them, in a small batch after the plain ones that it begins with; of
those behind that only the lengths are (`check_lengths`).
"""

from __future__ import annotations

from headrace.protocol.raw_records import read_varint
from headrace.storage.batch_layouts import FEWEST_ALIKE, timestamps_if_alike
from headrace.storage.record_at import SMALLEST_RECORD, fields_at, over_plain, record_at

__all__ = ["MOST_ONE_BY_ONE", "check_lengths", "check_records", "keyed_records"]

MOST_ONE_BY_ONE = 8
_SHORTEST_RUN = 12
_MANY = 24  # of fewer records each is looked at sooner than runs of them are found
_MOST_KEYED = 1 << 20  # their offset deltas are varints of at most three bytes
_LOW, _HIGH = bytes(range(0x80)), bytes(range(0x80, 0x100))
_FEWEST_KEYED = 6  # alike, that one look at all of them costs less than one at each
_FIRST_WINDOW, _LARGEST_WINDOW, _LONGEST_PAUSE = 16, 8192, 64
# Offset deltas of one byte, of two and of three, as varints: a slice of them is what the columns of a run must hold.
# The third byte of three is the same for 8192 of them, and the first two repeat behind those.
_TURN = 8192
_ONE_BYTE = bytes(2 * index for index in range(64))
_FIRST_OF_MORE = bytes(2 * index & 0x7F | 0x80 for index in range(_TURN))
_SECOND_OF_TWO = bytes(2 * index >> 7 for index in range(_TURN))
_SECOND_OF_THREE = bytes(byte | 0x80 for byte in _SECOND_OF_TWO)


def check_records(section: bytes, count: int, position: int = 0) -> None:
    """That `count` records fill the section from `position` on, and are sound inside: fields, headers, offset deltas.

    Looks inside the first `MOST_ONE_BY_ONE`, all that are alike, and of a small batch the plain ones up to the first
    that is not. Raises ValueError, IndexError.
    """
    if count >= FEWEST_ALIKE and timestamps_if_alike(section, count, position):
        return
    index, left = 0, MOST_ONE_BY_ONE
    if count < _MANY:
        index, position = over_plain(section, count, position)
    while index < count and left:
        start = position
        _, offset_delta, key, value, position = record_at(section, start)
        if offset_delta != index:
            raise ValueError(f"record {index} has offset delta {offset_delta}")
        index, left = index + 1, left - 1
        if count - index < _SHORTEST_RUN or section[position : position + 1] != section[start : start + 1]:
            continue
        stride = position - start
        most = _run(section, position, start, stride, count - index)
        alike = _alike(section, start, stride, key, value, index, most) if most >= _SHORTEST_RUN else 0
        index, position = index + alike, position + alike * stride
    check_lengths(section, count - index, position)


def _alike(
    section: bytes, start: int, stride: int, key: int, value: int, index: int, most: int, *, one_time: bool = False
) -> int:
    """How many of the `most` records of the same length behind the one at `start`, whose offset delta is `index` - 1,
    are laid out as it is, and sound: those up to the first that is not. That one may be sound, too.

    `one_time`: and have the timestamp of that one.
    """
    timestamp, offset, key_length, value_length, headers = fields_at(section, start, key, value)
    if section[headers] != 0 or headers + 1 != start + stride:
        return 0
    wanted = _offset_columns(index, most, key_length - offset)
    whole = most = min(len(wanted[0]), (len(section) - start) // stride - 1)
    end = start + stride + whole * stride  # behind the last of them: a column is every `stride`th byte up to there
    for at, expected in enumerate(wanted, offset):
        if (found := section[at + stride : end : stride]) != expected:
            most = min(most, _in_common(found, expected))
    same = [*range(key_length, value_length - max(key, 0)), *range(value_length, headers - max(value, 0)), headers]
    times = range(timestamp, offset)
    if one_time:
        same += times
    for at in same:
        if unlike := section[at + stride : end : stride].lstrip(section[at : at + 1]):
            most = min(most, whole - len(unlike))
    for at in () if one_time else times:
        if unlike := section[at + stride : end : stride].lstrip(_LOW if at == offset - 1 else _HIGH):
            most = min(most, whole - len(unlike))
    return most


def _offset_columns(index: int, most: int, size: int) -> tuple[bytes, ...]:
    """The bytes of `size` that offset deltas from `index` on have as varints, a column each; of `most` or fewer."""
    if size == 1:
        return (_ONE_BYTE[index : index + most],)
    if size == 2:
        return _FIRST_OF_MORE[index : index + most], _SECOND_OF_TWO[index : index + most]
    if size > 3:
        return (b"",)
    turn = slice(index % _TURN, index % _TURN + most)
    first = _FIRST_OF_MORE[turn]
    return first, _SECOND_OF_THREE[turn], bytes([index // _TURN]) * len(first)


def _in_common(one: bytes, other: bytes) -> int:
    """The length of what both begin with."""
    return next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


def check_lengths(section: bytes, count: int, position: int = 0) -> None:
    """That `count` records fill the section from `position` on. Raises ValueError, IndexError.

    One step a record, but for runs of records of one length, which are found and passed over in one step each.
    """
    while count >= _SHORTEST_RUN:
        behind = _over(section, position, 2)
        after = _over(section, behind, 1)
        stride = after - behind
        count -= 3
        if behind - position != 2 * stride or _length_bytes(section, behind) > 2:
            position = after
            break
        alike = _run(section, after, behind, stride, count)
        position = after + alike * stride
        count -= alike
        if alike < _SHORTEST_RUN:
            break
    if _over(section, position, count) != len(section):
        raise ValueError("its records do not fill it")


def _over(section: bytes, position: int, count: int) -> int:
    """The position behind so many records; the common lengths inline. Raises ValueError, IndexError."""
    for _ in range(count):
        byte = section[position]
        if byte < 0x80:
            length = (byte >> 1) ^ -(byte & 1)
            position += 1 + length
        elif (second := section[position + 1]) < 0x80:
            zigzag = (byte & 0x7F) | second << 7
            length = (zigzag >> 1) ^ -(zigzag & 1)
            position += 2 + length
        else:
            length, position = read_varint(section, position)
            position += length
        if length < SMALLEST_RECORD:
            raise ValueError(f"a record has a length of {length}")
    return position


def _length_bytes(section: bytes, position: int) -> int:
    """How many bytes the length at `position` takes; 3 for all that take more."""
    return 1 if section[position] < 0x80 else 2 if section[position + 1] < 0x80 else 3


def _run(section: bytes, position: int, before: int, stride: int, count: int) -> int:
    """How many of the next `count` records begin with the same length, of two bytes at most, as the one `before`."""
    for at in range(_length_bytes(section, before)):
        first = section[position + at : position + count * stride : stride]
        count = len(first) - len(first.lstrip(section[before + at : before + at + 1]))
    return count


def keyed_records(section: bytes, count: int) -> tuple[int, int] | None:
    """The least and the largest timestamp delta, 0 included, where `count` records fill the section, are sound inside,
    and have keys and no headers; None where one has not, or a closer look is needed to tell.

    `record_at` in a fraction of the time, for the records of changelogs. Those that are laid out as the one before
    are passed over in windows, which grow as long as they fill them.
    """
    position = index = least = largest = 0
    window, pause, next_try = _FIRST_WINDOW, 1, 0
    try:
        while index < count:
            start = position
            found = _keyed_at(section, start, index)
            if found is None:
                return None
            position, timestamp, key, value = found
            index += 1
            if timestamp:
                timestamp = timestamp >> 1 ^ -(timestamp & 1)
                least, largest = min(least, timestamp), max(largest, timestamp)
            if index < next_try or count - index < _FEWEST_KEYED:
                continue
            stride, most = position - start, min(window, count - index)
            alike = _run(section, position, start, stride, most)
            if alike >= _FEWEST_KEYED:
                alike = _alike(section, start, stride, key >> 1, value >> 1, index, alike, one_time=True)
                index, position = index + alike, position + alike * stride
            window = min(2 * window, _LARGEST_WINDOW) if alike == most else _FIRST_WINDOW
            pause = min(2 * pause, _LONGEST_PAUSE) if alike < _FEWEST_KEYED else 1
            next_try = index + pause - 1
    except IndexError:
        return None
    return (least, largest) if position == len(section) and count <= _MOST_KEYED else None


def _keyed_at(section: bytes, position: int, index: int) -> tuple[int, int, int, int] | None:
    """(behind the record at `position`, its timestamp delta, the lengths of key and value), those as they are encoded.

    None where the record is not one for `keyed_records`. Raises IndexError.
    """
    byte = section[position]
    at = position + 2
    if byte >= 0x80:
        byte, at = byte & 0x7F | section[position + 1] << 7, at + 1
    end = at - 1 + (byte >> 1)
    timestamp, at = section[at], at + 1
    if timestamp >= 0x80:
        timestamp, at = timestamp & 0x7F | section[at] << 7, at + 1
    delta, at = section[at], at + 1
    if delta >= 0x80:
        delta, at = delta & 0x7F | section[at] << 7, at + 1
        if delta >= 0x4000:
            delta, at = delta & 0x3FFF | section[at] << 14, at + 1
    key, at = section[at], at + 1
    if key >= 0x80:
        key, at = key & 0x7F | section[at] << 7, at + 1
    at += key >> 1
    value, at = section[at], at + 1
    if value >= 0x80:
        value, at = value & 0x7F | section[at] << 7, at + 1
    at += value >> 1
    # What is left says that there are no headers. An odd length is a negative one: 1 is null.
    if at + 1 != end or section[at] or delta != 2 * index or (byte | key) & 1 or (value & 1 and value != 1):
        return None
    if max(byte, timestamp, key, value) >= 0x4000:  # more bytes follow than were read
        return None
    return end, timestamp, key, value
