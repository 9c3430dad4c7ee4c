"""Rows that leave to tables of databases: appended, or replaced by the rows of an aggregate, each once."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from pyspark.sql import functions as F
from tests.harness.postgres_server import PASSWORD, PostgresServer, skip_without_postgres
from tests.harness.values import raising

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


def count(rows):
    return rows.groupBy("origin").agg(F.count("*").alias("flights"), F.sum("n").alias("total"))


def check_rows(run, flights, numbers):
    assert [n for (n,) in run("SELECT n FROM appended ORDER BY n")] == list(numbers)
    found = {origin: (times, total) for origin, times, total in run("SELECT * FROM counted")}
    assert found == {o: (row["flights"], row["total"]) for o, row in flights.counted(numbers).items()}
    assert run("SELECT count(*) FROM headrace_parts") == [(0,)]


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
    assert f"sqlite://{path}/appended (SqliteSink: origin, dep_delay, n)" in to_sqlite().describe()
    assert {found.level for found in to_sqlite().check() if found.code == "table"} == {"ok"}


def test_a_postgres_database_of_several_runs(broker, make_app, flights):
    """The server is restarted between the runs; no connection that was kept is of use then."""
    skip_without_postgres()
    with PostgresServer() as server:

        def run(statement):
            with server.connection() as connection:
                return connection.execute(statement)

        def to_postgres():
            app = make_app()
            rows = app.stream("flights", schema=flights.SCHEMA)
            rows.to_postgres("appended", url=server.url())
            count(rows).to_postgres("public.counted", url=server.url())
            return app

        for statement in (APPENDED, COUNTED):
            run(statement)
        for start in (0, 60):
            flights.send(broker, range(start, start + 60))
            with to_postgres().start() as app:
                app.wait_until("caught-up", timeout=180)
            check_rows(run, flights, range(start + 60))
            server.stop()
            server.start()
        shown = to_postgres().describe()
        assert f"postgresql://127.0.0.1:{server.port}/postgres/public.appended (PostgresSink" in shown
        assert PASSWORD not in shown


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
        (lambda: counts.where("total > 3").to_sqlite(path, "counted"), "not-supported-here", "is deleted"),
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
