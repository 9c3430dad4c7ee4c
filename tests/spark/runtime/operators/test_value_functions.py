"""Percentiles, modes and collected values of lists against plain references. Equality with Spark: other tests."""

from __future__ import annotations

import json
import math
from fractions import Fraction
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.errors import StateError
from headrace.spark.arrow_types import result_arrow_type
from headrace.spark.runtime.operators.aggregate import AggregateFunctions
from headrace.spark.runtime.operators.table_functions import SIGN_COLUMN, TableFunctions
from headrace.spark.runtime.rows.row_schema import state_schema
from headrace.spark.topology.nodes import Aggregate, Buffer, BufferFunction

DOUBLES = '{"type":"array","elementType":"double","containsNull":false}'
LONGS = '{"type":"array","elementType":"long","containsNull":false}'
PAIRS = (
    '{"type":"array","elementType":{"type":"struct","fields":[{"name":"t","type":"long","nullable":true,"metadata":{}},'
    '{"name":"x","type":"string","nullable":true,"metadata":{}}]},"containsNull":false}'
)
VALUES = st.lists(st.tuples(st.sampled_from("ab"), st.none() | st.integers(-4, 4)), max_size=40)


def aggregate_of(function: BufferFunction, result: str, parameter: Any = None, *kinds: str) -> Aggregate:
    first, *more = kinds or ('"long"',)
    buffer = Buffer(
        name="b0",
        function=function,
        input="i0",
        input_type=first,
        result_type=result,
        argument="x",
        more_inputs=tuple((f"i{at}", kind) for at, kind in enumerate(more, 1)),
        parameter="" if parameter is None else json.dumps(parameter),
    )
    return Aggregate(
        name="t",
        group_columns=(("g", '"string"'),),
        buffers=(buffer,),
        results=(),
        output_schema_json="",
        changelog_topic="c",
    )


def results(functions: AggregateFunctions, rows: pa.Table) -> dict[str, Any]:
    finished = functions.finish(functions.partial(rows, by=("g0",)))
    return {row["g0"]: row["b0"] for row in finished.to_pylist()}


def table(rows: list[tuple[str, Any]]) -> pa.Table:
    groups, values = [group for group, _ in rows], [value for _, value in rows]
    return pa.table({"g0": pa.array(groups, pa.string()), "i0": pa.array(values, pa.int64())})


@settings(max_examples=60, deadline=None)
@given(rows=VALUES, at=st.sampled_from([0.0, 0.25, 0.5, 0.9, 1.0]), descending=st.booleans())
def test_percentiles_are_those_of_the_sorted_values(rows: Any, at: float, descending: bool) -> None:
    asked = {"at": [at, 0.5], "descending": descending, "discrete": False, "many": True}
    found = results(AggregateFunctions(aggregate_of("percentile", DOUBLES, asked)), table(rows))
    for group, mine in by_group(rows).items():
        ordered = sorted(mine, reverse=descending)
        if not ordered:
            assert found[group] is None
            continue
        for one, result in zip((at, 0.5), found[group], strict=True):
            position = Fraction(one) * (len(ordered) - 1)
            low, share = ordered[math.floor(position)], position - math.floor(position)
            exact = low + share * (ordered[math.ceil(position)] - low)
            assert math.isclose(result, exact, rel_tol=1e-12, abs_tol=1e-12)


@settings(max_examples=60, deadline=None)
@given(rows=VALUES, at=st.sampled_from([0.0, 0.25, 0.5, 0.75, 1.0]), descending=st.booleans())
def test_a_discrete_percentile_is_the_first_value_with_that_share(rows: Any, at: float, descending: bool) -> None:
    asked = {"at": [at], "descending": descending, "discrete": True, "many": False}
    found = results(AggregateFunctions(aggregate_of("percentile", '"double"', asked)), table(rows))
    for group, mine in by_group(rows).items():
        ordered = sorted(mine, reverse=descending)
        wanted = next((value for rank, value in enumerate(ordered, 1) if rank >= at * len(ordered)), None)
        assert found[group] == wanted


@settings(max_examples=60, deadline=None)
@given(rows=VALUES, takes_greatest=st.booleans())
def test_a_mode_is_the_least_or_greatest_of_the_most_frequent(rows: Any, takes_greatest: bool) -> None:
    parameter = {"takes_greatest": takes_greatest}
    found = results(AggregateFunctions(aggregate_of("mode", '"long"', parameter)), table(rows))
    for group, mine in by_group(rows).items():
        most = max((mine.count(value) for value in mine), default=0)
        rivals = [value for value in mine if mine.count(value) == most]
        assert found[group] == ((max if takes_greatest else min)(rivals) if rivals else None)


def by_group(rows: list[tuple[str, Any]]) -> dict[str, list[Any]]:
    return {
        group: [value for one, value in rows if one == group and value is not None]
        for group in {row[0] for row in rows}
    }


def test_a_list_has_its_values_as_they_came_and_an_empty_one_is_no_null() -> None:
    rows = table([("a", 3), ("b", None), ("a", 1), ("a", None), ("a", 3)])
    assert results(AggregateFunctions(aggregate_of("collect_list", LONGS)), rows) == {"a": [3, 1, 3], "b": []}
    assert results(AggregateFunctions(aggregate_of("collect_set", LONGS)), rows) == {"a": [1, 3], "b": []}


def test_structs_are_collected_with_their_nulls() -> None:
    rows = pa.table(
        {"g0": ["a", "a"], "i0": pa.array([1, None], pa.int64()), "i1": pa.array([None, None], pa.string())}
    )
    functions = AggregateFunctions(aggregate_of("collect_list", PAIRS, None, '"long"', '"string"'))
    assert results(functions, rows) == {"a": [{"t": 1, "x": None}, {"t": None, "x": None}]}
    assert functions.finished_schema().field("b0").type == result_arrow_type(PAIRS)


def test_rows_of_a_table_leave_every_function_over_values() -> None:
    rows = table([("a", 5), ("a", 5), ("a", 2), ("a", 5), ("a", 5)])
    rows = rows.append_column(SIGN_COLUMN, pa.array([1, 1, 1, -1, -1], pa.int64()))
    asked = {"at": [1.0], "descending": False, "discrete": False, "many": False}
    cases: list[tuple[BufferFunction, str, Any, Any]] = [
        ("percentile", '"double"', asked, 2.0),
        ("mode", '"long"', {"takes_greatest": True}, 2),
        ("collect_list", LONGS, None, [2]),
        ("collect_set", LONGS, None, [2]),
    ]
    for function, result, parameter, wanted in cases:
        assert results(TableFunctions(aggregate_of(function, result, parameter)), rows) == {"a": wanted}


def test_a_value_that_left_more_often_than_it_came_is_corrupt_state() -> None:
    rows = table([("a", 5)]).append_column(SIGN_COLUMN, pa.array([-1], pa.int64()))
    with pytest.raises(StateError) as caught:
        results(TableFunctions(aggregate_of("collect_set", LONGS)), rows)
    assert caught.value.code == "state-corrupt"


def test_a_program_may_ask_another_percentile_of_stored_values_of_one_type() -> None:
    half, most = ({"at": [at], "descending": False, "discrete": False, "many": False} for at in (0.5, 0.9))
    stored = state_schema(aggregate_of("percentile", '"double"', half))
    assert state_schema(aggregate_of("percentile", '"double"', most)) == stored
    assert state_schema(aggregate_of("percentile", '"double"', half, '"double"')) != stored
    assert state_schema(aggregate_of("mode", '"long"', {"takes_greatest": False})) != stored
