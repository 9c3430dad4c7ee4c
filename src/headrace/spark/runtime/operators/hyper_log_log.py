"""`approx_count_distinct`: HyperLogLog++ sketches that give the very numbers of Spark's `HyperLogLogPlusPlus`.

The sketch follows Spark's `HyperLogLogPlusPlusHelper` in all that decides about the result: XXH64 with the seed 42 over
the bytes that Spark hashes for a type, the number of registers for a relative standard deviation, and the estimate with
its bias correction. Registers merge by their maximum, so a result depends neither on the order of the rows nor on how
often one of them came.

The tables of raw estimates and biases are those of the appendix to Heule, Nunkesser and Hall, "HyperLogLog in Practice"
(2013), as Spark has them: `hyper_log_log_bias.json`.
"""

from __future__ import annotations

import decimal
import functools
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from headrace.spark.runtime.operators.hyper_log_log_kernels import (
    SPARSE_BYTES,
    estimate_sketches,
    merge_sketches,
    registers_of_bytes,
)
from headrace.spark.runtime.stores.byte_spans import Bytes, Positions, array_of_spans, spans_of

__all__ = ["LEAST_BITS", "MOST_BITS", "bits_of_deviation", "estimates_of", "merged_sketches", "sketches_of"]

LEAST_BITS = 4
MOST_BITS = 16  # 65,536 registers, one byte each: a group's row stays far below the limit of a record
_TABLES = Path(__file__).with_name("hyper_log_log_bias.json")
_LONG_DIGITS = 18  # of decimals that Spark hashes as a bigint
_EXACT = decimal.Context(prec=60)


def bits_of_deviation(deviation: float) -> int:
    """Return the bits of a register's number for a relative standard deviation, as Spark computes them."""
    return math.ceil(2.0 * math.log(1.106 / deviation) / math.log(2.0))


def sketches_of(column: Any, bits: int) -> pa.Array:
    """Return each value as a sketch of its own, null for null."""
    array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    present = np.asarray(array.is_valid().to_numpy(zero_copy_only=False), np.bool_)
    data, starts, sizes = _hashed_bytes(array)
    found = np.zeros(max(1, SPARSE_BYTES * len(array)), np.uint8)
    registers_of_bytes(data, starts, sizes, present, bits, found)
    at = SPARSE_BYTES * np.arange(len(array), dtype=np.int64)
    return array_of_spans(found, at, SPARSE_BYTES * present.astype(np.int64), pa.binary(), ~present)


def merged_sketches(sketches: Any, groups: NDArray[np.int64], count: int, bits: int) -> pa.Array:
    """Return the sketch of each group, null for a group of nulls."""
    data, starts, sizes = spans_of(_combined(sketches))
    m = 1 << bits
    order = np.argsort(groups, kind="stable")
    begins = np.searchsorted(groups[order], np.arange(count + 1))
    room = np.minimum(np.bincount(groups, sizes, count).astype(np.int64), m)
    ends = np.cumsum(room)
    target = np.zeros(max(1, int(ends[-1]) if count else 0), np.uint8)
    found = merge_sketches(order, begins, data, starts, sizes, m, target, ends - room)
    return array_of_spans(target, ends - room, found, pa.binary(), found == 0)


def estimates_of(sketches: Any, bits: int) -> pa.Array:
    """Return the number of distinct values of each sketch; 0 for null."""
    data, starts, sizes = spans_of(_combined(sketches))
    m = 1 << bits
    thresholds, raw, biases = _tables()
    alpha = {4: 0.673, 5: 0.697, 6: 0.709}.get(bits, 0.7213 / (1.0 + 1.079 / m))
    at = bits - LEAST_BITS
    found = estimate_sketches(data, starts, sizes, m, alpha * m * m, thresholds[at], raw[at], biases[at])
    return pa.array(found)


@functools.cache
def _tables() -> tuple[list[float], list[NDArray[np.float64]], list[NDArray[np.float64]]]:
    """Thresholds of linear counting, raw estimates and their biases, for each number of bits from 4 on."""
    found = json.loads(_TABLES.read_text())
    raw, biases = ([np.array(one, np.float64) for one in found[name]] for name in ("raw_estimates", "biases"))
    return [float(one) for one in found["thresholds"]], raw, biases


def _combined(column: Any) -> pa.Array:
    """Return one array of binaries. A null has the size 0, whatever bytes are there."""
    array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    return array.fill_null(b"") if array.null_count else array


def _hashed_bytes(array: pa.Array) -> tuple[Bytes, Positions, Positions]:
    """Return the bytes that Spark's `XxHash64Function` hashes for each value."""
    kind = array.type
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        return spans_of(array)
    if pa.types.is_large_string(kind) or pa.types.is_large_binary(kind):
        return spans_of(array.cast(pa.string() if pa.types.is_large_string(kind) else pa.binary()))
    if pa.types.is_decimal(kind) and kind.precision > _LONG_DIGITS:
        return _big_integers(array)
    if pa.types.is_decimal(kind):
        words = np.frombuffer(array.buffers()[1], "<i8", 2 * len(array), array.offset * 16)[::2]
    elif pa.types.is_floating(kind):
        values = array.fill_null(0.0).to_numpy(zero_copy_only=False)
        # One zero and one NaN, the one of Java's `doubleToLongBits`.
        values = np.where(np.isnan(values), np.nan, values + 0.0).astype(values.dtype)
        words = values.view(np.int64 if values.dtype == np.float64 else np.int32)
    elif pa.types.is_boolean(kind):
        words = array.fill_null(False).to_numpy(zero_copy_only=False).astype(np.int32)
    elif pa.types.is_date32(kind):
        words = np.array(array.cast(pa.int32()).fill_null(0))
    elif pa.types.is_timestamp(kind):
        words = np.array(array.cast(pa.int64()).fill_null(0))
    else:  # integers: 64 bits for a bigint, otherwise 32
        wide = pa.int64() if pa.types.is_int64(kind) else pa.int32()
        words = np.array(array.cast(wide).fill_null(0))
    words = np.ascontiguousarray(words)
    width = words.dtype.itemsize
    data = words.view(np.uint8).reshape(-1) if len(words) else np.zeros(1, np.uint8)
    data = data.view()
    data.flags.writeable = False
    starts = width * np.arange(len(words), dtype=np.int64)
    return data, starts, np.full(len(words), width, np.int64)


def _big_integers(array: pa.Array) -> tuple[Bytes, Positions, Positions]:
    """Return the unscaled values as Java's `BigInteger.toByteArray`: big endian, as few bytes as hold the sign."""
    scale = array.type.scale
    found = []
    for value in array.to_pylist():
        number = 0 if value is None else int(value.scaleb(scale, _EXACT))
        bits = number.bit_length() if number >= 0 else (number + 1).bit_length()
        found.append(number.to_bytes(bits // 8 + 1, "big", signed=True))
    return spans_of(pa.array(found, pa.binary()))
