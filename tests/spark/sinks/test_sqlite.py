"""Tables of an SQLite file: values as they are stored, tables that are refused, and a file that is full or locked."""

import datetime as dt
import errno
import sqlite3
from contextlib import closing
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from tests.harness.sink_stories import TASK, schema_json, write_alone, write_part

from headrace.errors import SinkError
from headrace.spark.sinks import sqlite
from headrace.spark.sinks.database import LockTimeoutError
from headrace.spark.sinks.sqlite import affinity_of, fit_type, open_sink

UTC = dt.UTC


pytestmark = pytest.mark.usefixtures("no_idle_connections")


@pytest.fixture
def path(tmp_path):
    return str(tmp_path / "a file ü?#%.db")


def run(path, *statements):
    with closing(sqlite3.connect(path)) as connection, connection:
        return [connection.execute(statement).fetchall() for statement in statements][-1]


VALUES: dict[str, tuple[str, pa.DataType, list[Any], list[Any]]] = {
    "boolean": ("BOOLEAN", pa.bool_(), [True, False], [1, 0]),
    "byte": ("INTEGER", pa.int8(), [-128, 127], [-128, 127]),
    "long": ("BIGINT", pa.int64(), [-(2**63), 2**63 - 1], [-(2**63), 2**63 - 1]),
    "float": ("REAL", pa.float32(), [0.5, float("inf")], [0.5, float("inf")]),
    "double": ("DOUBLE", pa.float64(), [1.0, -0.1], [1.0, -0.1]),
    "decimal(38,7)": (
        "TEXT",
        pa.decimal128(38, 7),
        [Decimal("0.0000001"), Decimal("9" * 31)],
        ["0.0000001", "9" * 31 + ".0000000"],
    ),
    "string": ("VARCHAR(3)", pa.string(), ["007", "a\0b ü"], ["007", "a\0b ü"]),
    "binary": ("BLOB", pa.binary(), [b"", b"\0\xff"], [b"", b"\0\xff"]),
    "date": ("DATE", pa.date32(), [dt.date(1, 1, 1), dt.date(2024, 10, 27)], ["0001-01-01", "2024-10-27"]),
    "timestamp": (
        "TIMESTAMP",
        pa.timestamp("us", "UTC"),
        [dt.datetime(1969, 12, 31, 23, 59, 59, 1, tzinfo=UTC), dt.datetime(9999, 1, 1, tzinfo=UTC)],
        ["1969-12-31T23:59:59.000001Z", "9999-01-01T00:00:00.000000Z"],
    ),
    "timestamp_ntz": (
        "TEXT",
        pa.timestamp("us"),
        [dt.datetime(2024, 10, 27, tzinfo=UTC).replace(tzinfo=None), None],
        ["2024-10-27T00:00:00.000000", None],
    ),
}


def test_values_of_every_type_as_they_are_stored(path):
    names = {kind: f"c{number}" for number, kind in enumerate(VALUES)}
    run(path, f"CREATE TABLE t ({', '.join(f'{names[kind]} {VALUES[kind][0]}' for kind in VALUES)})")
    sink = open_sink(path, "t", schema_json((name, kind) for kind, name in names.items()))
    rows = {names[kind]: pa.array([*values, None], arrow) for kind, (_, arrow, values, _) in VALUES.items()}
    write_alone(sink, 0, pa.table(rows))
    for kind, name in names.items():
        assert [value for (value,) in run(path, f"SELECT {name} FROM t")] == [*VALUES[kind][3], None], kind
    assert sink.name == f"sqlite://{path}/t"


def test_values_that_sqlite_would_change_are_bad_records(path):
    run(path, "CREATE TABLE t (f REAL)")
    sink = open_sink(path, "t", schema_json([("f", "double")]))
    assert sink.pending(TASK) == []
    with pytest.raises(ValueError, match="NaN, which SQLite does not store"):
        write_part(sink, 0, pa.table({"f": [1.0, float("nan")]}))


@pytest.mark.parametrize(
    ("kind", "declared", "fits"),
    [
        ("bigint", "INT", True),
        ("bigint", "REAL", False),
        ("bigint", "", False),
        ("double", "NUMERIC", False),
        ("string", "DECIMAL(10,2)", False),
        ("decimal(10,2)", "DECIMAL(10,2)", False),
        ("decimal(10,2)", "TEXT", True),
        ("timestamp", "INTEGER", False),
        ("binary", "TEXT", False),
        ("array<int>", "TEXT", False),
    ],
)
def test_types_whose_values_would_change_do_not_fit(kind, declared, fits):
    assert (fit_type(kind, declared) is not None) == fits


def test_affinities_are_those_of_sqlite(path):
    """Asked of SQLite itself: a number and a text tell all affinities apart."""
    for declared in ("INT", "CHARINT", "VARCHAR(3)", "CLOB", "BLOB", "", "REAL", "FLOATING POINT", "DOUBLE", "DATE"):
        found = run(path, "DROP TABLE IF EXISTS t", f"CREATE TABLE t (c {declared})", "INSERT INTO t VALUES ('5'), (5)")
        found = [kind for (kind,) in run(path, "SELECT typeof(c) FROM t ORDER BY rowid")]
        wanted = {"TEXT": ["text"] * 2, "BLOB": ["text", "integer"], "REAL": ["real"] * 2}
        assert found == wanted.get(affinity_of(declared), ["integer"] * 2), declared


@pytest.mark.parametrize(
    ("statements", "why"),
    [
        (["CREATE TABLE b (n INTEGER)", "CREATE VIEW t AS SELECT * FROM b"], "it is no table"),
        (["CREATE TABLE b (n INTEGER PRIMARY KEY)", "CREATE TABLE t (n INTEGER REFERENCES b)"], "foreign key"),
        (["CREATE TABLE t (n INTEGER, x, CHECK (n > x))"], "CHECK"),
        (["CREATE TABLE t (n INTEGER UNIQUE ON CONFLICT IGNORE)"], "unique"),
        (["CREATE TABLE t (n INTEGER)", "CREATE UNIQUE INDEX i ON t (n + 1)"], "expressions unique"),
        (["CREATE VIRTUAL TABLE t USING fts5(n)"], "virtual"),
    ],
)
def test_tables_that_may_refuse_committed_rows_are_refused(path, statements, why):
    run(path, *statements)
    with pytest.raises(SinkError) as raised:
        open_sink(path, "t", schema_json([("n", "long")]))
    assert why in raised.value.message
    assert raised.value.fix


def test_words_in_quotes_are_no_constraints(path):
    run(path, "CREATE TABLE t (n INTEGER, note TEXT DEFAULT 'CHECK (no)' /* CHECK (n) */, \"a CHECK (b)\" TEXT)")
    open_sink(path, "t", schema_json([("n", "long")]))


def test_keys_and_their_collations(path):
    run(
        path,
        "CREATE TABLE t (a TEXT COLLATE NOCASE UNIQUE, n INTEGER)",
        "CREATE TABLE u (n INTEGER PRIMARY KEY, a TEXT)",
    )
    fields = [("a", "string"), ("n", "long")]
    with pytest.raises(SinkError, match="different texts equal"):
        open_sink(path, "t", schema_json(fields), ("a",))
    sink = open_sink(path, "u", schema_json(fields), ("n",))
    for number, text in enumerate("ab"):
        write_alone(sink, number, pa.table({"a": [text], "n": [7]}))
    assert run(path, "SELECT * FROM u") == [(7, "b")]
    with pytest.raises(ValueError, match='"n" is null'):
        write_part(sink, 2, pa.table({"a": ["c"], "n": pa.array([None], pa.int64())}))
    numbered = open_sink(path, "u", schema_json([("a", "string")]))
    write_alone(numbered, 2, pa.table({"a": ["x", "y"]}))
    assert run(path, "SELECT n, a FROM u") == [(7, "b"), (8, "x"), (9, "y")]


def test_a_file_that_is_full(path, monkeypatch):
    """The part fails as a whole, with the error of a full disk; with room again the next attempt is written."""
    run(path, "CREATE TABLE t (b BLOB)")
    sink = open_sink(path, "t", schema_json([("b", "binary")]))
    assert sink.pending(TASK) == []
    rows = pa.table({"b": pa.array([b"x" * 100_000], pa.binary())})
    with sink.connection() as connection:
        connection.execute("PRAGMA max_page_count = 20")
    with pytest.raises(OSError, match="full") as raised:
        write_part(sink, 0, rows)
    assert raised.value.errno == errno.ENOSPC
    part = write_part(sink, 0, rows)
    with sink.connection() as connection:
        connection.execute("PRAGMA max_page_count = 40")
    with pytest.raises(OSError, match="full") as raised:
        sink.commit([part])
    assert raised.value.errno == errno.ENOSPC
    sink.commit([part])
    assert run(path, "SELECT length(b) FROM t") == [(100_000,)]


def test_a_file_that_another_program_has_locked(path, monkeypatch):
    monkeypatch.setattr(sqlite, "BUSY_TIMEOUT_S", 0.1)
    run(path, "CREATE TABLE t (n INTEGER)")
    sink = open_sink(path, "t", schema_json([("n", "long")]))
    assert sink.pending(TASK) == []
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(LockTimeoutError, match="database is locked"):
            write_part(sink, 0, pa.table({"n": [1]}))
    write_alone(sink, 0, pa.table({"n": [1]}))
    assert run(path, "SELECT n FROM t") == [(1,)]


def test_a_file_that_is_missing_or_no_database(path, tmp_path):
    with pytest.raises(OSError, match="unable to open"):
        open_sink(path, "t", schema_json([("n", "long")]))
    (tmp_path / "text").write_text("no database at all, but a file of some length" * 50)
    with pytest.raises(OSError, match="not a database"):
        open_sink(str(tmp_path / "text"), "t", schema_json([("n", "long")]))
