"""Aggregates of tables against a plain reference: rows that change, move and vanish, under any cuts and restores."""

from __future__ import annotations

import decimal
import itertools
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.spark.runtime.aggregating_task import AggregatingTask

from headrace.errors import StateError, UserCodeError
from headrace.spark.runtime.operators.change_rows import ChangeRows, change_records, upserts
from headrace.spark.runtime.rows.rows import decode_rows, encode_rows
from headrace.spark.topology.nodes import (
    CHANGE_COLUMN,
    DELETED_COLUMN,
    NEW_ROW,
    OLD_ROW,
    TASK_COLUMN,
    Aggregate,
    Buffer,
    BufferFunction,
    TableAggregate,
)

Row = tuple[str | None, int | None, int]  # key, value, category
FirstRow = tuple[int, int | None, int]  # count, greatest value, category
LEAST, MOST = -(1 << 63), (1 << 63) - 1
COLUMNS = [("g0", pa.int64()), ("i0", pa.int64()), ("i1", pa.decimal128(10, 2))]
SCHEMA = pa.schema([*COLUMNS, *((f"o{name[1:]}", kind) for name, kind in COLUMNS[1:]), (CHANGE_COLUMN[0], pa.int8())])


def inner() -> Aggregate:
    """The first table: of each key the number of rows, their sum, and their greatest category."""
    buffers = (
        Buffer(name="b0", function="count", input=None, input_type=None, result_type='"long"'),
        Buffer(name="b1", function="max", input="i0", input_type='"long"', result_type='"long"'),
        Buffer(name="b2", function="max", input="i1", input_type='"long"', result_type='"long"'),
    )
    return Aggregate(
        name="first",
        group_columns=(("k", '"string"'),),
        buffers=buffers,
        results=(),
        output_schema_json="",
        changelog_topic="c",
        changes="to second",
    )


def outer() -> TableAggregate:
    """The second one, of the first one's rows by category: `i0` their greatest value, `i1` a hundredth of its count."""

    def over(name: str, function: BufferFunction, result: str, column: str = "i0", kind: str = '"long"') -> Buffer:
        return Buffer(name=name, function=function, input=column, input_type=kind, result_type=result)

    buffers = (
        Buffer(name="b0", function="count", input=None, input_type=None, result_type='"long"'),
        over("b1", "sum", '"long"'),
        over("b2", "avg", '"double"'),
        over("b3", "count", '"long"'),
        over("b4", "sum", '"decimal(20,2)"', "i1", '"decimal(10,2)"'),
        over("b5", "avg", '"decimal(14,6)"', "i1", '"decimal(10,2)"'),
    )
    return TableAggregate(
        name="second",
        group_columns=(("category", '"long"'),),
        buffers=buffers,
        results=(),
        output_schema_json="",
        changelog_topic="d",
        changes="of first",
    )


def first_table(rows: Sequence[Row]) -> dict[str | None, FirstRow]:
    """Return key → count, greatest value, greatest category, of the keys that pass the filter between the tables."""
    found = {}
    for key in {row[0] for row in rows}:
        mine = [row for row in rows if row[0] == key]
        values = [row[1] for row in mine if row[1] is not None]
        if len(mine) % 4:
            found[key] = (len(mine), max(values, default=None), max(row[2] for row in mine))
    return found


def second_table(rows: Sequence[Row]) -> dict[int, tuple[Any, ...]]:
    """Return category → count, sum, mean, count of values, sum and mean of decimals."""
    return second_table_of(list(first_table(rows).values()))


def second_table_of(first: Sequence[FirstRow]) -> dict[int, tuple[Any, ...]]:
    """Return the same from rows of the first table."""
    found = {}
    for category in {row[2] for row in first}:
        mine = [row for row in first if row[2] == category]
        values = [row[1] for row in mine if row[1] is not None]
        decimals = [decimal.Decimal(row[0]).scaleb(-2) for row in mine]
        mean = (sum(decimals, decimal.Decimal()) / len(decimals)).quantize(
            decimal.Decimal("1e-6"), decimal.ROUND_HALF_UP
        )
        total = sum(values) if values else None
        found[category] = (
            len(mine),
            total,
            None if total is None else float(total) / len(values),
            len(values),
            sum(decimals),
            mean,
        )
    return found


@dataclass
class Chain:
    """Both tables, the repartition topic between them, and the topic behind. Mutable."""

    directory: Path
    first: AggregatingTask = field(init=False)
    second: AggregatingTask = field(init=False)
    between: list[bytes] = field(default_factory=list)
    processed: int = 0
    topic: dict[int, tuple[Any, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        (self.directory / "first").mkdir()
        self.first = AggregatingTask(self.directory / "first", inner())
        (self.directory / "second").mkdir()
        self.second = AggregatingTask(self.directory / "second", outer())

    def push(self, rows: Sequence[Row], outcome: str, tables: int) -> None:
        """Run the first table on rows, and write its changes to the topic between."""
        if outcome == "restore":
            self.first.restore()
        columns = [
            pa.array([row[at] for row in rows], kind) for at, kind in enumerate([pa.string(), *[pa.int64()] * 2])
        ]
        table = pa.table(dict(zip(("g0", "i0", "i1"), columns, strict=True)))
        table = table.append_column(TASK_COLUMN, pa.array([0] * len(rows), pa.int32()))
        self.first.run(table, commits=outcome != "undo")
        if self.first.results is None or not self.first.results.num_rows:
            return
        results = self.first.results
        results = results.filter(pa.array([count % 4 != 0 for count in results.column("b0").to_pylist()], pa.bool_()))
        hundredths = [decimal.Decimal(count).scaleb(-2) for count in results.column("b0").to_pylist()]
        onward = pa.table({"g0": results.column("b2"), "i0": results.column("b1")})
        onward = onward.append_column("i1", pa.array(hundredths, pa.decimal128(10, 2)))
        for name in results.column_names:
            if name.startswith("__"):
                onward = onward.append_column(name, results.column(name))
        changes = ChangeRows()
        for piece in np.array_split(np.arange(onward.num_rows), tables):
            if len(piece):
                self._write(changes.add(onward.slice(int(piece[0]), len(piece))))
        if (rest := changes.rest()) is not None:
            self._write(rest)

    def _write(self, changes: tuple[pa.Table, Any, Any]) -> None:
        table, is_old, is_replaced = changes
        records = change_records(table, is_old, is_replaced, SCHEMA)
        self.between += encode_rows(records.select(SCHEMA.names).columns, FINGERPRINT).to_pylist()

    def pull(self, records: int, outcome: str, tables: int) -> None:
        """Run the second table on the next records, and write its changes to the topic behind."""
        if outcome == "restore":
            self.second.restore()
        piece = self.between[self.processed : self.processed + records]
        rows = pa.Table.from_arrays(decode_rows(pa.array(piece, pa.binary()), SCHEMA.types, FINGERPRINT), schema=SCHEMA)
        self.second.run(rows, commits=outcome != "undo", tables=tables)
        self.processed += len(piece) if outcome != "undo" else 0
        if self.second.results is None or not self.second.results.num_rows:
            return
        changes = ChangeRows()
        tables_of = [changes.add(self.second.results), changes.rest()]
        for table in (upserts(*one) for one in tables_of if one is not None):
            for row in table.to_pylist():
                shown = tuple(row[f"b{at}"] for at in range(6))
                if row[DELETED_COLUMN]:
                    assert self.topic.pop(row["g0"]) == shown
                else:
                    self.topic[row["g0"]] = shown

    def close(self) -> None:
        self.first.store.close()
        self.second.store.close()


FINGERPRINT = b"test"
VALUES = st.one_of(st.none(), st.integers(-5, 5), st.sampled_from([1 << 40, -(1 << 52)]))
ROWS = st.lists(st.tuples(st.sampled_from([None, "", "a", "b", "c", "d"]), VALUES, st.integers(0, 2)), max_size=50)
CUTS = st.lists(
    st.tuples(st.sampled_from(["push", "pull"]), st.integers(0, 9), st.sampled_from(["commit", "undo", "restore"])),
    max_size=30,
)


@settings(max_examples=25, deadline=None)
@given(rows=ROWS, cuts=CUTS, tables=st.integers(1, 5))
def test_results_do_not_depend_on_cuts_undone_batches_and_restores(
    rows: list[Row], cuts: list[tuple[str, int, str]], tables: int
) -> None:
    with tempfile.TemporaryDirectory() as directory:
        chain, at = Chain(Path(directory)), 0
        try:
            for side, size, outcome in [*cuts, ("push", len(rows), "commit")]:
                if side == "push":
                    chain.push(rows[at : at + size], outcome, tables)
                    at += len(rows[at : at + size]) if outcome != "undo" else 0
                else:
                    chain.pull(size, outcome, tables)
                if chain.processed == len(chain.between):
                    assert chain.topic == second_table(rows[:at])
            chain.pull(len(chain.between), "commit", tables)
            assert chain.topic == second_table(rows)
            # A group without rows has left the store, too.
            chain.second.store.resolve_prepared(chain.second.committed)
            assert len(dict(chain.second.store.values())) == len(chain.topic)
        finally:
            chain.close()


KEYS = "abcdef"


@settings(max_examples=25, deadline=None)
@given(
    bids=st.lists(st.tuples(st.sampled_from(KEYS), VALUES), min_size=1, max_size=50),
    cuts=CUTS,
    tables=st.integers(1, 5),
)
def test_every_row_behind_two_tables_is_one_of_a_cut_of_the_input(
    bids: list[tuple[str, int | None]], cuts: list[tuple[str, int, str]], tables: int
) -> None:
    """Keys stay in their categories, as auctions do in Nexmark's q4; the first table's changes are read in part."""
    rows: list[Row] = [(key, value, KEYS.index(key) % 2) for key, value in bids]
    with tempfile.TemporaryDirectory() as directory:
        chain, at = Chain(Path(directory)), 0
        states = [(0, first_table([]))]  # end in the topic between, the first table there
        try:
            for side, size, outcome in [*cuts, ("push", len(rows), "commit"), *[("pull", 2, "commit")] * len(rows)]:
                if side == "push":
                    chain.push(rows[at : at + size], outcome, tables)
                    at += len(rows[at : at + size]) if outcome != "undo" else 0
                    states.append((len(chain.between), first_table(rows[:at])))
                    continue
                chain.pull(size, outcome, tables)
                # Each key is as it was before the micro-batch that was read in part, or as it was behind it.
                before = max((state for state in states if state[0] <= chain.processed), key=lambda state: state[0])
                behind = min((state for state in states if state[0] >= chain.processed), key=lambda state: state[0])
                for category in (0, 1):
                    choices = [{before[1].get(key), behind[1].get(key)} for key in KEYS[category::2]]
                    possible = [second_table_of([row for row in cut if row]) for cut in itertools.product(*choices)]
                    assert chain.topic.get(category) in [cut.get(category) for cut in possible]
            assert chain.processed == len(chain.between)
            assert chain.topic == second_table(rows)
        finally:
            chain.close()


def changes_of(*changes: tuple[int, int | None, int | None, int]) -> pa.Table:
    """Rows of the topic between: group, new value, old value, kind."""
    nothing = pa.nulls(len(changes), pa.decimal128(10, 2))
    columns = [pa.array([one[at] for one in changes], pa.int64()) for at in range(3)]
    kinds = pa.array([one[3] for one in changes], pa.int8())
    return pa.Table.from_arrays([columns[0], columns[1], nothing, columns[2], nothing, kinds], schema=SCHEMA)


@pytest.fixture
def second(tmp_path: Path) -> Any:
    task = AggregatingTask(tmp_path, outer())
    yield task
    task.store.close()


def newest(task: AggregatingTask) -> dict[str, Any]:
    assert task.results is not None
    row: dict[str, Any] = task.results.to_pylist()[-1]
    return row


def test_sums_at_the_ends_of_bigint_are_exact(second: AggregatingTask) -> None:
    second.run(changes_of((0, LEAST, None, NEW_ROW), (0, MOST, None, NEW_ROW)))
    assert newest(second)["b1"] == -1
    second.run(changes_of((0, 7, LEAST, NEW_ROW | OLD_ROW), (0, None, MOST, OLD_ROW)))
    assert (newest(second)["b0"], newest(second)["b1"]) == (1, 7)


def test_a_sum_beyond_bigint_is_an_error(second: AggregatingTask) -> None:
    with pytest.raises(UserCodeError) as caught:
        second.run(changes_of((0, MOST, None, NEW_ROW), (0, 1, None, NEW_ROW)))
    assert caught.value.code == "arithmetic-overflow"


def test_rows_that_were_never_added_cannot_be_taken_out(second: AggregatingTask) -> None:
    with pytest.raises(StateError, match="lost more rows than it had") as caught:
        second.run(changes_of((0, None, 3, OLD_ROW)))
    assert caught.value.code == "state-corrupt"


def test_changes_that_cancel_out_have_no_result(second: AggregatingTask) -> None:
    second.run(changes_of((0, 3, None, NEW_ROW), (0, 5, None, NEW_ROW)))
    second.run(changes_of((0, 5, 3, NEW_ROW | OLD_ROW), (0, 3, 5, NEW_ROW | OLD_ROW)))
    assert second.results is not None
    assert second.results.num_rows == 0


def test_a_row_that_comes_and_goes_in_one_batch_leaves_nothing(second: AggregatingTask) -> None:
    second.run(changes_of((0, 3, None, NEW_ROW), (0, None, 3, OLD_ROW)))
    assert second.results is not None
    assert second.results.num_rows == 0
    assert not dict(second.store.values())


def test_null_values_have_no_sum_and_are_rows(second: AggregatingTask) -> None:
    second.run(changes_of((0, None, None, NEW_ROW), (0, 2, None, NEW_ROW)))
    second.run(changes_of((0, None, 2, NEW_ROW | OLD_ROW)))
    row = newest(second)
    assert (row["b0"], row["b1"], row["b2"], row["b3"]) == (2, None, None, 0)
