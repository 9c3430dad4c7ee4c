"""`verify` of tables whose rows replace each other: equal, and different when another writer has changed one row."""

import itertools
import sqlite3
from contextlib import closing
from datetime import UTC, date, datetime
from decimal import Decimal

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyspark.sql import Window
from pyspark.sql import functions as F
from pyspark.sql.types import StructType
from tests.harness.brokers import broker_fixture
from tests.harness.iceberg_tables import TABLE, catalog_in, create_table
from tests.harness.postgres_server import PostgresServer, skip_without_postgres
from tests.harness.sink_stories import TASK, write_part

from headrace.client.admin import Admin
from headrace.spark.formats.arrow_types import arrow_schema
from headrace.spark.sinks import postgres, sqlite
from headrace.spark.sinks.database import idle_connections
from headrace.spark.sinks.iceberg import open_table
from headrace.spark.streams_app import StreamsApp
from headrace.spark.topology.nodes import TableSink
from headrace.spark.verification.verify_replaced_rows import current_records

pytestmark = pytest.mark.spark
ORIGINS = ("EWR", "JFK", "LGA", None)
FLIGHTS = [{"origin": ORIGINS[n * 7 % 13 % 4], "n": n, "delay": n / 7} for n in range(100)]

broker = broker_fixture(
    {"flights": 2}, scope="module", setup=lambda running: running.produce("flights", FLIGHTS, key="n")
)


@pytest.fixture(autouse=True)
def no_idle_connections():
    yield
    idle_connections.close()


@pytest.fixture
def committed_app(spark, broker):
    """An application that has committed all flights."""
    app = StreamsApp("flights-app", spark=spark, bootstrap_servers=broker.bootstrap_servers)
    with Admin(broker.bootstrap_servers) as admin:
        ends = admin.list_offsets({("flights", partition): "latest" for partition in range(2)})
        admin.alter_offsets(app.name, {place: end.offset for place, end in ends.items()})
    return app


def run_sqlite(path, statement, rows=()):
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.executemany(statement, rows) if rows else connection.execute(statement)


def test_tables_of_each_kind(committed_app, spark, tmp_path):
    """Figures in Delta, filtered groups in SQLite, first rows in Iceberg: written by Spark, then changed by hand."""
    from deltalake import write_deltalake

    delta, file, properties = str(tmp_path / "delta"), tmp_path / "flights.db", catalog_in(tmp_path)
    create_table(properties, pa.schema([("origin", pa.string()), ("n", pa.int64()), ("rn", pa.int32())]))
    run_sqlite(file, "CREATE TABLE busy (origin text PRIMARY KEY, flights bigint)")

    def figures(flights):
        return flights.groupBy("origin").agg(F.count("*").alias("flights"), F.sum("delay").alias("delay"))

    def busy(flights, **named):
        counted = flights.where("origin is not null").groupBy("origin").agg(F.count("*").alias("flights"), **named)
        return counted.where("flights > 25")

    def first(flights):
        rank = F.row_number().over(Window.partitionBy("origin").orderBy(F.desc("n")))
        return flights.select("origin", "n").withColumn("rn", rank).where("rn <= 2")

    app, schema = committed_app, "origin string, n bigint, delay double"
    rows = app.stream("flights", schema=schema)
    figures(rows).to_delta(delta)
    busy(rows, name="busy").to_sqlite(file, "busy")
    first(rows).to_iceberg(TABLE, catalog_properties=properties)
    flights = spark.createDataFrame([tuple(row.values()) for row in FLIGHTS], schema)
    written = figures(flights).toArrow()
    write_deltalake(delta, written.cast(pa.schema([field.with_nullable(True) for field in written.schema])))
    kept = [tuple(row) for row in busy(flights).collect()]
    assert kept, "a group passes the filter"
    run_sqlite(file, "INSERT INTO busy VALUES (?, ?)", kept)
    top = open_table("default", TABLE, properties)
    top.append(first(flights).toArrow().cast(top.schema().as_arrow()))
    verdict = app.verify()
    assert verdict.status == "equal", verdict
    assert [(one.kind, one.equal) for one in verdict.sinks] == [("table", 4), ("table", len(kept)), ("table", 8)]
    # One row in each: another sum, a group that should be gone, a second row of a position.
    DeltaTable(delta).update({"delay": "delay + 0.001"}, predicate="origin = 'JFK'")
    run_sqlite(file, "INSERT INTO busy VALUES ('X', 2)")
    top.append(top.scan(limit=1).to_arrow())
    verdict = app.verify()
    assert verdict.status == "differs"
    assert [(one.differ, one.missing, one.extra) for one in verdict.sinks] == [(1, 0, 0), (0, 0, 1), (0, 0, 1)]
    assert "JFK" in verdict.sinks[0].examples[0]


ROWS = {
    "k": ("string", ["a", "b", "c"]),
    "flag": ("boolean", [True, False, None]),
    "small": ("smallint", [-7, 32767, None]),
    "big": ("bigint", [1 << 62, -1, None]),
    "single": ("float", [0.1, -1e30, None]),
    "number": ("double", [0.1, 1 / 3, None]),
    "price": ("decimal(10,2)", [Decimal("12.50"), Decimal("-0.01"), None]),
    "bytes": ("binary", [b"\x00\xff", b"", None]),
    "day": ("date", [date(1969, 12, 31), date(9999, 12, 31), None]),
    "at": ("timestamp", [datetime(2024, 10, 27, 0, 30, 0, 1, UTC), datetime(1900, 1, 1, tzinfo=UTC), None]),
    "local": ("timestamp_ntz", [datetime(2024, 10, 27, 2, 30, 0, 1), datetime(1, 1, 1), None]),  # noqa: DTZ001 no zone
}
KINDS = {"smallint": "bigint", "float": "real", "double": "double precision", "string": "text"}
IN_SQLITE = {**KINDS, "binary": "blob", "decimal(10,2)": "text", "timestamp": "text", "timestamp_ntz": "text"}
IN_POSTGRES = {**KINDS, "binary": "bytea", "decimal(10,2)": "numeric", "timestamp": "timestamptz"}
IN_POSTGRES |= {"timestamp_ntz": "timestamp"}


def check_types(spark, sink, schema):
    """Rows that an application has written are read back as the values that they were."""
    rows = pa.table({name: values for name, (_, values) in ROWS.items()}, schema=arrow_schema(schema))
    assert sink.pending(TASK) == []
    sink.commit([write_part(sink, 0, rows)])
    node = TableSink(sink=sink, name=sink.name, columns=tuple(ROWS), schema_json=schema.json())
    written = spark.createDataFrame(rows, schema)
    found, wanted = (
        frame.select("key", F.from_json(F.col("value").cast("string"), schema).alias("value"))
        for frame in (current_records(spark, node, ["k"]), records_of(written))
    )
    assert sorted(found.collect()) == sorted(wanted.collect())


def records_of(frame):
    from headrace.spark.verification.verify_streams import JSON_OPTIONS

    return frame.select(F.col("k").cast("binary").alias("key"), F.to_json(F.struct("*"), JSON_OPTIONS).alias("value"))


def columns_in(kinds):
    key, *others = ((name, kinds.get(kind, kind)) for name, (kind, _) in ROWS.items())
    return ", ".join([f"{key[0]} {key[1]} PRIMARY KEY", *itertools.starmap("{} {}".format, others)])


def test_values_of_each_type_in_sqlite(spark, tmp_path):
    schema = StructType.fromDDL(", ".join(f"{name} {kind}" for name, (kind, _) in ROWS.items()))
    run_sqlite(tmp_path / "all.db", f"CREATE TABLE rows ({columns_in(IN_SQLITE)})")
    check_types(spark, sqlite.open_sink(str(tmp_path / "all.db"), "rows", schema.json(), ("k",)), schema)


@pytest.mark.slow
def test_values_of_each_type_in_postgres(spark):
    skip_without_postgres()
    schema = StructType.fromDDL(", ".join(f"{name} {kind}" for name, (kind, _) in ROWS.items()))
    with PostgresServer() as server:
        server.run(f'CREATE TABLE "rows" ({columns_in(IN_POSTGRES)})')
        check_types(spark, postgres.open_sink(server.url(), "public.rows", schema.json(), ("k",)), schema)
