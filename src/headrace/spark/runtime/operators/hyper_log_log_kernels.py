"""The compiled loops behind `hyper_log_log.py`: XXH64 over bytes, merges and estimates of HyperLogLog++ sketches.

A sketch is a run of bytes in one of two forms, which its size tells apart. *Dense*: one byte for each of the `m`
registers. *Sparse*, while it is shorter than that: three bytes for each register that is not zero, the register's
number (little endian) and its value, in the order of numbers. So equal sketches are equal bytes.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from headrace.njit import njit

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Bytes = NDArray[np.uint8]
    Numbers = NDArray[np.int64]
    Doubles = NDArray[np.float64]
    Flags = NDArray[np.bool_]


__all__ = ["SPARSE_BYTES", "estimate_sketches", "merge_sketches", "registers_of_bytes"]

SPARSE_BYTES = 3
_NEIGHBOURS = 6  # points that the bias is interpolated from
_PRIME1, _PRIME2, _PRIME3 = np.uint64(0x9E3779B185EBCA87), np.uint64(0xC2B2AE3D27D4EB4F), np.uint64(0x165667B19E3779F9)
_PRIME4, _PRIME5 = np.uint64(0x85EBCA77C2B2AE63), np.uint64(0x27D4EB2F165667C5)
_SEED = np.uint64(42)  # of Spark's `XxHash64Function` in `HyperLogLogPlusPlusHelper.update`


@njit(cache=True, nogil=True)
def _rotate(word: np.uint64, bits: int) -> np.uint64:
    return (word << np.uint64(bits)) | (word >> np.uint64(64 - bits))


@njit(cache=True, nogil=True)
def _word(data: Bytes, at: int, size: int) -> np.uint64:
    found = np.uint64(0)
    for index in range(size):
        found |= np.uint64(data[at + index]) << np.uint64(8 * index)
    return found


@njit(cache=True, nogil=True)
def _round(accumulator: np.uint64, word: np.uint64) -> np.uint64:
    return _rotate(accumulator + word * _PRIME2, 31) * _PRIME1


@njit(cache=True, nogil=True)
def _xxh64(data: Bytes, start: int, size: int) -> np.uint64:
    """Return XXH64 of bytes with the seed 42, as Spark's `XXH64.hashUnsafeBytes`."""
    at, end = start, start + size
    if size >= 32:
        one, two = _SEED + _PRIME1 + _PRIME2, _SEED + _PRIME2
        three, four = _SEED, _SEED - _PRIME1
        while at <= end - 32:
            one, two = _round(one, _word(data, at, 8)), _round(two, _word(data, at + 8, 8))
            three, four = _round(three, _word(data, at + 16, 8)), _round(four, _word(data, at + 24, 8))
            at += 32
        found = _rotate(one, 1) + _rotate(two, 7) + _rotate(three, 12) + _rotate(four, 18)
        for lane in (one, two, three, four):
            found = (found ^ _round(np.uint64(0), lane)) * _PRIME1 + _PRIME4
    else:
        found = _SEED + _PRIME5
    found += np.uint64(size)
    while at <= end - 8:
        found = _rotate(found ^ _round(np.uint64(0), _word(data, at, 8)), 27) * _PRIME1 + _PRIME4
        at += 8
    if at <= end - 4:
        found = _rotate(found ^ (_word(data, at, 4) * _PRIME1), 23) * _PRIME2 + _PRIME3
        at += 4
    while at < end:
        found = _rotate(found ^ (np.uint64(data[at]) * _PRIME5), 11) * _PRIME1
        at += 1
    found = (found ^ (found >> np.uint64(33))) * _PRIME2
    found = (found ^ (found >> np.uint64(29))) * _PRIME3
    return found ^ (found >> np.uint64(32))


@njit(cache=True, nogil=True)
def registers_of_bytes(data: Bytes, starts: Numbers, sizes: Numbers, present: Flags, bits: int, target: Bytes) -> None:
    """Write the sparse sketch of each value, three bytes, to `target`. `bits`: of a register's number."""
    for row in range(len(starts)):
        if not present[row]:
            continue
        hashed = _xxh64(data, starts[row], sizes[row])
        number = hashed >> np.uint64(64 - bits)
        # A bit behind the hash ends the search for zeros, as in Spark.
        rest = (hashed << np.uint64(bits)) | (np.uint64(1) << np.uint64(bits - 1))
        zeros = 1
        while not rest >> np.uint64(63):
            rest <<= np.uint64(1)
            zeros += 1
        target[SPARSE_BYTES * row] = np.uint8(number & np.uint64(0xFF))
        target[SPARSE_BYTES * row + 1] = np.uint8(number >> np.uint64(8))
        target[SPARSE_BYTES * row + 2] = zeros


@njit(cache=True, nogil=True)
def _read(data: Bytes, start: int, size: int, registers: Bytes, touched: Numbers, count: int) -> int:
    """Merge a sketch into `registers`. Numbers that were zero are added to `touched`; return how many there are."""
    if size == len(registers):
        for number in range(size):
            value = data[start + number]
            if value > registers[number]:
                if registers[number] == 0:
                    touched[count] = number
                    count += 1
                registers[number] = value
        return count
    for at in range(start, start + size, SPARSE_BYTES):
        number, value = data[at] | (np.int64(data[at + 1]) << 8), data[at + 2]
        if value > registers[number]:
            if registers[number] == 0:
                touched[count] = number
                count += 1
            registers[number] = value
    return count


@njit(cache=True, nogil=True)
def merge_sketches(
    order: Numbers, begins: Numbers, data: Bytes, starts: Numbers, sizes: Numbers, m: int, target: Bytes, at: Numbers
) -> Numbers:
    """Write the sketch of each group to `target`, from `at[group]` on; return their sizes, 0 for a group of nulls.

    Args:
        order: Row numbers by group.
        begins: Where each group begins in `order`, and the end.
        data, starts, sizes: The rows' sketches; a null one has the size 0.
        m: Number of registers.
        target: Room for the least of m and the sum of the rows' sizes, for each group.
        at: Where each group's room begins.
    """
    found = np.zeros(len(begins) - 1, np.int64)
    registers, touched = np.zeros(m, np.uint8), np.zeros(m, np.int64)
    for group in range(len(begins) - 1):
        count = 0
        for index in range(begins[group], begins[group + 1]):
            row = order[index]
            count = _read(data, starts[row], sizes[row], registers, touched, count)
        begin = at[group]
        if SPARSE_BYTES * count >= m:
            target[begin : begin + m] = registers
            registers[:] = 0
            found[group] = m
            continue
        numbers = np.sort(touched[:count])
        for index in range(count):
            number = numbers[index]
            target[begin + SPARSE_BYTES * index] = number & 0xFF
            target[begin + SPARSE_BYTES * index + 1] = number >> 8
            target[begin + SPARSE_BYTES * index + 2] = registers[number]
            registers[number] = 0
        found[group] = SPARSE_BYTES * count
    return found


@njit(cache=True, nogil=True)
def _bias(estimate: float, estimates: Doubles, biases: Doubles) -> float:
    """Return the mean bias of the nearest raw estimates: Spark's `estimateBias`."""
    # 1. `java.util.Arrays.binarySearch`, step by step: the table is not sorted everywhere, so another search would end
    #    elsewhere.
    low, high, nearest = 0, len(estimates) - 1, -1
    while low <= high:
        middle = (low + high) >> 1
        if estimates[middle] < estimate:
            low = middle + 1
        elif estimates[middle] > estimate:
            high = middle - 1
        else:
            nearest = middle
            break
    if nearest < 0:
        nearest = low
    # 2. The window of neighbours moves up while the value behind it is nearer than its first one.
    first = max(nearest - _NEIGHBOURS + 1, 0)
    end = min(first + _NEIGHBOURS, len(estimates))
    while end < len(estimates):
        behind, before = estimate - estimates[end], estimate - estimates[first]
        if behind * behind >= before * before:
            break
        first += 1
        end += 1
    total = 0.0
    for index in range(first, end):
        total += biases[index]
    return total / (end - first)


@njit(cache=True, nogil=True)
def estimate_sketches(
    data: Bytes,
    starts: Numbers,
    sizes: Numbers,
    m: int,
    alpha_m2: float,
    threshold: float,
    estimates: Doubles,
    biases: Doubles,
) -> Numbers:
    """Return the number of distinct values of each sketch: Spark's `HyperLogLogPlusPlusHelper.query`."""
    found = np.zeros(len(starts), np.int64)
    registers, touched = np.zeros(m, np.uint8), np.zeros(m, np.int64)
    for row in range(len(starts)):
        registers[:] = 0
        count = _read(data, starts[row], sizes[row], registers, touched, 0)
        zeros = float(m - count)
        # In the order of the registers: the terms are powers of two, but their sum may need more than 53 bits.
        inverse = 0.0
        for number in range(m):
            inverse += 1.0 / float(np.int64(1) << np.int64(registers[number]))
        raw = alpha_m2 / inverse
        linear = m * math.log(m / zeros) if zeros > 0 else 0.0
        if zeros > 0 and (linear <= threshold or raw <= 2.5 * m):
            estimate = linear
        elif raw < 5.0 * m:
            estimate = raw - _bias(raw, estimates, biases)
        else:
            estimate = raw
        found[row] = np.int64(math.floor(estimate + 0.5))
    return found
