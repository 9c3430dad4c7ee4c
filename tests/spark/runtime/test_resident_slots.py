"""Resident slots in a real session: they stay, they are replaced when they die, they end, and who has none."""

import json
import logging
import os
import signal

import pytest

from headrace.errors import ConfigError, RecordError

pytestmark = pytest.mark.spark
NUMBERS = "origin string, n bigint"


def count_each(app):
    """One row per flight and no Spark SQL, so that a repeat is seen as such and slots are resident."""
    from pyspark.sql import functions as F

    rows = app.stream("flights", schema=NUMBERS)
    rows.groupBy("n").agg(F.count("*").alias("times")).to_topic("each", partitions=2)
    return app


def assert_each_once(broker, numbers):
    rows = [json.loads(record.value) for record in broker.records("each")]
    assert sorted(row["n"] for row in rows) == sorted(numbers)
    assert {row["times"] for row in rows} == {1}


def jobs_of(app):
    return {name: runner._jobs for name, runner in app._runtime.runners.items()}


def job_ids(spark, group):
    return sorted(spark.sparkContext.statusTracker().getJobIdsForGroup(group))


@pytest.mark.parametrize("guarantee", ["exactly_once_v2", "at_least_once"])
def test_slots_stay_between_micro_batches_and_end_with_the_application(
    spark, broker, make_app, running, flights, guarantee
):
    app = running(count_each(make_app("resident", processing_guarantee=guarantee)))
    started, pids = {}, {}
    for start in range(0, 600, 100):
        flights.send(broker, range(start, start + 100))
        app.wait_until("caught-up", timeout=60)
        found = {name: job_ids(spark, jobs.group) for name, jobs in jobs_of(app).items()}
        started = started or found
        pids = pids or {name: jobs._resident.pids for name, jobs in jobs_of(app).items()}
        assert found == started, "no micro-batch was a Spark job"
    assert {name: jobs._resident.pids for name, jobs in jobs_of(app).items()} == pids
    assert all(len(slots) == 2 for slots in pids.values())
    assert len([batch for batch in app.recentProgress if batch["numInputRows"]]) >= 6
    app.stop()
    assert_each_once(broker, range(600))
    assert spark.sparkContext.statusTracker().getActiveJobsIds() == []


def test_a_slot_whose_worker_was_killed_is_started_again(broker, make_app, running, flights):
    app = running(count_each(make_app("killed")))
    flights.send(broker, range(100))
    app.wait_until("caught-up", timeout=60)
    for round_ in range(1, 4):
        before = {name: jobs._resident.pids for name, jobs in jobs_of(app).items()}
        [counting] = before.keys() - {"flights"}
        killed = before[counting][round_ % 2]
        os.kill(killed, signal.SIGKILL)
        flights.send(broker, range(100 * round_, 100 * round_ + 100))
        app.wait_until("caught-up", timeout=60)
        after = {name: jobs._resident.pids for name, jobs in jobs_of(app).items()}
        assert after["flights"] == before["flights"]
        assert set(before[counting].values()) - {killed} <= set(after[counting].values()), "the other slot stays"
        assert killed not in after[counting].values()
    app.stop()
    assert_each_once(broker, range(400))


def test_an_error_of_a_resident_stage_is_the_applications(spark, broker, make_app, running, flights):
    flights.send(broker, range(100))
    app = running(count_each(make_app("broken")))
    app.wait_until("caught-up", timeout=60)
    pids = [pid for jobs in jobs_of(app).values() for pid in jobs._resident.pids.values()]
    broker.produce("flights", ["{broken"], partition=2)
    with pytest.raises(RecordError, match=r"flights-2@\d+"):
        app.awaitTermination(60)
    assert pids
    assert spark.sparkContext.statusTracker().getActiveJobsIds() == []
    assert_each_once(broker, range(100))


def test_records_are_skipped_by_resident_slots(broker, make_app, running, flights):
    from pyspark.sql import functions as F

    app = make_app("skipping")
    rows = app.stream("flights", schema=NUMBERS, on_error="skip")
    rows.groupBy("n").agg(F.count("*").alias("times")).to_topic("each", partitions=2)
    started = running(app)
    broker.produce("flights", ["{broken"], partition=1)
    flights.send(broker, range(100))
    started.wait_until("caught-up", timeout=60)
    assert sum(row["skippedRecords"] for row in started.recentProgress) == 1
    assert jobs_of(started)["flights"]._resident.pids
    assert_each_once(broker, range(100))


def test_a_job_for_each_micro_batch_on_demand(spark, broker, make_app, running, flights):
    app = running(count_each(make_app("jobs", config={"headrace.execution": "micro-batch"})))
    flights.send(broker, range(100))
    app.wait_until("caught-up", timeout=60)
    assert all(jobs._resident is None for jobs in jobs_of(app).values())
    first = {name: len(job_ids(spark, jobs.group)) for name, jobs in jobs_of(app).items()}
    flights.send(broker, range(100, 200))
    app.wait_until("caught-up", timeout=60)
    assert all(len(job_ids(spark, jobs.group)) > first[name] for name, jobs in jobs_of(app).items())
    assert_each_once(broker, range(200))


def test_spark_sql_takes_a_job_for_each_micro_batch(broker, make_app, running):
    app = make_app("sql")
    app.stream("flights", schema=NUMBERS).where("n > 1").to_topic("large", partitions=1)
    started = running(app)
    started.wait_until("running", timeout=60)
    assert all(jobs._resident is None for jobs in jobs_of(started).values())


def test_resident_slots_that_are_impossible_are_refused(broker, make_app, caplog):
    app = make_app("sql", config={"headrace.execution": "resident"})
    app.stream("flights", schema=NUMBERS).where("n > 1").to_topic("large", partitions=1)
    with pytest.raises(ConfigError, match="Spark SQL or foreachBatch") as refused:
        app.start()
    assert refused.value.code == "resident-impossible"


def test_a_session_with_too_few_threads_runs_jobs_and_logs_why(broker, make_app, running, flights, caplog):
    broker.create_topics({"wide": 12})
    broker.produce("wide", [json.dumps({"origin": "JFK", "n": n}) for n in range(100)])

    def copy(execution):
        app = make_app("wide", config={"headrace.execution": execution, "headrace.max.slots": 9})
        app.stream("wide", schema=NUMBERS).to_topic("copies", partitions=1)
        return app

    with pytest.raises(ConfigError, match="it needs 9 threads of Spark's executor, 8 are left"):
        copy("resident").start()
    with caplog.at_level(logging.INFO, "headrace.spark"):
        started = running(copy("auto"))
        started.wait_until("caught-up", timeout=60)
    assert "wide runs a Spark job for each micro-batch: it needs 9 threads" in caplog.text
    assert len(broker.records("copies")) == 100
