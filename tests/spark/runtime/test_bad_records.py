"""Records that Spark SQL cannot process: all of them found, no good one blamed, for a handful of jobs."""

import json

import pytest
from pyspark.sql import functions as F
from pyspark.sql.types import IntegerType

from headrace.spark.runtime.driver_evaluation import DriverRows, failing_rows
from headrace.spark.runtime.prepared_plan import fetching_session

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


def test_where_nothing_fails_nothing_is_found(rows):
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
