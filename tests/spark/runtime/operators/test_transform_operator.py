"""`transformWithState` over a store against plain dictionaries: any operations, cuts, undone batches, restores."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.streaming import StatefulProcessor
from pyspark.sql.types import DecimalType, IntegerType, Row, StructType
from tests.longer import LONG
from tests.spark.runtime.processors import INT_N, Begun, Scripted, Task, initial_state_of, transform_of

from headrace.errors import UserCodeError
from headrace.spark.runtime.operators import processor_rows, processor_state

N_AND_DECIMAL = StructType().add("n", IntegerType()).add("t", DecimalType(4, 1))
SCRIPTED = transform_of(Scripted())
KEYS = ["", "a", "b", "ab", "é", "a" * 255, "x" * 500, "x" * 501]


@dataclass
class Reference:
    """What `Scripted` keeps of one key, in plain Python."""

    value: tuple[Any, ...] | None = None
    elements: list[tuple[int]] = field(default_factory=list)
    entries: dict[tuple[str], tuple[int]] = field(default_factory=dict)

    def do(self, does: str, *arguments: str) -> str | None:
        if does == "show":
            exists = (self.value is not None, bool(self.elements), bool(self.entries))
            return repr((exists, self.value, self.elements, sorted(self.entries.items())))
        if does == "entry":
            found = self.entries.get((arguments[0],))
            return repr((found and Row(n=found[0]), found is not None))
        if does == "set":
            self.value = (int(arguments[0]), arguments[0] * 2)
        elif does == "clear":
            self.clear(arguments[0])
        elif does == "append":
            self.elements.append((int(arguments[0]),))
        elif does == "extend":
            self.elements += [(int(one),) for one in arguments]
        elif does == "put":
            self.elements = [(int(one),) for one in arguments]
        elif does == "map":
            self.entries[(arguments[0],)] = (int(arguments[1]),)
        elif does == "remove":
            self.entries.pop((arguments[0],), None)
        return None

    def clear(self, what: str) -> None:
        if what == "value":
            self.value = None
        elif what == "list":
            self.elements = []
        else:
            self.entries = {}


def reference(batches: Sequence[Sequence[tuple[str | None, str]]]) -> list[tuple[Any, ...]]:
    """Return the rows of all micro-batches: keys in order, nulls first, and rows of a key as they came."""
    kept: dict[str | None, Reference] = {}
    made: list[tuple[Any, ...]] = []
    for rows in batches:
        for key in sorted({key for key, _ in rows}, key=lambda key: (key is not None, (key or "").encode())):
            for _, does in (row for row in rows if row[0] == key):
                found = kept.setdefault(key, Reference()).do(*does.split(" "))
                if found is not None:
                    made.append((key, found))
    return made


SMALL = st.integers(0, 9).map(str)
OF_MAP = st.sampled_from(["", "a", "b", "m" * 200, "m" * 201])
DOES = st.one_of(
    st.just("show"),
    SMALL.map("set {}".format),
    st.sampled_from(["value", "list", "map"]).map("clear {}".format),
    SMALL.map("append {}".format),
    st.lists(SMALL, max_size=3).map(lambda some: " ".join(["extend", *some])),
    st.lists(SMALL, max_size=3).map(lambda some: " ".join(["put", *some])),
    st.tuples(OF_MAP, SMALL).map(lambda pair: f"map {pair[0]} {pair[1]}"),
    OF_MAP.map("remove {}".format),
    OF_MAP.map("entry {}".format),
)
ROWS = st.lists(st.tuples(st.one_of(st.none(), st.sampled_from(KEYS[:3]), st.sampled_from(KEYS)), DOES), max_size=60)
CUTS = st.lists(st.tuples(st.integers(0, 12), st.sampled_from(["commit", "undo", "restore"])), max_size=30)


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Read few keys ahead and convert few rows at once, so that short histories have every bound in them."""
    monkeypatch.setattr(processor_state, "AHEAD", 2)
    monkeypatch.setattr(processor_rows, "ROWS_AT_ONCE", 3)


@pytest.mark.usefixtures("small_pieces")
@settings(max_examples=1500 if LONG else 60, deadline=None)
@given(rows=ROWS, cuts=CUTS)
def test_state_does_not_depend_on_undone_batches_and_restores(
    rows: list[tuple[str | None, str]], cuts: list[tuple[int, str]]
) -> None:
    with tempfile.TemporaryDirectory() as directory:
        task, at, batches = Task(Path(directory), SCRIPTED), 0, []
        try:
            for size, outcome in [*cuts, (len(rows), "commit")]:
                if outcome == "restore":
                    task.restore()
                piece = rows[at : at + size]
                task.run(piece, commits=outcome != "undo")
                if outcome != "undo":
                    at += len(piece)
                    batches.append(piece)
                    assert task.found == reference(batches)
            shown = [(key, "show") for key in [None, *KEYS]]
            task.restore()
            task.run(shown)
            assert task.found == reference([*batches, shown])
        finally:
            task.store.close()


CHANGES = DOES.filter(lambda does: does != "show" and not does.startswith("entry"))


def alone(operator: Any) -> None:
    operator.on_task_count(lambda: 1)


GIVEN = st.lists(st.tuples(st.one_of(st.none(), st.sampled_from(KEYS)), CHANGES), max_size=20)


@pytest.mark.usefixtures("small_pieces")
@settings(max_examples=1000 if LONG else 40, deadline=None)
@given(given=GIVEN, rows=ROWS, cuts=CUTS)
def test_the_initial_state_is_taken_once_before_the_first_rows(
    given: list[tuple[str | None, str]],
    rows: list[tuple[str | None, str]],
    cuts: list[tuple[int, str]],
) -> None:
    begun = transform_of(Begun())
    begun = replace(begun, initial=initial_state_of(begun, given) if given else None)
    with tempfile.TemporaryDirectory() as directory:
        task, at, batches = Task(Path(directory), begun, partition=0), 0, [given]
        try:
            for size, outcome in [*cuts, (len(rows), "commit")]:
                if outcome == "restore":
                    task.restore()
                piece = rows[at : at + size]
                # The first micro-batch with rows begins the task; undone, it is the next one.
                task.run(piece, commits=outcome != "undo", prepare=alone)
                if outcome != "undo":
                    at += len(piece)
                    batches.append(piece)
                    assert task.found == reference(batches)
            shown = [(key, "show") for key in [None, *KEYS]]
            task.restore()
            task.run(shown, prepare=alone)
            assert task.found == reference([*batches, shown])
        finally:
            task.store.close()


def test_each_task_takes_its_own_part_of_the_initial_state(tmp_path: Path) -> None:
    begun, keys = transform_of(Begun()), [f"key-{at}" for at in range(100)]
    begun = replace(begun, initial=initial_state_of(begun, [(key, "set 1") for key in keys]))
    counts = []
    for partition in range(4):
        task = Task(tmp_path / str(partition), begun, partition=partition)
        task.run([("other", "set 2")], prepare=lambda operator: operator.on_task_count(lambda: 4))
        counts.append(task.store.count() - 2)  # without that of the row, and the mark
        task.store.close()
    assert sum(counts) == 100
    assert min(counts) > 0


def test_a_task_that_has_begun_takes_no_initial_state_later(tmp_path: Path) -> None:
    task = Task(tmp_path, transform_of(Begun()))
    task.run([("a", "set 1")])
    task.transform = replace(task.transform, initial=initial_state_of(task.transform, [("a", "set 7"), ("b", "set 7")]))
    assert task.run([("a", "show"), ("b", "show")])[1] == ("b", "((False, False, False), None, [], [])")


def test_cleared_state_leaves_nothing_in_the_store(tmp_path: Path) -> None:
    task = Task(tmp_path, SCRIPTED)
    task.run([("a", "set 1"), ("a", "put 1 2 3"), ("a", "map x 1"), ("a", "map y 2")])
    assert task.store.count() == 1 + 1 + 3 + 2
    task.run([("a", "append 4"), ("a", "remove x")])
    assert task.store.count() == 1 + 1 + 4 + 1
    task.run([("a", f"clear {what}") for what in ("value", "list", "map")])
    assert task.store.count() == 0


class Attribute(StatefulProcessor):
    """Keeps a count where it does not belong: in itself."""

    def init(self, handle: Any) -> None:
        self.count = 0

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        self.count += len(list(rows))
        yield Row(key=key[0], found=f"{self.count} {timerValues.getCurrentProcessingTimeInMs()}")


def test_a_processor_knows_nothing_of_earlier_micro_batches(tmp_path: Path) -> None:
    task = Task(tmp_path, transform_of(Attribute()))
    assert task.run([("a", ""), ("b", ""), ("a", "")]) == [("a", "2 -1"), ("b", "3 -1")]
    assert task.run([("b", "")]) == [("b", "1 -1")]


class Wrong(StatefulProcessor):
    """Does one thing wrong, which its rows name."""

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.value = handle.getValueState("value", N_AND_DECIMAL)

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Any:
        for row in rows:
            if row.does == "raise":
                raise LookupError("no such card")
            if row.does == "text":
                self.value.update(("1", None))
            if row.does == "short":
                self.value.update((1,))
            if row.does == "float":
                self.value.update((1.0, None))
            if row.does == "no tuple":
                self.value.update("ab")
            if row.does == "state in the middle":
                self.handle.getValueState("value", INT_N)
            if row.does == "timer":
                self.handle.registerTimer(1)
            yield {"a tuple": (1,), "a wrong type": Row(key=key[0], found=7)}.get(row.does, Row(key=key[0], found=""))


@pytest.mark.parametrize(
    ("does", "message"),
    [
        ("raise", "The processor Wrong failed in handleInputRows for the key ('b',): LookupError: no such card (proc"),
        ("text", "[FIELD_DATA_TYPE_UNACCEPTABLE_WITH_NAME] field n: IntegerType() can not accept object '1' in type"),
        ("float", "[FIELD_DATA_TYPE_UNACCEPTABLE_WITH_NAME] field n: IntegerType() can not accept object 1.0 in type"),
        ("short", "[FIELD_STRUCT_LENGTH_MISMATCH] Length of object (1) does not match with length of fields (2)."),
        ("no tuple", "[FIELD_DATA_TYPE_UNACCEPTABLE] StructType("),
        ("state in the middle", "Failed to perform stateful processor operation=get_value_state with invalid handle"),
        ("timer", "Failed to perform stateful processor operation=register_timer with invalid timeMode=NoTime"),
        ("a tuple", "transformWithState takes pyspark.sql.Row from a processor, not tuple"),
        ("a wrong type", "The processor Wrong failed in the rows that it yields for the key ('b',)"),
    ],
)
def test_a_failing_processor_is_named_with_its_key(tmp_path: Path, does: str, message: str) -> None:
    task = Task(tmp_path, transform_of(Wrong()))
    with pytest.raises(UserCodeError) as raised:
        task.run([("a", "nothing"), ("b", does), ("c", "nothing")])
    text = raised.value.message
    assert message.replace("(proc", "(test_transform") in text
    assert "The processor Wrong failed in" in text
    assert "('b',)" in text
    # Nothing of the micro-batch is left.
    assert task.store.count() == 0
    assert task.run([("a", "nothing")]) == [("a", "")]


def test_rows_that_the_processor_passes_over_reach_no_other_key(tmp_path: Path) -> None:
    class First(StatefulProcessor):
        def init(self, handle: Any) -> None:
            pass

        def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
            yield Row(key=key[0], found=next(rows).does)

    task = Task(tmp_path, transform_of(First()))
    assert task.run([("a", "1"), ("a", "2"), ("b", "3"), (None, "4")]) == [(None, "4"), ("a", "1"), ("b", "3")]
