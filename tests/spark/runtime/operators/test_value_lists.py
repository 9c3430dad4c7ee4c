"""Lists of values in a group's row: order, sets, counts that fall again, merges in pieces, the limit. No Spark."""

from __future__ import annotations

import itertools
import math
import random
from collections import Counter
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.errors import UserCodeError
from headrace.spark.runtime.operators.value_lists import MOST_BYTES, Kept, ValueList

KINDS: dict[str, tuple[pa.DataType, list[Any]]] = {
    "texts": (pa.string(), [None, "", "a", "bb", "ä" * 50]),
    "longs": (pa.int64(), [None, 0, -1, 2**63 - 1, -(2**63)]),
    "doubles": (pa.float64(), [None, 0.0, math.nan, -math.inf, 1.5]),
    "decimals": (pa.decimal128(38, 2), [None, Decimal("0.01"), Decimal("-1e30"), Decimal(7)]),
    "flags": (pa.bool_(), [None, True, False]),
}
ROWS = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 4)), max_size=60)


def read(layout: ValueList, lists: pa.Array) -> list[list[tuple[Any, ...]]]:
    """The entries of each list; NaN as text, which equals itself."""
    of, columns = layout.unpacked(lists)
    found: list[list[tuple[Any, ...]]] = [[] for _ in range(len(lists))]
    for at, *entry in zip(of.tolist(), *(column.to_pylist() for column in columns), strict=True):
        found[at].append(tuple("nan" if isinstance(one, float) and math.isnan(one) else one for one in entry))
    return found


@settings(max_examples=80, deadline=None)
@given(
    kind=st.sampled_from(list(KINDS)),
    kept=st.sampled_from(["list", "set", "counts"]),
    rows=ROWS,
    cuts=st.lists(st.integers(0, 60), max_size=4),
)
def test_lists_merged_in_pieces_are_those_of_all_rows(
    kind: str, kept: Kept, rows: list[tuple[int, int]], cuts: list[int]
) -> None:
    column_type, values = KINDS[kind]
    layout = ValueList((column_type,), kept, "f(x)")
    given_rows = [(group, values[at % len(values)]) for group, at in rows]

    def lists_of(part: list[tuple[int, Any]]) -> pa.Array:
        lifted = layout.lifted([pa.array([value for _, value in part], column_type)])
        return layout.merged(lifted, np.array([group for group, _ in part], np.int64), 3)

    ends = sorted({min(cut, len(rows)) for cut in cuts} | {0, len(rows)})
    parts = [lists_of(given_rows[a:b]) for a, b in itertools.pairwise(ends)] or [lists_of([])]
    merged = layout.merged(pa.concat_arrays(parts), np.tile(np.arange(3), len(parts)), 3)
    found = read(layout, merged)
    for group in range(3):
        mine = [
            "nan" if isinstance(value, float) and math.isnan(value) else value
            for number, value in given_rows
            if number == group and value is not None
        ]
        if kept == "list":
            assert found[group] == [(value,) for value in mine]
        elif kept == "set":
            assert len(found[group]) == len(set(mine))
            assert set(found[group]) == {(value,) for value in mine}
        else:
            assert dict(found[group]) == dict(Counter(mine))
        assert (merged[group].as_py() is None) == (not mine)
    assert merged.equals(lists_of(given_rows)), "equal lists are equal bytes"


def test_a_value_that_is_taken_out_as_often_as_it_came_is_gone() -> None:
    layout = ValueList((pa.string(),), "counts", "f(x)")
    lifted = layout.lifted([pa.array(["a", "b", "a", "a"])], pa.array([1, 1, 1, -1]))
    once = layout.merged(lifted, np.zeros(4, np.int64), 1)
    assert read(layout, once) == [[("a", 1), ("b", 1)]]
    gone = layout.lifted([pa.array(["a", "b"])], pa.array([-1, -1]))
    assert layout.merged(pa.concat_arrays([once, gone]), np.zeros(3, np.int64), 1).to_pylist() == [None]


def test_a_struct_with_nulls_is_a_value() -> None:
    layout = ValueList((pa.string(), pa.int32()), "list", "f(x)")
    columns = [pa.array(["a", None]), pa.array([None, None], pa.int32())]
    lists = layout.merged(layout.lifted(columns, keeps_nulls=True), np.zeros(2, np.int64), 1)
    assert read(layout, lists) == [[("a", None), (None, None)]]


@pytest.mark.parametrize("kept", ["list", "set", "counts"])
def test_a_list_beyond_the_limit_is_an_error_and_is_not_cut(kept: Kept) -> None:
    layout = ValueList((pa.string(),), kept, "collect_list(x)")
    values = [f"{number:0100}" for number in range(MOST_BYTES // 100)]
    random.Random(1).shuffle(values)
    half = layout.merged(layout.lifted([pa.array(values[::2])]), np.zeros(len(values[::2]), np.int64), 1)
    other = layout.lifted([pa.array(values[1::2])])
    with pytest.raises(UserCodeError, match=r"collect_list\(x\) of a group has") as caught:
        layout.merged(pa.concat_arrays([half, other]), np.zeros(1 + len(other), np.int64), 1)
    assert caught.value.code == "aggregate-too-large"
