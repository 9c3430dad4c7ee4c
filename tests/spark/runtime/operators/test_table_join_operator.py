"""Joins of two tables against a plain reference: rows that come, change and vanish, under any cuts and restores."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.spark.runtime.aggregating_task import AggregatingTask

from headrace.errors import StateError
from headrace.spark.runtime.operators.change_rows import ChangeRows, upserts
from headrace.spark.runtime.rows.row_schema import store_of
from headrace.spark.runtime.rows.rows import encode_rows
from headrace.spark.topology.nodes import (
    DELETED_COLUMN,
    KEY_COLUMN,
    OLD_COLUMN,
    TableJoin,
    TableJoinKind,
    TableJoinSide,
)

Key = tuple[str | None, int]
LeftRow = tuple[int | None, str | None]
RightRow = tuple[int | None]
Change = tuple[int, Key, Any]  # side, key, its row now or None
KINDS: tuple[TableJoinKind, ...] = ("inner", "left", "right", "full", "left_semi", "left_anti")
COLUMNS: tuple[tuple[tuple[str, str], ...], ...] = ((("i0", '"long"'), ("i1", '"string"')), (("i2", '"integer"'),))
TYPES = ((pa.int64(), pa.string()), (pa.int32(),))


def join_of(kind: TableJoinKind) -> TableJoin:
    left, right = (
        TableJoinSide(columns=columns, expressions=tuple(name for name, _ in columns), key_expressions=("k", "n"))
        for columns in COLUMNS
    )
    return TableJoin(
        name="joined",
        kind=kind,
        group_columns=(("k", '"string"'), ("n", '"long"')),
        left=left,
        right=right,
        results=(),
        output_schema_json="",
        changelog_topic="c",
        changes="of two tables",
    )


def reference(kind: TableJoinKind, left: dict[Key, LeftRow], right: dict[Key, RightRow]) -> dict[Key, tuple[Any, ...]]:
    """Return key → columns of the joined rows. A key with a null is of one side only."""
    found: dict[Key, tuple[Any, ...]] = {}
    for key in left.keys() | right.keys():
        is_there = {
            "inner": key in left and key in right,
            "left": key in left,
            "right": key in right,
            "full": True,
            "left_semi": key in left and key in right,
            "left_anti": key in left and key not in right,
        }[kind]
        if is_there:
            found[key] = (*left.get(key, (None, None)), *right.get(key, (None,)))
    return found


@dataclass
class Joining:
    """A join, the topic in front of it and the one behind. Mutable; close it."""

    directory: Path
    kind: TableJoinKind
    task: AggregatingTask = field(init=False)
    topic: dict[Key, tuple[Any, ...]] = field(default_factory=dict)
    key_bytes: dict[bytes, Key] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.join = join_of(self.kind)
        self.fingerprint = store_of(self.join).rows.fingerprint
        self.task = AggregatingTask(self.directory, self.join)

    def records(self, changes: Sequence[Change]) -> pa.Table:
        rows = []
        for side, _, row in changes:
            values = [pa.array([value], kind) for value, kind in zip(row or (), TYPES[side], strict=False)]
            rows.append(None if row is None else encode_rows(values, self.fingerprint)[0].as_py())
        return pa.table(
            {
                "g0": pa.array([key[0] for _, key, _ in changes], pa.string()),
                "g1": pa.array([key[1] for _, key, _ in changes], pa.int64()),
                "side": pa.array([side for side, _, _ in changes], pa.int8()),
                "row": pa.array(rows, pa.binary()),
            }
        )

    def run(self, changes: Sequence[Change], outcome: str, tables: int) -> None:
        if outcome == "restore":
            self.task.restore()
        self.task.run(self.records(changes), commits=outcome != "undo", tables=tables)
        if self.task.results is None or not self.task.results.num_rows:
            return
        found, behind = self.task.results, ChangeRows()
        for piece in np.array_split(np.arange(found.num_rows), tables):
            if len(piece):
                self._write(upserts(*behind.add(found.slice(int(piece[0]), len(piece)))))
        if (rest := behind.rest()) is not None:
            self._write(upserts(*rest))

    def _write(self, table: pa.Table) -> None:
        for row in table.to_pylist():
            key, shown = (row["g0"], row["g1"]), (row["i0"], row["i1"], row["i2"])
            assert self.key_bytes.setdefault(row[KEY_COLUMN], key) == key, "two keys of rows, one of their records"
            if row[DELETED_COLUMN]:
                assert self.topic.pop(key) == shown, "the values of a deletion are the last ones"
            else:
                # A row of nulls that comes or goes is a change of its side, although no column shows it.
                is_of_nulls = shown[:2] == (None, None) or shown[2] is None
                assert self.topic.get(key) != shown or is_of_nulls, "a record that changes nothing"
                self.topic[key] = shown


KEYS = st.tuples(st.sampled_from(["", "a", "a\xff", "b" * 600, None]), st.integers(0, 1))
LEFT = st.tuples(st.one_of(st.none(), st.integers(-2, 2)), st.sampled_from([None, "", "x", "yy"]))
RIGHT = st.tuples(st.one_of(st.none(), st.integers(0, 2)))
CHANGES = st.lists(
    st.one_of(
        st.tuples(st.just(0), KEYS, st.one_of(st.none(), LEFT)),
        st.tuples(st.just(1), KEYS, st.one_of(st.none(), RIGHT)),
    ),
    max_size=60,
)
CUTS = st.lists(st.tuples(st.integers(0, 9), st.sampled_from(["commit", "undo", "restore"])), max_size=20)


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=15, deadline=None)
@given(changes=CHANGES, cuts=CUTS, tables=st.integers(1, 4))
def test_results_do_not_depend_on_cuts_undone_batches_and_restores(
    kind: TableJoinKind, changes: list[Change], cuts: list[tuple[int, str]], tables: int
) -> None:
    null_side = {"right": 1, "inner": None, "left_semi": None}.get(kind, 0)
    changes = [change for change in changes if change[1][0] is not None or change[0] == null_side]
    sides: tuple[dict[Key, Any], dict[Key, Any]] = ({}, {})
    with tempfile.TemporaryDirectory() as directory:
        joining, at = Joining(Path(directory), kind), 0
        try:
            for size, outcome in [*cuts, (len(changes), "commit")]:
                piece = changes[at : at + size]
                joining.run(piece, outcome, tables)
                if outcome == "undo":
                    continue
                at += len(piece)
                for side, key, row in piece:
                    sides[side].pop(key, None)
                    if row is not None:
                        sides[side][key] = row
                expected = reference(kind, *sides)
                if kind in ("left_semi", "left_anti"):  # no column of the right side is shown
                    assert {key: row[:2] for key, row in joining.topic.items()} == {
                        key: row[:2] for key, row in expected.items()
                    }
                else:
                    assert joining.topic == expected
            # A key that no side has any more has left the state, too.
            left = [key for key, value in dict(joining.task.changelog).items() if value is not None]
            assert len(left) == len(sides[0].keys() | sides[1].keys())
        finally:
            joining.task.store.close()


def test_kinds_are_those_of_the_topology() -> None:
    assert {kind for one in get_args(TableJoinKind) for kind in get_args(one)} == set(KINDS)


@pytest.fixture
def inner(tmp_path: Path) -> Any:
    joining = Joining(tmp_path, "inner")
    yield joining
    joining.task.store.close()


def test_a_change_of_one_side_replaces_the_row_of_its_key(inner: Joining) -> None:
    inner.run([(0, ("a", 1), (1, "x")), (1, ("a", 1), (7,))], "commit", 1)
    inner.run([(1, ("a", 1), (8,))], "commit", 1)
    assert inner.task.results is not None
    assert inner.task.results.select(["i0", "i2", OLD_COLUMN]).to_pylist() == [
        {"i0": 1, "i2": 7, OLD_COLUMN: True},
        {"i0": 1, "i2": 8, OLD_COLUMN: False},
    ]


def test_a_row_that_comes_again_unchanged_has_no_result(inner: Joining) -> None:
    inner.run([(0, ("a", 1), (1, "x")), (1, ("a", 1), (7,))], "commit", 1)
    inner.run([(1, ("a", 1), (8,)), (0, ("a", 1), (1, "x")), (1, ("a", 1), (7,))], "commit", 1)
    assert inner.task.results is not None
    assert inner.task.results.num_rows == 0


def test_a_stored_row_of_another_program_is_refused(inner: Joining) -> None:
    inner.fingerprint = b"0000"
    with pytest.raises(StateError) as caught:
        inner.run([(0, ("a", 1), (1, "x")), (1, ("a", 1), (7,))], "commit", 1)
    assert caught.value.code == "state-schema-changed"
