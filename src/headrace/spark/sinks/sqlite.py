"""Table of an SQLite file, by Python's own `sqlite3`.

The steps are those of `database`; `BEGIN IMMEDIATE` is the lock. The columnar driver (ADBC) brings a copy of SQLite of
its own. Two copies in one process release each other's locks on a file (SQLite, "How To Corrupt An SQLite Database
File", 2.2.1), and programs that read the file by `sqlite3` beside the application are the usual ones. So values become
Python objects here, which SQLite's single writer hardly notices: it takes about 0.6 million rows a second.
"""

from __future__ import annotations

import contextlib
import errno
import math
import re
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.errors import SinkError
from headrace.spark.sinks.database import Connection, DatabaseSink, LockTimeoutError, rows_of
from headrace.spark.sinks.staged_rows import Layout, quoted
from headrace.spark.sinks.table_facts import ColumnFacts, TableFacts, UniqueIndex, missing_table, refused_table

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["SqliteSink", "fit_type", "open_sink", "read_facts"]

OLDEST = (3, 35, 0)  # RETURNING
BUSY_TIMEOUT_S = 60.0
SYNCHRONOUS = "EXTRA"  # with FULL, a power failure may undo the newest commit where the journal is a file
BATCH_ROWS = 10_000
# Spark type → the column's affinities that keep the value as it is.
INTEGER_LIKE, TEXT_LIKE = ("INTEGER", "NUMERIC"), ("TEXT", "NUMERIC")
AFFINITIES = {
    "boolean": INTEGER_LIKE,
    "tinyint": INTEGER_LIKE,
    "smallint": INTEGER_LIKE,
    "int": INTEGER_LIKE,
    "bigint": INTEGER_LIKE,
    "float": ("REAL",),
    "double": ("REAL",),
    "string": ("TEXT",),
    "binary": ("BLOB",),
    # Their text begins with four digits and a hyphen, which no affinity takes for a number.
    "date": TEXT_LIKE,
    "timestamp": TEXT_LIKE,
    "timestamp_ntz": TEXT_LIKE,
}


REFERRERS = (
    "SELECT DISTINCT m.name FROM sqlite_master m, pragma_foreign_key_list(m.name) f "
    "WHERE m.type = 'table' AND lower(f.\"table\") = lower($1) ORDER BY 1"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SqliteSink(DatabaseSink):
    """A table that exists in an SQLite file. `address` is the file's path."""

    def _connect(self) -> Connection:
        return SqliteConnection(self.address)

    def _beside(self, name: str) -> str:
        return quoted(name)

    @property
    def target(self) -> str:
        return quoted(self.table)

    def _exists(self, connection: Connection, table: str) -> bool:
        return _has_table(connection, table[1:-1].replace('""', '"'))

    def _facts(self, connection: Connection) -> TableFacts:
        return read_facts(connection, self.table)

    def _fit_type(self, kind: str, column: str) -> tuple[str, str] | None:
        return fit_type(kind, column)

    def _table_id(self, connection: Connection) -> str:  # noqa: ARG002 a table has no number that lasts
        return ""

    def _lock_catalog(self, connection: Connection) -> None:
        pass  # BEGIN IMMEDIATE has locked the file

    def _encode(self, rows: pa.Table) -> pa.Table:
        return rows.select([one.name for one in self.layout.columns])

    @property
    def _numbered(self) -> str:
        return "id INTEGER PRIMARY KEY AUTOINCREMENT"

    @property
    def _locks(self) -> str:
        return ""

    @property
    def _newest_only(self) -> bool:
        return False

    def reading(self, column: str, kind: str) -> tuple[str, str]:
        if kind == "binary":
            # `hex` of a null is a text.
            return f"CASE WHEN {column} IS NOT NULL THEN hex({column}) END", "try_to_binary({}, 'hex')"
        return column, f"try_cast({{}} AS {kind})"

    def _as_text(self, column: str) -> str:
        return f"CASE typeof({column}) WHEN 'blob' THEN hex({column}) ELSE CAST({column} AS text) END"


class SqliteConnection:
    """A connection to a file that exists, in autocommit mode. All methods raise OSError."""

    def __init__(self, path: str) -> None:
        with _os_errors(path):
            # A thread at a time uses it, not always the same one.
            self._connection = sqlite3.connect(
                f"{Path(path).as_uri()}?mode=rw",
                uri=True,
                timeout=BUSY_TIMEOUT_S,
                isolation_level=None,
                check_same_thread=False,
            )
        self._path = path
        self.execute(f"PRAGMA synchronous = {SYNCHRONOUS}")

    def execute(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        with _os_errors(self._path):
            return self._connection.execute(statement, {str(at): one for at, one in enumerate(values, 1)}).fetchall()

    def append(self, table: str, rows: pa.Table) -> None:
        names = ", ".join(quoted(name) for name in rows.column_names)
        marks = ", ".join("?" * rows.num_columns)
        with _os_errors(self._path):
            for batch in rows.to_batches(max_chunksize=BATCH_ROWS):
                columns = [_python_values(field.name, batch.column(at)) for at, field in enumerate(rows.schema)]
                self._connection.executemany(
                    f"INSERT INTO {quoted(table)} ({names}) VALUES ({marks})", zip(*columns, strict=True)
                )

    def begin(self) -> None:
        self.execute("BEGIN IMMEDIATE")

    def close(self) -> None:
        with contextlib.suppress(sqlite3.Error):
            self._connection.close()


@contextlib.contextmanager
def _os_errors(path: str) -> Iterator[None]:
    try:
        yield
    except (sqlite3.DataError, OverflowError) as error:
        raise ValueError(f"{path}: {error}") from None
    except sqlite3.Error as error:
        name = getattr(error, "sqlite_errorname", "")
        if name == "SQLITE_BUSY":
            raise LockTimeoutError(errno.ETIMEDOUT, f"{path}: {error}") from error
        full = name == "SQLITE_FULL"
        raise OSError(errno.ENOSPC if full else errno.EIO, f"{path}: {error}") from error


def open_sink(
    path: str, table: str, schema_json: str, key: tuple[str, ...] = (), *, deletes: bool = False
) -> SqliteSink:
    """Return the sink for a table that exists, after checking that it can take the rows.

    Args:
        path: Absolute path of the file.
        table: Name of the table.
        schema_json: Columns of the rows (`StructType.json()`).
        key: Columns by which a row replaces an earlier one.
        deletes: Whether some rows are deletions of their key.

    Raises:
        SinkError: if the table cannot take the rows.
        OSError: if the file cannot be used.
    """
    place = f"sqlite://{path}"
    if sqlite3.sqlite_version_info < OLDEST:
        raise refused_table(
            place, f"Python's SQLite is {sqlite3.sqlite_version}", "use a Python with SQLite 3.35 or newer"
        )
    connection = SqliteConnection(path)
    try:
        rows = rows_of(schema_json)
        if not _has_table(connection, table):
            raise _missing(connection, place, table, rows)
        sink = SqliteSink(address=path, place=place, table=table, schema_json=schema_json, layout=Layout(columns=()))
        return replace(sink, layout=sink.fitted(connection, key, deletes=deletes))
    finally:
        connection.close()


def fit_type(kind: str, column: str) -> tuple[str, str] | None:
    """Return the staging type for a Spark type and a column's declared type; None if a value would change.

    Times are text, "2024-10-27T00:30:00.000001Z", as in JSON; decimals are text too, since SQLite has no exact ones.
    """
    affinity = affinity_of(column)
    known = ("TEXT",) if kind.startswith("decimal(") else AFFINITIES.get(kind, ())
    # The staging column has the target's affinity, so that a value is converted, if at all, before it is committed.
    return (column or "BLOB", "") if affinity in known else None


def affinity_of(declared: str) -> str:
    """Return the affinity of a declared type (SQLite, "Datatypes In SQLite", 3.1)."""
    name = declared.upper()
    for affinity, parts in (("INTEGER", ("INT",)), ("TEXT", ("CHAR", "CLOB", "TEXT")), ("BLOB", ("BLOB",))):
        if any(part in name for part in parts):
            return affinity
    if not name:
        return "BLOB"
    return "REAL" if any(part in name for part in ("REAL", "FLOA", "DOUB")) else "NUMERIC"


def read_facts(connection: Connection, table: str) -> TableFacts:
    """Return the facts of a table that exists."""
    [(kind, definition)] = connection.execute(
        "SELECT type, coalesce(sql, '') FROM sqlite_master WHERE name = $1", table
    )
    words = _without_texts(definition).upper()
    obstacles = [
        (kind != "table", "it is no table", "name a table, and no view"),
        (words.startswith("CREATE VIRTUAL"), "it is a virtual table", "name a table of the file itself"),
        (
            re.search(r"\bCHECK\s*\(", words) is not None,
            "a CHECK constraint may refuse committed rows",
            "drop it, or write to another table",
        ),
        (
            bool(connection.execute(f"PRAGMA foreign_key_list({quoted(table)})")),
            "a foreign key may refuse committed rows",
            "drop it, or write to another table",
        ),
    ]
    columns = connection.execute(f"PRAGMA table_xinfo({quoted(table)})")
    key = sorted((position, name) for _, name, _, _, _, position, _ in columns if position)
    # An INTEGER PRIMARY KEY is the row's own number: there is no index, and a row without it gets the next one.
    own_number = len(key) == 1 and _is_row_number(columns, key[0][1], words)
    unique = [UniqueIndex(name="the primary key", columns=(key[0][1],))] if own_number else []
    folded: set[str] = set()
    for index in connection.execute(f"PRAGMA index_list({quoted(table)})"):
        if not index[2]:
            continue
        parts = [part for part in connection.execute(f"PRAGMA index_xinfo({quoted(index[1])})") if part[5]]
        names = tuple(part[2] for part in parts)
        folded |= {part[2] for part in parts if part[2] is not None and part[4] != "BINARY"}
        is_plain = None not in names
        unique.append(
            UniqueIndex(name=index[1], columns=names if is_plain else (), is_usable=is_plain and not index[4])
        )
    return TableFacts(
        columns=tuple(
            ColumnFacts(
                name=name,
                type=declared,
                is_required=bool(required),
                has_default=default is not None or (own_number and name == key[0][1]),
                is_computed=hidden in (2, 3),
                equates_texts=name in folded,
            )
            for _, name, declared, required, default, _, hidden in columns
        ),
        unique=tuple(unique),
        obstacles=tuple((why, fix) for applies, why, fix in obstacles if applies),
        referrers=tuple(name for (name,) in connection.execute(REFERRERS, table)),
    )


def _is_row_number(columns: list[tuple[Any, ...]], name: str, words: str) -> bool:
    declared = next(column[2] for column in columns if column[1] == name)
    return declared.upper() == "INTEGER" and "WITHOUT ROWID" not in words


def _without_texts(definition: str) -> str:
    """Return an SQL statement without its quoted names, texts and comments."""
    return re.sub(
        r"'(?:[^']|'')*'|\"(?:[^\"]|\"\")*\"|\[[^\]]*\]|`[^`]*`|--[^\n]*|/\*.*?\*/", "?", definition, flags=re.DOTALL
    )


def _has_table(connection: Connection, table: str) -> bool:
    return bool(connection.execute("SELECT 1 FROM sqlite_master WHERE name = $1 AND type <> 'index'", table))


def _missing(connection: Connection, place: str, table: str, rows: list[tuple[str, str]]) -> SinkError:
    similar = connection.execute(
        "SELECT name FROM sqlite_master WHERE lower(name) = lower($1) AND type = 'table'", table
    )
    columns = ", ".join(f"{quoted(name)} {AFFINITIES.get(kind, ('TEXT',))[0]}" for name, kind in rows)
    return missing_table(place, table, similar[0][0] if similar else None, columns)


def _python_values(name: str, column: pa.Array) -> list[Any]:
    """Return a column's values as SQLite stores them. Raises ValueError for NaN, which it would make null."""
    import pyarrow as pa

    kind = column.type
    if pa.types.is_timestamp(kind) or pa.types.is_date32(kind):
        from headrace.spark.formats.json_encoding import time_text

        column = time_text(column)
    found = column.to_pylist()
    if pa.types.is_decimal(kind):
        return [None if one is None else format(one, "f") for one in found]
    if pa.types.is_floating(kind) and any(one is not None and math.isnan(one) for one in found):
        raise ValueError(f'"{name}" is NaN, which SQLite does not store')
    return found
