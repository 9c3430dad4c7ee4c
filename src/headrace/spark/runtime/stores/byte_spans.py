"""Arrow's binary arrays as compiled loops take them, a buffer and where each value lies in it, and back."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from headrace.errors import StateError
from headrace.spark.runtime.rows.row_kernels import copy_spans

__all__ = ["Bytes", "Positions", "array_of_spans", "null_bitmap", "spans_of"]

Bytes = NDArray[np.uint8]
Positions = NDArray[np.int64]


def _read_only(data: Bytes) -> Bytes:
    """Return a read-only view, so that numba sees one type whatever the memory's owner."""
    view = data.view()
    view.flags.writeable = False
    return view


def spans_of(array: pa.Array) -> tuple[Bytes, Positions, Positions]:
    """(bytes, where each value begins, its size) of a binary or string array with 32-bit offsets."""
    _nulls, offset_buffer, body = array.buffers()
    if offset_buffer is None or len(array) == 0:
        return _read_only(np.zeros(1, np.uint8)), np.zeros(len(array), np.int64), np.zeros(len(array), np.int64)
    # A sliced array shares the buffers of the whole, so the offsets begin at `array.offset`.
    offsets = np.frombuffer(offset_buffer, np.int32, len(array) + 1, array.offset * 4).astype(np.int64)
    data = np.frombuffer(body, np.uint8) if body is not None and body.size else np.zeros(1, np.uint8)
    return _read_only(data), offsets[:-1], np.diff(offsets)


def array_of_spans(
    data: Bytes, at: Positions, lengths: Positions, column_type: pa.DataType, null: NDArray[np.bool_]
) -> pa.Array:
    """Build an Arrow array by copying spans of bytes together; the inverse of `spans_of`.

    Args:
        data: The bytes.
        at: Start of each value.
        lengths: Length of each value; 0 where it is null.
        column_type: Arrow type of the array.
        null: Mask of null values; None for none.

    Raises:
        StateError: row-batch-too-large.
    """
    # Summed with 64 bits and compared, because 32-bit offsets would wrap around silently at 2 GiB.
    ends = np.cumsum(lengths)
    if len(ends) and ends[-1] > 2**31 - 1:
        raise StateError("row-batch-too-large", f"{len(ends)} values of {ends[-1]} bytes do not fit one Arrow array")
    offsets = np.zeros(len(lengths) + 1, np.int32)
    offsets[1:] = ends
    body = np.empty(int(ends[-1]) if len(ends) else 0, np.uint8)
    if len(body):
        copy_spans(body, ends - lengths, data, at, lengths)
    kind = pa.string() if pa.types.is_string(column_type) or pa.types.is_large_string(column_type) else pa.binary()
    return pa.Array.from_buffers(kind, len(null), [null_bitmap(null), pa.py_buffer(offsets), pa.py_buffer(body)])


def null_bitmap(null: NDArray[np.bool_]) -> pa.Buffer | None:
    """Arrow's validity bits; None where nothing is null."""
    return pa.py_buffer(np.packbits(~null, bitorder="little")) if null.any() else None
