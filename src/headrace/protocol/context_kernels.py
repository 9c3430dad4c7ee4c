"""The loops that find and write trace contexts of record batches, compiled by numba. Caller: `sampled_contexts`.

The rules of `arrow_kernels` hold here: bytes from the wire are bounds-checked by these loops.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from headrace.njit import njit
from headrace.protocol.arrow_kernels import BAD, copy_bytes, read_varint

if TYPE_CHECKING:
    from headrace.array_types import ByteArray, Int32Array, Int64Array, Integer

__all__ = [
    "BAD",
    "MOST_STATE_BYTES",
    "PARENT_BYTES",
    "fill_offsets",
    "scan_contexts",
    "write_contexts",
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
        # Bounds as in `arrow_kernels.scan_headers`: the bytes come from untrusted clients.
        for _ in range(header_counts[row]):
            name_size, position = read_varint(source, position, end)
            if position < 0 or name_size < 0 or name_size > end - position:
                return found, row
            name = position
            position += name_size
            value_size, position = read_varint(source, position, end)
            if position < 0 or value_size > end - position:
                return found, row
            if name_size == 11 and _equals(source, name, _PARENT_NAME):
                parent = position
                parent_size = value_size
            elif name_size == 10 and _equals(source, name, _STATE_NAME):
                state = position
                state_size = value_size
            if value_size > 0:
                position += value_size
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
    for index in range(rows.shape[0]):
        at = np.int64(starts[rows[index]]) + 36
        for place in range(16):
            data[at + place] = _character(_digit(np.int64(data[at + place])) ^ np.int64(digits[place]))
