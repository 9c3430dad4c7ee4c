"""Tables of databases, each row in them once: rows wait in the same database, and one transaction adds them.

1. A worker stages the rows of a part in `headrace_staged_..`, and lists the part as complete in `headrace_parts` in the
   transaction of its last rows: a part is there as a whole or not.
2. `commit` locks the task's record in `headrace_tasks`. In one transaction it takes the part off the list, copies its
   rows to the target, deletes them from the staging table and moves the positions of the record.

Whether a part was added is thus a fact of the database: after a crash, after a commit whose outcome is unknown, and
against an earlier owner of the task, which finds the part off the list. The database's own two-phase commit
(`PREPARE TRANSACTION`) would write rows once instead of twice; servers have it switched off by default, and a prepared
transaction keeps its locks while no instance runs.

The three tables lie beside the target. They are created when the first task is opened.
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import json
import logging
import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from headrace.errors import SinkError
from headrace.spark.sinks.interface import DELETED_COLUMN, SinkPart, SinkTask
from headrace.spark.sinks.staged_rows import DELETED, PART, ROW, Layout, TaskRecord, contradicting_record, quoted
from headrace.spark.sinks.table_facts import TableFacts, fit_columns, refused_table

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["Connection", "DatabaseSink", "LockTimeoutError", "RowWriter", "idle_connections", "rows_of"]

log = logging.getLogger("headrace.spark")
CHUNK_BYTES = 32 << 20
_TASK = "target = $1 AND group_id = $2 AND subtopology = $3 AND task_partition = $4"


class LockTimeoutError(TimeoutError):
    """Another session has held a lock for as long as a statement may wait for it."""


class Connection(Protocol):
    """An open connection. Statements outside of `begin` and `commit` are transactions of their own.

    Methods raise OSError (LockTimeoutError is one); ValueError if a value cannot be stored, SinkError if the table
    cannot take the rows.
    """

    def execute(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        """Run a statement with the values of `$1`, `$2`, .. and return its rows."""

    def append(self, table: str, rows: pa.Table) -> None:
        """Insert rows into a table, by the names of its columns."""

    def begin(self) -> None:
        """Begin a transaction that is durable when it is committed."""

    def close(self) -> None:
        """Close the connection. An open transaction is rolled back."""


class IdleConnections:
    """Connections of this process that no thread uses, by the address of their database.

    A micro-batch needs a connection twice in the driver and once in each worker; opening one takes longer than either.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._idle: dict[tuple[int, str], list[Connection]] = {}

    @contextlib.contextmanager
    def borrow(self, address: str, connect: Callable[[], Connection]) -> Iterator[Connection]:
        """Borrow a connection, which is closed instead of returned if the block raises."""
        connection = self._take(address) or connect()
        try:
            yield connection
        except BaseException:
            connection.close()
            raise
        with self._lock:
            self._idle.setdefault((os.getpid(), address), []).append(connection)

    def close(self) -> None:
        """Close the idle connections of this process."""
        with self._lock:
            own = [key for key in self._idle if key[0] == os.getpid()]
            found = [connection for key in own for connection in self._idle.pop(key)]
        for connection in found:
            connection.close()

    def _take(self, address: str) -> Connection | None:
        while True:
            # By process: a connection that a fork inherited belongs to the parent.
            with self._lock:
                found = self._idle.get((os.getpid(), address))
                connection = found.pop() if found else None
            if connection is None:
                return None
            # The server may have been restarted, or have ended an idle session, since the last use.
            try:
                connection.execute("SELECT 1")
            except OSError:
                connection.close()
            except BaseException:
                connection.close()
                raise
            else:
                return connection


idle_connections = IdleConnections()
atexit.register(idle_connections.close)


@dataclass(frozen=True, slots=True, kw_only=True)
class DatabaseSink(ABC):
    """A table of a database.

    Attributes:
        address: How to connect. It may hold a password, so it is in no name, log and message.
        place: The database as it is shown.
        table: The target's name as it is shown and recorded, such as "public.flights".
        schema_json: Columns of the rows (`StructType.json()`).
        layout: How they get into the target.
    """

    address: str = field(repr=False)
    place: str
    table: str
    schema_json: str = field(repr=False)
    layout: Layout = field(repr=False)

    @property
    def name(self) -> str:
        return f"{self.place}/{self.table}"

    @property
    def takes_updates(self) -> bool:
        return bool(self.layout.key)

    @property
    def takes_deletions(self) -> bool:
        return self.layout.deletes

    # Differences between databases.

    @abstractmethod
    def _connect(self) -> Connection: ...

    @abstractmethod
    def _beside(self, name: str) -> str:
        """Return the quoted name of a table beside the target."""

    @property
    @abstractmethod
    def target(self) -> str:
        """Return the quoted name of the target."""

    @abstractmethod
    def _exists(self, connection: Connection, table: str) -> bool:
        """Whether there is a table with this quoted name."""

    @abstractmethod
    def _facts(self, connection: Connection) -> TableFacts:
        """Return the facts of the target, which exists."""

    @abstractmethod
    def _fit_type(self, kind: str, column: str) -> tuple[str, str] | None:
        """As of `fit_columns`."""

    @abstractmethod
    def _table_id(self, connection: Connection) -> str:
        """Return the identity of the target, "database/table"; empty if the database has none."""

    @abstractmethod
    def _lock_catalog(self, connection: Connection) -> None:
        """Keep other instances from creating tables until the transaction ends."""

    @abstractmethod
    def _encode(self, rows: pa.Table) -> pa.Table:
        """Return rows as they are staged. Raises ValueError for values that the target cannot hold."""

    def _lock_holders(self, connection: Connection) -> list[str]:  # noqa: ARG002 most databases do not tell
        """Return the sessions that change the target or keep others from it, the oldest transaction first."""
        return []

    @property
    @abstractmethod
    def _numbered(self) -> str:
        """The definition of a column `id` whose numbers are never used twice."""

    @property
    @abstractmethod
    def _locks(self) -> str:
        """Suffix of a SELECT that locks its rows."""

    @property
    @abstractmethod
    def _newest_only(self) -> bool:
        """As of `Layout.insertion`."""

    @abstractmethod
    def reading(self, column: str, kind: str) -> tuple[str, str]:
        """Return the expression that reads a column, and Spark's of the text `{}` that makes it a value of `kind`."""

    @abstractmethod
    def _as_text(self, column: str) -> str:
        """Return the expression that shows a column, for people."""

    # Interface of sinks.

    def check(self) -> None:
        """Refuse a table that cannot take the rows. Raises SinkError, OSError."""
        with self.connection() as connection:
            found = self.fitted(connection, self.layout.key, deletes=self.layout.deletes)
        if found != self.layout:
            raise refused_table(self.name, "its columns were changed meanwhile", "start the application again")

    def fitted(self, connection: Connection, key: tuple[str, ...], *, deletes: bool) -> Layout:
        """Return how the rows get into the target. Raises SinkError if they do not, or it is gone."""
        self._check_target(connection)
        facts, rows = self._facts(connection), rows_of(self.schema_json)
        return fit_columns(self.name, facts, rows, key, self._fit_type, deletes=deletes)

    def writer(self, part: SinkPart, schema: pa.Schema) -> RowWriter:  # noqa: ARG002 the layout has the columns
        return RowWriter(self, part)

    def pending(self, task: SinkTask) -> list[SinkPart]:
        self._create_missing()
        with self.transaction() as connection:
            self._locked_record(connection, task)
            # 1. Rows of an owner that died in the middle. One that lives still misses its part at its next chunk.
            self._take_off(connection, task, "complete = 0")
            # 2. The others: their offsets decide.
            found = connection.execute(
                f"SELECT batch, starts FROM {self._beside('headrace_parts')} WHERE {_TASK} ORDER BY id",
                *self._key(task),
            )
        return [SinkPart(task=task, batch=batch, starts=json.loads(starts)) for batch, starts in found]

    def positions(self, task: SinkTask) -> Mapping[str, int]:
        with self.transaction() as connection:
            record = self._locked_record(connection, task)
            self._check_target(connection)
            self._check_identity(record, self._table_id(connection))
        return record.positions

    def commit(self, parts: Sequence[SinkPart]) -> None:
        try:
            # One transaction, so that a micro-batch waits for the disk once. Tasks are locked in one order.
            with self.transaction() as connection:
                self._check_target(connection)
                table_id = self._table_id(connection)
                for part in sorted(parts, key=lambda one: one.task.partition):
                    self._commit_part(connection, part, table_id)
        except LockTimeoutError as error:
            # It was rolled back and holds nothing. Not repeated: the micro-batches behind it wait as well.
            raise LockTimeoutError(
                error.errno,
                f"another session holds a lock on {self.name}{self._shown_holders()} ({error.strerror}). End its "
                "transaction, and start the application again; the rows are staged beside the table",
            ) from None

    def _shown_holders(self) -> str:
        """Return the sessions that seem to hold the lock, as " (..)"; empty where the database does not tell."""
        with contextlib.suppress(OSError), self.connection() as connection:
            holders = self._lock_holders(connection)
            return f": {', '.join(holders)}" if holders else ""
        return ""

    def discard(self, parts: Sequence[SinkPart]) -> None:
        with self.transaction() as connection:
            for part in sorted(parts, key=lambda one: one.task.partition):
                self._locked_record(connection, part.task)
                self._take_off(connection, part.task, "batch = $5", part.batch)

    def connection(self) -> contextlib.AbstractContextManager[Connection]:
        """Borrow a connection."""
        return idle_connections.borrow(self.address, self._connect)

    @contextlib.contextmanager
    def transaction(self) -> Iterator[Connection]:
        """Open a transaction, which is rolled back if the block raises."""
        with self.connection() as connection:
            connection.begin()
            yield connection
            connection.execute("COMMIT")

    def _create_missing(self) -> None:
        """Create the tables beside the target that are missing."""
        staging = self.layout.staging_table(self.table)
        tasks, parts, rows = (self._beside(name) for name in ("headrace_tasks", "headrace_parts", staging))
        with self.connection() as connection:
            if all(self._exists(connection, name) for name in (tasks, parts, rows)):
                return
        key = "target text NOT NULL, group_id text NOT NULL, subtopology text NOT NULL, task_partition bigint NOT NULL"
        names = "target, group_id, subtopology, task_partition"
        part = "batch text NOT NULL, starts text NOT NULL, layout text NOT NULL, complete bigint NOT NULL"
        with self.transaction() as connection:
            self._lock_catalog(connection)
            for statement in (
                f"CREATE TABLE IF NOT EXISTS {tasks} ({key}, record text NOT NULL, PRIMARY KEY ({names}))",
                f"CREATE TABLE IF NOT EXISTS {parts} ({self._numbered}, {key}, {part}, UNIQUE ({names}, batch))",
                f"CREATE TABLE IF NOT EXISTS {rows} ({', '.join(self.layout.staging_columns())})",
                f"CREATE INDEX IF NOT EXISTS {quoted(staging + '_part')} ON {rows} ({PART})",
            ):
                connection.execute(statement)

    def _check_target(self, connection: Connection) -> None:
        if not self._exists(connection, self.target):
            raise refused_table(self.name, "the table is gone", "create it again, or restore it")

    def _commit_part(self, connection: Connection, part: SinkPart, table_id: str) -> None:
        # 1. The lock: another owner of the task is behind this transaction, or ahead of it as a whole.
        record = self._locked_record(connection, part.task)
        self._check_identity(record, table_id)
        staged = self._listed(connection, part)
        verdict = record.decide(part, is_staged=staged is not None)
        if verdict == "lost":
            raise FileNotFoundError(f"the rows of {part.batch} are neither in {self.name} nor staged beside it")
        if verdict == "refuse":
            raise contradicting_record(self.name, part, record)
        # 2. The rows and the positions move together.
        if verdict == "add":
            assert staged is not None
            number, layout = staged
            self._add_rows(connection, number, layout)
            after = replace(record.after(part), table_id=table_id)
            connection.execute(
                f"UPDATE {self._beside('headrace_tasks')} SET record = $5 WHERE {_TASK}",
                *self._key(part.task),
                after.to_json(),
            )
        elif staged is not None:
            log.warning("%s has the rows of %s already; their repetition is dropped", self.name, part.batch)
        self._take_off(connection, part.task, "batch = $5", part.batch)

    def _add_rows(self, connection: Connection, part: int, layout: Layout) -> None:
        staging = self._beside(layout.staging_table(self.table))
        try:
            for statement in layout.statements(self.target, staging, newest_only=self._newest_only):
                connection.execute(statement, part)
        except LockTimeoutError:
            raise
        except (OSError, ValueError) as error:
            # The table may have been changed since the application began. `check` finds the reason, unless the
            # database is out of reach.
            connection.close()
            with contextlib.suppress(OSError):
                self.check()
            number = error.errno if isinstance(error, OSError) else None
            raise OSError(number or errno.EIO, f"{self.name} refuses rows: {error}") from error

    def _locked_record(self, connection: Connection, task: SinkTask) -> TaskRecord:
        tasks = self._beside("headrace_tasks")
        connection.execute(
            f"INSERT INTO {tasks} (target, group_id, subtopology, task_partition, record) VALUES ($1, $2, $3, $4, $5) "
            "ON CONFLICT DO NOTHING",
            *self._key(task),
            TaskRecord().to_json(),
        )
        [(record,)] = connection.execute(f"SELECT record FROM {tasks} WHERE {_TASK}{self._locks}", *self._key(task))
        return TaskRecord.from_json(record)

    def _check_identity(self, record: TaskRecord, found: str) -> None:
        """Refuse a target that was dropped and created again: its rows are gone, and its positions are not."""
        # A database that was restored from a dump has other numbers, and the positions came with its rows.
        is_same_database = record.table_id.partition("/")[0] == found.partition("/")[0]
        if record.table_id and found != record.table_id and is_same_database:
            raise SinkError(
                "sink-refused",
                f"{self.name}: the table was created again since the application wrote to it",
                f"Restore it; or delete the rows of headrace_tasks with target = '{self.table}' and reset the group's "
                "offsets.",
                sink=self.name,
            )

    def _listed(self, connection: Connection, part: SinkPart) -> tuple[int, Layout] | None:
        found = connection.execute(
            f"SELECT id, layout FROM {self._beside('headrace_parts')} WHERE {_TASK} AND batch = $5 AND complete = 1",
            *self._key(part.task),
            part.batch,
        )
        return (int(found[0][0]), Layout.from_json(found[0][1])) if found else None

    def _take_off(self, connection: Connection, task: SinkTask, condition: str, *values: Any) -> None:
        """Delete parts and their staged rows."""
        taken = connection.execute(
            f"DELETE FROM {self._beside('headrace_parts')} WHERE {_TASK} AND {condition} RETURNING id, layout",
            *self._key(task),
            *values,
        )
        for number, layout in taken:
            staging = self._beside(Layout.from_json(layout).staging_table(self.table))
            connection.execute(f"DELETE FROM {staging} WHERE {PART} = $1", number)

    def _key(self, task: SinkTask) -> tuple[Any, ...]:
        return self.table, task.group_id, task.subtopology_id, task.partition


def rows_of(schema_json: str) -> list[tuple[str, str]]:
    """Return (name, simple type) of the columns of `StructType.json()`."""
    from headrace.spark.formats.schemas import struct_of

    return [(one.name, one.dataType.simpleString()) for one in struct_of(schema_json).fields]


def _without_values(rows: pa.Table, deleted: pa.ChunkedArray, key: Sequence[str]) -> pa.Table:
    """Return rows in which deletions have their key alone: no other value of theirs reaches the target."""
    import pyarrow as pa
    from pyarrow import compute

    for at, one in enumerate(rows.schema):
        if one.name not in key:
            rows = rows.set_column(at, one, compute.if_else(deleted, pa.scalar(None, one.type), rows[one.name]))
    return rows


class RowWriter:
    """Stages the rows of a part in transactions of a bounded size, the last of which completes it."""

    def __init__(self, sink: DatabaseSink, part: SinkPart) -> None:
        self._sink, self._part = sink, part
        self._waiting: list[pa.Table] = []
        self._number: int | None = None
        self._rows = 0

    def write(self, rows: pa.Table) -> None:
        self._waiting.append(self._checked(rows))
        if sum(table.nbytes for table in self._waiting) >= CHUNK_BYTES:
            self._stage(is_last=False)

    def close(self) -> None:
        self._stage(is_last=True)

    def _checked(self, rows: pa.Table) -> pa.Table:
        from pyarrow import compute

        layout = self._sink.layout
        marks = rows[DELETED_COLUMN] if layout.deletes else None
        if marks is not None:
            rows = _without_values(rows.drop_columns([DELETED_COLUMN]), marks, layout.key)
        for column in layout.columns:
            values = rows[column.name]
            if marks is not None and column.name not in layout.key:
                values = values.filter(compute.invert(marks))
            if column.is_required and values.null_count:
                raise ValueError(f'"{column.name}" is null, and {self._sink.name} takes no nulls there')
        encoded = self._sink._encode(rows)
        return encoded if marks is None else encoded.append_column(DELETED, marks)

    def _stage(self, *, is_last: bool) -> None:
        import pyarrow as pa

        sink = self._sink
        with sink.transaction() as connection:
            self._number = self._listed_as(connection, is_last)
            if self._waiting:
                rows = pa.concat_tables(self._waiting)
                if sink.layout.key:
                    order = pa.array(np.arange(self._rows, self._rows + rows.num_rows))
                    rows = rows.add_column(0, ROW, order)
                number = pa.repeat(pa.scalar(self._number, pa.int64()), rows.num_rows)
                connection.append(sink.layout.staging_table(sink.table), rows.add_column(0, PART, number))
                self._rows += rows.num_rows
        self._waiting.clear()

    def _listed_as(self, connection: Connection, is_last: bool) -> int:
        """List the part, complete with its last rows, and return its number."""
        sink, part = self._sink, self._part
        parts = sink._beside("headrace_parts")
        if self._number is None:
            [(number,)] = connection.execute(
                f"INSERT INTO {parts} (target, group_id, subtopology, task_partition, batch, starts, layout, complete) "
                "VALUES ($1, $2, $3, $4, $5, $6, $7, $8) RETURNING id",
                *sink._key(part.task),
                part.batch,
                json.dumps(dict(part.starts)),
                sink.layout.to_json(),
                int(is_last),
            )
            return int(number)
        # The row is locked by its change: the next owner, which removes incomplete parts, waits for this chunk.
        found = connection.execute(
            f"UPDATE {parts} SET complete = $2 WHERE id = $1 RETURNING id", self._number, int(is_last)
        )
        if not found:
            raise FileNotFoundError(f"{part.batch} was taken back by another owner of its task")
        return self._number
