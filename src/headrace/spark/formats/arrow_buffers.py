"""Arrow arrays as the buffers that compiled loops read, and arrays from the buffers that they have written."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from headrace.array_types import BoolArray, ByteArray, Int32Array, Int64Array, IntegerArray
from headrace.protocol.arrow_kernels import copy_slices

__all__ = [
    "binary_array",
    "bytes_of",
    "read_only",
    "slices_array",
    "texts_of",
    "validity",
    "without_rows",
]

_Element = TypeVar("_Element", bound=np.generic)
_MOST_BYTES: Final = 2**31 - 1  # of an array with 32-bit offsets


def read_only(array: NDArray[_Element]) -> NDArray[_Element]:
    """A view that compiled loops take whether its memory is Arrow's, which cannot be written, or NumPy's."""
    view = array.view()
    view.setflags(write=False)
    return view


def bytes_of(values: pa.Array) -> tuple[ByteArray, Int32Array]:
    """Return the bytes of a binary column and the end offset of each row. A null is an empty row."""
    if pa.types.is_large_binary(values.type):
        values = values.cast(pa.binary())
    _, ends, body = values.buffers()
    if ends is None or not len(values):
        return read_only(np.zeros(0, np.uint8)), read_only(np.zeros(len(values) + 1, np.int32))
    offsets = np.frombuffer(ends, np.int32, len(values) + 1, values.offset * 4)
    if values.null_count:
        # What stands behind a null is not looked at: such rows are read from nowhere.
        return bytes_of(values.fill_null(b""))
    data = np.frombuffer(body, np.uint8) if body is not None and body.size else np.zeros(0, np.uint8)
    return read_only(data), read_only(offsets)


def validity(there: BoolArray | ByteArray) -> pa.Buffer | None:
    """Return the validity bitmap of values that are there where `there` is not 0; None if all are."""
    valid = there != 0
    return None if valid.all() else pa.py_buffer(np.packbits(valid, bitorder="little"))


def slices_array(
    kind: pa.DataType, data: ByteArray, at: Int64Array, sizes: IntegerArray, there: BoolArray | ByteArray
) -> pa.Array:
    """Return slices of `data` as an array of strings or bytes.

    Args:
        kind: `pa.string()` or `pa.binary()`; strings are not checked to be UTF-8.
        data: uint8: the bytes.
        at: Where each slice begins.
        sizes: Bytes of each slice; 0 for a null.
        there: 0 for a null.
    """
    # Summed with 64 bits. An array of strings has 32-bit offsets, and a batch of records is far below 2 GiB.
    ends = np.zeros(len(there) + 1, np.int64)
    np.cumsum(sizes, out=ends[1:])
    offsets = ends.astype(np.int32)
    packed = np.empty(int(ends[-1]), np.uint8)
    copy_slices(data, at, offsets, packed)
    return pa.Array.from_buffers(kind, len(there), [validity(there), pa.py_buffer(offsets), pa.py_buffer(packed)])


def texts_of(values: pa.Array) -> tuple[pa.Array, NDArray[np.int64]]:
    """Return (bytes as strings, the places of those that are not UTF-8, which are empty strings).

    They are not null: keys of maps must not be, and the whole record becomes null in the end.
    """
    try:
        return values.cast(pa.string()), np.zeros(0, np.int64)
    except pa.ArrowInvalid:
        wrong = np.array([_is_not_utf8(value) for value in values.to_pylist()])
    return pc.if_else(pa.array(wrong), pa.scalar(b""), values).cast(pa.string()), np.flatnonzero(wrong)


def _is_not_utf8(value: bytes | None) -> bool:
    try:
        (value or b"").decode()
    except UnicodeDecodeError:
        return True
    return False


def without_rows(columns: list[pa.Array], count: int, rows: Iterable[int]) -> list[pa.Array]:
    """Return the columns, each of `count` values, with null in these rows."""
    bad = np.fromiter(rows, np.int64)
    if not len(bad):
        return columns
    missing = np.zeros(count, np.bool_)
    missing[bad] = True
    # `take` with a null index yields null. Rebuilding validity bitmaps by hand would need a case for each nested type.
    picked = pa.array(np.arange(count), mask=missing)
    return [column.take(picked) for column in columns]


def binary_array(offsets: IntegerArray, data: ByteArray) -> pa.Array:
    """Return the bytes between each two offsets (int64) as a binary array, a large one above 2 GiB."""
    if len(data) <= _MOST_BYTES:
        kind, offsets = pa.binary(), offsets.astype(np.int32)
    else:
        kind = pa.large_binary()
    return pa.Array.from_buffers(kind, len(offsets) - 1, [None, pa.py_buffer(offsets), pa.py_buffer(data)])
