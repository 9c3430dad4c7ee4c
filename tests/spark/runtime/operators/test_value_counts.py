"""`min`, `max` and distinct counts of tables against a plain reference: values that come, repeat, change and leave."""

from __future__ import annotations

import datetime as dt
import decimal
import math
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.spark.runtime.aggregating_task import AggregatingTask

from headrace.errors import StateError
from headrace.spark.arrow_types import arrow_type
from headrace.spark.topology.nodes import (
    CHANGE_COLUMN,
    KEY_COLUMN,
    NEW_ROW,
    OLD_COLUMN,
    OLD_ROW,
    TASK_COLUMN,
    Buffer,
    TableAggregate,
)

D = decimal.Decimal
VALUES: dict[str, list[Any]] = {
    '"long"': [None, 0, 1, -1, 7, (1 << 63) - 1, -(1 << 63)],
    '"byte"': [None, 0, 1, -1, 127, -128],
    '"double"': [None, 0.0, -0.0, 1.5, -1.5, math.inf, -math.inf, math.nan, 5e-324],
    '"float"': [None, 0.0, 1.5, -2.5, math.inf, math.nan],
    '"decimal(38,2)"': [None, D("0.00"), D("-0.01"), D("1e33"), D("-1e33"), D("99.99")],
    '"date"': [None, dt.date(1969, 12, 31), dt.date(1970, 1, 1), dt.date(2026, 1, 1)],
    '"timestamp"': [None, *(dt.datetime(year, 1, 1, tzinfo=dt.UTC) for year in (1900, 1970, 2026))],
    '"boolean"': [None, True, False],
}
# A key and what happens to it: the number of its new group and value, or None when its row vanishes.
STEPS = st.lists(
    st.tuples(st.integers(0, 5), st.one_of(st.none(), st.tuples(st.integers(0, 2), st.integers(0, 8)))), max_size=40
)
CUTS = st.lists(st.tuples(st.integers(0, 6), st.sampled_from(["commit", "undo", "restore"])), max_size=20)
GROUPS = [None, "a", "ab" + "x" * 600]


def aggregate(kind: str) -> TableAggregate:
    def over(name: str, function: Any, result: str) -> Buffer:
        return Buffer(name=name, function=function, input="i0", input_type=kind, result_type=result)

    return TableAggregate(
        name="second",
        group_columns=(("g", '"string"'),),
        buffers=(
            Buffer(name="b0", function="count", input=None, input_type=None, result_type='"long"'),
            over("b1", "min", kind),
            over("b2", "max", kind),
            over("b3", "count_distinct", '"long"'),
        ),
        results=(),
        output_schema_json="",
        changelog_topic="d",
        changes="of first",
    )


def table_of(changes: Sequence[tuple[Any, Any, Any, int]], kind: str) -> pa.Table:
    """Changes: group, new value, old value, which of them are there."""
    return pa.table(
        {
            "g0": pa.array([one[0] for one in changes], pa.string()),
            "i0": pa.array([one[1] for one in changes], arrow_type(kind)),
            "o0": pa.array([one[2] for one in changes], arrow_type(kind)),
            CHANGE_COLUMN[0]: pa.array([one[3] for one in changes], pa.int8()),
        }
    )


def changes_of(steps: Sequence[tuple[int, Any]], values: list[Any]) -> tuple[list[Any], list[dict[int, Any]]]:
    """Return the changes of each step, and the rows behind each step: key → group, value."""
    rows: dict[int, Any] = {}
    found, states = [], []
    for key, to in steps:
        old = rows.pop(key, None)
        new = None if to is None else (GROUPS[to[0]], values[to[1] % len(values)])
        if new is not None:
            rows[key] = new
        step: list[tuple[Any, Any, Any, int]] = []
        if old is not None and new is not None and old[0] == new[0]:
            step.append((new[0], new[1], old[1], NEW_ROW | OLD_ROW))
        else:
            step += [(old[0], None, old[1], OLD_ROW)] if old is not None else []
            step += [(new[0], new[1], None, NEW_ROW)] if new is not None else []
        found.append(step)
        states.append(dict(rows))
    return found, states


def order_of(value: Any) -> Any:
    """Spark's order: NaN is the greatest number."""
    is_nan = isinstance(value, float) and math.isnan(value)
    return (is_nan, 0 if is_nan else value)


def reference(rows: dict[int, Any]) -> dict[str | None, tuple[Any, ...]]:
    found = {}
    for group in {row[0] for row in rows.values()}:
        mine = [row[1] for row in rows.values() if row[0] == group]
        values = sorted((value for value in mine if value is not None), key=order_of)
        distinct = {"nan" if isinstance(value, float) and math.isnan(value) else value for value in values}
        ends = (values[0], values[-1]) if values else (None, None)
        found[group] = (len(mine), *map(shown, ends), len(distinct))
    return found


def shown(value: Any) -> str:
    """A value as text: NaN equals itself, both zeros are one, and the scale of a decimal does not count."""
    if isinstance(value, D):
        return repr(value.as_integer_ratio())
    if isinstance(value, dt.date):
        return value.isoformat()
    return repr(value + 0.0 if isinstance(value, float) else value)


class Topic:
    """The newest row of each group. Mutable."""

    def __init__(self) -> None:
        self.rows: dict[str | None, tuple[Any, ...]] = {}

    def write(self, results: pa.Table) -> None:
        rows = results.to_pylist()
        for row in (row for row in rows if row[OLD_COLUMN]):
            assert self.rows.pop(row["g0"]) == self._shown(row)  # the old row is what the group had
        for row in (row for row in rows if not row[OLD_COLUMN]):
            assert row["g0"] not in self.rows
            self.rows[row["g0"]] = self._shown(row)
            assert KEY_COLUMN in row
            assert TASK_COLUMN in row

    @staticmethod
    def _shown(row: dict[str, Any]) -> tuple[Any, ...]:
        return row["b0"], shown(row["b1"]), shown(row["b2"]), row["b3"]


@settings(max_examples=60, deadline=None)
@given(steps=STEPS, cuts=CUTS, kind=st.sampled_from(sorted(VALUES)), tables=st.integers(1, 3))
def test_results_do_not_depend_on_cuts_undone_batches_and_restores(
    steps: list[tuple[int, Any]], cuts: list[tuple[int, str]], kind: str, tables: int
) -> None:
    changes, states = changes_of(steps, VALUES[kind])
    with tempfile.TemporaryDirectory() as directory:
        task, topic, at = AggregatingTask(Path(directory), aggregate(kind)), Topic(), 0
        try:
            for size, outcome in [*cuts, (len(steps), "commit")]:
                if outcome == "restore":
                    task.restore()
                piece = [change for step in changes[at : at + size] for change in step]
                task.run(table_of(piece, kind), commits=outcome != "undo", tables=tables)
                at += len(changes[at : at + size]) if outcome != "undo" else 0
                if task.results is not None:
                    topic.write(task.results)
                assert topic.rows == reference(states[at - 1] if at else {})
            rest = [(group, None, value, OLD_ROW) for group, value in (states[-1] if states else {}).values()]
            task.run(table_of(rest, kind))
            task.store.resolve_prepared(task.committed)
            assert not dict(task.store.values())  # neither groups nor values stay behind
        finally:
            task.store.close()


def test_the_next_extreme_is_found_behind_many_that_leave_at_once(tmp_path: Path) -> None:
    task = AggregatingTask(tmp_path, aggregate('"long"'))
    task.run(table_of([("a", n, None, NEW_ROW) for n in range(3000)], '"long"'))
    task.run(table_of([("a", None, n, OLD_ROW) for n in range(2000, 3000)], '"long"'))
    assert task.results is not None
    assert [row["b2"] for row in task.results.to_pylist()] == [2999, 1999]
    leaving = [("a", None, n, OLD_ROW) for n in range(1999) if n != 5]
    task.run(table_of([*leaving, ("a", 3, 1999, NEW_ROW | OLD_ROW)], '"long"'))
    last = task.results.to_pylist()[-1]
    assert (last["b0"], last["b1"], last["b2"], last["b3"]) == (2, 3, 5, 2)
    task.store.close()


def test_a_value_that_was_never_there_cannot_leave(tmp_path: Path) -> None:
    task = AggregatingTask(tmp_path, aggregate('"long"'))
    task.run(table_of([("a", 1, None, NEW_ROW), ("a", 2, None, NEW_ROW)], '"long"'))
    with pytest.raises(StateError, match="more often than it was added"):
        task.run(table_of([("a", None, 3, OLD_ROW)], '"long"'))
    task.store.close()
