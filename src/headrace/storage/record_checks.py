"""Checks of a produced batch in few Python steps: its header, single records, and many records at once.

Kafka's LogValidator looks at every record. In plain Python one record costs about a microsecond, a multiple of the rest
of an append. `check_batch` is the fast path for what nearly all producers send: one whole batch, uncompressed, without
a transaction, with CreateTime timestamps, for a log whose settings accept such batches unchanged. It returns None
whenever a batch is not certain to be valid and unchanged; the full path (`batch_validation`, `record_validation`) then
decides, with the checks of records below. Both check equally closely: tests/storage/test_batch_fast_path.py compares
them batch by batch.

A record is: length (varint), attributes (int8), timestamp delta (varlong), offset delta (varint), key length (varint)
and key, value length (varint) and value, number of headers (varint) and headers. All varints are zigzag encoded: an odd
encoded length is negative, and 1 (decoded: -1) means null. A varint of one byte, which nearly all are, is decoded
inline: a call costs more than the rest of the work.

Many producers send *uniform* records: of one length and with fields of the same widths, so that each field lies at the
same distance from its predecessor in the record before. One slice with that stride then holds one byte of every record,
a *column*, and one comparison checks it for the whole batch.

- `uniform_timestamps` is for small batches (offset deltas of one byte). It remembers the layouts that it has seen.
- `check_records` finds runs of uniform records in a batch of any size, checks the first `MAX_SINGLE_CHECKS` other
  records one by one, and of the rest only the lengths.
- `check_keyed_records` checks every record of a batch that has keys and no headers, such as those of changelogs.

`uniform_timestamps` and `check_keyed_records` recognize only a part of all sound batches and never accept an unsound
one; what they do not recognize is left to `read_record`.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from google_crc32c import value as crc32c

from headrace.protocol.batch_headers import HEADER_BYTES
from headrace.protocol.record_batches import read_varint
from headrace.storage.log_config import NO_LIMIT, LogConfig

__all__ = [
    "FULLY_CHECKED_RECORDS",
    "MAX_SINGLE_CHECKS",
    "MIN_RECORD_BYTES",
    "MIN_UNIFORM_RECORDS",
    "FastPathLimits",
    "HeaderFields",
    "check_batch",
    "check_keyed_records",
    "check_record_lengths",
    "check_records",
    "fast_path_limits",
    "find_fields",
    "is_candidate",
    "pack_header_start",
    "read_record",
    "skip_plain_records",
    "uniform_timestamps",
]

_HEADER = struct.Struct(">qiibIhiqqqhii")
_HEADER_START = struct.Struct(">qiibI")  # everything before the range of the CRC, with the CRC itself
_HEADER_TO_ATTRIBUTES = struct.Struct(">qiibIh")
_CRC_RANGE_START = 21
_LOG_OVERHEAD = 12
_MAGIC = 2

MIN_RECORD_BYTES = 6
"""Attributes, two deltas, two lengths and the number of headers, of one byte each."""

# Batches of at most so many records: each record, field by field, at about 2 µs in Python.
FULLY_CHECKED_RECORDS = 8
# In larger batches, records outside of uniform runs that are checked one by one.
MAX_SINGLE_CHECKS = 8
# From so many uniform records on, one check of all columns is cheaper than one check of each record.
MIN_UNIFORM_RECORDS = 3  # in a small batch
_MIN_RUN = 12  # in `check_records`
_MIN_KEYED_RUN = 6  # in `check_keyed_records`
_SMALL_BATCH = 24  # below so many records `skip_plain_records` is cheaper than looking for runs
_MAX_KEYED_RECORDS = 1 << 20  # their offset deltas are varints of at most three bytes
_FIRST_WINDOW, _LARGEST_WINDOW, _LONGEST_PAUSE = 16, 8192, 64

_BELOW_0X80, _FROM_0X80 = bytes(range(0x80)), bytes(range(0x80, 0x100))
# The offset deltas 0, 1, 2, … as varints of one, two and three bytes, one constant for each byte: a slice of it is what
# a column must hold. For three bytes, the first two repeat every 8192 records, and the third is constant in between.
_PERIOD = 8192
_DELTAS_OF_ONE_BYTE = bytes(2 * index for index in range(64))
_FIRST_BYTES = bytes(2 * index & 0x7F | 0x80 for index in range(_PERIOD))
_SECOND_BYTES_OF_TWO = bytes(2 * index >> 7 for index in range(_PERIOD))
_SECOND_BYTES_OF_THREE = bytes(byte | 0x80 for byte in _SECOND_BYTES_OF_TWO)

_Layout = tuple[slice, tuple[tuple[slice, bytes], ...]]
"""The column of the timestamp deltas; then each column that has fixed contents, with these contents."""
_layouts: dict[tuple[int, int, int], _Layout] = {}  # by size of the section, number of records, first position
_MAX_LAYOUTS = 64


# -- the header of a batch ---------------------------------------------------------------------------------------------


class FastPathLimits(NamedTuple):
    """Limits of a log on the fast path: batch size in bytes, and how far timestamps may be in the future."""

    max_bytes: int
    timestamp_after_max_ms: int


HeaderFields = tuple[int, int, int, int, int, int, int, int, int, int, int, int, int]
"""The fields of a batch header in their order: those of BatchHeader without the position."""


def fast_path_limits(config: LogConfig) -> FastPathLimits | None:
    """Return the limits for logs with these settings; None if their batches need the full path."""
    # Compacted topics need the key of every record, and LogAppendTime rewrites the header inside the CRC's range.
    if config.is_compacted or config.message_timestamp_type != "CreateTime":
        return None
    # A lower bound on timestamps needs the smallest one, which only a look at every record finds.
    if config.message_timestamp_before_max_ms < NO_LIMIT:
        return None
    # Candidates are uncompressed, so "uncompressed" leaves them as they are, like "producer".
    if config.compression_type not in ("producer", "uncompressed"):
        return None
    max_bytes = min(config.max_message_bytes, config.segment_bytes)
    return FastPathLimits(max_bytes, config.message_timestamp_after_max_ms)


def is_candidate(frame: bytes, start: int, end: int) -> bool:
    """Whether `frame[start:end]` looks like one uncompressed batch with base offset 0 outside of a transaction."""
    if end - start < HEADER_BYTES:
        return False
    base_offset, length, _, magic, _, attributes = _HEADER_TO_ATTRIBUTES.unpack_from(frame, start)
    # attributes == 0: no codec, CreateTime, not transactional, no control batch.
    found: bool = base_offset == attributes == 0 and magic == _MAGIC and length + _LOG_OVERHEAD == end - start
    return found


def check_batch(
    frame: bytes, start: int, end: int, limits: FastPathLimits, now_ms: int
) -> tuple[HeaderFields, bytes] | None:
    """Check the candidate batch in `frame[start:end]`.

    Args:
        frame: The request.
        start: Where the batch begins; `is_candidate` holds.
        end: Where it ends.
        limits: Those of the log.
        now_ms: Wall-clock time.

    Returns:
        The fields of the header, and the bytes in the range of the CRC. The header's start is written anew by
        `pack_header_start`. None if the full path has to decide.
    """
    fields = _HEADER.unpack_from(frame, start)
    _, _, _, _, crc, _, last_offset_delta, base_timestamp, max_timestamp, producer_id, _, base_sequence, count = fields
    # 1. The header is consistent, and within the limits of the log.
    if count <= 0 or last_offset_delta != count - 1 or producer_id >= 0 > base_sequence:
        return None
    max_bytes, timestamp_after_max_ms = limits
    if end - start > max_bytes or max_timestamp - now_ms > timestamp_after_max_ms:
        return None
    # 2. The CRC. The slice is the only copy that is made of the batch.
    in_crc_range = frame[start + _CRC_RANGE_START : end]
    if crc32c(in_crc_range) != crc:
        return None
    # 3. The records; in small batches also that the header's largest timestamp is theirs, as the full path would
    #    correct it.
    try:
        if count > FULLY_CHECKED_RECORDS:
            check_records(in_crc_range, count, HEADER_BYTES - _CRC_RANGE_START)
        elif _largest_timestamp(in_crc_range, count, base_timestamp) != max_timestamp:
            return None
    except (IndexError, ValueError):
        return None
    return fields, in_crc_range


def pack_header_start(fields: HeaderFields, base_offset: int, leader_epoch: int) -> bytes:
    """Return the header up to its CRC, with the offset and the leader epoch that the broker assigns."""
    return _HEADER_START.pack(base_offset, fields[1], leader_epoch, _MAGIC, fields[4])


def _largest_timestamp(in_crc_range: bytes, count: int, base_timestamp: int) -> int:
    """Check every record and return the largest timestamp. Raises ValueError, IndexError."""
    position, largest = HEADER_BYTES - _CRC_RANGE_START, -1
    if count >= MIN_UNIFORM_RECORDS and (uniform := uniform_timestamps(in_crc_range, count, position)):
        deltas = [(byte >> 1) ^ -(byte & 1) for byte in uniform]
        if base_timestamp + min(deltas) < 0:
            raise ValueError("a record has a negative timestamp")
        return base_timestamp + max(deltas)
    for index in range(count):
        delta, offset_delta, _, _, position = read_record(in_crc_range, position)
        if offset_delta != index or base_timestamp + delta < 0:
            raise ValueError(f"record {index} has offset delta {offset_delta}, timestamp delta {delta}")
        largest = max(largest, base_timestamp + delta)
    if position != len(in_crc_range):
        raise ValueError("it holds more bytes than records")
    return largest


# -- single records ----------------------------------------------------------------------------------------------------


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


# -- small batches -----------------------------------------------------------------------------------------------------


def uniform_timestamps(section: bytes, count: int, position: int = 0) -> bytes:
    """Check a small batch of uniform records and return their timestamp deltas.

    Args:
        section: The records.
        count: How many records the header announces.
        position: Where the first record begins.

    Returns:
        One encoded byte per record if the records are uniform, sound and fill the section. Empty if only a closer look
        can tell.

    Raises:
        ValueError, IndexError: The first record is malformed.
    """
    size = len(section)
    # A producer sends the same layout again and again. Then nothing has to be found out, only compared.
    layout = _layouts.get((size, count, position))
    if layout is not None:
        timestamps = _match_layout(section, layout)
        if timestamps:
            return timestamps
    if (size - position) % count or count > len(_DELTAS_OF_ONE_BYTE):
        return b""
    layout = _find_layout(section, count, position)
    if layout is None or not (timestamps := _match_layout(section, layout)):
        return b""
    if len(_layouts) >= _MAX_LAYOUTS:
        _layouts.clear()
    _layouts[size, count, position] = layout
    return timestamps


def _find_layout(section: bytes, count: int, position: int) -> _Layout | None:
    """Return the layout of the first record, for `count` records. Raises ValueError, IndexError."""
    # 1. All records must have the size of the first, one-byte deltas and no headers.
    stride = (len(section) - position) // count
    _, _, key, value, end = read_record(section, position)
    timestamp, offset, key_length, value_length, headers = find_fields(section, position, key, value)
    if offset != timestamp + 1 or key_length != offset + 1:
        return None
    if end - position != stride or section[headers] or headers + 1 != end:
        return None
    # 2. Bytes that must be equal in all records: the lengths and the number of headers. Free to differ: attributes
    #    (at timestamp - 1), the bytes of key and value, and the two deltas.
    same = (*range(position, timestamp - 1), *range(key_length, value_length - max(key, 0)))
    same = (*same, *range(value_length, headers - max(value, 0)), headers)
    columns = [(at, section[at : at + 1] * count) for at in same]
    # 3. The column of offset deltas is 0, 1, 2, …
    columns.append((offset, _DELTAS_OF_ONE_BYTE[:count]))
    return slice(timestamp, None, stride), tuple((slice(at, None, stride), column) for at, column in columns)


def _match_layout(section: bytes, layout: _Layout) -> bytes:
    """Return the encoded timestamp deltas; empty if the records are not laid out like this."""
    timestamp_column, fixed_columns = layout
    for column, expected in fixed_columns:
        if section[column] != expected:
            return b""
    timestamps = section[timestamp_column]
    return timestamps if timestamps.isascii() else b""  # a byte below 0x80 is a whole varint


# -- batches of any size -----------------------------------------------------------------------------------------------


def check_records(section: bytes, count: int, position: int = 0) -> None:
    """Check that `count` records fill the section, and most of them inside: fields, headers, offset deltas.

    Checked inside are the first `MAX_SINGLE_CHECKS` records, all uniform ones that follow a checked one, and in a small
    batch also the plain records at its start. Of the others only the lengths are checked.

    Raises:
        ValueError, IndexError: A record is malformed, or the records do not fill the section.
    """
    # 1. Small uniform batches: one comparison per column.
    if count >= MIN_UNIFORM_RECORDS and uniform_timestamps(section, count, position):
        return
    # 2. Small batches: the plain records at the start.
    index, left = 0, MAX_SINGLE_CHECKS
    if count < _SMALL_BATCH:
        index, position = skip_plain_records(section, count, position)
    # 3. Check a record, then skip the run of uniform records after it; again until the allowance is used up.
    while index < count and left:
        start = position
        _, offset_delta, key, value, position = read_record(section, start)
        if offset_delta != index:
            raise ValueError(f"record {index} has offset delta {offset_delta}")
        index, left = index + 1, left - 1
        if count - index < _MIN_RUN or section[position : position + 1] != section[start : start + 1]:
            continue
        stride = position - start
        candidates = _count_equal_lengths(section, position, start, stride, count - index)
        uniform = 0
        if candidates >= _MIN_RUN:
            uniform = _count_uniform(section, start, stride, key, value, index, candidates)
        index, position = index + uniform, position + uniform * stride
    # 4. The lengths of the rest.
    check_record_lengths(section, count - index, position)


def _count_uniform(
    section: bytes,
    start: int,
    stride: int,
    key: int,
    value: int,
    index: int,
    candidates: int,
    *,
    same_timestamp: bool = False,
) -> int:
    """Return how many records after the one at `start` are laid out as it is, and sound.

    Counts up to the first record that differs; that one may still be sound.

    Args:
        section: The records.
        start: Where the model record begins; it has been checked.
        stride: Its size.
        key: Length of its key, negative for null.
        value: Length of its value, negative for null.
        index: Index of the record after it, which is that record's offset delta.
        candidates: How many records of the same length follow.
        same_timestamp: Whether the timestamp delta must be the same, too.
    """
    timestamp, offset, key_length, value_length, headers = find_fields(section, start, key, value)
    if section[headers] != 0 or headers + 1 != start + stride:
        return 0
    # 1. Offset deltas: compare each column of their bytes with 0, 1, 2, … A shorter constant bounds the run.
    expected_columns = _offset_delta_columns(index, candidates, key_length - offset)
    length = count = min(len(expected_columns[0]), (len(section) - start) // stride - 1)
    end = start + stride + length * stride  # a column is every `stride`th byte from the field up to here
    for at, expected in enumerate(expected_columns, offset):
        if (column := section[at + stride : end : stride]) != expected:
            count = min(count, _common_prefix_length(column, expected))
    # 2. Lengths and the number of headers: the same byte in all records. `lstrip` finds the first other one in C.
    same = [*range(key_length, value_length - max(key, 0)), *range(value_length, headers - max(value, 0)), headers]
    timestamp_bytes = range(timestamp, offset)
    if same_timestamp:
        same += timestamp_bytes
    for at in same:
        if rest := section[at + stride : end : stride].lstrip(section[at : at + 1]):
            count = min(count, length - len(rest))
    # 3. Timestamp deltas may differ, but their varints must have the same width: only the last byte is below 0x80.
    for at in () if same_timestamp else timestamp_bytes:
        if rest := section[at + stride : end : stride].lstrip(_BELOW_0X80 if at == offset - 1 else _FROM_0X80):
            count = min(count, length - len(rest))
    return count


def _offset_delta_columns(index: int, count: int, width: int) -> tuple[bytes, ...]:
    """Return the offset deltas from `index` on as columns of their `width` bytes, for `count` records or fewer."""
    if width == 1:
        return (_DELTAS_OF_ONE_BYTE[index : index + count],)
    if width == 2:
        return _FIRST_BYTES[index : index + count], _SECOND_BYTES_OF_TWO[index : index + count]
    if width > 3:
        return (b"",)
    within_period = slice(index % _PERIOD, index % _PERIOD + count)
    first = _FIRST_BYTES[within_period]
    return first, _SECOND_BYTES_OF_THREE[within_period], bytes([index // _PERIOD]) * len(first)


def _common_prefix_length(one: bytes, other: bytes) -> int:
    pairs = enumerate(zip(one, other, strict=False))
    return next((at for at, (a, b) in pairs if a != b), min(len(one), len(other)))


def check_record_lengths(section: bytes, count: int, position: int = 0) -> None:
    """Check that `count` records fill the section from `position` on, by their lengths alone.

    One step per record, except that a run of records of one length is skipped in one step.

    Raises:
        ValueError, IndexError: A length is too small, or the records do not fill the section.
    """
    while count >= _MIN_RUN:
        # Three records in a row of one length suggest a run.
        third = _skip_records(section, position, 2)
        after = _skip_records(section, third, 1)
        stride = after - third
        count -= 3
        if third - position != 2 * stride or _length_width(section, third) > 2:
            position = after
            break
        run = _count_equal_lengths(section, after, third, stride, count)
        position = after + run * stride
        count -= run
        if run < _MIN_RUN:
            break
    if _skip_records(section, position, count) != len(section):
        raise ValueError("its records do not fill it")


def _skip_records(section: bytes, position: int, count: int) -> int:
    """Return the position after `count` records; lengths of one and two bytes inline. Raises ValueError, IndexError."""
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
        if length < MIN_RECORD_BYTES:
            raise ValueError(f"a record has a length of {length}")
    return position


def _length_width(section: bytes, position: int) -> int:
    """Return how many bytes the length at `position` takes; 3 stands for three or more."""
    return 1 if section[position] < 0x80 else 2 if section[position + 1] < 0x80 else 3


def _count_equal_lengths(section: bytes, position: int, model: int, stride: int, count: int) -> int:
    """Return how many of the next `count` records begin with the same length, of at most two bytes, as the `model`."""
    for at in range(_length_width(section, model)):
        column = section[position + at : position + count * stride : stride]
        count = len(column) - len(column.lstrip(section[model + at : model + at + 1]))
    return count


# -- batches with keys -------------------------------------------------------------------------------------------------


def check_keyed_records(section: bytes, count: int) -> tuple[int, int] | None:
    """Check every record of a batch whose records have keys and no headers.

    Returns:
        The smallest and the largest timestamp delta, 0 included, if `count` sound records with keys fill the section.
        None if a record has no key, or if only a closer look can tell.
    """
    position = index = smallest = largest = 0
    # Runs of uniform records are looked for in windows. A window doubles while runs fill it; after a search in vain the
    # next one waits for twice as many records, so that mixed batches do not pay for searches.
    window, pause, next_search = _FIRST_WINDOW, 1, 0
    try:
        while index < count:
            start = position
            record = _read_keyed_record(section, start, index)
            if record is None:
                return None
            position, timestamp, key, value = record
            index += 1
            if timestamp:
                timestamp = timestamp >> 1 ^ -(timestamp & 1)
                smallest, largest = min(smallest, timestamp), max(largest, timestamp)
            if index < next_search or count - index < _MIN_KEYED_RUN:
                continue
            stride, candidates = position - start, min(window, count - index)
            run = _count_equal_lengths(section, position, start, stride, candidates)
            if run >= _MIN_KEYED_RUN:
                run = _count_uniform(section, start, stride, key >> 1, value >> 1, index, run, same_timestamp=True)
                index, position = index + run, position + run * stride
            window = min(2 * window, _LARGEST_WINDOW) if run == candidates else _FIRST_WINDOW
            pause = min(2 * pause, _LONGEST_PAUSE) if run < _MIN_KEYED_RUN else 1
            next_search = index + pause - 1
    except IndexError:
        return None
    return (smallest, largest) if position == len(section) and count <= _MAX_KEYED_RECORDS else None


def _read_keyed_record(section: bytes, position: int, index: int) -> tuple[int, int, int, int] | None:
    """Return (position after the record, timestamp delta, key length, value length), the last three zigzag encoded.

    None if the record has no key, has headers, or has a field of more than two bytes (three for the offset delta).
    Raises IndexError.
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
    # One zero byte must be left: no headers. An odd length is negative; only the value may be null, encoded as 1.
    if at + 1 != end or section[at] or delta != 2 * index or (byte | key) & 1 or (value & 1 and value != 1):
        return None
    if max(byte, timestamp, key, value) >= 0x4000:  # a varint of three bytes or more: only two of them were read
        return None
    return end, timestamp, key, value
