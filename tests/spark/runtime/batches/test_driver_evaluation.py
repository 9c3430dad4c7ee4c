"""Records that Spark SQL cannot process: all of them found, no good one blamed, for a handful of jobs."""

import contextlib
import json
import threading
from pathlib import Path

import pytest
from pyspark.sql import functions as F
from pyspark.sql.types import IntegerType

from headrace.spark.runtime.batches.driver_evaluation import DriverRows, failing_rows
from headrace.spark.runtime.batches.prepared_plan import PreparedPlan, fetching_session
from headrace.spark.runtime.batches.suspect_rows import GUARDING, suspect_rows

pytestmark = pytest.mark.spark

BAD = {0, 7, 8, 99}


@pytest.fixture(scope="module")
def rows(spark):
    texts = [(f"x{number}" if number in BAD else str(number), number) for number in range(100)]
    session = fetching_session(spark)
    return DriverRows(session, spark.createDataFrame(texts, "text string, number long").coalesce(1))


@F.udf(IntegerType())
def picky(text):
    return int(text)


QUERIES = {
    "select": lambda rows: rows.selectExpr("cast(text AS int) AS n"),
    "where": lambda rows: rows.where("cast(text AS int) % 3 = 0"),
    "where before the cast": lambda rows: rows.where("number >= 0").selectExpr("cast(text AS int)"),
    "explode": lambda rows: rows.select(F.explode(F.array("text", "text")).alias("one")).selectExpr("cast(one AS int)"),
    "join": lambda rows: rows.join(F.broadcast(rows.sparkSession.range(9).toDF("k")), F.expr("cast(text AS int) = k")),
    "a wide row": lambda rows: rows.selectExpr(*[f"cast(text AS int) + {n} AS n{n}" for n in range(120)]),
    "udf behind a filter": lambda rows: rows.where("number >= 0").select(picky("text")),
}


@pytest.mark.parametrize("query", QUERIES)
def test_every_bad_row_is_found_and_no_good_one(rows, query):
    found = failing_rows(rows, QUERIES[query], most=100)
    assert {row for row, _ in found} == BAD
    assert all("CAST_INVALID_INPUT" in reason or "ValueError" in reason for _, reason in found), found


SIEVED = {
    **{name: (QUERIES[name], BAD) for name in ("select", "where", "where before the cast", "a wide row")},
    "a cast that is dropped": (
        lambda rows: rows.selectExpr("cast(text AS int) AS n", "number").select("number"),
        set(),
    ),
    "the cast of a filter again": (
        lambda rows: rows.where("cast(text AS int) > 3").selectExpr("cast(text AS int) + 1 AS n"),
        BAD,
    ),
    "rows that a filter drops": (lambda rows: rows.where("number > 7").selectExpr("cast(text AS int)"), {8, 99}),
    "nothing fails": (lambda rows: rows.selectExpr("try_cast(text AS int)"), set()),
}


@pytest.mark.parametrize("query", SIEVED)
def test_spark_picks_out_the_rows_that_may_fail(rows, spark, query):
    session = fetching_session(spark, GUARDING)
    build, bad = SIEVED[query]
    given = rows.frame(None, 2)
    found = PreparedPlan(lambda: suspect_rows(given, build), session=session)
    for _ in range(2):  # a kept plan is run for every search
        assert {row[1] for row in DriverRows(session, found.kept()).frame(None, 1).collect()} == bad


@pytest.mark.parametrize("query", ["explode", "join", "udf behind a filter"])
def test_queries_that_spark_cannot_filter_have_no_doubtful_rows(rows, query):
    assert suspect_rows(rows.frame(None, 1), QUERIES[query]) is None


def test_rows_without_failures_have_no_findings(rows):
    assert failing_rows(rows, lambda frame: frame.selectExpr("try_cast(text AS int)"), most=100) == []


def test_the_first_ones_are_enough(rows):
    assert [row for row, _ in failing_rows(rows, QUERIES["select"], most=2)] == sorted(BAD)[:2]


def test_rows_that_a_filter_drops_are_not_tried_behind_it(rows):
    found = failing_rows(rows, lambda frame: frame.where("number > 7").selectExpr("cast(text AS int)"), most=100)
    assert {row for row, _ in found} == {number for number in BAD if number > 7}


def jobs_of(spark):
    jobs = spark.sparkContext._jsc.sc().statusStore().jobsList(None)
    return {jobs.apply(index).jobId(): jobs.apply(index).status().toString() for index in range(jobs.size())}


def test_many_bad_records_cost_a_handful_of_jobs(broker, make_app, running, spark):
    broker.create_topics({"numbers": 3, "out": 1})
    for partition in range(3):
        texts = [f"bad{n}" if n % 25 == 3 else str(n) for n in range(1000)]
        broker.produce("numbers", [json.dumps({"text": text}) for text in texts], partition=partition)
    app = make_app("casts", processing_guarantee="exactly_once_v2")
    rows = app.stream("numbers", schema="text string", on_error="skip")
    rows.selectExpr("cast(text as int) AS number").to_topic("out", partitions=1)
    before = set(jobs_of(spark))
    started = running(app)
    started.wait_until("caught-up", timeout=90)
    jobs = {job: status for job, status in jobs_of(spark).items() if job not in before}
    numbers = sorted(json.loads(record.value)["number"] for record in broker.records("out"))
    assert numbers == sorted(n for n in range(1000) if n % 25 != 3 for _ in range(3))
    progress = started.recentProgress
    assert sum(row["skippedRecords"] for row in progress) == 3 * 40
    assert sum(status == "FAILED" for status in jobs.values()) <= 2
    assert len(jobs) <= 16, jobs
    assert any("CAST_INVALID_INPUT" in row.get("failed", "") for row in progress), "what goes on is visible meanwhile"


def python_processes(jvm):
    """Python daemons of a JVM and their workers, the daemons first."""
    parents = {}
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            parents[int(process.name)] = int((process / "stat").read_text().rsplit(")", 1)[1].split()[1])
    daemons = {pid for pid, parent in parents.items() if parent == jvm and is_daemon(pid)}
    return daemons, {pid for pid, parent in parents.items() if parent in daemons}


def is_daemon(pid):
    """Whether it is one or was forked by one, whoever its parent is by now."""
    with contextlib.suppress(OSError):
        return b"daemon" in Path(f"/proc/{pid}/cmdline").read_bytes()
    return False


def runs_sql(pid):
    """Whether a daemon runs the functions of SQL plans.

    Spark has a daemon per environment, and sets SPARK_SIMPLIFIED_TRACEBACK for those only: `createDataFrame` of a list,
    in any test before, starts another one for its RDD.
    """
    return b"SPARK_SIMPLIFIED_TRACEBACK=1" in Path(f"/proc/{pid}/environ").read_bytes()


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="finds processes in /proc")
def test_failed_jobs_leave_no_process_and_report_progress(broker, make_app, running, spark):
    """A UDF that raises ends its Python worker: in the failed job, and for each slice that is tried in the driver."""
    broker.create_topics({"numbers": 2, "out": 1})
    for partition in range(2):
        texts = [f"bad{n}" if n % 20 == 3 else str(n) for n in range(60)]
        broker.produce("numbers", [json.dumps({"text": text}) for text in texts], partition=partition)
    app = make_app("pickies")
    rows = app.stream("numbers", schema="text string", on_error="skip")
    rows.select(picky("text").alias("number")).to_topic("out", partitions=1)
    jvm = spark.sparkContext._jvm.java.lang.ProcessHandle.current().pid()
    before, _ = python_processes(jvm)
    started = running(app)
    seen, progress, settled = set(before), [], threading.Event()

    def watch():
        while not settled.wait(0.05):
            seen.update(*python_processes(jvm))
            progress.append(started.lastProgress)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        started.wait_until("caught-up", timeout=120)
    finally:
        settled.set()
        watcher.join()
    daemons, workers = python_processes(jvm)
    assert len([pid for pid in daemons - before if runs_sql(pid)]) <= 1, "one more, where no test before had its own"
    assert before <= daemons, "daemons of tests before, for other environments, stay as well"
    assert {pid for pid in daemons if not runs_sql(pid)} == {pid for pid in before if not runs_sql(pid)}
    assert len(seen - before) > len(workers), "workers ended and were replaced"
    assert {pid for pid in seen if is_daemon(pid)} <= daemons | workers
    assert any("ValueError" in row.get("failed", "") for row in progress if row), "visible before records are found"
    assert sum(row["skippedRecords"] for row in started.recentProgress) == 6
