"""Partial results made by upstream tasks, against rows merged one by one by their reader. No Spark, no broker."""

from __future__ import annotations

import decimal
import math
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.spark.arrow_types import FLAT, arrow_type, arrow_types, type_json_of
from headrace.spark.runtime.operators import partial_results
from headrace.spark.runtime.operators.aggregate import AggregateFunctions
from headrace.spark.runtime.operators.partial_results import MERGING, PartialResults, merges_partials, partial_columns
from headrace.spark.runtime.rows.rows import decode_rows, encode_rows
from headrace.spark.topology.nodes import (
    Aggregate,
    Buffer,
    BufferFunction,
    ProjectForGroup,
    SessionWindow,
    TableAggregate,
    WindowedAggregate,
)

INPUTS = {
    "i0": '"long"',
    "i1": '"decimal(10,2)"',
    "i2": '"double"',
    "i3": '"string"',
    "i4": '"timestamp"',
    "i5": '"short"',
    "i6": '"binary"',
}
FUNCTIONS: list[tuple[BufferFunction, str | None, str]] = [
    ("count", None, '"long"'),
    ("count", "i3", '"long"'),
    ("sum", "i0", '"long"'),
    ("sum", "i1", '"decimal(20,2)"'),
    ("sum", "i2", '"double"'),
    ("avg", "i0", '"double"'),
    ("avg", "i1", '"decimal(14,6)"'),
    ("min", "i3", '"string"'),
    ("max", "i2", '"double"'),
    ("min", "i2", '"double"'),
    ("max", "i4", '"timestamp"'),
    ("min", "i6", '"binary"'),
    ("bit_and", "i5", '"short"'),
    ("bit_or", "i0", '"long"'),
    ("bit_xor", "i5", '"short"'),
]
BY: list[tuple[BufferFunction, str, str]] = [("max_by", "i3", "i2"), ("min_by", "i0", "i4")]
GROUPS = (("g0", '"string"'), ("g1", '"double"'))
PROJECTION = ProjectForGroup(
    key_sql=(),
    input_sql=(),
    columns=(*GROUPS, *INPUTS.items()),
    expressions=("k", "x", "a", "b", "c", "d", "e", "f", "g"),
)


def _buffers() -> tuple[Buffer, ...]:
    found = [
        Buffer(
            name=f"b{at}",
            function=function,
            input=column,
            input_type=None if column is None else INPUTS[column],
            result_type=result,
        )
        for at, (function, column, result) in enumerate(FUNCTIONS)
    ]
    found += [
        Buffer(
            name=f"b{at}",
            function=function,
            input=column,
            input_type=INPUTS[column],
            result_type=INPUTS[column],
            more_inputs=((order, INPUTS[order]),),
        )
        for at, (function, column, order) in enumerate(BY, len(found))
    ]
    return tuple(found)


AGGREGATE = Aggregate(
    name="by-key",
    group_columns=(("k", '"string"'), ("x", '"double"')),
    buffers=_buffers(),
    results=(),
    output_schema_json="",
    changelog_topic="",
)
TAKING = AggregateFunctions(replace(AGGREGATE, takes_partials=True))
COLUMNS, TEXTS = partial_columns(AGGREGATE, PROJECTION, PROJECTION.expressions)
# Quarters are summed without rounding, so that sums of doubles have one value in every order.
QUARTERS = st.integers(-1000, 1000).map(lambda number: number / 4)
ROW = st.tuples(
    st.sampled_from([None, "", "a", "b"]),
    st.sampled_from([0.0, -0.0, math.nan, 1.5]),
    st.none() | st.integers(-(2**40), 2**40),
    st.none() | st.decimals(-99_999_999, 99_999_999, places=2),
    st.none() | QUARTERS | st.just(math.nan),
    st.none() | st.text(max_size=3),
    st.none() | st.integers(-(2**50), 2**50),
    st.none() | st.integers(-(2**15), 2**15 - 1),
    st.none() | st.binary(max_size=3),
)


def _table(rows: list[tuple[Any, ...]]) -> pa.Table:
    columns = list(zip(*rows, strict=True)) or [()] * len(PROJECTION.columns)
    kinds = arrow_types(PROJECTION.columns)
    names = [name for name, _ in PROJECTION.columns]
    return pa.table([pa.array(values, kind) for values, kind in zip(columns, kinds, strict=True)], names=names)


def _through_topic(partials: pa.Table) -> pa.Table:
    """The records of a repartition topic: encoded, and decoded by the columns that its source declares."""
    names = [name for name, _ in COLUMNS]
    values = encode_rows(partials.select(names).combine_chunks().columns, b"1234")
    return pa.table(decode_rows(values, arrow_types(COLUMNS), b"1234"), names=names)


def _finished(functions: AggregateFunctions, tables: list[pa.Table]) -> dict[str, str]:
    parts = [functions.partial(table, by=functions.group_names) for table in tables]
    whole = functions.finish(functions.combine(pa.concat_tables(parts), by=functions.group_names)).to_pylist()
    # As texts: NaN equals itself there.
    return {repr((row["g0"], row["g1"])): repr(row) for row in whole}


def _sent(rows: list[tuple[Any, ...]], cuts: list[int], *, combines: bool) -> list[pa.Table]:
    """The partial results of one task, which gets its rows in pieces."""
    partials, sent, at = PartialResults(AGGREGATE, PROJECTION.columns, combines=combines), [], 0
    for size in [*cuts, len(rows)]:
        if rows[at : at + size]:
            sent += list(partials.add(_table(rows[at : at + size])))
        at += size
    return [*sent, *partials.rest()]


@settings(max_examples=60, deadline=None)
@given(
    rows=st.lists(ROW, min_size=1, max_size=40),
    cuts=st.lists(st.integers(1, 15), max_size=5),
    enough=st.integers(1, 20),
    most=st.sampled_from([1, 3, 100]),
    combines=st.booleans(),
    order=st.randoms(use_true_random=False),
)
def test_results_equal_those_of_rows_merged_one_by_one(
    rows: list[tuple[Any, ...]], cuts: list[int], enough: int, most: int, combines: bool, order: Any
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(partial_results, "_ENOUGH_ROWS", enough)
        patch.setattr(partial_results, "_MOST_HELD", most)
        sent = _sent(rows, cuts, combines=combines)
    if not combines:
        assert sum(table.num_rows for table in sent) == len(rows)
    read = [_through_topic(table) for table in sent]
    order.shuffle(read)
    shuffled = list(rows)
    order.shuffle(shuffled)
    assert _finished(TAKING, read) == _finished(AggregateFunctions(AGGREGATE), [_table(shuffled)])


def test_rows_of_one_group_become_one_record() -> None:
    rows = [("a", 1.5, 1, decimal.Decimal(1), 0.5, "t", 1, 1, b"")] * 1000
    [sent] = _sent(rows, [100] * 9, combines=True)
    assert sent.num_rows == 1


def test_rows_of_as_many_groups_are_sent_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partial_results, "_ENOUGH_ROWS", 10)
    rows = [(str(number), 1.5, 1, None, None, None, None, None, None) for number in range(20)]
    sent = _sent(rows + rows, [10] * 4, combines=True)
    assert [table.num_rows for table in sent] == [10] * 4


def test_a_partial_sum_without_room_is_left_to_the_reader() -> None:
    """The sum of all rows has room: an upstream task must not fail on a part of them."""
    most = 2**63 - 1
    rows = [("a", 1.5, number, None, None, None, None, None, None) for number in [most, most, -most]]
    first, second = _sent(rows[:2], [], combines=True), _sent(rows[2:], [], combines=True)
    assert sum(table.num_rows for table in first) == 2
    read = [_through_topic(table) for table in [*first, *second]]
    reader = TAKING.finish(TAKING.partial(pa.concat_tables(read), by=TAKING.group_names))
    assert reader.column("b2").to_pylist() == [most]


def test_texts_of_partial_columns_name_function_and_inputs() -> None:
    assert TEXTS[:3] == ("k", "x", "partial count(*)")
    assert "partial avg(a).n" in TEXTS
    assert "partial max_by(d, c).y" in TEXTS
    assert len(set(TEXTS)) == len(TEXTS) == len(COLUMNS)


@pytest.mark.parametrize("function", ["count_distinct", "collect_list", "approx_count_distinct", "stddev_pop"])
def test_functions_whose_partial_results_do_not_shrink_send_rows(function: BufferFunction) -> None:
    assert function not in MERGING
    one = Buffer(name="b0", function=function, input="i0", input_type='"long"', result_type='"long"')
    assert not merges_partials(replace(AGGREGATE, buffers=(*AGGREGATE.buffers, one)))


def test_sessions_and_aggregates_of_tables_take_rows() -> None:
    assert merges_partials(AGGREGATE)
    common = {
        "name": "n",
        "group_columns": AGGREGATE.group_columns,
        "buffers": AGGREGATE.buffers[:1],
        "results": (),
        "output_schema_json": "",
        "changelog_topic": "",
    }
    assert not merges_partials(TableAggregate(**common))  # type: ignore[arg-type]
    sessions = WindowedAggregate(
        **common,  # type: ignore[arg-type]
        watermark_sources=("s",),
        window=SessionWindow(group="g0", gap_us=1),
    )
    assert not merges_partials(sessions)


@pytest.mark.parametrize("name", [*FLAT, "decimal(38,18)"])
def test_stored_types_have_a_type_in_spark(name: str) -> None:
    kind = arrow_type(f'"{name}"')
    assert arrow_type(type_json_of(kind)) == kind
