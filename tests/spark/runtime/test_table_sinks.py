"""Rows that leave to Parquet files: each of them once, whatever dies, and seen only when it counts."""

import json
import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet
from pyspark.sql import Window
from pyspark.sql import functions as F
from tests.harness.iceberg_tables import TABLE, catalog_in, create_table
from tests.harness.polling import wait_until
from tests.harness.s3_server import BUCKET, SECRET, S3Server
from tests.harness.values import raising
from tests.longer import longer

from headrace.client.admin import Admin
from headrace.client.transactions import Transactions
from headrace.errors import CannotConnect, HeadraceError, SinkError, TopologyError
from headrace.spark.runtime.batches.plan import MicroBatchPlan, SlotPlan, TaskPlan, TaskReport
from headrace.spark.runtime.stores.store import BatchKey
from headrace.spark.runtime.table_sinks import TableSinks
from headrace.spark.sinks import ParquetSink, SinkPart
from headrace.spark.sinks.database import LockTimeoutError
from headrace.spark.sinks.iceberg import local_directory, open_table
from headrace.spark.topology.nodes import Branch, CompiledSubtopology, TableSink

pytestmark = pytest.mark.spark
GUARANTEES = ("at_least_once", "exactly_once_v2")


def visible_files(table):
    """Data files of a table as Spark lists them.

    Directories with a leading `_` or `.` are not entered: a running application removes parts below `_headrace` at any
    time, and a listing that walks into them fails with FileNotFoundError.
    """
    for directory, below, files in os.walk(table):
        below[:] = [name for name in below if not name.startswith(("_", "."))]
        yield from (Path(directory, name) for name in files if name.endswith(".parquet"))


def rows_in(table):
    """What a reader who knows nothing of us sees."""
    files = sorted(visible_files(table))
    return [row for path in files for row in parquet.read_table(path, partitioning=None).to_pylist()]


def numbers_in(table):
    return sorted(row["n"] for row in rows_in(table))


def left_in(table):
    """Parts that lie there, complete or not."""
    return [path for path in table.glob("_headrace/*/*/*") if path.is_dir()]


def to_table(app, table, **settings):
    app.stream("flights", schema="origin string, n bigint").where("n % 10 != 3").to_parquet(table, **settings)
    return app


def wanted(numbers):
    return [n for n in numbers if n % 10 != 3]


@pytest.mark.parametrize("guarantee", ["exactly_once_v2", pytest.param("at_least_once", marks=longer)])
def test_rows_of_several_runs(broker, make_app, flights, tmp_path, spark, guarantee):
    table = tmp_path / "table"
    for start in range(0, 300, 100):
        flights.send(broker, range(start, start + 100))
        with to_table(make_app(processing_guarantee=guarantee), table).start() as app:
            app.wait_until("caught-up", timeout=180)
        assert numbers_in(table) == wanted(range(start + 100))
    assert left_in(table) == []
    assert sorted(row.n for row in spark.read.parquet(str(table)).collect()) == wanted(range(300))
    assert {path.name.split(".")[0] for path in table.glob("*.parquet")} == {"flight-counts"}
    [verdict] = to_table(make_app(), table).verify().sinks
    assert (verdict.topic, verdict.equal, verdict.wrong) == (str(table), len(wanted(range(300))), False)
    next(iter(table.glob("*.parquet"))).unlink()
    [verdict] = to_table(make_app(), table).verify().sinks
    assert verdict.lost > 0


@pytest.mark.parametrize("guarantee", GUARANTEES)
def test_a_driver_killed_before_the_table_commit_repeats_the_batch(
    broker, make_app, flights, tmp_path, monkeypatch, guarantee
):
    """The offsets are committed, and name the batch: the next to open the task brings its rows in."""
    table = tmp_path / "table"
    flights.send(broker, range(100))
    with monkeypatch.context() as patch:
        patch.setattr(ParquetSink, "commit", raising(OSError(5, "Input/output error")))
        patch.setattr("headrace.spark.runtime.table_sinks.PAUSE", 0.001)
        app = to_table(make_app(processing_guarantee=guarantee), table).start()
        with pytest.raises(SinkError) as raised:
            app.awaitTermination(180)
    assert raised.value.code == "sink-failed"
    assert sum(broker.group("flight-counts").offsets.values()) > 0
    assert numbers_in(table) == []
    assert left_in(table)
    flights.send(broker, range(100, 200))
    with to_table(make_app(instance="b", processing_guarantee=guarantee), table).start() as app:
        app.wait_until("caught-up", timeout=180)
    assert numbers_in(table) == wanted(range(200))
    assert left_in(table) == []


def test_a_transaction_that_does_not_end(broker, make_app, flights, tmp_path, monkeypatch):
    """Written, and then the transaction comes to nothing: no row of that attempt is ever seen."""
    table = tmp_path / "table"
    end = Transactions.end
    refused: list[Any] = []

    def deaf_once(self, identities, *, commit, timeout_ms=None):
        if not commit or refused:
            return end(self, identities, commit=commit, timeout_ms=timeout_ms)
        refused.extend(left_in(table))
        error = CannotConnect("broker-unreachable", "nobody answered", "a test")
        return {identity.transactional_id: error for identity in identities}

    monkeypatch.setattr(Transactions, "end", deaf_once)
    flights.send(broker, range(100))
    with to_table(make_app(processing_guarantee="exactly_once_v2"), table).start() as app:
        app.wait_until("caught-up", timeout=180)
    assert refused, "parts lay there while the transaction was open"
    assert not any(path.exists() for path in refused)
    assert numbers_in(table) == wanted(range(100))


def test_offsets_that_were_reset_write_nothing_twice(broker, make_app, flights, tmp_path):
    table = tmp_path / "table"
    flights.send(broker, range(100))
    with to_table(make_app(), table).start() as app:
        app.wait_until("caught-up", timeout=180)
    with Admin(broker.bootstrap_servers) as admin:
        admin.delete_groups(["flight-counts"])
    flights.send(broker, range(100, 160))
    with to_table(make_app(), table).start() as app:
        app.wait_until("caught-up", timeout=180)
    assert sum(row["numInputRows"] for row in app.recentProgress) == 160, "read, and not written, up to 100"
    assert numbers_in(table) == wanted(range(160))


def created_again(broker, topic="flights"):
    with Admin(broker.bootstrap_servers) as admin:
        admin.delete_topics([topic])
    broker.create_topics({topic: 4})


@pytest.mark.parametrize("running", [False, True])
def test_a_source_topic_that_is_created_again_is_read_from_its_beginning(broker, make_app, flights, tmp_path, running):
    """It has fewer records than the first had: by positions alone nothing of it would ever be written."""
    table = tmp_path / "table"
    flights.send(broker, range(500))
    with to_table(make_app(), table, roll_interval_ms=0).start() as app:
        app.wait_until("caught-up", timeout=180)
        if running:
            created_again(broker)
            flights.send(broker, range(1000, 1300))
            wait_until(lambda: numbers_in(table) == wanted([*range(500), *range(1000, 1300)]))
    if not running:
        created_again(broker)
        flights.send(broker, range(1000, 1300))
        with to_table(make_app(), table).start() as app:
            app.wait_until("caught-up", timeout=180)
    assert numbers_in(table) == wanted([*range(500), *range(1000, 1300)])


def test_micro_batches_become_one_file_per_task_while_readers_look(broker, make_app, flights, tmp_path):
    """Rows are seen in whole files, at the latest an interval after they were committed."""
    table = tmp_path / "table"
    with to_table(make_app(), table, roll_interval_ms=3_000).start() as app:
        for start in range(0, 200, 40):
            flights.send(broker, range(start, start + 40))
            app.wait_until("caught-up", timeout=180)
            assert set(numbers_in(table)) <= set(wanted(range(start + 40)))
        wait_until(lambda: numbers_in(table) == wanted(range(200)))
        [verdict] = to_table(make_app(), table).verify().sinks
        assert (verdict.equal, verdict.wrong) == (len(wanted(range(200))), False)
        batches = sum(row["numInputRows"] > 0 for row in app.recentProgress)
    assert batches >= 5
    assert len(list(table.glob("*.parquet"))) < 4 * batches


def test_a_disk_that_refuses_once(broker, make_app, flights, tmp_path, monkeypatch):
    table = tmp_path / "table"
    table.mkdir()
    (table / "_headrace").write_text("in the way")
    flights.send(broker, range(50))
    [found] = [finding for finding in to_table(make_app(), table / "_headrace").check() if finding.code == "table"]
    assert (found.level, str(table) in found.message) == ("problem", True)
    app = to_table(make_app(), table).start()
    try:
        with pytest.raises(HeadraceError) as raised:
            app.awaitTermination(180)
    finally:
        app.stop()
    assert raised.value.code == "sink-failed"
    assert str(table) in str(raised.value)
    (table / "_headrace").unlink()
    with to_table(make_app(), table).start() as app:
        app.wait_until("caught-up", timeout=180)
    assert numbers_in(table) == wanted(range(50))


@pytest.mark.parametrize(("error", "calls"), [(LockTimeoutError(110, "held"), 1), (OSError(5, "refused"), 4)])
def test_a_lock_that_another_session_holds_is_waited_for_once(monkeypatch, error, calls):
    """The sink has waited as long as it may; any other failure is tried again at once."""
    tried = []

    class Refusing:
        def commit(self, parts):
            tried.append(parts)
            raise error

    monkeypatch.setattr("headrace.spark.runtime.table_sinks.PAUSE", 0.0)
    sink = TableSink(sink=Refusing(), name="t", columns=(), schema_json="")
    branch = Branch(source_index=0, sink=sink)
    tables = TableSinks("g", CompiledSubtopology(subtopology_id="s", sources=(), branches=(branch,)))
    plan = MicroBatchPlan(
        subtopology_id="s",
        batch=BatchKey(incarnation="m1", batch_id=7),
        member_id="member",
        member_epoch=5,
        bootstrap_servers="",
        state_dir="",
        slots=(SlotPlan(slot=0, tasks=(TaskPlan(partition=0, ranges=()),), transactional_id="id"),),
        topic_ids={},
    )
    with pytest.raises(SinkError, match="t failed while a micro-batch was committed"):
        tables.commit(plan, {0: TaskReport(partition=0, table_rows={"t": 1})})
    assert len(tried) == calls


def test_directories_by_a_column_and_sql_between(broker, make_app, flights, tmp_path, spark):
    table = tmp_path / "table"
    flights.send(broker, range(60))
    app = make_app()
    rows = app.stream("flights", schema=flights.SCHEMA)
    rows.selectExpr("origin", "n", "named_struct('late', dep_delay > 30) as more").to_parquet(
        table, partition_by="origin"
    )
    with app.start() as started:
        started.wait_until("caught-up", timeout=180)
    found = spark.read.parquet(str(table)).selectExpr("n", "origin", "more.late").collect()
    assert sorted((row.n, row.origin) for row in found) == [(n, flights.flight(n)["origin"]) for n in range(60)]
    assert {row.n for row in found if row.late} == {n for n in range(60) if (flights.flight(n)["dep_delay"] or 0) > 30}


class LinesSink:
    """A sink of somebody's own: the newest row per origin as JSON, with the positions in the same file."""

    takes_updates = True

    def __init__(self, path):
        self.path, self.name = path, path.name

    def _file(self, part):
        return self.path / f"{part.task.partition}-{part.batch}.part"

    def writer(self, part, schema):
        return LinesWriter(self._file(part), part)

    def pending(self, task):
        told = [json.loads(file.read_text()) for file in sorted(self.path.glob(f"{task.partition}-*.part"))]
        return [SinkPart(task=task, batch=one["batch"], starts=one["starts"]) for one in told]

    def _table(self, partition):
        place = self.path / f"{partition}.json"
        return json.loads(place.read_text()) if place.exists() else {"rows": {}, "positions": {}}

    def positions(self, task):
        return self._table(task.partition)["positions"]

    def commit(self, parts):
        for part in parts:
            if self._file(part).exists():
                table = self._table(part.task.partition)
                table["rows"] |= {row["origin"]: row for row in json.loads(self._file(part).read_text())["rows"]}
                table["positions"] |= part.ends
                aside = self.path / ".aside"
                aside.write_text(json.dumps(table))
                aside.rename(self.path / f"{part.task.partition}.json")
                self._file(part).unlink()

    def discard(self, parts):
        for part in parts:
            self._file(part).unlink(missing_ok=True)


class LinesWriter:
    def __init__(self, path, part):
        self.path, self.part, self.rows = path, part, []

    def write(self, rows):
        assert isinstance(rows, pa.Table)
        self.rows += rows.to_pylist()

    def close(self):
        told = {"batch": self.part.batch, "starts": self.part.starts, "rows": self.rows}
        self.path.with_suffix(".new").write_text(json.dumps(told))
        self.path.with_suffix(".new").rename(self.path)


def test_a_sink_of_ones_own_behind_an_aggregate(broker, make_app, flights, tmp_path):
    from pyspark.sql import functions as F

    for start in (0, 100):
        flights.send(broker, range(start, start + 100))
        app = make_app(processing_guarantee="exactly_once_v2")
        rows = app.stream("flights", schema=flights.SCHEMA)
        counts = rows.groupBy("origin").agg(F.count("*").alias("flights"), F.sum("n").alias("total"))
        counts.to_sink(LinesSink(tmp_path))
        with app.start() as started:
            started.wait_until("caught-up", timeout=180)
        found = [json.loads(path.read_text())["rows"] for path in tmp_path.glob("?.json")]
        assert {origin: row for rows in found for origin, row in rows.items()} == flights.counted(range(start + 100))


def test_a_delta_table_of_several_runs(broker, make_app, flights, tmp_path):
    """Rows and positions of a run become versions of the table; the next run appends, and `verify` compares it."""
    from deltalake import DeltaTable

    table = tmp_path / "table"

    def to_delta():
        app = make_app(processing_guarantee="exactly_once_v2")
        app.stream("flights", schema="origin string, n bigint").to_delta(table, partition_by="origin")
        return app

    for start in (0, 60):
        flights.send(broker, range(start, start + 60))
        with to_delta().start() as app:
            app.wait_until("caught-up", timeout=180)
        rows = DeltaTable(table).to_pyarrow_table().to_pylist()
        assert sorted(row["n"] for row in rows) == list(range(start + 60))
    assert {row["n"]: row["origin"] for row in rows} == {n: flights.flight(n)["origin"] for n in range(120)}
    assert left_in(table) == []
    assert f"{table} (DeltaSink: origin, n)" in to_delta().describe()
    assert {found.level for found in to_delta().check() if found.code == "table"} == {"ok"}
    # A file that the log does not name any more is not in the table, though it lies in the directory.
    DeltaTable(table).optimize.compact()
    [verdict] = to_delta().verify().sinks
    assert (verdict.topic, verdict.equal, verdict.wrong) == (str(table), 120, False)
    DeltaTable(table).delete("n < 3")
    app = to_delta()
    [verdict] = app.verify().sinks
    assert verdict.lost == 3
    DeltaTable(table).alter.add_constraint({"small": "n < 1000"})
    [problem] = [found for found in to_delta().check() if found.level == "problem" and found.code == "table"]
    assert "cannot take the rows" in problem.message


def test_joined_and_first_rows_in_delta_and_iceberg_tables(broker, make_app, flights, tmp_path):
    """A group has one row, the newest, while it passes the filter in front of the join; a position likewise."""
    from deltalake import DeltaTable

    table, properties = tmp_path / "table", catalog_in(tmp_path)
    create_table(properties, pa.schema([("origin", pa.string()), ("n", pa.int64()), ("rn", pa.int32())]))

    def to_tables():
        app = make_app(processing_guarantee="exactly_once_v2")
        rows = app.stream("flights", schema="origin string, n bigint")
        even = rows.groupBy("origin").agg(F.count("*").alias("flights"), name="left").where("flights % 2 = 0")
        last = rows.groupBy("origin").agg(F.max("n").alias("last"), name="right")
        even.join(last, "origin").to_delta(table, roll_interval_ms=0)
        by_origin = Window.partitionBy("origin").orderBy(F.desc("n"))
        top = rows.withColumn("rn", F.row_number().over(by_origin)).where("rn <= 2")
        top.to_iceberg(TABLE, catalog_properties=properties, roll_interval_ms=0)
        return app

    def rows():
        """Return the rows of both tables."""
        joined = DeltaTable(table).to_pyarrow_table().to_pylist() if DeltaTable.is_deltatable(str(table)) else []
        first = open_table("default", TABLE, properties).scan().to_arrow().to_pylist()
        found = [(row["origin"], row["flights"], row["last"]) for row in joined]
        return sorted(found), sorted((row["origin"], row["rn"], row["n"]) for row in first)

    def expected(end):
        numbers: dict[str, list[int]] = {}
        for n in range(end):
            numbers.setdefault(flights.flight(n)["origin"], []).append(n)
        joined = [(origin, len(found), found[-1]) for origin, found in numbers.items() if len(found) % 2 == 0]
        first = [(origin, at, found[-at]) for origin, found in numbers.items() for at in (1, 2)]
        return sorted(joined), sorted(first)

    flights.send(broker, range(60))
    with to_tables().start() as app:
        wait_until(lambda: rows() == expected(60), "the rows of the first flights", timeout_s=180, interval_s=0.5)
        flights.send(broker, range(60, 76))
        app.wait_until("caught-up", timeout=180)
    assert rows() == expected(76)
    assert len(expected(76)[0]) < len(expected(60)[0]), "groups have lost their row"
    assert {found.level for found in to_tables().check() if found.code == "table"} == {"ok"}


def test_a_delta_table_in_s3(broker, make_app, flights, tmp_path, monkeypatch):
    """Rows go to the store, `verify` reads them there, and a store that cannot be used is refused when declared."""
    pytest.importorskip("moto", reason="needs the S3 server of the development dependencies: make setup")
    with S3Server() as server:
        options = server.delta_options()
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):  # half of them from the environment
            monkeypatch.setenv(name, options.pop(name))
        parts, url = tmp_path / "parts", f"s3://{BUCKET}/flights"

        def to_delta(**given):
            app = make_app(processing_guarantee="exactly_once_v2")
            rows = app.stream("flights", schema="origin string, n bigint")
            rows.to_delta(given.pop("url", url), **{"storage_options": options, "parts": parts, **given})
            return app

        flights.send(broker, range(60))
        app = to_delta(partition_by="origin")
        assert SECRET not in app.describe()
        with app.start() as running:
            running.wait_until("caught-up", timeout=180)
        assert left_in(parts) == []
        app = to_delta(partition_by="origin")
        assert {found.level for found in app.check() if found.code == "table"} == {"ok"}
        [verdict] = app.verify().sinks
        assert (verdict.topic, verdict.equal, verdict.wrong) == (url, 60, False)
        wrong = {**options, "AWS_SECRET_ACCESS_KEY": "wr0ng/secret"}
        for given, why in (
            ({"parts": None}, "rows that wait for their file cannot lie"),
            ({"storage_options": wrong}, "refused the credentials"),
            ({"url": "s3://nowhere/flights"}, "there is no such bucket"),
            ({"url": "gs://lake/flights"}, "gs:// are not supported"),
            ({"storage_options": {**options, "AWS_S3_LOCKING_PROVIDER": "dynamodb"}}, "no lock in DynamoDB"),
            ({"url": str(tmp_path / "table")}, "belong to tables in an object store"),
            ({}, "partitioned by origin"),
        ):
            with pytest.raises(TopologyError, match=why) as raised:
                to_delta(**given)
            assert "wr0ng/secret" not in str(raised.value)
            assert SECRET not in str(raised.value)
            assert raised.value.fix
        server.fail([(0, "always ignores")], "_delta_log/")
        with pytest.raises(TopologyError, match="commits that it had confirmed"):
            to_delta(partition_by="origin")


def test_an_iceberg_table_of_several_runs(broker, make_app, flights, tmp_path):
    """Rows and positions of a run become snapshots; the next run appends, and `verify` compares the data files."""
    properties = catalog_in(tmp_path)
    create_table(properties, pa.schema([("origin", pa.string()), ("n", pa.int64())]))

    def to_iceberg():
        app = make_app(processing_guarantee="exactly_once_v2")
        rows = app.stream("flights", schema="origin string, n bigint")
        rows.to_iceberg(TABLE, catalog_properties=properties)
        return app

    for start in (0, 60):
        flights.send(broker, range(start, start + 60))
        with to_iceberg().start() as app:
            app.wait_until("caught-up", timeout=180)
        table = open_table("default", TABLE, properties)
        rows = table.scan().to_arrow().to_pylist()
        assert sorted(row["n"] for row in rows) == list(range(start + 60))
    assert {row["n"]: row["origin"] for row in rows} == {n: flights.flight(n)["origin"] for n in range(120)}
    assert left_in(local_directory(table)) == []
    assert f"default.{TABLE} (IcebergSink: origin, n)" in to_iceberg().describe()
    assert {found.level for found in to_iceberg().check() if found.code == "table"} == {"ok"}
    [verdict] = to_iceberg().verify().sinks
    assert (verdict.topic, verdict.equal, verdict.wrong) == (f"default.{TABLE}", 120, False)
    table.delete("n < 3")
    [verdict] = to_iceberg().verify().sinks
    assert verdict.lost == 3
    app = to_iceberg()
    with table.update_schema() as update:
        update.rename_column("n", "number")
    [problem] = [found for found in app.check() if found.level == "problem" and found.code == "table"]
    assert 'no column "n"' in problem.message
    for declare, why in (
        (lambda rows: rows.to_iceberg(TABLE, catalog_properties=properties), 'no column "n"'),
        (lambda rows: rows.to_iceberg("flights.other", catalog_properties=properties), "no table flights.other"),
        (lambda rows: rows.to_iceberg("delays", catalog_properties=properties), "no name of a table"),
        (lambda rows: rows.to_iceberg(TABLE, catalog_properties={"uri": "sqlite:////nowhere/at/all.db"}), "be read"),
        (lambda rows: rows.groupBy("origin").count().to_parquet(tmp_path), "rows replace each other"),
    ):
        with pytest.raises(TopologyError, match=why) as raised:
            declare(make_app().stream("flights", schema="origin string, n bigint"))
        assert Path(__file__).name in raised.value.facts["where"]


def test_unsupported_table_sinks_are_refused_at_their_line(make_app, flights, tmp_path):
    app = make_app()
    rows = app.stream("flights", schema=flights.SCHEMA)

    def top(function, limit):
        rank = getattr(F, function)().over(Window.partitionBy("origin").orderBy("n"))
        return rows.withColumn("rn", rank).where(f"rn <= {limit}")

    def full_join():
        sides = [rows.groupBy("origin").agg(F.count("*").alias(one), name=one).where(f"{one} > 1") for one in "ab"]
        sides[0], sides[1] = (one.where("origin IS NOT NULL") for one in sides)
        right = sides[1].withColumnRenamed("origin", "other")
        return sides[0].join(right, F.col("origin") == F.col("other"), "full")

    for declare, code in (
        (lambda: rows.groupBy("origin").count().to_parquet(tmp_path), "not-supported-here"),
        (lambda: rows.groupBy("origin").count().where("count > 1").to_sink(LinesSink(tmp_path)), "not-supported-here"),
        (lambda: top("rank", 2).to_delta(tmp_path / "delta"), "not-supported-here"),
        (lambda: top("rank", 2).to_parquet(tmp_path), "not-supported-here"),
        (lambda: top("row_number", 2).drop("rn").to_delta(tmp_path / "delta"), "not-supported-here"),
        (lambda: full_join().to_delta(tmp_path / "delta"), "not-supported-here"),
        (lambda: rows.to_parquet("s3://bucket/flights"), "bad-value"),
        (lambda: rows.to_parquet(tmp_path, partition_by="nobody"), "bad-value"),
        (lambda: rows.to_parquet(tmp_path, partition_by="dep_delay"), "bad-value"),
        (lambda: rows.select("n").to_parquet(tmp_path, partition_by="n"), "bad-value"),
        (lambda: rows.to_sink("a name"), "bad-value"),
        (lambda: rows.to_delta("s3://bucket/flights"), "bad-value"),
        (lambda: rows.selectExpr("n as `a b`").to_delta(tmp_path), "bad-value"),
        (lambda: rows.selectExpr("named_struct('a=b', n) as s").to_delta(tmp_path), "bad-value"),
    ):
        with pytest.raises(TopologyError) as raised:
            declare()
        assert raised.value.code == code
        assert Path(__file__).name in raised.value.facts["where"]
    rows.to_parquet(tmp_path / "one")
    with pytest.raises(TopologyError) as raised:
        rows.where("n > 3").to_parquet(tmp_path / "one")
    assert raised.value.code == "sink-name-taken"
    with pytest.raises(TopologyError) as raised:
        rows.where("n > 3").to_delta(tmp_path / "one", name="another name")
    assert raised.value.code == "sink-name-taken"
    assert f"{tmp_path / 'one'} (ParquetSink: origin, dep_delay, n)" in app.describe()
