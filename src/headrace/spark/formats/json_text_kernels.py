"""The compiled loops behind `json_encoding`: columns become JSON objects, one column after the other.

First every column adds its part to the size of each row, then every column writes its part `,"name":value` behind what
the ones before it wrote; a row's first comma becomes its brace at the end. A null is written as `null`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from headrace.njit import njit
from headrace.protocol.arrow_kernels import copy_bytes

if TYPE_CHECKING:
    from headrace.array_types import BoolArray, ByteArray, Int64Array, Integer, IntegerArray


__all__ = ["add_integer_sizes", "add_text_sizes", "close_rows", "is_plain_text", "write_integers", "write_texts"]


@njit(cache=True, nogil=True)
def is_plain_text(data: ByteArray, start: int, end: int) -> bool:
    """Whether these bytes need no escape in a JSON string: no quote, no backslash, no control character."""
    for at in range(start, end):
        byte = data[at]
        if byte < 32 or byte == 34 or byte == 92:
            return False
    return True


@njit(cache=True, nogil=True)
def _magnitude(value: Integer) -> Integer:
    # -(value + 1) + 1 instead of -value: the least int64 has no positive counterpart.
    return np.uint64(value) if value >= 0 else np.uint64(-(value + 1)) + np.uint64(1)


@njit(cache=True, nogil=True)
def _digits(value: Integer) -> int:
    left, count = _magnitude(value), 1
    while left >= np.uint64(10):
        left //= np.uint64(10)
        count += 1
    return count


@njit(cache=True, nogil=True)
def _write_null(label: ByteArray, target: ByteArray, at: Integer) -> Integer:
    copy_bytes(target, np.int64(at), label, np.int64(0), np.int64(label.shape[0]))
    at += label.shape[0]
    target[at] = 110
    target[at + 1] = 117
    target[at + 2] = 108
    target[at + 3] = 108
    return at + 4


@njit(cache=True, nogil=True)
def add_integer_sizes(values: IntegerArray, there: BoolArray, label_size: int, sizes: IntegerArray) -> None:
    """Add the size of an integer column's part, label included, to the size of each row."""
    for row in range(sizes.shape[0]):
        sizes[row] += label_size + (_digits(values[row]) + (values[row] < 0) if there[row] else 4)


@njit(cache=True, nogil=True)
def add_text_sizes(offsets: IntegerArray, there: BoolArray, label_size: int, quoted: bool, sizes: IntegerArray) -> None:
    """Add the size of a text column's part, label included, to the size of each row."""
    for row in range(sizes.shape[0]):
        size = np.int64(offsets[row + 1]) - np.int64(offsets[row])
        sizes[row] += label_size + (size + 2 * quoted if there[row] else 4)


@njit(cache=True, nogil=True)
def write_integers(
    values: IntegerArray, there: BoolArray, label: ByteArray, cursors: Int64Array, target: ByteArray
) -> None:
    """Write an integer column's part of each row at its cursor, and advance the cursors."""
    for row in range(cursors.shape[0]):
        if not there[row]:
            cursors[row] = _write_null(label, target, cursors[row])
            continue
        at = cursors[row]
        copy_bytes(target, np.int64(at), label, np.int64(0), np.int64(label.shape[0]))
        at += label.shape[0]
        if values[row] < 0:
            target[at] = 45
            at += 1
        left, end = _magnitude(values[row]), at + _digits(values[row])
        for place in range(end - 1, at - 1, -1):
            target[place] = 48 + np.int64(left % np.uint64(10))
            left //= np.uint64(10)
        cursors[row] = end


@njit(cache=True, nogil=True)
def write_texts(
    offsets: IntegerArray,
    data: ByteArray,
    there: BoolArray,
    label: ByteArray,
    quoted: bool,
    cursors: Int64Array,
    target: ByteArray,
) -> None:
    """Write a text column's part of each row at its cursor, and advance the cursors."""
    for row in range(cursors.shape[0]):
        if not there[row]:
            cursors[row] = _write_null(label, target, cursors[row])
            continue
        at = cursors[row]
        copy_bytes(target, np.int64(at), label, np.int64(0), np.int64(label.shape[0]))
        at += label.shape[0]
        if quoted:
            target[at] = 34
            at += 1
        start = np.int64(offsets[row])
        size = np.int64(offsets[row + 1]) - start
        copy_bytes(target, np.int64(at), data, start, size)
        at += size
        if quoted:
            target[at] = 34
            at += 1
        cursors[row] = at


@njit(cache=True, nogil=True)
def close_rows(offsets: IntegerArray, target: ByteArray) -> None:
    """Replace each row's first comma by an opening brace, and append the closing brace."""
    # Each part was written as `,"name":value`. Replacing one byte at the end is cheaper than a branch per column for
    # the first part of a row.
    for row in range(offsets.shape[0] - 1):
        target[offsets[row]] = 123
        target[offsets[row + 1] - 1] = 125
