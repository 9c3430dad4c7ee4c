"""Tables of databases, SQLite and a PostgreSQL server: rows are in them once, whatever dies and whoever commits."""

import itertools
import sqlite3
import threading
from collections import Counter
from dataclasses import replace

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from tests.harness.sink_stories import (
    INPUT,
    TASK,
    Died,
    Faults,
    FaultyConnection,
    KeyedChanges,
    apply_changes,
    changes_table,
    expected_numbers,
    owner_resolves,
    schema_json,
    write_part,
)
from tests.longer import LONG, longer

from headrace.errors import SinkError
from headrace.spark.sinks import database, postgres, sqlite
from headrace.spark.sinks.database import idle_connections
from headrace.spark.sinks.interface import DELETED_COLUMN, SinkPart

SCHEMA = schema_json([("n", "long"), ("origin", "string")])
NAMES = itertools.count()
WITH_DELETIONS = {"schema": schema_json([("k", "string"), ("n", "long")]), "key": ("k",), "deletes": True}
DATABASES = ["sqlite", pytest.param("postgres", marks=pytest.mark.slow)]


@pytest.fixture(autouse=True)
def connections(monkeypatch):
    monkeypatch.setattr(sqlite, "SYNCHRONOUS", "OFF")  # a process that dies loses nothing of the page cache
    yield
    idle_connections.close()


class Place:
    """A database in which tables are made and read."""

    def __init__(self, directory, server=None):
        self.server, self.path = server, str(directory / "flights.db")
        if server is None:
            sqlite3.connect(self.path).close()

    def run(self, statement, *values):
        connection = sqlite.SqliteConnection(self.path) if self.server is None else None
        if connection is None:
            with self.server.connection() as connection:
                return connection.execute(statement, *values)
        try:
            return connection.execute(statement, *values)
        finally:
            connection.close()

    def sink(self, columns="n bigint, origin text", **how):
        """A new table, and the sink that writes to it."""
        name = f"flights_{next(NAMES)}"
        self.run(f"CREATE TABLE {name} ({columns})")
        return self.open(name, **how)

    def open(self, name, *, schema=SCHEMA, key=(), deletes=False):
        if self.server is None:
            return sqlite.open_sink(self.path, name, schema, key, deletes=deletes)
        return postgres.open_sink(self.server.url(), f"public.{name}", schema, key, deletes=deletes)

    def numbers(self, sink):
        return Counter(n for (n,) in self.run(f"SELECT n FROM {sink.target}"))

    def rows(self, sink, columns="*", order="1"):
        return self.run(f"SELECT {columns} FROM {sink.target} ORDER BY {order}")

    def staged(self, sink):
        """Rows and parts that wait."""
        [(rows,)] = self.run(f"SELECT count(*) FROM {sink._beside(sink.layout.staging_table(sink.table))}")
        parts = self.run(f"SELECT count(*) FROM {sink._beside('headrace_parts')} WHERE target = $1", sink.table)
        return [rows, parts[0][0]]


@pytest.fixture(params=DATABASES)
def place(request, tmp_path):
    return Place(tmp_path, request.getfixturevalue("server") if request.param == "postgres" else None)


def rows_of(number):
    return pa.table({"n": [3 * number + at for at in range(3)], "origin": ["EWR", None, "a'b ü%\"x"]})


def written(sink, number, **how):
    return write_part(sink, number, rows_of(number), **how)


def started(sink):
    """The sink of a task that was opened."""
    assert sink.pending(TASK) == []
    return sink


def test_rows_are_seen_when_they_are_committed(place):
    sink = started(place.sink())
    parts = [written(sink, number) for number in range(2)]
    assert place.numbers(sink) == Counter()
    assert place.staged(sink) == [6, 2]
    found = sink.pending(TASK)
    assert [(part.batch, part.starts) for part in found] == [(part.batch, part.starts) for part in parts]
    for _ in range(2):
        sink.commit(parts)
    assert place.numbers(sink) == expected_numbers([0, 1])
    assert place.staged(sink) == [0, 0]
    assert sink.pending(TASK) == []
    assert sink.positions(TASK) == {INPUT: 20, "idle-3@id": 7}
    assert {origin for _, origin in place.rows(sink)} == {"EWR", None, "a'b ü%\"x"}


def test_rows_that_are_discarded_are_never_seen(place):
    sink = started(place.sink())
    first, second = written(sink, 0), written(sink, 1)
    sink.discard([first])
    sink.discard([first])
    sink.commit([second])
    assert place.numbers(sink) == expected_numbers([1])
    with pytest.raises(FileNotFoundError, match=r"neither in .* nor staged"):
        sink.commit([replace(first, ends={INPUT: 30})])


def test_rows_that_moved_no_input_are_written_once(place):
    """Rows of timers, or of a topic that is gone: no position shows whether the table has them."""
    sink = started(place.sink())
    parts = [written(sink, number, moves=number == 1) for number in range(3)]
    for part in parts:
        sink.commit([part])
    sink.commit(parts)
    assert place.numbers(sink) == expected_numbers([0, 1, 2])


def test_rows_that_were_staged_twice_are_added_once(place):
    """A zombie stages a range that the next owner has written under another name, and both are committed."""
    sink = started(place.sink())
    first, again = written(sink, 0), written(sink, 0, attempt=1)
    sink.commit([first])
    sink.commit([again])
    assert place.numbers(sink) == expected_numbers([0])
    assert place.staged(sink) == [0, 0]
    half = written(sink, 0, attempt=2)
    with pytest.raises(SinkError, match="holds a part of the rows") as raised:
        sink.commit([replace(half, ends={INPUT: 15})])
    assert raised.value.code == "sink-refused"
    assert place.numbers(sink) == expected_numbers([0])


def test_large_parts_are_staged_in_pieces(place, monkeypatch):
    """The pieces of an owner that died are removed; one that lives misses its part."""
    monkeypatch.setattr(database, "CHUNK_BYTES", 1)
    sink = started(place.sink())
    part = written(sink, 0)
    writer = sink.writer(replace(part, batch="x.1.0"), rows_of(1).schema)
    for _ in range(2):
        writer.write(rows_of(1))
    assert place.staged(sink) == [9, 2]
    assert [one.batch for one in sink.pending(TASK)] == ["x.0.0"]
    assert place.staged(sink) == [3, 1]
    with pytest.raises(FileNotFoundError, match="taken back by another owner"):
        writer.close()
    sink.commit([part])
    assert place.numbers(sink) == expected_numbers([0])


def test_many_tasks_append_beside_each_other(place):
    sink = place.sink()
    tasks = [replace(TASK, partition=number) for number in range(5)]
    for task in tasks:
        sink.pending(task)
    parts = [written(sink, number, task=task) for number, task in enumerate(tasks)]
    sink.commit(parts[::-1])
    assert place.numbers(sink) == expected_numbers(range(5))
    assert [sink.positions(task)[INPUT] for task in tasks] == [10, 20, 30, 40, 50]


def test_owners_that_commit_at_the_same_time(place):
    sink = started(place.sink())
    for number in range(5):
        part = written(sink, number)
        errors: list[Exception] = []

        def commit(part=part, errors=errors):
            try:
                sink.commit([part])
            except OSError as error:
                errors.append(error)

        threads = [threading.Thread(target=commit) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert errors == []
    assert place.numbers(sink) == expected_numbers(range(5))


def test_instances_that_create_the_tables_at_the_same_time(place):
    sinks = [place.sink() for _ in range(4)]
    errors: list[Exception] = []

    def begin(sink):
        try:
            sink.pending(TASK)
        except OSError as error:
            errors.append(error)

    threads = [threading.Thread(target=begin, args=(sink,)) for sink in sinks * 2]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert errors == []


def faulty(patch, sink, faults):
    """Connections of the sink's class fail by these faults."""
    connect = type(sink)._connect
    patch.setattr(type(sink), "_connect", lambda self: FaultyConnection(connect(self), faults))
    idle_connections.close()


def until_done(work):
    while True:
        try:
            return work()
        except (Died, OSError):
            idle_connections.close()


FAULTS = st.lists(st.tuples(st.integers(0, 30), st.sampled_from(Faults.KINDS)), max_size=12)
# The outcome of each micro-batch (it counts or fails), and whether an earlier owner of the task interferes behind it.
BATCHES = st.lists(st.tuples(st.booleans(), st.sampled_from(["", "commits", "writes"])), min_size=1, max_size=6)


@settings(max_examples=300 if LONG else 30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(faults=FAULTS, batches=BATCHES, replaces=st.booleans())
def test_random_histories_against_a_plain_log(tmp_path, faults, batches, replaces):
    check_database_history(Place(tmp_path), faults, batches, replaces)


@pytest.mark.slow
@settings(max_examples=100 if LONG else 3, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(faults=FAULTS, batches=BATCHES, replaces=st.booleans())
def test_random_histories_of_postgres_against_a_plain_log(server, tmp_path, faults, batches, replaces):
    check_database_history(Place(tmp_path, server), faults, batches, replaces)


def check_database_history(place, faults, batches, replaces):
    """Each committed batch is in the table once, and readers never see a part of one that is not committed."""
    sink = place.sink("n bigint NOT NULL PRIMARY KEY, origin text", key=("n",)) if replaces else place.sink()
    log: list[SinkPart] = []
    own: dict[int, SinkPart] = {}
    with pytest.MonkeyPatch.context() as patch:
        faulty(patch, sink, Faults(faults))
        until_done(lambda: owner_resolves(sink, log))
        for number, (counts, zombie) in enumerate(batches):
            attempts = itertools.count()
            part = until_done(lambda n=number, a=attempts: written(sink, n, attempt=next(a)))
            if counts:
                log.append(part)
                own[number] = part
            try:
                (sink.commit if counts else sink.discard)([part])
            except (Died, OSError):
                idle_connections.close()
                until_done(lambda: owner_resolves(sink, log))
            if zombie == "commits" and log:
                until_done(lambda: sink.commit([log[0]]))
            if zombie == "writes":
                until_done(lambda n=number, a=attempts: written(sink, n, attempt=100 + next(a)))
            assert _counts(place, sink) <= expected_numbers(own)
        until_done(lambda: owner_resolves(sink, log))
    assert _counts(place, sink) == expected_numbers(own)
    assert place.staged(sink)[0] == 0


KEYED = pa.schema([("k", pa.string()), ("d", pa.int64()), ("n", pa.int64())])
KEYED_JSON = schema_json([("k", "string"), ("d", "long"), ("n", "long")])
KEYS = [("EWR", 1), ("EWR", 2), ("JFK", 1), ("a'b ü", 0)]
CHANGES = st.lists(st.tuples(st.sampled_from(KEYS), st.one_of(st.none(), st.integers(0, 99))), min_size=1, max_size=6)
# The changes of keys in a micro-batch, and whether its commit counts.
KEYED_BATCHES = st.lists(st.tuples(CHANGES, st.booleans()), min_size=1, max_size=6)


@settings(max_examples=300 if LONG else 15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(faults=FAULTS, batches=KEYED_BATCHES)
@example(faults=[(28, "unknown")], batches=[([(("EWR", 1), None)], True)])
def test_random_histories_with_deletions(tmp_path, faults, batches):
    check_deletions(Place(tmp_path), faults, batches)


@pytest.mark.slow
@settings(max_examples=100 if LONG else 2, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(faults=FAULTS, batches=KEYED_BATCHES)
def test_random_histories_of_postgres_with_deletions(server, tmp_path, faults, batches):
    check_deletions(Place(tmp_path, server), faults, batches)


def check_deletions(place, faults, batches):
    """Readers see the rows of a dictionary behind each committed batch, whatever dies."""
    columns = "k text, d bigint NOT NULL, n bigint NOT NULL, note text DEFAULT 'x', PRIMARY KEY (k, d)"
    sink = place.sink(columns, schema=KEYED_JSON, key=("k", "d"), deletes=True)
    log: list[SinkPart] = []
    committed: list[KeyedChanges] = []
    with pytest.MonkeyPatch.context() as patch:
        faulty(patch, sink, Faults(faults))
        until_done(lambda: owner_resolves(sink, log))
        for number, (changes, counts) in enumerate(batches):
            attempts, rows = itertools.count(), changes_table(changes, KEYED)
            part = until_done(lambda n=number, a=attempts, r=rows: write_part(sink, n, r, attempt=next(a)))
            before = apply_changes(committed)
            if counts:
                log.append(part)
                committed.append(changes)
            try:
                (sink.commit if counts else sink.discard)([part])
            except (Died, OSError):
                idle_connections.close()
                assert keyed_rows(place, sink) in (before, apply_changes(committed))
                until_done(lambda: owner_resolves(sink, log))
            assert keyed_rows(place, sink) == apply_changes(committed)
            if log:  # again, by an earlier owner of the task
                until_done(lambda: sink.commit([log[0]]))
        # A part whose staging had an unknown outcome was written again; its first attempt waits for the next owner.
        until_done(lambda: owner_resolves(sink, log))
    assert keyed_rows(place, sink) == apply_changes(committed)
    assert place.staged(sink)[0] == 0


def keyed_rows(place, sink):
    return {(k, d): n for k, d, n in place.rows(sink, "k, d, n")}


def test_deletions_have_no_values_but_their_key(place):
    """A value of a row that is gone is not asked whether the table takes it."""
    sink = started(place.sink("k text PRIMARY KEY, n bigint NOT NULL", **WITH_DELETIONS))
    gone = pa.table({"k": ["a", "b"], "n": pa.array([None, 1]), DELETED_COLUMN: [True, False]})
    sink.commit([write_part(sink, 0, gone)])
    assert place.rows(sink) == [("b", 1)]
    with pytest.raises(ValueError, match='"n" is null'):
        write_part(sink, 1, gone.set_column(2, DELETED_COLUMN, pa.array([False, False])))
    with pytest.raises(ValueError, match='"k" is null'):
        write_part(sink, 1, gone.set_column(0, "k", pa.array([None, "b"])))


def test_rows_of_a_program_without_deletions_are_added_first(place):
    """Its part waits in a staging table of its own."""
    sink = started(place.sink("k text PRIMARY KEY, n bigint", **{**WITH_DELETIONS, "deletes": False}))
    part = write_part(sink, 0, pa.table({"k": ["a", "b"], "n": [1, 2]}))
    newer = place.open(sink.table.rpartition(".")[2], **WITH_DELETIONS)
    assert [one.batch for one in newer.pending(TASK)] == ["x.0.0"]
    gone = write_part(newer, 1, pa.table({"k": ["a"], "n": [1], DELETED_COLUMN: [True]}))
    newer.commit([part])
    newer.commit([gone])
    assert place.rows(sink) == [("b", 2)]


def test_a_table_to_which_others_refer_is_refused_where_rows_are_deleted(place):
    name = f"delays_{next(NAMES)}"
    place.run(f"CREATE TABLE {name} (k {'text' if place.server else 'TEXT'} PRIMARY KEY, n bigint)")
    place.run(f"CREATE TABLE more_{name} (k text REFERENCES {name} (k))")
    place.open(name, **{**WITH_DELETIONS, "deletes": False})
    with pytest.raises(SinkError, match=f"a foreign key of more_{name} may refuse it"):
        place.open(name, **WITH_DELETIONS)


def _counts(place, sink):
    idle_connections.close()
    return place.numbers(sink)


def run(sink, log):
    owner_resolves(sink, log)
    for number in range(4):
        part = written(sink, number, moves=number != 3)
        if number == 1:
            sink.discard([part])
            continue
        log.append(part)  # the offset commit
        sink.commit([part])


KINDS = ["dies behind", pytest.param("dies before", marks=longer), pytest.param("unknown", marks=longer)]


@pytest.mark.parametrize("kind", KINDS)
def test_a_crash_at_any_step_loses_and_repeats_nothing(place, monkeypatch, kind):
    whole = place.sink()
    with monkeypatch.context() as patch:
        counted = Faults([])
        faulty(patch, whole, counted)
        run(whole, [])
    assert counted.calls > 50
    # A connection of PostgreSQL takes longer than everything else here.
    for at in range(0, counted.calls, 1 if LONG or place.server is None else 12):
        sink = place.sink()
        log: list[SinkPart] = []
        with monkeypatch.context() as patch:
            faulty(patch, sink, Faults([(at, kind)]))
            try:
                run(sink, log)
            except (Died, OSError):
                idle_connections.close()
        expected = expected_numbers(int(part.batch[2]) for part in log)
        assert place.numbers(sink) <= expected, f"step {at}"
        for _ in range(2):
            owner_resolves(sink, log)
        assert place.numbers(sink) == expected, f"step {at}"
        assert place.staged(sink)[0] == 0, f"step {at}"


def test_rows_of_an_aggregate_replace_each_other(place):
    """The newest row of a key stays, also among the rows of one micro-batch; other columns of the table are kept."""
    schema = schema_json([("origin", "string"), ("flights", "long")])
    sink = place.sink(
        "origin text NOT NULL, flights bigint, note text DEFAULT 'x', UNIQUE (origin)", schema=schema, key=("origin",)
    )
    assert sink.takes_updates
    started(sink)
    for number, (origins, flights) in enumerate([(["EWR", "JFK", "EWR"], [1, 1, 2]), (["JFK", "LGA"], [5, 1])]):
        sink.commit([write_part(sink, number, pa.table({"origin": origins, "flights": flights}))])
        place.run(f"UPDATE {sink.target} SET note = 'kept' WHERE origin = 'JFK'")
    assert place.rows(sink) == [("EWR", 2, "x"), ("JFK", 5, "kept"), ("LGA", 1, "x")]
    with pytest.raises(ValueError, match='"origin" is null'):
        write_part(sink, 2, pa.table({"origin": pa.array([None], pa.string()), "flights": [1]}))


def test_columns_that_only_the_table_has_get_their_default(place):
    sink = started(place.sink("origin text, more text DEFAULT 'm', n bigint, other bigint"))
    sink.commit([written(sink, 0)])
    assert place.rows(sink, "n, more, other") == [(0, "m", None), (1, "m", None), (2, "m", None)]


def test_rows_of_an_earlier_program_keep_their_columns(place):
    """A part that waits has the columns of the program that wrote it."""
    sink = started(place.sink("n bigint, origin text, w bigint"))
    part = written(sink, 0)
    wide = place.open(sink.table.rpartition(".")[2], schema=schema_json([("n", "long"), ("w", "long")]))
    assert [one.batch for one in wide.pending(TASK)] == ["x.0.0"]
    newer = write_part(wide, 1, pa.table({"n": [3], "w": [7]}))
    wide.commit([part])
    wide.commit([newer])
    assert [row[0::2] for row in place.rows(sink)] == [(0, None), (1, None), (2, None), (3, 7)]


@pytest.mark.parametrize(
    ("columns", "key", "why"),
    [
        ("n bigint", (), 'the table has no column "origin"'),
        ("n bigint, Origin2 text", (), 'the table has no column "origin"'),
        ("n text, origin text", (), '"n" is text in the table and bigint in the rows'),
        ("n bigint, origin text, more bigint NOT NULL", (), '"more" is NOT NULL, and the rows lack it'),
        ("n bigint PRIMARY KEY, origin text", (), "unique, and two rows may have the same values"),
        ("n bigint CHECK (n < 5), origin text", (), "may refuse committed rows"),
        ("n bigint, origin text", ("n",), "no unique constraint has exactly these columns"),
        ("n bigint, origin text, UNIQUE (n, origin)", ("n",), "no unique constraint has exactly these columns"),
        ("n bigint UNIQUE, origin text UNIQUE", ("n",), "two rows may have the same values"),
        ("n bigint, origin text GENERATED ALWAYS AS ('x') STORED", (), 'the table computes "origin" by itself'),
    ],
)
def test_tables_that_cannot_take_the_rows_are_refused(place, columns, key, why):
    with pytest.raises(SinkError) as raised:
        place.sink(columns, key=key)
    assert raised.value.code == "sink-refused"
    assert why.lower() in raised.value.message.lower()
    assert raised.value.fix


def test_a_missing_table_is_refused_with_the_statement_that_creates_it(place):
    with pytest.raises(SinkError, match="has no table") as raised:
        place.open("nowhere")
    statement = raised.value.fix.removeprefix("Create it: ").removesuffix(".")
    place.run(f"DROP TABLE IF EXISTS {'public.' if place.server else ''}nowhere")
    place.run(statement)
    place.open("nowhere")
    with pytest.raises(SinkError) as raised:
        place.open("NoWhere")
    assert "nowhere, as the database does" in raised.value.fix


def test_a_table_that_others_change_is_refused_and_its_rows_wait(place):
    sink = started(place.sink())
    part = written(sink, 0)
    place.run(f"ALTER TABLE {sink.target} RENAME COLUMN n TO m")
    for call in (sink.check, lambda: sink.commit([part])):
        with pytest.raises(SinkError, match='no column "n"'):
            call()
    place.run(f"ALTER TABLE {sink.target} RENAME COLUMN m TO n")
    sink.commit([part])
    assert place.numbers(sink) == expected_numbers([0])


def test_a_table_that_is_gone_is_refused(place):
    sink = started(place.sink())
    part = written(sink, 0)
    place.run(f"DROP TABLE {sink.target}")
    for call in (sink.check, lambda: sink.commit([part]), lambda: sink.positions(TASK)):
        with pytest.raises(SinkError, match="the table is gone"):
            call()
