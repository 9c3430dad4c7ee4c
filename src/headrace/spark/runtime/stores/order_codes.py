"""Columns as integers in Spark's order, and rows sorted by them: ORDER BY without a Python object for each row.

A column becomes one or more arrays of 64-bit integers ("codes"). They compare like Spark's values: NaN is the largest
number and equals itself, -0.0 equals 0.0, texts and binaries compare by unsigned bytes (Spark's UTF8String without a
collation), false is before true. Nulls are an array of their own in front, first or last as declared.

Rejected: byte strings that compare by memcmp. They cost an encoding of every text with escapes, and NumPy sorts byte
strings several times slower than integers; codes need not be comparable between two micro-batches, because stored rows
are sorted together with the new ones.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

__all__ = ["Codes", "changes_of", "codes_of", "sorted_rows"]

Codes = NDArray[np.int64]
_SIGN = np.int64(-(1 << 63))
_MAGNITUDE = np.int64((1 << 63) - 1)


def codes_of(column: pa.Array, *, descending: bool = False, nulls_last: bool = False) -> list[Codes]:
    """Return arrays whose lexicographic order is the order of the column's values, the most significant one first.

    Args:
        column: Values of a flat type.
        descending: Whether the largest value comes first.
        nulls_last: Whether nulls come last, whatever the direction.
    """
    null = column.is_null().to_numpy(zero_copy_only=False) if column.null_count else None
    codes = [~code if descending else code for code in _ascending(column)]  # ~ reverses without overflow
    if null is None:
        return codes
    flag = null.astype(np.int64)
    return [flag if nulls_last else -flag, *(np.where(null, 0, code) for code in codes)]


def _ascending(column: pa.Array) -> list[Codes]:
    """Return the codes of a column. Those of nulls are arbitrary."""
    kind, types = column.type, pa.types
    if types.is_string(kind) or types.is_binary(kind) or types.is_large_string(kind) or types.is_large_binary(kind):
        return [_codes_of_bytes(column)]
    if types.is_floating(kind):
        return [_codes_of_numbers(column)]
    if types.is_decimal128(kind):
        return _codes_of_decimals(column)
    if types.is_boolean(kind):
        return [column.fill_null(False).to_numpy(zero_copy_only=False).astype(np.int64)]
    if types.is_date32(kind):
        column = column.cast(pa.int32())
    elif types.is_timestamp(kind):
        column = column.cast(pa.int64())
    return [column.fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)]


def _codes_of_bytes(column: pa.Array) -> Codes:
    found = column.cast(pa.binary()).dictionary_encode()
    order = pc.array_sort_indices(found.dictionary).to_numpy()
    places = np.empty(len(order) + 1, np.int64)
    places[order] = np.arange(len(order))
    places[-1] = -1  # of nulls
    indices = found.indices.fill_null(len(order)).to_numpy(zero_copy_only=False)
    codes: Codes = places[indices]
    return codes


def _codes_of_numbers(column: pa.Array) -> Codes:
    values = column.fill_null(0.0).to_numpy(zero_copy_only=False).astype(np.float64) + 0.0  # -0.0 becomes 0.0
    values[np.isnan(values)] = np.nan  # one NaN, whose bits are above those of infinity
    bits = values.view(np.int64)
    # IEEE 754: the bits of positive numbers grow with them, those of negative ones the other way.
    return np.where(bits < 0, bits ^ _MAGNITUDE, bits)


def _codes_of_decimals(column: pa.Array) -> list[Codes]:
    words = np.frombuffer(column.buffers()[1] or b"", np.int64, 2 * len(column), 16 * column.offset).reshape(-1, 2)
    low, high = np.ascontiguousarray(words[:, 0]), np.ascontiguousarray(words[:, 1])
    if column.type.precision <= 18:  # fits the lower word, sign included
        return [low]
    return [high, low ^ _SIGN]  # the lower word is unsigned


def sorted_rows(codes: Sequence[Codes]) -> NDArray[np.int64]:
    """Return row numbers in the order of their codes; rows with equal codes stay in their order."""
    return np.lexsort(tuple(reversed(codes)))


def changes_of(codes: Sequence[Codes], order: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return for each row, in this order, whether some code differs from that of the row before it."""
    changes = np.zeros(len(order), np.bool_)
    changes[:1] = True
    for code in codes:
        in_order = code[order]
        changes[1:] |= in_order[1:] != in_order[:-1]
    return changes
