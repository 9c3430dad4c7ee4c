"""Exact distinct counts against sets of Python: long and odd values, many groups, growth, refusals. No Spark."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.spark.runtime.aggregating_task import AggregatingTask

from headrace.errors import StateError
from headrace.spark.runtime.operators.aggregate import AggregateFunctions
from headrace.spark.runtime.rows.row_conversion import check_convertible, convert_rows
from headrace.spark.runtime.rows.row_schema import WINDOW_START, RowSchema, state_schema
from headrace.spark.runtime.rows.rows import ENTRY_PREFIX
from headrace.spark.topology.nodes import TASK_COLUMN, Aggregate, Buffer, BufferFunction

LONG, TEXT, DOUBLE = '"long"', '"string"', '"double"'
ROWS = Buffer(name="b0", function="count", input=None, input_type=None, result_type=LONG, argument="*")


def distinct(name: str, argument: str, *inputs: tuple[str, str]) -> Buffer:
    (first, kind), *more = inputs
    return Buffer(
        name=name,
        function="count_distinct",
        input=first,
        input_type=kind,
        result_type=LONG,
        argument=argument,
        more_inputs=tuple(more),
    )


def numeric(name: str, function: BufferFunction, argument: str, kind: str) -> Buffer:
    return Buffer(name=name, function=function, input="i1", input_type=LONG, result_type=kind, argument=argument)


TEXTS, NUMBERS = distinct("b1", "s", ("i0", TEXT)), distinct("b2", "n", ("i1", LONG))
BOTH = distinct("b3", "n, s", ("i1", LONG), ("i0", TEXT))


def aggregate_of(*buffers: Buffer) -> Aggregate:
    return Aggregate(
        name="by-g",
        group_columns=(("g", TEXT),),
        buffers=buffers,
        results=(),
        output_schema_json="",
        changelog_topic="c",
        group_expressions=("g",),
    )


def table_of(rows: list[tuple[Any, ...]]) -> pa.Table:
    groups, texts, numbers = zip(*rows, strict=True) if rows else ((), (), ())
    return pa.table(
        {
            "g0": pa.array(groups, pa.string()),
            "i0": pa.array(texts, pa.string()),
            "i1": pa.array(numbers, pa.int64()),
            TASK_COLUMN: pa.array([0] * len(rows), pa.int32()),
        }
    )


def expected(rows: list[tuple[Any, ...]]) -> dict[Any, dict[str, int]]:
    groups: dict[Any, list[tuple[Any, Any]]] = {}
    for group, text, number in rows:
        groups.setdefault(group, []).append((text, number))
    return {
        group: {
            "b0": len(found),
            "b1": len({text for text, _ in found if text is not None}),
            "b2": len({number for _, number in found if number is not None}),
            "b3": len({pair for pair in found if None not in pair}),
        }
        for group, found in groups.items()
    }


@pytest.fixture
def new_task(tmp_path: Path) -> Iterator[Callable[[Aggregate], AggregatingTask]]:
    made: list[AggregatingTask] = []

    def make(aggregate: Aggregate) -> AggregatingTask:
        made.append(AggregatingTask(Path(tempfile.mkdtemp(dir=tmp_path)), aggregate))
        return made[-1]

    yield make
    for task in made:
        task.store.close()


ODD_TEXTS = st.sampled_from([None, "", "a", "b", "\x00", "x" * 470, "x" * 480, "x" * 600 + "a", "x" * 600 + "b"])
CUTS = st.lists(st.tuples(st.integers(0, 12), st.sampled_from(["commit", "undo", "restore"])), max_size=20)


@settings(max_examples=80, deadline=None)
@given(
    rows=st.lists(st.tuples(ODD_TEXTS, ODD_TEXTS, st.none() | st.integers(-3, 6)), max_size=50),
    cuts=CUTS,
    tables=st.integers(1, 3),
)
def test_counts_do_not_depend_on_cuts_undone_batches_and_restores(rows: Any, cuts: Any, tables: int) -> None:
    with tempfile.TemporaryDirectory() as directory:
        task = AggregatingTask(Path(directory), aggregate_of(ROWS, TEXTS, NUMBERS, BOTH))
        try:
            found = task.play(table_of(rows), cuts, tables=tables)
        finally:
            task.store.close()
    assert {row["g0"]: {name: row[name] for name in row if name != "g0"} for row in found} == expected(rows)


def test_many_values_are_written_once_and_repeats_change_one_row(
    new_task: Callable[[Aggregate], AggregatingTask],
) -> None:
    chance = random.Random(5)
    rows: list[tuple[Any, ...]] = [
        (chance.choice("ab"), f"v{chance.randrange(4000)}", chance.randrange(9)) for _ in range(20_000)
    ]
    task = new_task(aggregate_of(ROWS, TEXTS, NUMBERS))
    task.play(table_of(rows), [(chance.randrange(3000), "commit") for _ in range(8)])
    wanted = expected(rows)
    assert {row["g0"]: row["b1"] for row in task.newest.values()} == {group: wanted[group]["b1"] for group in wanted}
    entries = [key for key, _ in task.changelog if key.startswith(ENTRY_PREFIX)]
    assert len(entries) == len(set(entries)) == sum(row["b1"] + row["b2"] for row in wanted.values())
    assert task.store.count() == len(entries) + 2
    before = len(task.changelog)
    task.run(table_of(rows[:500]))
    assert len(task.changelog) == before + 2, "values that are there are not written again"


def test_a_distinct_count_alone_is_kept_by_any_kind_of_group(
    new_task: Callable[[Aggregate], AggregatingTask],
) -> None:
    task = new_task(aggregate_of(TEXTS))
    task.run(table_of([(None, "a", 0), ("g", None, 0), (None, "a", 0), (None, "b", 0)]))
    assert [(row["g0"], row["b1"]) for row in task.newest.values()] == [("g", 0), (None, 2)]


def test_types_of_values_are_part_of_the_stored_schema() -> None:
    """Entries hold the values' bytes: an int counted as a bigint would be another value."""
    schemas = [
        str(state_schema(aggregate_of(distinct("b0", "n", ("i1", kind)))).values[0]) for kind in (LONG, '"integer"')
    ]
    assert schemas == ["count_distinct(n): int64 of int64", "count_distinct(n): int64 of int32"]


def test_kept_state_goes_on_with_its_entries(new_task: Callable[[Aggregate], AggregatingTask]) -> None:
    """`headrace upgrade --state keep`: another aggregate is added, the distinct counts stay as they are."""
    before, spread = aggregate_of(ROWS, TEXTS), numeric("b2", "var_pop", "n", DOUBLE)
    behind = aggregate_of(ROWS, TEXTS, spread)
    old = new_task(before)
    old.run(table_of([("g", "a", 1), ("g", "b", 1), ("h", "a", 1)]))
    old.run(table_of([("g", "c", 1)]))
    new = new_task(behind)
    schemas = [state_schema(aggregate) for aggregate in (before, behind)]
    keys, values = zip(*old.changelog, strict=True)
    converted = convert_rows(pa.array([*values, None], pa.binary()), *schemas)
    assert converted[-1].as_py() is None
    new.changelog = list(zip(keys, converted.to_pylist()[:-1], strict=True))
    new.run(table_of([]))
    new.restore()
    new.run(table_of([("g", "b", 5), ("g", "d", 7)]))
    assert list(new.newest.values()) == [{"g0": "g", "b0": 5, "b1": 4, "b2": 1.0}]


@pytest.mark.parametrize(("old", "new"), [((ROWS,), (ROWS, TEXTS)), ((ROWS, TEXTS), (ROWS,)), ((TEXTS,), (NUMBERS,))])
def test_kept_state_with_other_distinct_counts_is_refused(old: tuple[Buffer, ...], new: tuple[Buffer, ...]) -> None:
    """A counter that began at 0 beside entries, or entries without a counter, would count too little for ever."""
    with pytest.raises(StateError) as caught:
        check_convertible(state_schema(aggregate_of(*old)), state_schema(aggregate_of(*new)))
    assert caught.value.code == "state-schema-changed"
    assert "--state recompute" in caught.value.fix


def test_kept_state_of_open_windows_is_refused() -> None:
    """Its rows hold their groups too, and watermarks lie beside them: read as partial results they would be garbage."""
    closing = [RowSchema((WINDOW_START, *state_schema(aggregate_of(*buffers)).columns)) for buffers in ((ROWS,), ())]
    with pytest.raises(StateError, match="open windows"):
        check_convertible(*closing)


@pytest.mark.parametrize("function", ["var_pop", "stddev_samp", "sum", "avg", "max"])
def test_a_new_aggregate_of_kept_state_begins_with_nothing(function: BufferFunction) -> None:
    """What a converted row holds merges with a first value to what that value alone gives."""
    functions = AggregateFunctions(
        aggregate_of(ROWS, numeric("b1", function, "n", LONG if function in ("sum", "max") else DOUBLE))
    )
    rows = functions.partial(table_of([("g", "a", 4), ("g", "a", 6)]), by=("g0",))
    counted = aggregate_of(ROWS)
    with tempfile.TemporaryDirectory() as directory:
        task = AggregatingTask(Path(directory), counted)
        task.run(table_of([("g", "x", 9)]))
        task.store.close()
    values = pa.array([value for _, value in task.changelog], pa.binary())
    converted = convert_rows(values, state_schema(counted), state_schema(functions.aggregate))
    with tempfile.TemporaryDirectory() as directory:
        task = AggregatingTask(Path(directory), functions.aggregate)
        task.run(table_of([]))
        task.changelog = [(b"g", converted[0].as_py())]
        task.restore()
        task.run(table_of([("g", "a", 4), ("g", "a", 6)]))
        task.store.close()
    [found] = task.newest.values()
    assert found["b0"] == 3
    assert found["b1"] == functions.finish(rows).column("b1")[0].as_py()
