"""Rows that leave to tables of databases: appended, or replaced by the rows of an aggregate, each once."""

import contextlib
import itertools
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from pyspark.sql import functions as F
from tests.harness.postgres_server import PASSWORD, PostgresServer, find_binaries, skip_without_postgres
from tests.harness.values import raising
from tests.longer import longer

from headrace.errors import SinkError, TopologyError
from headrace.spark.sinks import SqliteSink
from headrace.spark.sinks.database import idle_connections

pytestmark = pytest.mark.spark
APPENDED = "CREATE TABLE appended (n bigint, origin text, dep_delay double precision)"
COUNTED = "CREATE TABLE counted (origin text PRIMARY KEY, flights bigint, total bigint)"


@pytest.fixture(autouse=True)
def no_idle_connections():
    yield
    idle_connections.close()


def run_sqlite(path, statement):
    with closing(sqlite3.connect(path)) as connection, connection:
        return connection.execute(statement).fetchall()


def count(rows, **named):
    return rows.groupBy("origin").agg(F.count("*").alias("flights"), F.sum("n").alias("total"), **named)


def count_even(rows, **named):
    """A group loses its row when it has another flight, and gets one with the next."""
    return count(rows, **named).where("flights % 2 = 0")


def check_rows(run, flights, numbers, *, of_even=False):
    assert [n for (n,) in run("SELECT n FROM appended ORDER BY n")] == list(numbers)
    found = {origin: (times, total) for origin, times, total in run("SELECT * FROM counted")}
    expected = {o: (row["flights"], row["total"]) for o, row in flights.counted(numbers).items()}
    assert found == {o: row for o, row in expected.items() if not (of_even and row[0] % 2)}
    assert run("SELECT count(*) FROM headrace_parts") == [(0,)]


def test_streams_and_aggregates_in_two_databases(broker, make_app, flights, tmp_path):
    path = tmp_path / "flights.db"
    app = make_app()
    rows = app.stream("flights", schema=flights.SCHEMA)
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(PostgresServer()) if find_binaries() is not None else None
        runs = [lambda statement: run_sqlite(path, statement)]
        if server is not None:
            runs.append(server.run)
        for run, statement in itertools.product(runs, (APPENDED, COUNTED)):
            run(statement)
        rows.to_sqlite(path, "appended")
        count_even(rows, name="in-sqlite").to_sqlite(path, "counted")
        if server is not None:
            rows.to_postgres("appended", url=server.url())
            count_even(rows, name="in-postgres").to_postgres("public.counted", url=server.url())
        flights.send(broker, range(60))
        with app.start() as started:
            started.wait_until("caught-up", timeout=180)
            flights.send(broker, range(60, 82))
            started.wait_until("caught-up", timeout=180)
        for run in runs:
            check_rows(run, flights, range(82), of_even=True)
        shown = app.describe()
        assert f"sqlite://{path}/appended (SqliteSink: origin, dep_delay, n)" in shown
        if server is not None:
            assert f"postgresql://127.0.0.1:{server.port}/postgres/public.appended (PostgresSink" in shown
            assert PASSWORD not in shown
        assert {found.level for found in app.check() if found.code == "table"} == {"ok"}
        verdict = app.verify()
        assert verdict.status == "equal", verdict
        assert {(sink.expected, sink.equal) for sink in verdict.sinks} == {(82, 82), (1, 1)}
        assert len(verdict.sinks) == 2 * len(runs)
        for run in runs:
            run("DELETE FROM appended WHERE n = 7")
        verdict = app.verify()
        assert (verdict.status, {sink.lost for sink in verdict.sinks}) == ("differs", {0, 1})


@longer
def test_a_sqlite_file_of_several_runs(broker, make_app, flights, tmp_path, monkeypatch):
    """The second driver dies when the offsets are committed and the rows are not: the third one adds them."""
    path = tmp_path / "flights.db"
    for statement in (APPENDED, COUNTED):
        run_sqlite(path, statement)

    def to_sqlite():
        app = make_app()
        rows = app.stream("flights", schema=flights.SCHEMA)
        rows.to_sqlite(path, "appended")
        count(rows).to_sqlite(path, "counted")
        return app

    flights.send(broker, range(60))
    with to_sqlite().start() as app:
        app.wait_until("caught-up", timeout=180)
    check_rows(lambda statement: run_sqlite(path, statement), flights, range(60))
    flights.send(broker, range(60, 100))
    with monkeypatch.context() as patch:
        patch.setattr(SqliteSink, "commit", raising(OSError(5, "Input/output error")))
        patch.setattr("headrace.spark.runtime.table_sinks.PAUSE", 0.001)
        app = to_sqlite().start()
        with pytest.raises(SinkError) as raised:
            app.awaitTermination(180)
        assert raised.value.code == "sink-failed"
    flights.send(broker, range(100, 120))
    with to_sqlite().start() as app:
        app.wait_until("caught-up", timeout=180)
    check_rows(lambda statement: run_sqlite(path, statement), flights, range(120))


@longer
def test_a_postgres_database_of_several_runs(broker, make_app, flights):
    """The server is restarted between the runs; no connection that was kept is of use then."""
    skip_without_postgres()
    with PostgresServer() as server:

        def to_postgres():
            app = make_app()
            rows = app.stream("flights", schema=flights.SCHEMA)
            rows.to_postgres("appended", url=server.url())
            count(rows).to_postgres("public.counted", url=server.url())
            return app

        for statement in (APPENDED, COUNTED):
            server.run(statement)
        for start in (0, 60):
            flights.send(broker, range(start, start + 60))
            with to_postgres().start() as app:
                app.wait_until("caught-up", timeout=180)
            check_rows(server.run, flights, range(start + 60))
            server.stop()
            server.start()


def test_unsupported_outputs_are_refused_at_their_line(make_app, flights, tmp_path):
    path = tmp_path / "flights.db"
    for statement in (APPENDED, COUNTED):
        run_sqlite(path, statement)
    app = make_app()
    rows = app.stream("flights", schema=flights.SCHEMA)
    counts = count(rows)
    for declare, code, why in (
        (lambda: rows.to_sqlite(path, "nowhere"), "sink-refused", "no table nowhere"),
        (lambda: rows.to_sqlite(tmp_path / "none.db", "appended"), "database-unreachable", "unable to open"),
        (lambda: rows.to_sqlite("sqlite:///flights.db", "appended"), "bad-value", "no path"),
        (lambda: rows.to_sqlite(path, "counted"), "sink-refused", 'no column "dep_delay"'),
        (lambda: counts.to_sqlite(path, "appended"), "sink-refused", 'no column "flights"'),
        (lambda: counts.drop("origin").to_sqlite(path, "counted"), "not-supported-here", '"origin", which they lack'),
        (lambda: rows.withColumn("n", F.array("n")).to_sqlite(path, "appended"), "sink-refused", "array<bigint>"),
        (lambda: rows.to_postgres("t", url="postgresql://u:secret@127.0.0.1:1/d"), "database-unreachable", "refused"),
        (lambda: rows.to_postgres("t", url="postgresql://u:sec ret@h/d"), "bad-value", "has a space"),
        (lambda: rows.to_postgres("t", url="postgresql://u:sec@ret@h/d"), "bad-value", "not percent-encoded"),
        (lambda: rows.to_postgres("t", url=b"postgresql://u:secret@h/d"), "bad-value", "no URL"),
        (lambda: rows.to_postgres("a.b.c", url="postgresql://u:secret@h/d"), "bad-value", "no name"),
    ):
        with pytest.raises(TopologyError) as raised:
            declare()
        assert (raised.value.code, why in raised.value.message) == (code, True), raised.value
        assert raised.value.fix
        assert Path(__file__).name in raised.value.facts["where"]
        assert "sec" not in str(raised.value).replace("seconds", "")
    counts.to_sqlite(path, "counted")
    with pytest.raises(TopologyError) as raised:
        counts.to_sqlite(path, "counted", name="another name")
    assert raised.value.code == "sink-name-taken"
