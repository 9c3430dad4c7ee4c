"""Foreign-key joins against a plain reference: all three tasks on the way, in any order, with undone batches and moves.

A history changes rows of both tables. Left rows, subscriptions and the join run micro-batches whenever chance lets
them, each on what the topics in front of it hold by then; a micro-batch may be undone, or its store restored. Records
of one task keep their order in a topic, as in a partition, and those of several tasks come in any order.
"""

from __future__ import annotations

import random
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.spark.runtime.aggregating_task import AggregatingTask

from headrace.errors import StateError
from headrace.spark.runtime.batches.foreign_key_sinks import RIGHT_ROW, left_rows, subscriptions_of
from headrace.spark.runtime.operators.change_rows import ChangeRows, upserts
from headrace.spark.runtime.rows.row_schema import store_of
from headrace.spark.runtime.rows.rows import encode_key, encode_rows
from headrace.spark.topology.nodes import (
    DELETED_COLUMN,
    KEY_COLUMN,
    OLD_COLUMN,
    TASK_COLUMN,
    ForeignKeyJoin,
    Subscriptions,
    TableJoinKind,
    TableJoinSide,
)

KINDS: tuple[TableJoinKind, ...] = ("inner", "left", "left_semi", "left_anti")
FOREIGN_KEYS = ("", "a", "a\xff", "b" * 700)
LEFT_KEYS = (0, 1, 2, None)
RIGHT_TASKS = 2  # that answer

Left = tuple[str | None, int]  # foreign key, version
Record = dict[str, Any]


def join_of(kind: TableJoinKind) -> ForeignKeyJoin:
    left, right = (
        TableJoinSide(columns=((name, '"long"'),), expressions=(name,), key_expressions=("f",)) for name in ("i0", "i1")
    )
    return ForeignKeyJoin(
        name="joined",
        kind=kind,
        group_columns=(("id", '"long"'),),
        left=left,
        right=right,
        results=(),
        output_schema_json="",
        changelog_topic="c",
        changes="of two tables",
        foreign_types=('"string"',),
        left_key_expressions=("id",),
    )


@dataclass
class Way:
    """Both tables, the topics and tasks behind them, and the topic of the result. Mutable; close it."""

    directory: Path
    kind: TableJoinKind
    left: dict[int | None, Left] = field(default_factory=dict)
    right: dict[str, int] = field(default_factory=dict)
    # For each task of the subscriptions and for the join: its input, and how much of it is committed.
    inputs: list[list[Record]] = field(default_factory=lambda: [[] for _ in range(RIGHT_TASKS + 1)])
    read: list[int] = field(default_factory=lambda: [0] * (RIGHT_TASKS + 1))
    topic: dict[int | None, tuple[Any, ...]] = field(default_factory=dict)
    newest_shown: dict[tuple[int | None, str | None], int] = field(default_factory=dict)
    foreign_of: dict[int, str | None] = field(default_factory=dict)  # of each version of a left row
    versions_of: dict[str | None, set[int]] = field(default_factory=dict)  # of the right rows of a foreign key

    def __post_init__(self) -> None:
        self.join = join_of(self.kind)
        self.fingerprint = store_of(self.join).rows.fingerprint
        subscriptions = Subscriptions(join=self.join, name="s", changelog_topic="s")
        self.tasks = [AggregatingTask(self.directory / str(at), subscriptions) for at in range(RIGHT_TASKS)]
        self.tasks.append(AggregatingTask(self.directory / "join", self.join))

    def close(self) -> None:
        for task in self.tasks:
            task.store.close()

    def row(self, value: int | None) -> bytes | None:
        return None if value is None else encode_rows([pa.array([value])], self.fingerprint)[0].as_py()

    # 1. The tables.

    def change_left(self, rows: dict[int | None, Left | None]) -> None:
        """Change left rows in one micro-batch, and send what follows to both topics in one transaction."""
        changes = []
        for key, new in rows.items():
            old = self.left.pop(key, None)
            if new is not None:
                self.left[key] = new
            changes += [(key, row, is_old) for row, is_old in ((old, True), (new, False)) if row is not None]
        if not changes:
            return
        table = pa.table(
            {
                "g0": pa.array([key for key, _, _ in changes], pa.int64()),
                "g1": pa.array([row[0] for _, row, _ in changes], pa.string()),
                "i0": pa.array([row[1] for _, row, _ in changes], pa.int64()),
                TASK_COLUMN: pa.array([0] * len(changes), pa.int32()),
                KEY_COLUMN: encode_key([pa.array([key for key, _, _ in changes], pa.int64())]),
                OLD_COLUMN: pa.array([is_old for _, _, is_old in changes]),
            }
        )
        found = ChangeRows()
        for examined in (found.add(table), found.rest()):
            if examined is not None and examined[0].num_rows:
                self._send_left(*examined)

    def _send_left(self, table: pa.Table, is_old: Any, is_replaced: Any) -> None:
        texts = table.column("g1").combine_chunks()
        foreign = pa.array([None if one is None else one.encode() for one in texts.to_pylist()], pa.binary())
        keys = encode_key([table.column("g0").combine_chunks()])
        rows = left_rows(table, is_old, is_replaced, foreign, is_preserved=0 in self.join.preserved)
        for row in rows.to_pylist():
            value = None if row[DELETED_COLUMN] else self.row(row["i0"])
            self.inputs[-1].append({"g0": row["g0"], "side": 0, "foreign": row["__headrace_foreign"], "row": value})
        for record in subscriptions_of(table, is_old, is_replaced, foreign, keys).to_pylist():
            del record[TASK_COLUMN]
            self.inputs[task_of(record[KEY_COLUMN].decode())].append(record)

    def change_right(self, key: str, version: int | None) -> None:
        self.right.pop(key, None)
        if version is not None:
            self.right[key] = version
        record = {"side": RIGHT_ROW, "left": None, "row": self.row(version), KEY_COLUMN: key.encode()}
        self.inputs[task_of(key)].append(record)

    # 2. The tasks.

    def run(self, at: int, size: int, outcome: str, tables: int = 1) -> None:
        """Run a micro-batch of a task."""
        records = self.inputs[at][self.read[at] : self.read[at] + size]
        if outcome == "restore":
            self.tasks[at].restore()
        self.tasks[at].run(_table(records, is_join=at == RIGHT_TASKS), commits=outcome != "undo", tables=tables)
        if outcome == "undo":
            return
        self.read[at] += len(records)
        for results in self.tasks[at].all_results:
            if at < RIGHT_TASKS:
                self.inputs[-1] += results.drop_columns([TASK_COLUMN, KEY_COLUMN]).to_pylist()
            else:
                self._write(results, tables)

    def _write(self, results: pa.Table, tables: int) -> None:
        behind = ChangeRows()
        for piece in np.array_split(np.arange(results.num_rows), tables):
            if len(piece):
                self._put(upserts(*behind.add(results.slice(int(piece[0]), len(piece)))))
        if (rest := behind.rest()) is not None:
            self._put(upserts(*rest))

    def _put(self, rows: pa.Table) -> None:
        for row in rows.to_pylist():
            key, shown = row["g0"], (row["i0"], row["i1"])
            if row[DELETED_COLUMN]:
                columns = 1 if "_" in self.kind else 2  # semi and anti joins show the left row alone
                assert self.topic.pop(key)[:columns] == shown[:columns], "the values of a deletion are the last ones"
                continue
            self._check_shown(key, *shown)
            self.topic[key] = shown

    def _check_shown(self, key: int | None, left: int, right: int | None) -> None:
        """Check that neither side went back: versions grow, and the right one is of the left row's foreign key."""
        assert self.newest_shown.get((key, "left"), 0) <= left, "an earlier left row is shown again"
        self.newest_shown[key, "left"] = left
        if right is not None:
            foreign = self.foreign_of[left]
            assert right in self.versions_of[foreign], "a right row of another foreign key"
            assert self.newest_shown.get((key, foreign), 0) <= right, "an earlier right row is shown again"
            self.newest_shown[key, foreign] = right

    @property
    def expected(self) -> dict[int | None, tuple[int, int | None]]:
        """The join of both tables."""
        found = {}
        for key, (foreign, version) in self.left.items():
            partner = None if foreign is None else self.right.get(foreign)
            is_there = {"left": True, "left_anti": partner is None}.get(self.kind, partner is not None)
            if is_there:
                found[key] = (version, partner)
        return found


def task_of(foreign: str) -> int:
    return FOREIGN_KEYS.index(foreign) % RIGHT_TASKS


def _table(records: list[Record], *, is_join: bool) -> pa.Table:
    types: dict[str, pa.DataType] = {"side": pa.int8(), "row": pa.binary()}
    types |= {"g0": pa.int64(), "foreign": pa.binary()} if is_join else {"left": pa.binary(), KEY_COLUMN: pa.binary()}
    return pa.table({name: pa.array([record[name] for record in records], kind) for name, kind in types.items()})


@pytest.fixture
def way(tmp_path: Path) -> Iterator[Way]:
    way = Way(tmp_path, "left")
    yield way
    way.close()


def play(way: Way, chance: random.Random, steps: int) -> None:
    """Change both tables and run tasks as chance has it, until all is read."""
    version = 0
    for _ in range(steps):
        step = chance.random()
        version += 1
        if step < 0.25:
            rows: dict[int | None, Left | None] = {}
            for key in chance.sample(LEFT_KEYS, chance.randint(1, 3)):
                version += 1
                foreign = chance.choice((*FOREIGN_KEYS, None))
                way.foreign_of[version] = foreign
                rows[key] = None if chance.random() < 0.25 else (foreign, version)
            way.change_left(rows)
        elif step < 0.45:
            changed = chance.choice(FOREIGN_KEYS)
            way.versions_of.setdefault(changed, set()).add(version)
            way.change_right(changed, None if chance.random() < 0.25 else version)
        else:
            outcome = chance.choice(("commit", "commit", "commit", "undo", "restore"))
            way.run(chance.randrange(RIGHT_TASKS + 1), chance.randrange(6), outcome, chance.randint(1, 3))
    for at in range(RIGHT_TASKS + 1):
        way.run(at, len(way.inputs[at]), "commit")


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=12, deadline=None)
@given(seed=st.integers(0, 2**32), steps=st.integers(1, 90))
def test_results_are_the_join_of_the_final_tables_and_never_go_back(kind: TableJoinKind, seed: int, steps: int) -> None:
    with tempfile.TemporaryDirectory() as directory:
        way = Way(Path(directory), kind)
        try:
            play(way, random.Random(seed), steps)
            shown = {key: (row[0], None) for key, row in way.topic.items()} if "_" in kind else way.topic
            expected = {key: (row[0], None) for key, row in way.expected.items()} if "_" in kind else way.expected
            assert shown == expected
            # Rows that are gone have left the state, too.
            counts = [_count(task) for task in way.tasks]
            refers = {key: row for key, row in way.left.items() if row[0] is not None}
            assert counts[-1] == len(way.left if 0 in way.join.preserved else refers)
            assert sum(counts[:-1]) == len(refers) + len(way.right)
        finally:
            way.close()


def _count(task: AggregatingTask) -> int:
    return sum(value is not None for value in dict(task.changelog).values())


def run_all(way: Way, *tasks: int) -> None:
    for at in tasks:
        way.run(at, len(way.inputs[at]), "commit")


def test_an_answer_to_a_former_foreign_key_is_not_shown(way: Way) -> None:
    way.foreign_of |= {1: "", 2: "a"}
    way.versions_of |= {"": {10}, "a": {20}}
    way.change_right("", 10)
    way.change_right("a", 20)
    way.change_left({0: ("", 1)})
    run_all(way, 0, 2)
    assert way.topic == {0: (1, 10)}
    way.change_left({0: ("a", 2)})
    way.change_right("", None)
    run_all(way, 0, 2)  # the former right row is gone, and the answer of the new one is not there yet
    assert way.topic == {0: (1, 10)}
    run_all(way, 1, 2)
    assert way.topic == {0: (2, 20)}


def test_a_change_of_the_left_row_alone_asks_nothing(way: Way) -> None:
    way.foreign_of |= {1: "", 2: ""}
    way.versions_of |= {"": {10}}
    way.change_right("", 10)
    way.change_left({0: ("", 1)})
    run_all(way, 0, 2)
    sent = len(way.inputs[0])
    way.change_left({0: ("", 2)})
    assert len(way.inputs[0]) == sent
    run_all(way, 2)
    assert way.topic == {0: (2, 10)}


def test_a_right_row_that_comes_again_unchanged_is_not_answered(way: Way) -> None:
    way.change_right("", 10)
    way.change_left(dict.fromkeys(LEFT_KEYS, ("", 1)))
    run_all(way, 0)
    way.change_right("", 11)
    way.change_right("", 10)
    sent = len(way.inputs[2])
    run_all(way, 0)
    assert len(way.inputs[2]) == sent


def test_answers_leave_in_tables_of_bounded_size(way: Way, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.spark.runtime.operators.subscription_operator.ANSWERS_PER_TABLE", 3)
    way.change_left(dict.fromkeys(range(8), ("", 1)))
    run_all(way, 0)
    way.change_right("", 10)
    run_all(way, 0)
    assert [table.num_rows for table in way.tasks[0].all_results] == [3, 3, 2]
    assert min(table.column("g0").to_pylist() for table in way.tasks[0].all_results) == [0, 1, 2]


def test_a_stored_row_of_another_program_is_refused(way: Way) -> None:
    way.fingerprint = b"0000"
    way.change_right("", 10)
    way.change_left({0: ("", 1)})
    way.run(0, 9, "commit")
    with pytest.raises(StateError) as caught:
        way.run(2, 9, "commit")
    assert caught.value.code == "state-schema-changed"
