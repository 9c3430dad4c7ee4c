"""State of one task's Parquet files, `positions.json`: what is committed, and how far rolling it into a file has come.

Each change replaces the file in one step, under the lock of the task's directory and after it was read again: two
owners of a task that overlap (one was fenced and has not noticed) do not undo each other's changes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from xxhash import xxh3_64_hexdigest

from headrace.spark.sinks.files import write_text
from headrace.spark.sinks.interface import SinkPart

__all__ = ["CommittedPart", "Journal", "Roll"]

POSITIONS = "positions.json"
LONGEST_NAME = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class CommittedPart:
    """A committed part that is in no file of the table yet."""

    batch: str
    starts: Mapping[str, int]
    ends: Mapping[str, int]
    size_bytes: int
    committed_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Roll:
    """Parts that become one file of the table (one in each Hive directory). `published`: they have.

    `number` counts the rolls of a task of a Delta table from 1.
    """

    file: str
    batches: tuple[str, ...]
    published: bool = False
    number: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Journal:
    """`positions`: how far (exclusive) the rows of each input are committed. `waiting` in the order of commits.

    `table_id` names the Delta table to which the rows go.
    """

    positions: Mapping[str, int] = field(default_factory=dict)
    waiting: tuple[CommittedPart, ...] = ()
    roll: Roll | None = None
    table_id: str = ""

    @classmethod
    def read(cls, directory: Path) -> Journal:
        try:
            facts: dict[str, Any] = json.loads((directory / POSITIONS).read_text())
        except FileNotFoundError:
            return cls()
        roll = facts["roll"] and Roll(**{**facts["roll"], "batches": tuple(facts["roll"]["batches"])})
        waiting = tuple(CommittedPart(**part) for part in facts["waiting"])
        return cls(positions=facts["positions"], waiting=waiting, roll=roll, table_id=facts.get("table_id", ""))

    def write(self, directory: Path) -> None:
        write_text(directory / POSITIONS, json.dumps(asdict(self)))

    @property
    def counted(self) -> frozenset[str]:
        """Batches that are committed. Their directories are not pending parts."""
        rolled = self.roll.batches if self.roll is not None else ()
        return frozenset({part.batch for part in self.waiting} | set(rolled))

    def has(self, part: SinkPart) -> bool:
        """Whether the positions have passed everything that the part moved."""
        # An input that the part did not move says nothing about it.
        return all(self.positions.get(name, -1) >= at for name, at in part.ends.items() if at > part.starts[name])

    def after_commit(self, part: SinkPart, size_bytes: int, now_ms: int) -> Journal:
        """Positions only go forward."""
        reached = {name: max(at, self.positions.get(name, at)) for name, at in part.ends.items()}
        added = CommittedPart(
            batch=part.batch,
            starts=dict(part.starts),
            ends=dict(part.ends),
            size_bytes=size_bytes,
            committed_ms=now_ms,
        )
        return replace(self, positions={**self.positions, **reached}, waiting=(*self.waiting, added))

    def begin_roll(self, group_id: str, parts: Sequence[CommittedPart]) -> Journal:
        # The parts and the file's name are written down before the file exists. After a crash the same parts become a
        # file of the same name, which replaces an equal one.
        batches = tuple(part.batch for part in parts)
        return replace(self, roll=Roll(file=_file_name(group_id, parts), batches=batches))

    def numbered(self, number: int) -> Journal:
        """The roll has this number."""
        assert self.roll is not None
        return replace(self, roll=replace(self.roll, number=number))

    def end_roll(self) -> Journal:
        """The file is in the table: only what is left of its parts has to go."""
        assert self.roll is not None
        left = tuple(part for part in self.waiting if part.batch not in self.roll.batches)
        return replace(self, waiting=left, roll=replace(self.roll, published=True))


def _file_name(group_id: str, parts: Sequence[CommittedPart]) -> str:
    """Return the file's name: the first input that moved, its range, and a digest of the batches, which makes it
    unique.

    Offsets alone do not: a topic that was deleted and created again has the same ones a second time.
    """
    moved = sorted({name for part in parts for name, at in part.ends.items() if at > part.starts[name]})
    first = moved[0] if moved else min(parts[0].starts)  # where a part's topic is gone its ends are not known
    start = min(part.starts[first] for part in parts if first in part.starts)
    end = max(part.ends[first] for part in parts if first in part.ends)
    name = f"{group_id}.{first.partition('@')[0]}-{start}-{end}"
    return f"{name[:LONGEST_NAME]}.{xxh3_64_hexdigest('|'.join(part.batch for part in parts).encode())}.parquet"
