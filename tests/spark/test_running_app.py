"""An application from topic to topic: results, commits, progress, restarts."""

import json
from typing import Any

import pytest
from pyspark.sql import functions as F

from headrace.errors import BrokerError, StateError

pytestmark = pytest.mark.spark


def test_counts_through_a_repartition_topic(broker, make_app, running, flights):
    flights.send(broker, range(500))
    app = running(flights.count_by_origin(make_app()))
    app.wait_until("caught-up", timeout=60)
    assert flights.newest(broker, "by-origin") == flights.counted(range(500))
    flights.send(broker, range(500, 800))
    app.processAllAvailable()
    assert flights.newest(broker, "by-origin") == flights.counted(range(800))

    group = broker.group("flight-counts")
    assert sum(offset for (topic, _), offset in group.offsets.items() if topic == "flights") == 800
    assert {task.subtopology for task in app.tasks} == {"flights", "origin"} or len(app.tasks) == 8
    assert app.member.member_epoch >= 1
    assert set(app.lag().values()) == {0}
    progress = [row for row in app.recentProgress if row["subtopology"] == "flights"]
    assert sum(row["numInputRows"] for row in progress) == 800
    assert {"batchId", "timestamp", "inputRowsPerSecond", "processedRowsPerSecond", "durationMs"} <= set(progress[0])
    assert any(row["stateOperators"] for row in app.recentProgress)


def test_no_job_without_news(broker, make_app, running, spark, flights):
    flights.send(broker, range(10))
    app = running(flights.count_by_origin(make_app()))
    app.wait_until("caught-up", timeout=60)
    app._wait(lambda: flights.are_told(app.recentProgress, 10), None, "told")
    before = len(app.recentProgress)
    turns = [runner.last_active_s for runner in app._runtime.runners.values()]
    app._wait(
        lambda: all(r.last_active_s > t + 0.3 for r, t in zip(app._runtime.runners.values(), turns, strict=True)),
        None,
        "idle",
    )
    assert len(app.recentProgress) == before


def test_a_stopped_application_goes_on_where_it_was(broker, make_app, running, flights):
    flights.send(broker, range(300))
    with flights.count_by_origin(make_app()).start() as first:
        first.wait_until("caught-up", timeout=60)
    assert broker.group("flight-counts").members == {}
    assert not first.isActive
    flights.send(broker, range(300, 420))
    again = running(flights.count_by_origin(make_app()))
    again.wait_until("caught-up", timeout=60)
    assert flights.newest(broker, "by-origin") == flights.counted(range(420))


def test_state_comes_back_from_the_changelog(broker, make_app, running, flights):
    flights.send(broker, range(300))
    with flights.count_by_origin(make_app(instance="a")).start() as first:
        first.wait_until("caught-up", timeout=60)
    flights.send(broker, range(300, 420))
    elsewhere = running(flights.count_by_origin(make_app(instance="b")))
    elsewhere.wait_until("caught-up", timeout=60)
    assert flights.newest(broker, "by-origin") == flights.counted(range(420))


def test_stateless_sql_keeps_the_key(broker, make_app, running, flights):
    broker.create_topics({"late": 2})
    broker.produce("flights", [json.dumps(flights.flight(5))], key="F5")
    broker.produce("flights", [json.dumps(flights.flight(10))], key="F10")
    app = make_app()
    rows = app.stream("flights", schema=flights.SCHEMA)
    rows.where("dep_delay is not null").select("origin", (F.col("dep_delay") * 2).alias("twice")).to_topic("late")
    running(app).wait_until("caught-up", timeout=60)
    assert flights.newest(broker, "late") == {"F5": {"origin": "LGA", "twice": 10.0}}


def test_results_that_need_spark_sql(broker, make_app, running, flights):
    flights.send(broker, range(200))
    app = make_app()
    rows = app.stream("flights", schema=flights.SCHEMA)
    mean = F.round(F.avg("dep_delay"), 1).alias("mean")
    rows.where("n >= 20").groupBy("origin").agg(mean).to_topic("means", partitions=1)
    running(app).wait_until("caught-up", timeout=60)
    for origin, row in flights.newest(broker, "means").items():
        delays = [
            d
            for n in range(20, 200)
            if (d := flights.flight(n)["dep_delay"]) is not None and flights.flight(n)["origin"] == origin
        ]
        assert row["mean"] == round(sum(delays) / len(delays) + 1e-9, 1)


def test_foreach_batch_sees_each_row(broker, make_app, running, flights):
    flights.send(broker, range(100))
    seen: list[Any] = []
    numbers: list[Any] = []

    def take(frame, number):
        numbers.append(number)
        seen.extend(row["n"] for row in frame.collect())

    app = make_app()
    app.stream("flights", schema=flights.SCHEMA).where("n % 2 = 0").foreachBatch(take)
    running(app).wait_until("caught-up", timeout=60)
    assert sorted(seen) == list(range(0, 100, 2))
    assert sum(end - start for number in numbers for start, end in number.offsets.values()) == 100
    assert all(number.tasks for number in numbers)


def test_functions_answer_anew_in_each_batch(broker, make_app, running, flights):
    app = make_app()
    app.stream("flights", schema=flights.SCHEMA).select("n", F.expr("uuid()").alias("id")).to_topic("ids", partitions=1)
    started = running(app)
    started.wait_until("running", timeout=60)
    for number in range(3):
        flights.send(broker, [number])
        started.processAllAvailable()
    ids = [json.loads(record.value)["id"] for record in broker.records("ids")]
    assert len(ids) == 3
    assert len(set(ids)) == 3


def test_a_missing_topic_is_reported_at_once(make_app, flights):
    app = make_app()
    app.stream("fligths", schema=flights.SCHEMA).to_topic("out", partitions=1)
    with pytest.raises(BrokerError) as raised:
        app.start()
    assert raised.value.code == "topic-missing"
    assert "fligths" in str(raised.value)


def test_two_instances_need_two_state_directories(broker, make_app, running, flights):
    running(flights.count_by_origin(make_app()))
    with pytest.raises(StateError) as raised:
        flights.count_by_origin(make_app()).start()
    assert raised.value.code == "state-locked"


def test_an_instance_without_tasks_is_caught_up_with_its_group(broker, make_app, running, flights):
    broker.create_topics({"narrow": 1})
    broker.produce("narrow", [json.dumps(flights.flight(number)) for number in range(50)])

    def instance(name):
        app = make_app("one-task", instance=name)
        app.stream("narrow", schema=flights.SCHEMA).select("n").to_topic("numbers", partitions=1)
        return running(app)

    worker, spare = instance("a"), instance("b")
    worker.wait_until("caught-up", timeout=60)
    spare.wait_until("caught-up", timeout=60)
    assert sorted(map(len, (worker.tasks, spare.tasks))) == [0, 1]
    assert len(broker.records("numbers")) == 50
