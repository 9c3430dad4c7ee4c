"""The compiled loops behind `aggregate_states.py`: partial results that several columns hold together.

Each merges rows into the groups they belong to, in one pass and in the order of the rows. `group` is the number of each
row's group, from 0.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from headrace.njit import njit

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Numbers = NDArray[np.int64]
    Doubles = NDArray[np.float64]
    Flags = NDArray[np.bool_]
    Bytes = NDArray[np.uint8]


__all__ = [
    "count_entries",
    "find_extremes",
    "locate_entries",
    "merge_bits",
    "merge_comoments",
    "merge_higher_moments",
    "merge_moments",
    "warm_up",
]


@njit(cache=True, nogil=True)
def merge_moments(group: Numbers, groups: int, count: Numbers, mean: Doubles, m2: Doubles) -> Any:
    """Return count, mean and sum of squared distances to the mean of each group.

    Chan, Golub and LeVeque's formula, as in Spark's `CentralMomentAgg.mergeExpressions`. The sums of x and x * x would
    lose all digits where the mean is far larger than the spread.
    """
    counts = np.zeros(groups, np.int64)
    means, m2s = np.zeros(groups, np.float64), np.zeros(groups, np.float64)
    for row in range(len(group)):
        more = count[row]
        if more == 0:
            continue
        at = group[row]
        before = counts[at]
        if before == 0:
            # The first partial result is taken as it is: the formula would divide and multiply its mean, and round it.
            counts[at], means[at], m2s[at] = more, mean[row], m2[row]
            continue
        delta = mean[row] - means[at]
        share = delta / (before + more)
        counts[at] = before + more
        means[at] += share * more
        m2s[at] += m2[row] + delta * share * before * more
    return counts, means, m2s


@njit(cache=True, nogil=True)
def merge_higher_moments(
    group: Numbers, groups: int, count: Numbers, mean: Doubles, m2: Doubles, m3: Doubles, m4: Doubles
) -> Any:
    """Return count, mean and the sums of squared, cubed and fourth distances to the mean of each group.

    The formulas of Spark's `CentralMomentAgg.mergeExpressions`, term by term.
    """
    counts = np.zeros(groups, np.int64)
    means, m2s = np.zeros(groups, np.float64), np.zeros(groups, np.float64)
    m3s, m4s = np.zeros(groups, np.float64), np.zeros(groups, np.float64)
    for row in range(len(group)):
        if count[row] == 0:
            continue
        at = group[row]
        if counts[at] == 0:
            counts[at], means[at], m2s[at], m3s[at], m4s[at] = count[row], mean[row], m2[row], m3[row], m4[row]
            continue
        before, more = float(counts[at]), float(count[row])
        delta = mean[row] - means[at]
        share = delta / (before + more)
        pairs = before * more
        # From the fourth moment down: each one needs the lower ones as they were.
        m4s[at] += (
            m4[row]
            + share * share * share * delta * pairs * (before * before - pairs + more * more)
            + 6.0 * share * share * (before * before * m2[row] + more * more * m2s[at])
            + 4.0 * share * (before * m3[row] - more * m3s[at])
        )
        m3s[at] += (
            m3[row]
            + share * share * delta * pairs * (before - more)
            + 3.0 * share * (before * m2[row] - more * m2s[at])
        )
        m2s[at] += m2[row] + delta * share * pairs
        means[at] += share * more
        counts[at] += count[row]
    return counts, means, m2s, m3s, m4s


@njit(cache=True, nogil=True)
def merge_bits(group: Numbers, groups: int, values: Numbers, present: Flags, operation: int) -> Any:
    """Return the bits of each group, and which groups have any. `operation`: 0 is and, 1 is or, 2 is exclusive or."""
    found, seen = np.zeros(groups, np.int64), np.zeros(groups, np.bool_)
    for row in range(len(group)):
        if not present[row]:
            continue
        at = group[row]
        if not seen[at]:
            found[at], seen[at] = values[row], True
        elif operation == 0:
            found[at] &= values[row]
        elif operation == 1:
            found[at] |= values[row]
        else:
            found[at] ^= values[row]
    return found, seen


@njit(cache=True, nogil=True)
def merge_comoments(
    group: Numbers,
    groups: int,
    count: Numbers,
    x_mean: Doubles,
    y_mean: Doubles,
    c2: Doubles,
    x_m2: Doubles,
    y_m2: Doubles,
) -> Any:
    """Return count, both means, co-moment and both second moments of each group, as Spark's `PearsonCorrelation`."""
    counts, x_means, y_means = np.zeros(groups, np.int64), np.zeros(groups, np.float64), np.zeros(groups, np.float64)
    c2s, x_m2s, y_m2s = np.zeros(groups, np.float64), np.zeros(groups, np.float64), np.zeros(groups, np.float64)
    for row in range(len(group)):
        more = count[row]
        if more == 0:
            continue
        at = group[row]
        before = counts[at]
        if before == 0:
            counts[at], x_means[at], y_means[at] = more, x_mean[row], y_mean[row]
            c2s[at], x_m2s[at], y_m2s[at] = c2[row], x_m2[row], y_m2[row]
            continue
        x_delta, y_delta = x_mean[row] - x_means[at], y_mean[row] - y_means[at]
        x_share, y_share = x_delta / (before + more), y_delta / (before + more)
        counts[at] = before + more
        x_means[at] += x_share * more
        y_means[at] += y_share * more
        c2s[at] += c2[row] + x_delta * y_share * before * more
        x_m2s[at] += x_m2[row] + x_delta * x_share * before * more
        y_m2s[at] += y_m2[row] + y_delta * y_share * before * more
    return counts, x_means, y_means, c2s, x_m2s, y_m2s


@njit(cache=True, nogil=True)
def find_extremes(group: Numbers, groups: int, codes: Numbers, present: Flags, is_greatest: bool) -> Numbers:
    """Return the first row of each group with the group's greatest or least code; -1 where no row is `present`."""
    found = np.full(groups, -1, np.int64)
    for row in range(len(group)):
        if not present[row]:
            continue
        at = group[row]
        best = found[at]
        if best < 0 or (codes[row] > codes[best] if is_greatest else codes[row] < codes[best]):
            found[at] = row
    return found


@njit(cache=True, nogil=True)
def count_entries(data: Bytes, starts: Numbers, sizes: Numbers) -> Numbers:
    """Return the number of entries in each list, whose lengths are four bytes in front of them."""
    found = np.zeros(len(starts), np.int64)
    for row in range(len(starts)):
        at, end = starts[row], starts[row] + sizes[row]
        while at < end:
            at += 4 + _length(data, at)
            found[row] += 1
    return found


@njit(cache=True, nogil=True)
def locate_entries(data: Bytes, starts: Numbers, sizes: Numbers, count: int) -> Any:
    """Return the start and size of all `count` entries of the lists, without their lengths."""
    at_entry, size_of = np.zeros(count, np.int64), np.zeros(count, np.int64)
    entry = 0
    for row in range(len(starts)):
        at, end = starts[row], starts[row] + sizes[row]
        while at < end:
            at_entry[entry], size_of[entry] = at + 4, _length(data, at)
            at += 4 + size_of[entry]
            entry += 1
    return at_entry, size_of


@njit(cache=True, nogil=True)
def _length(data: Bytes, at: int) -> Any:
    return (
        np.int64(data[at])
        | (np.int64(data[at + 1]) << 8)
        | (np.int64(data[at + 2]) << 16)
        | (np.int64(data[at + 3]) << 24)
    )


def warm_up() -> None:
    """Compile, or load from the cache."""
    numbers, doubles = np.zeros(1, np.int64), np.zeros(1, np.float64)
    merge_moments(numbers, 1, numbers, doubles, doubles)
    merge_comoments(numbers, 1, numbers, doubles, doubles, doubles, doubles, doubles)
    find_extremes(numbers, 1, numbers, np.ones(1, np.bool_), True)
