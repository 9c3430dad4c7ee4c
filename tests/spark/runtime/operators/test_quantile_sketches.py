"""Sketches of `percentile_approx`: ranks stay within Spark's bound, however values are divided and merged."""

from __future__ import annotations

import json
import math
import random
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.spark.runtime.operators.quantile_sketches import MOST_ACCURACY, QuantileSketch
from headrace.spark.topology.nodes import Buffer

SHARES = [0.0, 0.01, 0.25, 0.5, 0.75, 0.99, 1.0]


class Small(QuantileSketch):
    """A sketch that is thinned beyond 24 entries instead of 1,000."""

    __slots__ = ()

    @property
    def most_entries(self) -> int:
        return 24


def sketch_of(accuracy: int, *, kind: str = "long", at: list[float] | None = None, small: bool = False) -> Any:
    asked = {"accuracy": accuracy, "at": at or SHARES, "many": True}
    buffer = Buffer(
        name="b0",
        function="percentile_approx",
        argument="x",
        input="i0",
        input_type=json.dumps(kind),
        result_type=json.dumps({"type": "array", "elementType": kind, "containsNull": False}),
        parameter=json.dumps(asked),
    )
    return (Small if small else QuantileSketch)(buffer)


def merged_at_random(sketch: Any, values: pa.Array, chance: random.Random) -> pa.Array:
    """The sketch of all values, through a random tree of merges."""
    pending = [sketch.merged(sketch.lifted(part), np.zeros(len(part), np.int64), 1) for part in cut(values, chance)]
    while len(pending) > 1:
        taken = [pending.pop(chance.randrange(len(pending))) for _ in range(min(len(pending), chance.randint(2, 4)))]
        pending.append(sketch.merged(pa.concat_arrays(taken), np.zeros(len(taken), np.int64), 1))
    return pending[0]


def cut(values: pa.Array, chance: random.Random) -> list[pa.Array]:
    places = sorted({0, len(values), *(chance.randrange(len(values)) for _ in range(chance.randrange(12)))})
    return [values.slice(a, b - a) for a, b in pairwise(places)]


def ranks_away(found: Any, share: float, ordered: list[Any]) -> int:
    """By how many ranks a value is away from the one that was asked for."""
    rank = max(1, math.ceil(share * len(ordered)))
    first, last = ordered.index(found) + 1, len(ordered) - ordered[::-1].index(found)
    return max(0, rank - last, first - rank)


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 1 << 30), st.integers(1, 900), st.sampled_from([2, 5, 10, 12]), st.integers(1, 500))
def test_ranks_are_within_the_bound_whatever_is_merged_with_what(
    seed: int, count: int, accuracy: int, different: int
) -> None:
    chance = random.Random(seed)
    kind = chance.choice(["sorted", "reversed", "shuffled"])
    numbers = [chance.randrange(different) for _ in range(count)]
    if kind != "shuffled":
        numbers.sort(reverse=kind == "reversed")
    sketch = sketch_of(accuracy, small=True)
    stored = merged_at_random(sketch, pa.array(numbers, pa.int64()), chance)
    [found] = sketch.finish(stored).to_pylist()
    ordered = sorted(numbers)
    for share, value in zip(SHARES, found, strict=True):
        assert ranks_away(value, share, ordered) <= count // accuracy, (share, value)
    assert (found[0], found[-1]) == (ordered[0], ordered[-1])


def test_a_group_of_few_different_values_is_exact() -> None:
    chance = random.Random(1)
    numbers = [chance.randrange(1000) for _ in range(50_000)]
    sketch = sketch_of(10)
    [found] = sketch.finish(merged_at_random(sketch, pa.array(numbers, pa.int64()), chance)).to_pylist()
    assert [ranks_away(value, share, sorted(numbers)) for share, value in zip(SHARES, found, strict=True)] == [0] * 7


def test_a_sketch_of_many_values_stays_within_its_size() -> None:
    sketch = sketch_of(MOST_ACCURACY)
    values = pa.array(np.random.default_rng(3).permutation(200_000))
    stored = pa.array([None], pa.binary())
    for part in range(0, 200_000, 20_000):
        lifted = sketch.lifted(values.slice(part, 20_000))
        stored = sketch.merged(pa.concat_arrays([stored, lifted]), np.zeros(20_001, np.int64), 1)
        assert len(stored[0].as_py()) <= 900_000
    [found] = sketch.finish(stored).to_pylist()
    assert all(
        abs(value + 1 - max(1, math.ceil(share * 200_000))) <= 20 for share, value in zip(SHARES, found, strict=True)
    )


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        ("double", pa.array([2.5, float("nan"), -0.0, None])),
        ("date", pa.array([5, 1, None], pa.int32()).cast(pa.date32())),
        ("timestamp", pa.array([5, 1, None], pa.timestamp("us", "UTC"))),
        ("decimal(5,2)", pa.array([5, 1, None]).cast(pa.decimal128(21, 2)).cast(pa.decimal128(5, 2))),
    ],
)
def test_values_keep_their_type_and_a_group_of_nulls_is_null(kind: str, values: pa.Array) -> None:
    sketch = sketch_of(100, kind=kind, at=[0.0, 1.0])
    numbers = np.array([*np.zeros(len(values) - 1, np.int64), 1])
    found = sketch.finish(sketch.merged(sketch.lifted(values), numbers, 2)).to_pylist()
    ordered = sorted(values.to_pylist()[:-1], key=lambda one: (one != one, one))
    assert repr(found) == repr([[ordered[0], ordered[-1]], None])
