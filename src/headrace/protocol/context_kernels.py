"""The loops that find and write trace contexts of record batches, compiled by numba. Caller: `sampled_contexts`.

The rules of `arrow_kernels` hold here: bytes from the wire are bounds-checked by these loops.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from headrace.njit import njit
from headrace.protocol.arrow_kernels import BAD, copy_bytes, read_varint

if TYPE_CHECKING:
    from headrace.array_types import BoolArray, ByteArray, Int32Array, Int64Array, Integer

__all__ = [
    "BAD",
    "MOST_STATE_BYTES",
    "PARENT_BYTES",
    "fill_offsets",
    "find_valid_rows",
    "follow_traces",
    "scan_contexts",
    "write_contexts",
    "write_pairs",
    "xor_span_ids",
]

# version "-" trace id "-" span id "-" flags: https://www.w3.org/TR/trace-context/#traceparent-header
PARENT_BYTES: Final = 55
MOST_STATE_BYTES: Final = 512  # that every implementation has to pass on; longer ones may be dropped

_PARENT_NAME: Final = np.frombuffer(b"traceparent", np.uint8)
_STATE_NAME: Final = np.frombuffer(b"tracestate", np.uint8)
_NO_DIGIT: Final = 255


@njit(cache=True, nogil=True)
def fill_offsets(rows: Int64Array, sizes: Int64Array, offsets: Int32Array) -> None:
    """Write Arrow's offsets of a column in which only `rows`, ascending, have a size."""
    behind = 0
    end = 0
    for index in range(rows.shape[0]):
        offsets[behind : rows[index] + 1] = end
        behind = rows[index] + 1
        end += sizes[index]
    offsets[behind:] = end


@njit(cache=True, nogil=True)
def _digit(character: Integer) -> Integer:
    """The value of a hexadecimal digit; upper case is invalid in a `traceparent`."""
    if 48 <= character <= 57:
        return character - 48
    return character - 87 if 97 <= character <= 102 else _NO_DIGIT


@njit(cache=True, nogil=True)
def _character(digit: Integer) -> Integer:
    return digit + 48 if digit < 10 else digit + 87


@njit(cache=True, nogil=True)
def _equals(source: ByteArray, position: int, name: ByteArray) -> bool:
    for index in range(name.shape[0]):  # noqa: SIM110 numba compiles no generator
        if source[position + index] != name[index]:
            return False
    return True


@njit(cache=True, nogil=True)
def _is_sampled(source: ByteArray, position: int, size: int) -> bool:
    """Whether a header's value is a valid `traceparent` whose flag `sampled` is set."""
    # 1. Characters. The ids must not be all zeros.
    if size < PARENT_BYTES:
        return False
    trace: Integer = 0
    span: Integer = 0
    for index in range(PARENT_BYTES):
        character = np.int64(source[position + index])
        if index in (2, 35, 52):
            if character != 45:
                return False
            continue
        digit = _digit(character)
        if digit == _NO_DIGIT:
            return False
        if 3 <= index < 35:
            trace |= digit
        elif 36 <= index < 52:
            span |= digit
    # 2. Version ff is invalid. Only a later version than 00 may be longer, with further fields behind another dash.
    version = _digit(np.int64(source[position])) * 16 + _digit(np.int64(source[position + 1]))
    if version == 255 or (size > PARENT_BYTES and (version == 0 or source[position + PARENT_BYTES] != 45)):
        return False
    # 3. Not sampled: its trace is recorded nowhere.
    return bool(trace and span and _digit(np.int64(source[position + 54])) & 1)


@njit(cache=True, nogil=True)
def scan_contexts(
    source: ByteArray,
    headers_at: Int64Array,
    headers_end: Int64Array,
    header_counts: Int64Array,
    rows: Int64Array,
    parent_at: Int64Array,
    state_at: Int64Array,
    state_bytes: Int64Array,
) -> tuple[int, int]:
    """Find the sampled records. Returns how many, and the first record with malformed headers or -1."""
    found = 0
    for row in range(header_counts.shape[0]):
        if header_counts[row] == 0:
            continue
        position = headers_at[row]
        end = headers_end[row]
        parent = state = 0
        parent_size = state_size = 0
        # 1. Bounds as in `arrow_kernels.scan_headers`: the bytes come from untrusted clients, and numba checks nothing.
        for _ in range(header_counts[row]):
            name_size, position = read_varint(source, position, end)
            if position < 0 or name_size < 0 or name_size > end - position:
                return found, row
            name = position
            position += name_size
            value_size, position = read_varint(source, position, end)
            if position < 0 or value_size > end - position:
                return found, row
            # 2. The last header of a name counts, also one without a value.
            if name_size == 11 and _equals(source, name, _PARENT_NAME):
                parent = position
                parent_size = value_size
            elif name_size == 10 and _equals(source, name, _STATE_NAME):
                state = position
                state_size = value_size
            if value_size > 0:
                position += value_size
        # 3. Headers that end before their record does are malformed, whether it is sampled or not.
        if position != end:
            return found, row
        if _is_sampled(source, parent, parent_size):
            rows[found] = row
            parent_at[found] = parent
            state_at[found] = state
            state_bytes[found] = state_size if 0 < state_size <= MOST_STATE_BYTES else 0
            found += 1
    return found, BAD


@njit(cache=True, nogil=True)
def write_contexts(
    source: ByteArray,
    rows: Int64Array,
    parent_at: Int64Array,
    state_at: Int64Array,
    state_bytes: Int64Array,
    offsets: Int32Array,
    bits: ByteArray,
    data: ByteArray,
) -> None:
    """Write the contexts that `scan_contexts` found, and the bitmap of their rows."""
    for index in range(rows.shape[0]):
        row = rows[index]
        at = np.int64(offsets[row])
        copy_bytes(data, at, source, parent_at[index], np.int64(PARENT_BYTES))
        # Version 00, and of the flags those that are known: 0x01 sampled, 0x02 random trace id (level 2).
        data[at] = data[at + 1] = data[at + 53] = 48
        data[at + 54] = _character(_digit(np.int64(data[at + 54])) & 3)
        copy_bytes(data, at + PARENT_BYTES, source, state_at[index], state_bytes[index])
        bits[row >> 3] |= np.uint8(1 << (row & 7))


@njit(cache=True, nogil=True)
def xor_span_ids(data: ByteArray, starts: Int32Array, rows: Int64Array, digits: ByteArray) -> None:
    """Replace the span id of each row by that id XOR the 16 hexadecimal `digits`."""
    for index in range(rows.shape[0]):
        at = np.int64(starts[rows[index]]) + 36
        for place in range(16):
            data[at + place] = _character(_digit(np.int64(data[at + place])) ^ np.int64(digits[place]))


@njit(cache=True, nogil=True)
def find_valid_rows(bitmap: ByteArray, bit: int, offsets: Int32Array, rows: Int64Array) -> int:
    """Write the rows of a binary column that are neither null nor empty. Returns how many there are."""
    found = 0
    for row in range(offsets.shape[0] - 1):
        if offsets[row + 1] == offsets[row]:
            continue
        place = row + bit
        if bitmap.shape[0] == 0 or (bitmap[place >> 3] >> np.uint8(place & 7)) & 1:
            rows[found] = row
            found += 1
    return found


@njit(cache=True, nogil=True)
def follow_traces(
    data: ByteArray,
    starts: Int32Array,
    rows: Int64Array,
    parents: ByteArray,
    known: int,
    most: int,
    counts: Int64Array,
    first: Int64Array,
    is_followed: BoolArray,
) -> int:
    """Mark the rows whose trace is among the first `most` ones of a task.

    `parents` has a row for each trace that is followed, `known` of them so far; `counts` and `first` receive their
    number of records among these, and the first one. Returns the number of traces that are followed now.
    """
    for index in range(rows.shape[0]):
        start = np.int64(starts[rows[index]])
        trace = -1
        for at in range(known):
            # From the end: flags and span ids differ where the version and perhaps a trace id do not.
            place = PARENT_BYTES - 1
            while place >= 0 and parents[at, place] == data[start + place]:
                place -= 1
            if place < 0:
                trace = at
                break
        if trace < 0 and known < most:
            trace = known
            for place in range(PARENT_BYTES):
                parents[trace, place] = data[start + place]
            known += 1
        if trace < 0:
            continue
        if counts[trace] == 0:
            first[trace] = rows[index]
        counts[trace] += 1
        is_followed[index] = True
    return known


@njit(cache=True, nogil=True)
def write_pairs(
    starts: Int32Array,
    rows: Int64Array,
    data: ByteArray,
    pairs: Int64Array,
    names: ByteArray,
    name_offsets: Int32Array,
    values: ByteArray,
    value_offsets: Int32Array,
) -> int:
    """Write the headers of the context of each row. Returns their number."""
    count = 0
    name_end = 0
    value_end: Integer = 0
    name_offsets[0] = 0
    value_offsets[0] = 0
    for index in range(rows.shape[0]):
        start = np.int64(starts[rows[index]])
        state_bytes = np.int64(starts[rows[index] + 1]) - start - PARENT_BYTES
        copy_bytes(names, np.int64(name_end), _PARENT_NAME, np.int64(0), np.int64(11))
        copy_bytes(values, np.int64(value_end), data, start, np.int64(PARENT_BYTES))
        name_end += 11
        value_end += PARENT_BYTES
        count += 1
        name_offsets[count] = name_end
        value_offsets[count] = value_end
        pairs[index] = 1
        if state_bytes > 0:
            copy_bytes(names, np.int64(name_end), _STATE_NAME, np.int64(0), np.int64(10))
            copy_bytes(values, np.int64(value_end), data, start + PARENT_BYTES, state_bytes)
            name_end += 10
            value_end += state_bytes
            count += 1
            name_offsets[count] = name_end
            value_offsets[count] = value_end
            pairs[index] = 2
    return count
