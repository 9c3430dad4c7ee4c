"""The compiled loops of window functions: for each row of a key, in order, one value over the rows of its frame.

A frame is the half-open run `begins[row]` to `ends[row]` of the same array. Frames of neighbours that begin alike are
added up once: the next one goes on where the last one ended. Any other frame is added up anew from its first row, as
Spark does, so that sums of doubles are equal to the last bit.

A frame without a beginning goes on from what was carried over from earlier micro-batches.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from headrace.njit import njit

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from headrace.spark.runtime.stores.byte_spans import Positions

    Doubles = NDArray[np.float64]
    Mask = NDArray[np.bool_]

__all__ = ["extreme_rows", "sum_doubles", "sum_integers", "time_begins"]


@njit(cache=True, nogil=True)
def time_begins(times: Positions, starts: Positions, back: int) -> Positions:
    """Return for each row the first row of its key whose time is at most `back` before it.

    Args:
        times: Of the rows, ascending within a key.
        starts: For each row, the first row of its key.
        back: In the unit of `times`.
    """
    begins = np.empty(len(times), np.int64)
    at = 0
    for row in range(len(times)):
        at = max(at, starts[row])
        while times[at] < times[row] - back:
            at += 1
        begins[row] = at
    return begins


@njit(cache=True, nogil=True)
def sum_doubles(
    values: Doubles, valid: Mask, begins: Positions, ends: Positions, first_sums: Doubles, first_counts: Positions
) -> tuple[Doubles, Positions]:
    """Return the sum and the number of the valid values of each frame.

    Args:
        values: One per row.
        valid: Which of them count.
        begins: First row of each frame.
        ends: The row behind each frame.
        first_sums: For each row, what its frame begins with.
        first_counts: Number of the values in that.
    """
    sums, counts = np.empty(len(begins), np.float64), np.empty(len(begins), np.int64)
    for row in range(len(begins)):
        if row > 0 and begins[row] == begins[row - 1] and ends[row] >= ends[row - 1]:
            total, count, at = sums[row - 1], counts[row - 1], ends[row - 1]
        else:
            total, count, at = first_sums[row], first_counts[row], begins[row]
        for one in range(at, ends[row]):
            if valid[one]:
                total += values[one]
                count += 1
        sums[row], counts[row] = total, count
    return sums, counts


@njit(cache=True, nogil=True)
def sum_integers(
    values: Positions, valid: Mask, begins: Positions, ends: Positions, first_sums: Positions, first_counts: Positions
) -> tuple[Positions, Positions, int]:
    """Return sums and numbers as `sum_doubles`, and the first row whose sum does not fit 64 bits; -1 without one."""
    sums, counts = np.empty(len(begins), np.int64), np.empty(len(begins), np.int64)
    overflow = -1
    for row in range(len(begins)):
        if row > 0 and begins[row] == begins[row - 1] and ends[row] >= ends[row - 1]:
            total, count, at = sums[row - 1], counts[row - 1], ends[row - 1]
        else:
            total, count, at = first_sums[row], first_counts[row], begins[row]
        for one in range(at, ends[row]):
            if valid[one]:
                after = total + values[one]
                # The sum has left the range if both terms have the sign that it has not.
                if ((total ^ after) & (values[one] ^ after)) < 0 and overflow < 0:
                    overflow = row
                total = after
                count += 1
        sums[row], counts[row] = total, count
    return sums, counts, overflow


@njit(cache=True, nogil=True)
def extreme_rows(codes: Positions, valid: Mask, begins: Positions, ends: Positions, first_rows: Positions) -> Positions:
    """Return the row with the least code of each frame, of several the first one; -1 for a frame without a valid row.

    Args:
        codes: One per row, in the order of the values; negated for a maximum.
        valid: Which rows count.
        begins: First row of each frame.
        ends: The row behind each frame.
        first_rows: For each row, the row that its frame begins with, which may lie anywhere; -1 for none.
    """
    found = np.empty(len(begins), np.int64)
    for row in range(len(begins)):
        if row > 0 and begins[row] == begins[row - 1] and ends[row] >= ends[row - 1]:
            best, at = found[row - 1], ends[row - 1]
        else:
            best, at = first_rows[row], begins[row]
        for one in range(at, ends[row]):
            if valid[one] and (best < 0 or codes[one] < codes[best]):
                best = one
        found[row] = best
    return found
