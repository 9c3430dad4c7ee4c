"""Counter-based random numbers: field k of event n is a hash of (seed, n, k), so any range can be made anywhere.

Only integer arithmetic modulo 2^64, and IEEE additions and multiplications in a fixed order: the same on every
platform.
"""

from __future__ import annotations

from decimal import Decimal, localcontext
from functools import cache
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from headrace.array_types import ByteArray, FloatArray, Int32Array, Int64Array, UInt64Array

__all__ = ["field_hash", "integers_below", "powers_of_ten", "text_slices"]

_MASK = (1 << 64) - 1
# Constants of SplitMix64 (Steele, Lea, Flood: Fast splittable pseudorandom number generators, OOPSLA 2014).
_GAMMA = 0x9E3779B97F4A7C15
_FIRST, _SECOND = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
_POOL_BYTES = 1 << 16
_POOL_SEED = 0x6E65786D61726B


def field_hash(seed: int, numbers: Int64Array | UInt64Array, field: int) -> UInt64Array:
    """Return a uint64 for each event number.

    Args:
        seed: Of the whole data set.
        numbers: Event numbers, int64 or uint64.
        field: Index of the field; fields are independent of each other.
    """
    # 1. One 64-bit key per (seed, field). Without mixing it first, field k of event n would be field k + 1 of event
    #    n - 1, since both only add multiples of the same constant.
    key = _mix_int((_mix_int(seed & _MASK) + field * _GAMMA) & _MASK)
    # 2. SplitMix64 over all events at once, in place: unsigned arrays wrap modulo 2^64 without a warning.
    mixed = numbers.astype(np.uint64) * np.uint64(_GAMMA)
    mixed += np.uint64(key)
    mixed ^= mixed >> np.uint64(30)
    mixed *= np.uint64(_FIRST)
    mixed ^= mixed >> np.uint64(27)
    mixed *= np.uint64(_SECOND)
    mixed ^= mixed >> np.uint64(31)
    return mixed


def _mix_int(value: int) -> int:
    value = (value + _GAMMA) & _MASK
    value = ((value ^ (value >> 30)) * _FIRST) & _MASK
    value = ((value ^ (value >> 27)) * _SECOND) & _MASK
    return value ^ (value >> 31)


def integers_below(hashes: UInt64Array, bound: int | Int64Array) -> Int64Array:
    """Return int64 numbers in [0, bound); `bound` is a number or one per row."""
    # The bias of the remainder is bound / 2^b for hashes of b bits: 10^-5 for lengths of texts (24 bits), and below
    # 10^-12 for all others.
    return (hashes % np.asarray(bound).astype(np.uint64)).astype(np.int64)


def powers_of_ten(hashes: UInt64Array, exponent: int) -> FloatArray:
    """Return 10^(exponent · u) as doubles, u uniform in [0, 1) with 53 bits.

    `np.power` is not used: it is the platform's `pow`, whose last bit differs between C libraries, and a rounded price
    would differ with it. Here 10^(e·u) is a product of two table entries, exact to half a unit in the last place, and
    of a polynomial whose terms beyond the fourth are below 2^-53.
    """
    # u = hash / 2^64 is cut into 8 bits for the first table, 8 for the second, and 37 for the polynomial. 11 bits are
    # dropped: a double has 53.
    coarse, fine = _power_tables(exponent)
    rest = ((hashes >> np.uint64(11)) & np.uint64((1 << 37) - 1)).astype(np.float64)
    # x < ln(10^6) / 2^16 = 0.0002, so x^4 / 24 < 10^-16.
    x = rest * (float(_ln_ten(exponent)) / float(1 << 53))
    polynomial = 1.0 + x * (1.0 + x * (0.5 + x * (1.0 / 6.0)))
    product = coarse[(hashes >> np.uint64(56)).astype(np.int64)]
    product = product * fine[((hashes >> np.uint64(48)) & np.uint64(255)).astype(np.int64)]
    return product * polynomial


@cache
def _power_tables(exponent: int) -> tuple[FloatArray, FloatArray]:
    # 40 digits: each entry is the double next to the true value, whatever the platform's `pow` returns.
    with localcontext() as context:
        context.prec = 40
        ten = Decimal(10)
        coarse = [float(ten ** (Decimal(exponent * i) / 256)) for i in range(256)]
        fine = [float(ten ** (Decimal(exponent * i) / 65536)) for i in range(256)]
    return np.array(coarse), np.array(fine)


@cache
def _ln_ten(exponent: int) -> Decimal:
    with localcontext() as context:
        context.prec = 40
        return exponent * Decimal(10).ln()


def text_slices(hashes: UInt64Array, lengths: Int64Array) -> tuple[Int32Array, ByteArray]:
    """Return texts of lower-case letters as (int32 offsets, bytes), each a slice of a fixed pool of 64 KiB.

    A pool, because a hash for each letter would cost more than all other fields together.
    """
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    starts = (hashes & np.uint64(_POOL_BYTES - 1)).astype(np.int64)
    # All letters of all texts in one gather: `indexes` runs through each slice of the pool in turn.
    indexes = np.arange(offsets[-1], dtype=np.int64)
    indexes += np.repeat(starts - offsets[:-1], lengths)
    return offsets.astype(np.int32), _pool()[indexes]


@cache
def _pool() -> ByteArray:
    # As long as the longest text behind the last start, so that no slice has to wrap around.
    letters = integers_below(field_hash(_POOL_SEED, np.arange(_POOL_BYTES + 1024), 0), 26)
    return (letters + ord("a")).astype(np.uint8)
