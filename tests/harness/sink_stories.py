"""Stories of every table sink: parts of numbered micro-batches, and the steps at which a process dies."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa

from headrace.spark.sinks.interface import Sink, SinkPart, SinkTask

__all__ = ["INPUT", "TASK", "Died", "expected_numbers", "owner_resolves", "schema_json", "write_part"]

TASK = SinkTask(group_id="g", subtopology_id="flights", partition=3)
INPUT = "flights-3@id"
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


def expected_numbers(batches: Iterable[int]) -> Counter[int]:
    """Return the numbers of these micro-batches, three each."""
    return Counter(ROWS * number + at for number in batches for at in range(ROWS))


def owner_resolves(sink: Sink, log: Sequence[SinkPart], task: SinkTask = TASK) -> None:
    """Do as the next owner of the task: commit the parts that the group's offsets name, discard the others."""
    named = {part.batch: part for part in log}
    found = sink.pending(task)
    sink.commit([named[part.batch] for part in found if part.batch in named])
    sink.discard([part for part in found if part.batch not in named])


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
