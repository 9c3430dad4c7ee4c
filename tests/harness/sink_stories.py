"""Stories of every table sink: parts of numbered micro-batches, and the steps at which a process dies."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from headrace.errors import SinkError
from headrace.spark.sinks.interface import DELETED_COLUMN, Sink, SinkPart, SinkTask
from headrace.spark.sinks.parquet_journal import Journal

__all__ = [
    "INPUT",
    "LATER",
    "TASK",
    "Died",
    "DyingSteps",
    "Faults",
    "FaultyConnection",
    "KeyedChanges",
    "apply_changes",
    "changes_table",
    "check_foreign_journal",
    "check_history",
    "check_journal_behind_the_table",
    "check_rows_that_moved_no_input",
    "expected_numbers",
    "owner_resolves",
    "schema_json",
    "write_alone",
    "write_part",
]

TASK = SinkTask(group_id="g", subtopology_id="flights", partition=3)
INPUT = "flights-3@id"
LATER = 1 << 60  # every interval is over
ROWS = 3


class Died(BaseException):
    """The process."""


def schema_json(fields: Iterable[tuple[str, str]]) -> str:
    """Return `StructType.json()` of nullable columns, given as (name, type)."""
    return json.dumps(
        {"type": "struct", "fields": [{"name": n, "type": k, "nullable": True, "metadata": {}} for n, k in fields]}
    )


def write_part(
    sink: Sink, number: int, rows: pa.Table, *, moves: bool = True, task: SinkTask = TASK, attempt: int = 0
) -> SinkPart:
    """Write the rows of micro-batch `number`, which reads ten records unless it `moves` no input."""
    start = 10 * number
    part = SinkPart(task=task, batch=f"x.{number}.{attempt}", starts={INPUT: start, "idle-3@id": 7})
    writer = sink.writer(part, rows.schema)
    writer.write(rows)
    writer.close()
    return replace(part, ends={INPUT: start + 10 if moves else start, "idle-3@id": 7})


# Changes of a micro-batch, in their order: a key and its new number, None where the key loses its row.
KeyedChanges = Sequence[tuple[Any, int | None]]


def changes_table(changes: KeyedChanges, schema: pa.Schema) -> pa.Table:
    """Return changes as rows with `DELETED_COLUMN`.

    Args:
        changes: A key of several columns is a tuple.
        schema: The key's columns, and the number as the last one, which is the last known one of a key that is gone.
    """
    *names, number = schema.names
    rows = []
    for key, n in changes:
        values = key if isinstance(key, tuple) else (key,)
        row = dict(zip(names, values, strict=True))
        rows.append(row | {number: -1 if n is None else n, DELETED_COLUMN: n is None})
    return pa.Table.from_pylist(rows, schema=schema.append(pa.field(DELETED_COLUMN, pa.bool_())))


def apply_changes(batches: Iterable[KeyedChanges]) -> dict[Any, int]:
    """Return the rows behind these micro-batches: the model of every sink whose rows replace each other."""
    rows: dict[Any, int] = {}
    for changes in batches:
        for key, n in changes:
            if n is None:
                rows.pop(key, None)
            else:
                rows[key] = n
    return rows


def write_alone(sink: Sink, number: int, rows: pa.Table) -> None:
    """Write and commit micro-batch `number`, with no other pending."""
    assert sink.pending(TASK) == []
    sink.commit([write_part(sink, number, rows)])


def expected_numbers(batches: Iterable[int]) -> Counter[int]:
    """Return the numbers of these micro-batches, three each."""
    return Counter(ROWS * number + at for number in batches for at in range(ROWS))


def owner_resolves(sink: Sink, log: Sequence[SinkPart], task: SinkTask = TASK) -> None:
    """Do as the next owner of the task: commit the parts that the group's offsets name, discard the others."""
    named = {part.batch: part for part in log}
    found = sink.pending(task)
    sink.commit([named[part.batch] for part in found if part.batch in named])
    sink.discard([part for part in found if part.batch not in named])


# Stories of sinks that publish rolls of parts by one commit of the table, which has the positions as well.
# `write(number, moves=..)` writes the part of a micro-batch, `numbers()` returns the rows that readers see.
Write = Callable[..., SinkPart]
Numbers = Callable[[], Counter[int]]


def check_rows_that_moved_no_input(sink: Any, write: Write, numbers: Numbers) -> None:
    """Rows of timers, or of a topic that is gone, are added once, though no position shows that the table has them."""
    directory = sink.directory_of(TASK)
    for number in range(3):
        sink.commit([write(number, moves=number == 1)])
        sink.roll([TASK], LATER)
        # The crash between the commit of the table and the journal: the part waits, and the roll is not finished.
        part = write(number, moves=number == 1)
        waiting = Journal.read(directory).after_commit(part, 1, 0)
        waiting.begin_roll("g", waiting.waiting).numbered(number + 1).write(directory)
        sink.roll([TASK], LATER)
    assert numbers() == expected_numbers(range(3))


def check_journal_behind_the_table(sink: Any, write: Write) -> None:
    """Positions are those of the table where the journal was restored from a copy."""
    directory = sink.directory_of(TASK)
    sink.commit([write(0)])
    sink.roll([TASK], LATER)
    old = Journal.read(directory)
    sink.commit([write(1)])
    sink.roll([TASK], LATER)
    old.write(directory)
    assert sink.positions(TASK)[INPUT] == 20


def check_foreign_journal(sink: Any, write: Write, numbers: Numbers) -> None:
    """`_headrace/` was lost, and the group's offsets were set back: the rows are in the table already."""
    sink.commit([write(0)])
    sink.roll([TASK], LATER)
    shutil.rmtree(sink.directory_of(TASK))
    sink.commit([write(0)])
    with pytest.raises(SinkError, match="holds a part of the rows") as raised:
        sink.roll([TASK], LATER)
    assert raised.value.code == "sink-refused"
    assert numbers() == expected_numbers([0])


def check_history(
    sink: Any, write: Write, numbers: Numbers, batches: Iterable[tuple[bool, bool]], strangers: Callable[[], int]
) -> None:
    """Each committed batch is in the table once, and readers never see a part of one that is not committed.

    Args:
        sink: The sink, some of whose commits raise OSError or `Died`.
        write: Writes a part.
        numbers: Returns the numbers in the table; those of other writers are negative.
        batches: For each micro-batch, whether it counts, and whether a roll follows.
        strangers: Returns how many rows other writers have added.
    """
    log: list[int] = []

    def own() -> Counter[int]:
        return Counter({n: times for n, times in numbers().items() if n >= 0})

    def roll() -> None:
        while True:
            try:
                assert sink.roll([TASK], LATER) == []
            except Died:
                assert sink.pending(TASK) == []
                assert own() <= expected_numbers(log)
            else:
                return

    for number, (counts, rolls) in enumerate(batches):
        part = write(number)
        if not counts:
            sink.discard([part])
            continue
        log.append(number)
        sink.commit([part])
        if rolls:
            roll()
    roll()
    assert own() == expected_numbers(log)
    assert numbers().total() == ROWS * len(log) + strangers()


class DyingSteps:
    """Counts the steps of a roll, which may be parts of each other, and dies before or behind one of them."""

    def __init__(
        self, patch: pytest.MonkeyPatch, steps: Iterable[tuple[Any, str]], at: int = 0, *, behind: bool = False
    ) -> None:
        """`steps`: (object, name of a function); `at`: the number of the step, 0: none."""
        self.count = 0
        for owner, name in steps:
            patch.setattr(owner, name, self._wrapped(getattr(owner, name), at, behind))

    def _wrapped(self, step: Callable[..., Any], at: int, behind: bool) -> Callable[..., Any]:
        def take(*args: Any, **kwargs: Any) -> Any:
            self.count += 1
            mine = self.count
            if mine == at and not behind:
                raise Died
            result = step(*args, **kwargs)
            if mine == at:
                raise Died
            return result

        return take


class Faults:
    """Calls of a database's connections, of which some fail or are the last one of their process.

    Each fault is (number of calls that go well before it, kind).
    """

    KINDS = ("refused", "unknown", "dies before", "dies behind")

    def __init__(self, faults: Iterable[tuple[int, str]]) -> None:
        self.calls = 0
        self._faults: Iterator[tuple[int, str]] = iter(faults)
        self._advance()

    def _advance(self) -> None:
        self._left, self._kind = next(self._faults, (-1, ""))

    def call(self, work: Callable[..., Any], *given: Any) -> Any:
        self.calls += 1
        if self._left != 0:
            self._left -= 1
            return work(*given)
        kind = self._kind
        self._advance()
        if kind == "refused":
            raise OSError(5, "refused")
        if kind == "dies before":
            raise Died
        work(*given)
        raise OSError(5, "unknown") if kind == "unknown" else Died


class FaultyConnection:
    """A connection whose calls go through `Faults`."""

    def __init__(self, connection: Any, faults: Faults) -> None:
        self._connection, self._faults = connection, faults

    def execute(self, statement: str, *values: Any) -> Any:
        return self._faults.call(self._connection.execute, statement, *values)

    def append(self, table: str, rows: pa.Table) -> None:
        self._faults.call(self._connection.append, table, rows)

    def begin(self) -> None:
        self._faults.call(self._connection.begin)

    def close(self) -> None:
        self._connection.close()
