"""Resident slots in a real session: they stay, they are replaced when they die, they end, and who has none."""

import json
import logging
import os
import platform
import signal

import pytest
from tests.longer import longer

from headrace.errors import ConfigError, RecordError
from headrace.spark.runtime.slots import resident_chains, resident_slots

pytestmark = pytest.mark.spark
NUMBERS = "origin string, n bigint"


def count_each(app):
    """One row per flight and no Spark SQL, so that a repeat is seen as such and slots are resident."""
    from pyspark.sql import functions as F

    rows = app.stream("flights", schema=NUMBERS)
    rows.groupBy("n").agg(F.count("*").alias("times")).to_topic("each", partitions=2)
    return app


def values(broker, topic="each"):
    return [json.loads(record.value) for record in broker.records(topic)]


def assert_each_once(broker, numbers):
    rows = values(broker)
    assert sorted(row["n"] for row in rows) == sorted(numbers)
    assert {row["times"] for row in rows} == {1}


def jobs_of(app):
    return {name: runner._jobs for name, runner in app._runtime.runners.items()}


def job_names(spark, ids):
    """Descriptions of jobs, as Spark's UI shows them."""
    store = spark.sparkContext._jsc.sc().statusStore()
    return sorted(store.job(number).description().get() for number in ids)


def job_ids(spark, group):
    """The ids of the group's jobs that Spark still knows, ascending: it keeps 50 jobs, so that counts may shrink."""
    return sorted(spark.sparkContext.statusTracker().getJobIdsForGroup(group))


@pytest.mark.parametrize("guarantee", ["exactly_once_v2", "at_least_once"])
def test_slots_stay_between_micro_batches_and_end_with_the_application(
    spark, broker, make_app, running, flights, guarantee
):
    app = running(count_each(make_app("resident", processing_guarantee=guarantee)))
    started: dict[str, list[int]] = {}
    pids: dict[str, dict[int, tuple[int, ...]]] = {}
    for start in range(0, 600, 100):
        flights.send(broker, range(start, start + 100))
        app.wait_until("caught-up", timeout=60)
        found = {name: job_ids(spark, jobs.group) for name, jobs in jobs_of(app).items()}
        started = started or found
        pids = pids or {name: jobs._resident.pids for name, jobs in jobs_of(app).items()}
        assert found == started, "no micro-batch was a Spark job"
    assert {name: jobs._resident.pids for name, jobs in jobs_of(app).items()} == pids
    assert all(len(slots) == 2 for slots in pids.values())
    running_jobs = spark.sparkContext.statusTracker().getActiveJobsIds()
    assert job_names(spark, running_jobs) == [
        f"resident {name}: resident slot {slot} on {platform.node()}" for name in ("by-n", "flights") for slot in (0, 1)
    ]
    assert len([batch for batch in app.recentProgress if batch["numInputRows"]]) >= 6
    app.stop()
    assert_each_once(broker, range(600))
    assert spark.sparkContext.statusTracker().getActiveJobsIds() == []


def test_two_applications_of_a_session_do_not_wait_for_each_other(
    spark, broker, make_app, running, flights, caplog, monkeypatch
):
    """The slots of the first one take all threads but two: the other one runs jobs, and resident slots after it."""
    caplog.set_level(logging.INFO, logger="headrace.spark")
    monkeypatch.setattr(resident_slots, "threads_of", lambda _spark: 10)
    settings = {"config": {"headrace.max.slots": 4}}
    first = running(count_each(make_app("first", **settings)))
    other = make_app("other", instance="b", **settings)
    other.stream("flights", schema=NUMBERS).to_topic("copies", partitions=2)
    second = running(other)
    flights.send(broker, range(100))
    for app in (first, second):
        app.wait_until("caught-up", timeout=90)
    assert_each_once(broker, range(100))
    assert sorted(row["n"] for row in values(broker, "copies")) == list(range(100))
    assert {name: jobs._resident is None for name, jobs in jobs_of(first).items()} == {"flights": False, "by-n": False}
    assert {name: jobs._resident is None for name, jobs in jobs_of(second).items()} == {"flights": True}
    assert "0 are left" in caplog.text
    second.stop()
    first.stop()
    assert sum(resident_slots._held.values()) == 0


def copy_each(app):
    """One row per flight through Spark SQL: a slot is a worker that fetches, and one that writes."""
    from pyspark.sql import functions as F

    rows = app.stream("flights", schema=NUMBERS)
    rows.where("n >= 0").select("n", F.lit(1).alias("times")).to_topic("each", partitions=2)
    return app


def count_and_compute(app):
    """As `count_each`, with Spark SQL behind the aggregate: a worker that counts, and one that writes."""
    from pyspark.sql import functions as F

    counts = app.stream("flights", schema=NUMBERS).groupBy("n").agg(F.count("*").alias("times"))
    counts.withColumn("twice", F.col("times") * 2).to_topic("each", partitions=2)
    return app


@pytest.mark.parametrize("build", [count_each, pytest.param(copy_each, marks=longer), count_and_compute])
def test_a_slot_whose_worker_was_killed_is_started_again(broker, make_app, running, flights, build):
    app = running(build(make_app("killed")))
    flights.send(broker, range(100))
    app.wait_until("caught-up", timeout=60)
    last = "flights" if build is copy_each else min(jobs_of(app))
    assert last != "flights" or build is copy_each
    for round_ in range(1, 5):
        before = {name: jobs._resident.pids for name, jobs in jobs_of(app).items()}
        workers = before[last][round_ % 2]
        killed = workers[round_ // 2 % len(workers)]
        os.kill(killed, signal.SIGKILL)
        flights.send(broker, range(100 * round_, 100 * round_ + 100))
        app.wait_until("caught-up", timeout=60)
        after = {name: jobs._resident.pids for name, jobs in jobs_of(app).items()}
        assert after[last][1 - round_ % 2] == before[last][1 - round_ % 2], "the other slot stays"
        assert killed not in after[last][round_ % 2]
        assert {name: pids for name, pids in after.items() if name != last} == {
            name: pids for name, pids in before.items() if name != last
        }
    app.stop()
    assert_each_once(broker, range(500))


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
    first = {name: job_ids(spark, jobs.group)[-1] for name, jobs in jobs_of(app).items()}
    flights.send(broker, range(100, 200))
    app.wait_until("caught-up", timeout=60)
    assert all(job_ids(spark, jobs.group)[-1] > first[name] for name, jobs in jobs_of(app).items())
    assert_each_once(broker, range(200))


def sql_application(app, sink):
    """A chain with much Spark SQL: filters that keep few rows, and expressions that raise on rows of nulls."""
    from pyspark.sql import functions as F

    rows = app.stream("flights", schema=f"{NUMBERS}, dep_delay double, at timestamp")
    rows = (
        rows.where("n % 10 >= 3").dropna(subset=["dep_delay"]).fillna({"origin": "?"}).replace("JFK", "John", "origin")
    )
    rows = rows.withColumn("known", F.assert_true(F.col("n").isNotNull())).drop("known")
    rows = rows.withColumn("day", F.expr("date_add(date'2013-01-01', cast(n as int))")).alias("f").where("f.n < 10000")
    rows = rows.withColumn("part", F.explode(F.array("n", F.lit(7)))).where("part % 2 = 1")
    rows.select(
        "n", "part", F.upper("origin").alias("o"), "day", F.expr("cast(n as decimal(20,2)) / 3 as third"), "at"
    ).to_topic(sink, partitions=2)
    return app


@pytest.mark.parametrize("guarantee", ["exactly_once_v2", pytest.param("at_least_once", marks=longer)])
def test_spark_sql_in_resident_slots_gives_what_jobs_give(spark, broker, make_app, running, flights, guarantee):
    app = make_app("resident", processing_guarantee=guarantee)
    started = running(sql_application(app, "resident"))
    started.wait_until("running", timeout=60)
    [jobs] = jobs_of(started).values()
    before = job_ids(spark, jobs.group)
    for start in range(0, 300, 100):
        flights.send(broker, range(start, start + 100))
        started.wait_until("caught-up", timeout=60)
    assert job_ids(spark, jobs.group) == before
    started.stop()
    app = make_app("jobs", instance="b", processing_guarantee=guarantee, config={"headrace.execution": "micro-batch"})
    started = running(sql_application(app, "jobs"))
    started.wait_until("caught-up", timeout=60)
    started.stop()
    assert len(values(broker, "jobs")) > 100
    assert sorted(map(json.dumps, values(broker, "resident"))) == sorted(map(json.dumps, values(broker, "jobs")))
    assert spark.sparkContext.statusTracker().getActiveJobsIds() == []


def around_an_aggregate(app, sink):
    """Spark SQL in front of an aggregate without a repartition topic, and behind one: times, nulls, decimals."""
    from pyspark.sql import functions as F

    schema = "origin string, n bigint, dep_delay double, at timestamp, price decimal(20,2)"
    rows = app.stream("flights", schema=schema, key="origin")
    late = rows.where("coalesce(dep_delay, 0) < 50").withColumn("hour", F.expr("date_trunc('hour', at)"))
    late = late.groupBy("origin").agg(
        F.count("*").alias("rows"), F.max("hour").alias("hour"), F.sum("price").alias("p")
    )
    late.to_topic(f"{sink}-before", partitions=1)
    totals = rows.groupBy("origin").agg(
        *(F.count("dep_delay").alias("rows"), F.avg("dep_delay").alias("mean"), F.sum("n").alias("total")),
        *(F.min("price").alias("price"), F.max("at").alias("at")),
        name="totals",
    )
    totals = totals.withColumn("clock", F.expr("date_format(at, 'yyyy-MM-dd HH:mm z')"))
    totals = totals.withColumn("share", F.expr("price / nullif(rows, 3)")).withColumn("total", F.expr("total div 7"))
    totals.to_topic(f"{sink}-behind", partitions=1)
    return app


def numbered(number):
    day = 30 + number % 3 // 2
    found = {"origin": f"{'EJL'[number % 3]}{number % 7}", "n": number * (1 << 40), "price": f"{number}.25"}
    found |= {"at": f"2024-03-{day}T{number % 4:02}:10:00Z", "dep_delay": float(number % 60)}
    return {name: None if name != "origin" and number * len(name) % 11 == 0 else value for name, value in found.items()}


@pytest.mark.parametrize("guarantee", ["exactly_once_v2", pytest.param("at_least_once", marks=longer)])
def test_spark_sql_around_an_aggregate_gives_what_jobs_give(spark, broker, make_app, running, guarantee):
    """Every micro-batch of both ways has one record of a task, so that every single row is compared."""
    values_of = [json.dumps(numbered(number)) for number in range(60)]
    broker.produce("flights", values_of, key=lambda value: json.loads(value)["origin"])
    spark.conf.set("spark.sql.session.timeZone", "Europe/Berlin")
    try:
        for execution, instance in (("resident", "a"), ("micro-batch", "b")):
            config = {"headrace.execution": execution, "headrace.batch.max.records": 1}
            app = make_app(execution, instance=instance, processing_guarantee=guarantee, config=config)
            started = running(around_an_aggregate(app, execution))
            started.wait_until("caught-up", timeout=60)
            ran = [row["residentSlots"] for row in started.recentProgress]
            assert len(ran) > 3
            assert set(ran) == {execution == "resident"}
            started.stop()
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")
    for part in ("before", "behind"):
        found = {way: sorted(map(json.dumps, values(broker, f"{way}-{part}"))) for way in ("resident", "micro-batch")}
        assert len(found["resident"]) > 30
        assert found["resident"] == found["micro-batch"]


def test_a_large_micro_batch_of_spark_sql_is_a_job(spark, broker, make_app, running, monkeypatch):
    monkeypatch.setattr(resident_slots, "MOST_RECORDS_WITH_SQL", 10)
    app = make_app("large")
    app.stream("flights", schema=NUMBERS).where("n > 1").to_topic("each", partitions=1)
    started = running(app)
    started.wait_until("running", timeout=60)
    [jobs] = jobs_of(started).values()
    before = job_ids(spark, jobs.group)
    broker.produce("flights", [json.dumps({"n": n}) for n in range(100)], partition=0)
    started.wait_until("caught-up", timeout=60)
    assert len(job_ids(spark, jobs.group)) > len(before)
    broker.produce("flights", [json.dumps({"n": n}) for n in range(100, 105)], partition=0)
    started.wait_until("caught-up", timeout=60)
    assert sorted(row["n"] for row in values(broker)) == list(range(2, 105))


def test_a_record_that_spark_sql_cannot_process_is_set_aside(broker, make_app, running):
    app = make_app("casts", on_error="skip")
    app.stream("flights", schema="text string").selectExpr("cast(text AS int) AS n").to_topic("each", partitions=1)
    started = running(app)
    for text in ("1", "two", "3"):
        broker.produce("flights", [json.dumps({"text": text})], partition=0)
        started.wait_until("caught-up", timeout=60)
    assert [row["n"] for row in values(broker)] == [1, 3]
    assert sum(row["skippedRecords"] for row in started.recentProgress) == 1


@pytest.mark.parametrize(
    ("select", "reason"),
    [
        ("n + rand()", "not deterministic"),
        ("n, current_timestamp() AS now", "tells the time"),
        ("times_two(n) AS n", "a function of the user"),
    ],
)
def test_spark_sql_that_would_freeze_or_buffer_is_refused_by_name(spark, broker, make_app, select, reason):
    spark.udf.register("times_two", lambda n: n, "bigint")
    app = make_app("other", config={"headrace.execution": "resident"})
    expressions = [part.strip() for part in ([select] if "(" in select.split(",")[0] else select.split(","))]
    app.stream("flights", schema=NUMBERS).selectExpr(*expressions).to_topic("each", partitions=1)
    with pytest.raises(ConfigError, match=reason):
        app.start()


def exploding(app):
    from pyspark.sql import functions as F

    rows = app.stream("flights", schema=NUMBERS).select(F.explode(F.array("n", F.col("n") + 1)).alias("n"))
    rows.to_topic("each", partitions=1)
    return app


def test_spark_sql_that_ends_at_a_marker_takes_jobs(spark, broker, make_app, running, flights, caplog):
    """Spark interprets generators where it generates no code for a whole stage; such a generator cannot go on."""
    spark.conf.set("spark.sql.codegen.wholeStage", "false")
    try:
        with pytest.raises(ConfigError, match="Spark interprets a step of its Spark SQL") as refused:
            exploding(make_app("demanded", config={"headrace.execution": "resident"})).start()
        assert refused.value.code == "resident-impossible"
        started = running(exploding(make_app("interpreted", instance="b")))
        flights.send(broker, range(10))
        started.wait_until("caught-up", timeout=60)
        started.stop()
    finally:
        spark.conf.unset("spark.sql.codegen.wholeStage")
    assert "flights runs a Spark job for each micro-batch: Spark interprets a step" in caplog.text
    assert sorted(row["n"] for row in values(broker)) == sorted([*range(10), *range(1, 11)])


def test_a_spark_that_holds_markers_back_takes_jobs(broker, make_app, running, flights, monkeypatch, caplog):
    """With another limit of bytes Spark collects rows, the marker among them, until more come."""
    monkeypatch.setattr(resident_chains, "FLUSH_BYTES", 1 << 20)
    monkeypatch.setattr(resident_slots, "START_S", 8.0)
    monkeypatch.setattr(resident_slots, "MARKER_S", 3.0)
    started = running(exploding(make_app("held")))
    flights.send(broker, range(10))
    started.wait_until("caught-up", timeout=60)
    assert "flights runs a Spark job for each micro-batch: Spark did not pass the first" in caplog.text
    assert len(values(broker)) == 20


def test_resident_slots_that_are_impossible_are_refused(broker, make_app, caplog):
    app = make_app("handed", config={"headrace.execution": "resident"})
    app.stream("flights", schema=NUMBERS).foreachBatch(lambda frame, number: None)
    with pytest.raises(ConfigError, match="a foreachBatch function takes") as refused:
        app.start()
    assert refused.value.code == "resident-impossible"


def test_a_session_with_too_few_threads_runs_jobs_and_logs_why(broker, make_app, running, caplog, monkeypatch):
    monkeypatch.setattr(resident_slots, "threads_of", lambda _spark: 10)
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
