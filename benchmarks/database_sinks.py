"""Rows per second into a table of a database, exactly once, beside the database's own way of loading.

    python benchmarks/database_sinks.py [--rows 200000] [--parts 5] [--json]

One process writes `--parts` parts of `--rows` rows (a bigint, a double and a text of about 20 bytes): staged, and then
committed together with the positions, as a worker and a driver do. The peer loads the same rows into a table without
an index: `COPY` in binary form for PostgreSQL, `executemany` for SQLite, one transaction for each part. A replaced row
is one of an aggregate: all parts have the same keys.

Both alternate. The servers are started for this run, with `fsync` on.
"""

from __future__ import annotations

import argparse
import json
import sqlite3
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa

sys.path.insert(0, str(Path(__file__).parent.parent))
from tests.harness.postgres_server import PostgresServer
from tests.harness.sink_stories import TASK, schema_json, write_part

from headrace.spark.sinks import postgres, sqlite
from headrace.spark.sinks.database import DatabaseSink

SCHEMA = schema_json([("n", "long"), ("delay", "double"), ("origin", "string")])


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--rows", type=int, default=200_000)
    options.add_argument("--parts", type=int, default=5)
    options.add_argument("--json", action="store_true")
    given = options.parse_args()
    with tempfile.TemporaryDirectory() as directory, PostgresServer({"fsync": "on"}) as server:
        rates = {
            **measure_postgres(server, given.rows, given.parts),
            **measure_sqlite(Path(directory) / "rows.db", given.rows, given.parts),
        }
    if given.json:
        print(json.dumps(rates))
        return
    for what, rate in rates.items():
        print(f"{what:40}{rate:>12,.0f} rows/s")


def rows_of(count: int) -> pa.Table:
    numbers = range(count)
    return pa.table(
        {"n": numbers, "delay": [n / 7 for n in numbers], "origin": [f"airport number {n % 1000}" for n in numbers]}
    )


def measure_postgres(server: PostgresServer, rows: int, parts: int) -> dict[str, float]:
    table = rows_of(rows)
    with server.connection() as connection:
        for name, key in (("appended", ""), ("replaced", " PRIMARY KEY"), ("copied", "")):
            connection.execute(f"CREATE TABLE {name} (n bigint{key}, delay double precision, origin text)")

        def copy(_: int) -> None:
            connection.begin()
            connection.append("copied", table)
            connection.execute("COMMIT")

        connection._schema = "public"
        appended = postgres.open_sink(server.url(), "appended", SCHEMA)
        replaced = postgres.open_sink(server.url(), "replaced", SCHEMA, ("n",))
        ways = {"append": writing(appended, table), "replace": writing(replaced, table), "COPY": copy}
        return {f"PostgreSQL, {name}": rate for name, rate in alternate(ways, rows, parts).items()}


def measure_sqlite(path: Path, rows: int, parts: int) -> dict[str, float]:
    table = rows_of(rows)
    plain = sqlite3.connect(path)
    try:
        for name, key in (("appended", ""), ("replaced", " PRIMARY KEY"), ("loaded", "")):
            plain.execute(f"CREATE TABLE {name} (n bigint{key}, delay double, origin text)")
        plain.execute("PRAGMA synchronous = EXTRA")

        def load(_: int) -> None:
            columns = (column.to_pylist() for column in table.columns)
            with plain:
                plain.executemany("INSERT INTO loaded VALUES (?, ?, ?)", zip(*columns, strict=True))

        appended = sqlite.open_sink(str(path), "appended", SCHEMA)
        replaced = sqlite.open_sink(str(path), "replaced", SCHEMA, ("n",))
        ways = {"append": writing(appended, table), "replace": writing(replaced, table), "executemany": load}
        return {f"SQLite, {name}": rate for name, rate in alternate(ways, rows, parts).items()}
    finally:
        plain.close()


def writing(sink: DatabaseSink, table: pa.Table) -> Callable[[int], None]:
    sink.pending(TASK)
    return lambda number: sink.commit([write_part(sink, number, table)])


def alternate(ways: dict[str, Callable[[int], None]], rows: int, parts: int) -> dict[str, float]:
    """Return the median rate of each way, whose parts alternate with those of the others."""
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(parts):
        for name, write in ways.items():
            began = time.perf_counter()
            write(number)
            seconds[name].append(time.perf_counter() - began)
    return {name: rows / statistics.median(found) for name, found in seconds.items()}


if __name__ == "__main__":
    main()
