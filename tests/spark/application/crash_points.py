"""kill -9 at points of the commit path, one by one, while flights flow; then the judgement.

Each flight is a key, so the count of each must be 1, and its row must have been written once, as readers of committed
records see it; a table of files beside it holds each flight once.
"""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
from pyarrow import parquet
from tests.harness.brokers import RunningBroker
from tests.harness.iceberg_tables import TABLE, catalog_in, create_table
from tests.harness.polling import wait_until
from tests.harness.postgres_server import PostgresServer
from tests.longer import LONG
from tests.spark.application.crashing import DATABASE_POINTS, DELTA_POINTS, DRIVER_POINTS, ICEBERG_POINTS
from tests.spark.application.judgement import wrongly_counted
from tests.spark.application.processes import PROGRAMS, Application, Feed, caught_up, headrace

from headrace.client.admin import Admin
from headrace.spark.sinks import delta_log
from headrace.spark.sinks.iceberg import open_table

__all__ = ["BEFORE", "CrashFile", "crash_at_each", "crash_while_fed", "crashing_application"]

Format = Literal["parquet", "delta", "iceberg", "sqlite", "postgres"]

GROUP = "each-flight"
_DATABASE_TABLES = (
    "CREATE TABLE flights (id bigint, origin text)",
    "CREATE TABLE counted (id bigint PRIMARY KEY, times bigint, carrier text)",
)
_PLACES = {"parquet": "FLIGHTS_TABLE", "delta": "FLIGHTS_DELTA", "iceberg": "FLIGHTS_ICEBERG"}
_PLACES |= {"sqlite": "FLIGHTS_SQLITE", "postgres": "FLIGHTS_POSTGRES"}
WORK_BETWEEN = 300  # flights committed after each crash
BEFORE = {  # what has to go wrong first
    "in the undo of a store": ("a store was prepared",),
    "driver, in undo": ("after the flush, before the job ends",),
    "worker, while opening": ("after EndTxn, before the next plan",),
    "driver, while opening": ("after the job, before TxnOffsetCommit",),
}


class CrashFile:
    """Where the test says who is to die next. Mutable: the file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def ask(self, *points: str) -> None:
        """The processes that come to these points die there, one after the other."""
        aside = self.path.with_suffix(".new")
        aside.write_text("\n".join(points))
        aside.rename(self.path)

    @property
    def is_done(self) -> bool:
        return not self.path.exists()


def crashing_application(
    servers: str, directory: Path, crash_file: CrashFile, *, program: str = "crashing_flights.py", **env: str
) -> Application:
    """One whose driver and Python workers die where `crash_file` says."""
    path = f"{PROGRAMS}:{Path.cwd()}:{Path.cwd() / 'src'}"
    return Application(program, servers, directory, CRASH_FILE=str(crash_file.path), PYTHONPATH=path, **env)


def crash_while_fed(
    points: Sequence[str],
    application: Application,
    crash: CrashFile,
    broker: RunningBroker,
    feed: Feed,
    *,
    group: str,
    topics: Mapping[str, int],
    work_between: int,
    per_second: int = 200,
) -> int:
    """Crash an application at each of `points` while a feed goes on, and stop both. Return the records sent.

    All of them are processed then.

    Args:
        points: Where the application dies, one after the other.
        application: Started and ended here.
        crash: Its crash file.
        broker: A running broker without the topics.
        feed: Started and stopped here.
        group: Of the application.
        topics: The topics of the feed, and their partitions.
        work_between: Records that are committed behind each crash.
        per_second: Records per second of the feed.
    """
    with Admin(broker.bootstrap_servers) as admin:
        admin.create_topics(topics, replication_factor=1)

        def committed() -> int:
            return sum(admin.committed_offsets(group).values())

        application.start()
        feed.run(per_second=per_second)
        try:
            for point in ("nowhere", *points):
                began = time.monotonic()
                if point != "nowhere":
                    crash_at(point, application, crash, broker)
                wanted = committed() + work_between
                if application.has_ended:
                    application.start()
                reached = partial(_is_above, committed, wanted)
                wait_until(reached, f"at work again after: {point}", application, broker)
                print(f"{point}: {time.monotonic() - began:.1f} s")
            sent = feed.stop()
            wait_until(lambda: caught_up(admin, group), "caught up", application, broker)
            assert application.stop() == 0
        finally:
            application.end()
    return sent


def _is_above(number: Callable[[], int], limit: int) -> bool:
    return number() > limit


def crash_at_each(
    points: Sequence[str],
    broker: RunningBroker,
    directory: Path,
    *,
    table_format: Format = "parquet",
    server: PostgresServer | None = None,
) -> None:
    """A crash at each of `points`, with work between; raises AssertionError when a flight is lost or told twice."""
    crash = CrashFile(directory / "crash")
    servers, table = broker.bootstrap_servers, directory / "table"
    place = {_PLACES[table_format]: str(table) if server is None else server.url()}
    for statement in _DATABASE_TABLES if table_format in ("sqlite", "postgres") else ():
        _run(statement, table, server)
    if table_format == "iceberg":
        table.mkdir()
        create_table(catalog_in(table), pa.schema([("id", pa.int64()), ("origin", pa.string())]))
    application = crashing_application(servers, directory / "a", crash, **place)
    with Feed(servers, 4) as feed:
        sent = crash_while_fed(
            points,
            application,
            crash,
            broker,
            feed,
            group=GROUP,
            topics={"flights": 4},
            work_between=WORK_BETWEEN,
            per_second=400,
        )
    assert wrongly_counted(servers, f"{GROUP}-counted", range(sent)) == []
    if table_format in ("sqlite", "postgres"):
        in_the_table = sorted(n for (n,) in _run("SELECT id FROM flights", table, server))
        counted = _run("SELECT id, times FROM counted ORDER BY id", table, server)
        assert counted == [(n, 1) for n in range(sent)]
    else:
        in_the_table = sorted(_ids(table, table_format))
    assert in_the_table == list(range(sent)), (
        f"{len(in_the_table)} rows of {len(set(in_the_table))} flights, {sent} sent"
    )
    if LONG:  # another start of Spark, to find what was found above; `tests/chaos` recomputes after kills in every run
        out = headrace("verify", str(PROGRAMS / "each_flight.py"), "--bootstrap-server", servers, "--json")
        assert out.returncode == 0, out.stdout.decode() + out.stderr.decode()
        assert json.loads(out.stdout)["status"] == "equal"


def _run(statement: str, table: Path, server: PostgresServer | None) -> list[tuple[Any, ...]]:
    """Run a statement in the SQLite file `table`, or in the server's database."""
    if server is None:
        with closing(sqlite3.connect(table)) as file, file:
            return file.execute(statement).fetchall()
    with server.connection() as connection:
        return connection.execute(statement)


def _ids(table: Path, table_format: Format) -> list[int]:
    if table_format == "iceberg":
        rows = open_table("default", TABLE, catalog_in(table)).scan().to_arrow()
        return list(rows["id"].to_pylist())
    is_delta = table_format == "delta"
    files = (
        delta_log.data_files(delta_log.open_table(str(table)))
        if is_delta
        else [str(file) for file in table.glob("*.parquet")]
    )
    return [n for file in files for n in parquet.read_table(file)["id"].to_pylist()]


def crash_at(point: str, application: Application, crash: CrashFile, broker: RunningBroker) -> None:
    crash.ask(*BEFORE.get(point, ()), point)
    while not crash.is_done:
        if application.has_ended:
            application.start()
        wait_until(lambda: crash.is_done or application.has_ended, f"dead {point}", application, broker)
    if point in (*DRIVER_POINTS, *DELTA_POINTS, *ICEBERG_POINTS, *DATABASE_POINTS):
        wait_until(lambda: application.has_ended, f"dead {point}", application, broker)
