"""The compiled loops behind `quantile_sketches.py`: thinning of entries, and entries by rank."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from headrace.njit import njit

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Numbers = NDArray[np.int64]
    Doubles = NDArray[np.float64]
    Flags = NDArray[np.bool_]

__all__ = ["find_ranks", "thin_entries"]


@njit(cache=True, nogil=True)
def thin_entries(ends: Numbers, most: Numbers, less: Numbers, accuracy: int, entries: int) -> Flags:
    """Return which entries remain, and add the numbers of the others to them.

    Args:
        ends: Where the entries of each group begin, and the end of the last one.
        most: Changed in place: by how much the lower bound of "values at most this one" grows with the entry.
        less: Changed in place: by how much the upper bound of "values less than this one" grows behind the entry.
        accuracy: Reciprocal of the share of a group's values by which a rank may be wrong.
        entries: Groups with at most as many entries remain as they are.
    """
    kept = np.ones(len(most), np.bool_)
    for group in range(len(ends) - 1):
        first, end = ends[group], ends[group + 1]
        if end - first <= entries:
            continue
        total = 0
        for at in range(first, end):
            total += most[at]
        allowed = 2 * (total // accuracy)
        # `known` is the lower bound of the last kept entry, `below` the upper bound of the entry looked at.
        last, known, below, passed = first, most[first], 0, 0
        for at in range(first + 1, end):
            below += less[at - 1]
            # 1. An entry may go if its successor is still near enough to the last kept one. The last entry stays: it
            #    is the greatest value, as the first one is the least.
            is_vague = 4 * (below - known - passed - most[at]) > allowed
            if at < end - 1 and below + less[at] - known <= (allowed if is_vague else allowed // 2):
                kept[at] = False
                passed += most[at]
                # 2. Lower bounds belong to the next kept entry, upper bounds to the last one. `less[last]` was read
                #    before: at the entry behind it.
                less[last] += less[at]
                continue
            known += passed + most[at]
            most[at] += passed
            last, passed = at, 0
    return kept


@njit(cache=True, nogil=True)
def find_ranks(ends: Numbers, most: Numbers, less: Numbers, at: Doubles) -> Numbers:
    """Return for each group and share of its ranks the entry with the least possible error; -1 of no entries."""
    found = np.full((len(ends) - 1, len(at)), -1, np.int64)
    for group in range(len(ends) - 1):
        first, end = ends[group], ends[group + 1]
        total = 0
        for entry in range(first, end):
            total += most[entry]
        for asked in range(len(at)):
            rank = max(1, math.ceil(at[asked] * total))
            known, below, best = 0, 0, total + 1
            for entry in range(first, end):
                known += most[entry]
                # The last of the equal values may have the rank `known` only, the first one `below + 1`.
                error = max(0, rank - known, below + 1 - rank)
                if error < best:
                    best, found[group, asked] = error, entry
                if below + 1 - rank >= best:
                    break
                below += less[entry]
    return found
