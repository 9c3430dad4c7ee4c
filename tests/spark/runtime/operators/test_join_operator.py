"""The join of two streams against a plain reference: any order of the sides, any cuts, undone batches, restores."""

from __future__ import annotations

import random
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.errors import StateError
from headrace.spark.runtime.operators import join_operator
from headrace.spark.runtime.operators.join_operator import COUNTER_KEY, JoinOperator
from headrace.spark.runtime.rows.row_conversion import check_convertible
from headrace.spark.runtime.rows.row_schema import store_of_join
from headrace.spark.runtime.rows.rows import encode_key, encode_rows
from headrace.spark.runtime.stores.store import (
    BatchKey,
    StoreIdentity,
    StorePosition,
    StoreReader,
    StoreWrites,
    TaskStore,
)
from headrace.spark.topology.nodes import KEY_COLUMN, TASK_COLUMN, Join, JoinSide

LEFT, RIGHT = 0, 1
JOIN = Join(
    name="joined-by-id",
    key_types=('"string"',),
    left=JoinSide(columns=(("n", '"long"'),), expressions=("n",), key_expressions=("id",)),
    right=JoinSide(
        columns=(("m", '"integer"'), ("text", '"string"')), expressions=("m", "text"), key_expressions=("id",)
    ),
    columns=(("n", '"long"'), ("text", '"string"'), ("m", '"integer"')),
    changelog_topic="app-joined-by-id-changelog",
)
SPEC = store_of_join(JOIN)
FINGERPRINT = SPEC.rows.fingerprint


@dataclass(frozen=True)
class Row:
    """A row of a side. Its number becomes its columns."""

    side: int
    key: str
    number: int | None


def reference(rows: Sequence[Row]) -> Counter[tuple[object, ...]]:
    """Return the joined rows with their numbers: every left row beside every right row of its key."""
    rights: dict[str, list[Row]] = {}
    for row in rows:
        if row.side == RIGHT:
            rights.setdefault(row.key, []).append(row)
    return Counter(
        (left.number, text_of(right), right.number)
        for left in rows
        if left.side == LEFT
        for right in rights.get(left.key, [])
    )


def text_of(row: Row) -> str | None:
    return None if row.number is None else "x" * (row.number % 7)


@dataclass
class Task:
    """A task's store and changelog, as the stateful step and the driver treat them."""

    directory: Path
    store: TaskStore = field(init=False)
    changelog: list[tuple[bytes, bytes | None]] = field(default_factory=list)
    committed: BatchKey | None = None
    batch: int = 0
    restores: int = 0
    found: Counter[tuple[object, ...]] = field(default_factory=Counter)
    largest: int = 0  # rows of a table of results

    def __post_init__(self) -> None:
        self.store = self._opened()

    def _opened(self) -> TaskStore:
        identity = StoreIdentity(changelog_topic_id="t", schema_hash=SPEC.rows.hash, boot_id="b")
        return TaskStore(self.directory / f"store-{self.restores}", identity)

    def run(self, rows: Sequence[Row], *, commits: bool = True, tables: int = 1) -> None:
        """Run a micro-batch. `commits`: else it is undone by the next one."""
        self.batch += 1
        key = BatchKey(incarnation="run", batch_id=self.batch)
        operator = JoinOperator(JOIN).start()
        operator.begin(key)
        table = table_of(rows)
        for piece in np.array_split(np.arange(table.num_rows), tables):
            if len(piece):
                operator.on_rows(3, table.slice(int(piece[0]), len(piece)))
        changes = operator.end(3)
        position = StorePosition(batch=key, input_offsets={"in-0": self.batch}, changelog_offset=0)
        written = StoreWrites(keys=pa.array([], pa.binary()), values=pa.array([], pa.binary()))

        def update(reader: StoreReader) -> StoreWrites:
            nonlocal written
            if changes is not None:
                [change] = changes.stores
                assert hasattr(change, "update")
                written = change.update(reader)
            return written

        self.store.update(self.committed, position, update).prepare(len(self.changelog))
        if not commits:
            return
        self.committed = key
        names = written.keys.to_pylist()
        assert names == sorted(set(names))
        self.changelog += zip(names, written.values.to_pylist(), strict=True)
        for joined in changes.results() if changes is not None else ():
            assert joined.column_names == ["n", "text", "m", TASK_COLUMN, KEY_COLUMN]
            assert set(joined.column(TASK_COLUMN).to_pylist()) == {3}
            self.largest = max(self.largest, joined.num_rows)
            self.found.update(zip(*(joined.column(name).to_pylist() for name in ("n", "text", "m")), strict=True))

    def restore(self) -> None:
        """Go on with a new store that is made of the changelog alone."""
        if self.committed is None:  # nothing to stand at
            return
        self.store.close()
        self.restores += 1
        self.store = self._opened()
        writer = BatchKey(incarnation="restore", batch_id=self.restores)
        assert self.store.begin_replay(writer, 0, len(self.changelog)) == 0
        keys, values = zip(*self.changelog, strict=True) if self.changelog else ((), ())
        self.store.load(writer, pa.array(keys, pa.binary()), pa.array(values, pa.binary()), len(self.changelog))
        over = self.store.position()
        assert over is not None
        self.store.assign_position(self.committed, {}, over=over)


def table_of(rows: Sequence[Row]) -> pa.Table:
    """Return rows as they come out of the repartition topic."""
    values = []
    for row in rows:
        numbers = pa.array([row.number], pa.int64() if row.side == LEFT else pa.int32())
        columns = [numbers] if row.side == LEFT else [numbers, pa.array([text_of(row)], pa.string())]
        values += encode_rows(columns, FINGERPRINT).to_pylist()
    return pa.table(
        {
            "side": pa.array([row.side for row in rows], pa.int8()),
            "row": pa.array(values, pa.binary()),
            KEY_COLUMN: encode_key([pa.array([row.key for row in rows], pa.string())]),
            TASK_COLUMN: pa.array([3] * len(rows), pa.int32()),
        }
    )


@pytest.fixture
def new_task(tmp_path: Path) -> Iterator[Callable[[], Task]]:
    made: list[Task] = []

    def make() -> Task:
        made.append(Task(Path(tempfile.mkdtemp(dir=tmp_path))))
        return made[-1]

    yield make
    for task in made:
        task.store.close()


KEYS = ["", "a", "b", "ab", "a\x00", "a" * 255, "a" * 256, "x" * 500, "x" * 501, "é"]
ROWS = st.lists(
    st.builds(
        Row,
        side=st.sampled_from([LEFT, RIGHT]),
        key=st.one_of(st.sampled_from(KEYS[:3]), st.sampled_from(KEYS)),
        number=st.one_of(st.none(), st.integers(0, 99)),
    ),
    max_size=60,
)
CUTS = st.lists(st.tuples(st.integers(0, 12), st.sampled_from(["commit", "undo", "restore"])), max_size=30)


@settings(max_examples=80, deadline=None)
@given(rows=ROWS, cuts=CUTS, tables=st.integers(1, 3))
def test_pairs_do_not_depend_on_cuts_undone_batches_and_restores(
    rows: list[Row], cuts: list[tuple[int, str]], tables: int
) -> None:
    with tempfile.TemporaryDirectory() as directory:
        task, at = Task(Path(directory)), 0
        try:
            for size, outcome in [*cuts, (len(rows), "commit")]:
                if outcome == "restore":
                    task.restore()
                piece = rows[at : at + size]
                task.run(piece, commits=outcome != "undo", tables=tables)
                if outcome != "undo":
                    at += len(piece)
                    # At any time: the join of what was processed until then.
                    assert task.found == reference(rows[:at])
        finally:
            task.store.close()


@pytest.mark.parametrize("keys", [3, 400, 6_000], ids=["few-keys", "some-keys", "many-keys"])
def test_large_batches_meet_rows_in_many_blocks(
    new_task: Callable[[], Task], keys: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Batches that are dense and sparse beside the store's blocks, and more pairs than a table of results holds."""
    monkeypatch.setattr(join_operator, "PAIRS_PER_TABLE", 1000)
    chance = random.Random(keys)
    count = 600 if keys == 3 else 6_000
    rows = [
        Row(chance.choice([LEFT, LEFT, RIGHT]), f"k{int(keys * chance.random() ** 3)}", number)
        for number in range(count)
    ]
    task, at = new_task(), 0
    while at < count:
        size = chance.choice([1, 40, 2_000])
        task.run(rows[at : at + size])
        at += size
    assert task.found == reference(rows)
    assert task.largest == 1000
    assert task.store.count() == count + 1


def test_each_row_is_one_changelog_record_beside_the_counter(new_task: Callable[[], Task]) -> None:
    task = new_task()
    task.run([Row(LEFT, "a", 1), Row(RIGHT, "b", 2), Row(RIGHT, "a", 3)])
    assert [key for key, _ in task.changelog] == [
        COUNTER_KEY,
        b"\x01\x00\x01a" + bytes(8),
        b"\x02\x00\x01a" + bytes(7) + b"\x02",
        b"\x02\x00\x01b" + bytes(7) + b"\x01",
    ]
    task.run([Row(LEFT, "b", 4)])
    assert [key for key, _ in task.changelog[4:]] == [COUNTER_KEY, b"\x01\x00\x01b" + bytes(7) + b"\x03"]
    assert task.found == Counter({(1, "xxx", 3): 1, (4, "xx", 2): 1})


def test_stored_rows_are_not_taken_over_by_a_version_that_keeps_others() -> None:
    """`headrace upgrade --state keep` would read a row of one side as a row of both."""
    right = replace(JOIN.right, columns=(("m", '"integer"'),), expressions=("m",))
    narrower = store_of_join(replace(JOIN, right=right)).rows
    for old, new in ((SPEC.rows, narrower), (narrower, SPEC.rows)):
        with pytest.raises(StateError, match="rows of a join of two streams cannot be taken over") as caught:
            check_convertible(old, new)
        assert caught.value.fix == "Choose --state recompute."


def test_equal_rows_are_kept_apart(new_task: Callable[[], Task]) -> None:
    """As in SQL: three equal rows on one side and two on the other are six rows."""
    task = new_task()
    for _ in range(3):
        task.run([Row(LEFT, "a", 1)])
    task.run([Row(RIGHT, "a", 2), Row(RIGHT, "a", 2)])
    assert task.found == Counter({(1, "xx", 2): 6})
