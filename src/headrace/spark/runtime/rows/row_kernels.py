"""The compiled loops behind `rows.py`: bytes of a column into rows, and back; which rows begin with given bytes.

Everything around them is NumPy. They are compiled once per machine (numba's cache) and warmed by the daemon before it
forks, so that no micro-batch waits for a compiler.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from headrace.njit import njit

if TYPE_CHECKING:
    from numpy.typing import NDArray


__all__ = ["copy_spans", "find_prefix", "warm_up"]


@njit(cache=True, nogil=True)
def copy_spans(
    target: NDArray[np.uint8],
    target_starts: NDArray[np.int64],
    source: NDArray[np.uint8],
    source_starts: NDArray[np.int64],
    lengths: NDArray[np.int64],
) -> None:
    """Copy `lengths[i]` bytes from `source[source_starts[i]:]` to `target[target_starts[i]:]` for every i."""
    for row in range(lengths.shape[0]):
        length = lengths[row]
        start, origin = target_starts[row], source_starts[row]
        for at in range(length):
            target[start + at] = source[origin + at]


@njit(cache=True, nogil=True)
def find_prefix(
    data: NDArray[np.uint8],
    starts: NDArray[np.int64],
    lengths: NDArray[np.int64],
    prefix: NDArray[np.uint8],
    found: NDArray[np.bool_],
) -> int:
    """Set `found[i]` where span i begins with `prefix`; return how many do."""
    count = 0
    for row in range(lengths.shape[0]):
        begins = lengths[row] >= prefix.shape[0]
        if begins:
            for at in range(prefix.shape[0]):
                begins = begins and data[starts[row] + at] == prefix[at]
        found[row] = begins
        count += begins
    return count


def warm_up() -> None:
    """Compile, or load from the cache, what a worker needs."""
    no_bytes, no_rows = np.zeros(1, np.uint8), np.zeros(1, np.int64)
    copy_spans(no_bytes, no_rows, no_bytes, no_rows, no_rows)
    copy_spans(no_bytes, no_rows, np.frombuffer(b"-", np.uint8), no_rows, no_rows)  # a source not to be written
    read_only = np.frombuffer(b"-", np.uint8)
    for data in (no_bytes, read_only):
        find_prefix(data, no_rows, no_rows, read_only, np.zeros(1, np.bool_))
