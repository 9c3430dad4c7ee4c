"""Filters behind an aggregate against a plain reference: any cuts, undone batches, restores, tables cut anywhere."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.spark.runtime.aggregating_task import AggregatingTask

from headrace.spark.runtime.operators.change_rows import ChangeRows, upserts
from headrace.spark.topology.nodes import DELETED_COLUMN, KEY_COLUMN, OLD_COLUMN, TASK_COLUMN, Aggregate, Buffer

Row = tuple[str | None, int | None]
BUFFERS = (
    Buffer(name="b0", function="count", input=None, input_type=None, result_type='"long"'),
    Buffer(name="b1", function="sum", input="i0", input_type='"long"', result_type='"long"'),
)
DISTINCT = Buffer(name="b2", function="count_distinct", input="i0", input_type='"long"', result_type='"long"')
ROWS = st.lists(
    st.tuples(st.sampled_from([None, "", "a", "b", "x" * 500]), st.one_of(st.none(), st.integers(-2, 2))), max_size=50
)
CUTS = st.lists(st.tuples(st.integers(0, 9), st.sampled_from(["commit", "undo", "restore"])), max_size=25)


def filtered_aggregate(buffers: tuple[Buffer, ...], changes: str = "where ..") -> Aggregate:
    return Aggregate(
        name="t",
        group_columns=(("g", '"string"'),),
        buffers=buffers,
        results=(),
        output_schema_json="",
        changelog_topic="c",
        changes=changes,
    )


def table_of(rows: Sequence[Row]) -> pa.Table:
    return pa.table(
        {
            "g0": pa.array([row[0] for row in rows], pa.string()),
            "i0": pa.array([row[1] for row in rows], pa.int64()),
            TASK_COLUMN: pa.array([0] * len(rows), pa.int32()),
        }
    )


def passes(row: dict[str, Any]) -> bool:
    """A condition that groups come to fulfil and cease to fulfil, and null does not."""
    return row["b1"] is not None and row["b1"] % 2 == 0 and row["b0"] % 5 != 0


def reference(rows: Sequence[Row]) -> dict[str | None, tuple[Any, ...]]:
    """Return group → count, sum, distinct values, of the groups that pass."""
    found = {}
    for group in {row[0] for row in rows}:
        values = [row[1] for row in rows if row[0] == group]
        there = [value for value in values if value is not None]
        row = {"b0": len(values), "b1": sum(there) if there else None}
        if passes(row):
            found[group] = (row["b0"], row["b1"], len(set(there)))
    return found


class Topic:
    """What a topic holds behind Spark SQL and the sink. Mutable."""

    def __init__(self) -> None:
        self.rows: dict[str | None, tuple[Any, ...]] = {}
        self.records = 0

    def write(self, results: pa.Table, tables: int) -> None:
        kept = results.filter(pa.array([passes(row) for row in results.to_pylist()], pa.bool_()))
        changes = ChangeRows()
        for piece in np.array_split(np.arange(kept.num_rows), tables):
            if len(piece):
                self._apply(upserts(*changes.add(kept.slice(int(piece[0]), len(piece)))))
        if (rest := changes.rest()) is not None:
            self._apply(upserts(*rest))

    def _apply(self, rows: pa.Table) -> None:
        assert OLD_COLUMN not in rows.column_names
        for row in rows.to_pylist():
            self.records += 1
            shown = row["b0"], row["b1"], row.get("b2")
            assert row[KEY_COLUMN] == (row["g0"] or "").encode() or row["g0"] is None
            if row[DELETED_COLUMN]:
                assert self.rows.pop(row["g0"])[:2] == shown[:2]  # a record that was there, with its values
            else:
                self.rows[row["g0"]] = shown


@settings(max_examples=60, deadline=None)
@given(rows=ROWS, cuts=CUTS, distinct=st.booleans(), tables=st.integers(1, 6))
def test_filtered_tables_do_not_depend_on_cuts_undone_batches_and_restores(
    rows: list[Row], cuts: list[tuple[int, str]], distinct: bool, tables: int
) -> None:
    buffers = (*BUFFERS, DISTINCT) if distinct else BUFFERS
    with tempfile.TemporaryDirectory() as directory:
        task, topic, at = AggregatingTask(Path(directory), filtered_aggregate(buffers)), Topic(), 0
        try:
            for size, outcome in [*cuts, (len(rows), "commit")]:
                if outcome == "restore":
                    task.restore()
                piece = rows[at : at + size]
                task.run(table_of(piece), commits=outcome != "undo", tables=1 + tables % 2)
                at += len(piece) if outcome != "undo" else 0
                if task.results is not None:
                    topic.write(task.results, tables)
                wanted = {group: row if distinct else (*row[:2], None) for group, row in reference(rows[:at]).items()}
                assert topic.rows == wanted
        finally:
            task.store.close()


def test_a_group_that_never_passed_gets_no_tombstone(tmp_path: Path) -> None:
    task, topic = AggregatingTask(tmp_path, filtered_aggregate(BUFFERS)), Topic()
    for _ in range(4):
        task.run(table_of([("a", 1), ("a", 0)]))
        assert task.results is not None
        topic.write(task.results, 1)
    assert topic.records == 3  # sums 1, 2, 3, 4: nothing, a row, its tombstone, a row
    task.run(table_of([("b", 1)]))
    assert task.results is not None
    before = topic.records
    topic.write(task.results, 1)
    assert topic.records == before
    task.store.close()


def test_the_filter_is_part_of_the_identity_of_stored_rows(tmp_path: Path) -> None:
    from headrace.spark.runtime.rows.row_schema import state_schema

    texts = [state_schema(filtered_aggregate(BUFFERS, changes)).hash for changes in ("", "where n > 1", "where n > 2")]
    assert len(set(texts)) == 3
