"""Sketches of distinct values: the hash of each type, merges in any order, estimates within their deviation. No Spark.

Equality with Spark's results, type by type, is tested in `test_aggregate_states`.
"""

from __future__ import annotations

import datetime as dt
import itertools
import math
import random
import struct
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.spark.runtime.operators.hyper_log_log import (
    MOST_BITS,
    bits_of_deviation,
    estimates_of,
    merged_sketches,
    sketches_of,
)

NAN = b"\x00\x00\x00\x00\x00\x00\xf8\x7f"
# Values, and the bytes that Spark hashes for them.
HASHED: list[tuple[pa.DataType, Any, bytes]] = [
    (pa.string(), "ä" * 40, "ä".encode() * 40),
    (pa.string(), "", b""),
    (pa.binary(), b"abc", b"abc"),
    (pa.bool_(), True, struct.pack("<i", 1)),
    (pa.int8(), -1, struct.pack("<i", -1)),
    (pa.int16(), 300, struct.pack("<i", 300)),
    (pa.int32(), -7, struct.pack("<i", -7)),
    (pa.int64(), -7, struct.pack("<q", -7)),
    (pa.date32(), dt.date(1970, 1, 3), struct.pack("<i", 2)),
    (pa.timestamp("us", "UTC"), dt.datetime(1970, 1, 1, 0, 0, 1, tzinfo=dt.UTC), struct.pack("<q", 1_000_000)),
    (pa.float32(), 1.5, struct.pack("<f", 1.5)),
    (pa.float64(), -0.0, bytes(8)),
    (pa.float64(), math.nan, NAN),
    (pa.decimal128(18, 2), Decimal("-1.25"), struct.pack("<q", -125)),
    (pa.decimal128(38, 2), Decimal("1.27"), b"\x7f"),
    (pa.decimal128(38, 2), Decimal("1.28"), b"\x00\x80"),
    (pa.decimal128(38, 2), Decimal("-1.28"), b"\x80"),
]


@pytest.mark.parametrize(("kind", "value", "hashed"), HASHED, ids=lambda one: str(one)[:12])
def test_a_value_is_hashed_by_the_bytes_that_spark_hashes(kind: pa.DataType, value: Any, hashed: bytes) -> None:
    number = xxhash.xxh64_intdigest(hashed, 42)
    rest = ((number << 9) & (2**64 - 1)) | (1 << 8)
    zeros = 64 - rest.bit_length() + 1
    wanted = (number >> 55).to_bytes(2, "little") + bytes([zeros])
    found = sketches_of(pa.array([None, value], kind), 9)
    assert found.to_pylist() == [None, wanted]


def test_all_lengths_of_texts_are_hashed_alike() -> None:
    chance = random.Random(5)
    values = [bytes(chance.randrange(256) for _ in range(size)) for size in range(80)]
    for value, sketch in zip(values, sketches_of(pa.array(values), 16).to_pylist(), strict=True):
        assert int.from_bytes(sketch[:2], "little") == xxhash.xxh64_intdigest(value, 42) >> 48


@settings(max_examples=40, deadline=None)
@given(
    values=st.lists(st.integers(-400, 400) | st.none(), max_size=300),
    cuts=st.lists(st.integers(0, 300), max_size=5),
    bits=st.sampled_from([4, 7, 9]),
    seed=st.integers(0, 99),
)
def test_pieces_in_any_order_merge_to_the_same_bytes(
    values: list[int | None], cuts: list[int], bits: int, seed: int
) -> None:
    def merged(sketches: pa.Array) -> pa.Array:
        return merged_sketches(sketches, np.zeros(len(sketches), np.int64), 1, bits)

    whole = merged(sketches_of(pa.array(values, pa.int64()), bits))
    shuffled = list(values) * 2  # values that come again do not count
    random.Random(seed).shuffle(shuffled)
    ends = sorted({min(cut, len(shuffled)) for cut in cuts} | {0, len(shuffled)})
    pieces = [shuffled[a:b] for a, b in itertools.pairwise(ends)]
    parts = [merged(sketches_of(pa.array(piece, pa.int64()), bits)) for piece in pieces] or [whole]
    assert merged(pa.concat_arrays(parts)).to_pylist() == whole.to_pylist()


@pytest.mark.parametrize("bits", [4, 9, 12, MOST_BITS])
def test_estimates_stay_within_four_deviations(bits: int) -> None:
    """Each regime: linear counting, corrected estimates, raw ones."""
    for count in (0, 1, 10, 300, 5_000, 100_000):
        sketch = merged_sketches(sketches_of(pa.array(np.arange(count)), bits), np.zeros(count, np.int64), 1, bits)
        [found] = estimates_of(sketch, bits).to_pylist()
        assert abs(found - count) <= 4 * 1.04 / math.sqrt(1 << bits) * count


def test_groups_keep_their_own_sketches_and_a_group_of_nulls_has_none() -> None:
    sketches = sketches_of(pa.array(["a", "b", "a", None]), 9)
    merged = merged_sketches(sketches, np.array([1, 1, 0, 2]), 3, 9)
    assert estimates_of(merged, 9).to_pylist() == [1, 2, 0]
    assert merged[2].as_py() is None


def test_the_registers_of_a_deviation_are_those_of_spark() -> None:
    assert [bits_of_deviation(one) for one in (0.05, 0.39, 0.01, 0.0044)] == [9, 4, 14, 16]
