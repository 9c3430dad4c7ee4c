"""Rules of sinks in databases: the record of a task, and whether staged rows are still to be added. Pure.

A worker stages the rows of a part in a table of the same database. One transaction of the driver copies them to the
target, deletes them, and moves the positions in the task's record, which it has locked. A part that is staged has
therefore not been added, with one exception: rows of the same positions that an earlier attempt had staged twice.

Rows that delete others are staged with a mark. The transaction deletes the keys whose newest row is a deletion, and
inserts the newest rows of the others.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from hashlib import sha256
from typing import Literal

from headrace.errors import SinkError
from headrace.spark.sinks.interface import SinkPart
from headrace.spark.sinks.roll_positions import decide, ranges_of

__all__ = ["DELETED", "PART", "ROW", "Column", "Layout", "TaskRecord", "contradicting_record"]

PART = "headrace_part"
ROW = "headrace_row"
DELETED = "headrace_deleted"
_AGE = "headrace_age"  # 1: the newest row of its key in the part
NEWEST_BATCHES = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskRecord:
    """State of one task's rows in one table.

    Attributes:
        positions: Next position of each input whose rows were added. They never decrease.
        rolls: Number of parts that were added.
        batches: Names of the newest parts that were added; an unknown outcome is decided by them.
        table_id: Identity of the table to which rows were added; empty if the database has none.
    """

    positions: Mapping[str, int] = field(default_factory=dict)
    rolls: int = 0
    batches: tuple[str, ...] = ()
    table_id: str = ""

    @classmethod
    def from_json(cls, text: str) -> TaskRecord:
        facts = json.loads(text)
        return cls(**{**facts, "batches": tuple(facts["batches"])})

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    def decide(self, part: SinkPart, *, is_staged: bool) -> Literal["add", "done", "refuse", "lost"]:
        """Decide what to do with a part whose offsets are committed.

        Returns:
            add: Copy the staged rows to the table.
            done: The table has the rows; staged ones, if any, are a repetition.
            refuse: The table has a part of the rows. Neither to add nor to drop them is right.
            lost: The rows are neither staged nor in the table.
        """
        # 1. An input that the part did not move says nothing about it: rows of timers, and of topics that are gone.
        ranges = ranges_of([part])
        if not is_staged:
            has_passed = bool(ranges) and all(self.positions.get(name, -1) >= end for name, (_, end) in ranges.items())
            return "done" if part.batch in self.batches or has_passed else "lost"
        # 2. Staged rows whose positions were passed come from an attempt that another one has overtaken.
        verdict = decide(ranges, {name: self.positions.get(name) for name in ranges}) if ranges else "commit"
        return "add" if verdict == "commit" else verdict

    def after(self, part: SinkPart) -> TaskRecord:
        """Return the record after the part was added. Positions only go forward."""
        reached = {name: max(at, self.positions.get(name, at)) for name, at in part.ends.items()}
        return replace(
            self,
            positions={**self.positions, **reached},
            rolls=self.rolls + 1,
            batches=(*self.batches, part.batch)[-NEWEST_BATCHES:],
        )


def contradicting_record(name: str, part: SinkPart, record: TaskRecord) -> SinkError:
    """Return the error of a table that holds a part of the rows that are staged."""
    shown = ", ".join(
        f"{one} from {start} to {end} (table: {record.positions.get(one)})"
        for one, (start, end) in sorted(ranges_of([part]).items())
    )
    return SinkError(
        "sink-refused",
        f"{name} holds a part of the rows that are about to be added: {shown}",
        "Restore the table and the tables headrace_tasks and headrace_parts from the same time.",
        sink=name,
        batch=part.batch,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A column of the rows and how it gets into the target.

    Attributes:
        name: Name in the rows and in the target.
        staged: Type of the column of the staging table.
        cast: Type to which the staged value is cast; empty if it is assigned as it is.
        is_required: Whether the target has no nulls there. A null is a bad record.
    """

    name: str
    staged: str
    cast: str = ""
    is_required: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """The columns of staged rows. A program with other columns has another staging table.

    `key` has the columns by which a row replaces an earlier one; empty for a table that only grows. With `deletes`,
    some rows are deletions of their key.
    """

    columns: tuple[Column, ...]
    key: tuple[str, ...] = ()
    deletes: bool = False

    @classmethod
    def from_json(cls, text: str) -> Layout:
        facts = json.loads(text)
        columns = tuple(Column(**one) for one in facts["columns"])
        return cls(columns=columns, key=tuple(facts["key"]), deletes=facts.get("deletes", False))

    def to_json(self) -> str:
        facts = asdict(self)
        # The text names the staging table, so that of layouts without deletions must not change.
        if not self.deletes:
            del facts["deletes"]
        return json.dumps(facts, sort_keys=True)

    def staging_table(self, target: str) -> str:
        """Return the name of the staging table for rows of this layout."""
        # 16 hexadecimal digits: 2^32 layouts of one schema before two of them are likely to share a name.
        return f"headrace_staged_{sha256(f'{target} {self.to_json()}'.encode()).hexdigest()[:16]}"

    def staging_columns(self) -> Sequence[str]:
        """Return the definitions of the staging table's columns."""
        order = [f"{ROW} bigint NOT NULL"] if self.key else []
        marks = [f"{DELETED} boolean NOT NULL"] if self.deletes else []
        return [f"{PART} bigint NOT NULL", *order, *map(_definition, self.columns), *marks]

    def statements(self, target: str, staging: str, *, newest_only: bool) -> list[str]:
        """Return the statements that bring the staged rows of part `$1` into the target, as `insertion`."""
        inserts = self.insertion(target, staging, newest_only=newest_only)
        return [self.deletion(target, staging), inserts] if self.deletes else [inserts]

    def deletion(self, target: str, staging: str) -> str:
        """Return the statement that deletes the keys whose newest row in part `$1` is a deletion."""
        names = ", ".join(quoted(name) for name in self.key)
        newest = f"FROM {self._by_age(staging)} WHERE {_AGE} = 1 AND {DELETED}"
        required = {one.name for one in self.columns if one.is_required}
        if required.issuperset(self.key):
            # Both databases find the rows by the index of the key.
            return f"DELETE FROM {target} WHERE ({names}) IN (SELECT {names} {newest})"
        # Only PostgreSQL has keys with a null (NULLS NOT DISTINCT). Its IS NOT DISTINCT FROM would pass over the index.
        equal = [f"t.{name} = s.{name}" for name in map(quoted, self.key)]
        nulls = [f"(t.{name} IS NULL AND s.{name} IS NULL)" for name in map(quoted, self.key)]
        pairs = " AND ".join(f"({one} OR {other})" for one, other in zip(equal, nulls, strict=True))
        return f"DELETE FROM {target} AS t USING (SELECT {names} {newest}) AS s WHERE {pairs}"

    def _by_age(self, staging: str) -> str:
        """Return part `$1` as a derived table, with the values of the target and `_AGE`."""
        values = {one.name: f"CAST({quoted(one.name)} AS {one.cast})" for one in self.columns if one.cast}
        columns = ", ".join(f"{values.get(one.name, quoted(one.name))} AS {quoted(one.name)}" for one in self.columns)
        key = ", ".join(values.get(name, quoted(name)) for name in self.key)
        age = f"row_number() OVER (PARTITION BY {key} ORDER BY {ROW} DESC) AS {_AGE}"
        return f"(SELECT {columns}, {DELETED}, {age} FROM {staging} WHERE {PART} = $1) AS newest"

    def insertion(self, target: str, staging: str, *, newest_only: bool) -> str:
        """Return the statement that copies the staged rows of part `$1` to the target.

        Args:
            target: The quoted target.
            staging: The quoted staging table.
            newest_only: Leave out earlier rows of a key, for a database that refuses to change a row twice in one
                statement (PostgreSQL). Others get the rows in their order, so that the newest one stays.
        """
        names = ", ".join(quoted(one.name) for one in self.columns)
        values = ", ".join(
            f"CAST({quoted(one.name)} AS {one.cast})" if one.cast else quoted(one.name) for one in self.columns
        )
        source = f"FROM {staging} WHERE {PART} = $1"
        if not self.key:
            return f"INSERT INTO {target} ({names}) SELECT {values} {source}"
        if self.deletes:
            source = f"FROM {self._by_age(staging)} WHERE {_AGE} = 1 AND NOT {DELETED}"
            return f"INSERT INTO {target} ({names}) SELECT {names} {source} {self._on_conflict()}"
        key = ", ".join(map(quoted, self.key))
        select = f"SELECT DISTINCT ON ({key}) {values}" if newest_only else f"SELECT {values}"
        order = f"ORDER BY {key}, {ROW} DESC" if newest_only else f"ORDER BY {ROW}"
        return f"INSERT INTO {target} ({names}) {select} {source} {order} {self._on_conflict()}"

    def _on_conflict(self) -> str:
        key = ", ".join(map(quoted, self.key))
        changes = ", ".join(
            f"{quoted(one.name)} = EXCLUDED.{quoted(one.name)}" for one in self.columns if one.name not in self.key
        )
        return f"ON CONFLICT ({key}) DO {f'UPDATE SET {changes}' if changes else 'NOTHING'}"


def _definition(column: Column) -> str:
    name = quoted(column.name)
    # A value that cannot be cast is refused when it is staged. After the commit of its offsets it would be too late.
    check = f" CHECK ({name} IS NULL OR CAST({name} AS {column.cast}) IS NOT NULL)" if column.cast else ""
    return f"{name} {column.staged}{check}"


def quoted(name: str) -> str:
    """Return the identifier in quotes, as SQL writes it."""
    return '"' + name.replace('"', '""') + '"'
