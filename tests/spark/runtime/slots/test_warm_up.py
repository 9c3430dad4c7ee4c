"""Before an instance joins its SQL has run on a few of the newest records, and nothing came of it."""

import json

import pytest
from pyspark.sql import functions as F

from headrace.client.admin import Admin
from headrace.spark.runtime.batches.plan import InputRange
from headrace.spark.runtime.slots.warm_up import newest_records

pytestmark = pytest.mark.spark


def marking(app, seen):
    """Numbers of at least 0, each of which leaves its mark in the directory `seen` when the function meets it."""

    @F.udf("bigint")
    def marked(number):
        (seen / str(number)).touch()
        return number

    rows = app.stream("flights", schema="n bigint").select(marked("n").alias("n"))
    rows.where("n >= 0").to_topic("marked", partitions=1)
    return app


def test_the_newest_records_meet_the_functions_before_the_member_joins(broker, make_app, running, tmp_path):
    """Of the fullest partition alone; the instance has no tasks then, and nobody else's records are touched."""
    seen = tmp_path / "seen"
    seen.mkdir()
    broker.produce("flights", [json.dumps({"n": n}) for n in range(50)], partition=2)
    broker.produce("flights", [json.dumps({"n": n}) for n in range(100, 105)], partition=1)
    found_at_join = []

    class Listener:
        def onTasksChanged(self, _event):
            found_at_join.append(sorted(int(path.name) for path in seen.iterdir()))

    app = marking(make_app(config={"headrace.warm.up.records": 7}, auto_offset_reset="latest"), seen)
    app.addListener(Listener())
    running(app).wait_until("running", timeout=180)
    assert found_at_join[0] == list(range(43, 50))
    assert broker.records("marked") == [], "they were read, not processed"


def test_none_are_read_where_none_are_wanted(broker, make_app, tmp_path):
    seen = tmp_path / "seen"
    seen.mkdir()
    broker.produce("flights", [json.dumps({"n": n}) for n in range(50)])
    app = marking(make_app(config={"headrace.warm.up.records": 0}, auto_offset_reset="latest"), seen)
    app.run(until="caught-up")
    assert list(seen.iterdir()) == []


def test_warm_up_ignores_records_that_sql_cannot_process(broker, make_app):
    """The newest one is bad; it is skipped in its turn, and told once, by the micro-batch that meets it."""
    broker.produce("flights", [json.dumps({"n": n}) for n in [*range(20), 0]], partition=0)
    app = make_app()
    rows = app.stream("flights", schema="n bigint", on_error="skip")
    rows.select(F.expr("100 div n").alias("n")).to_topic("shares", partitions=1)
    app.run(until="caught-up")
    shares = [json.loads(record.value)["n"] for record in broker.records("shares")]
    assert sorted(shares) == sorted(100 // n for n in range(1, 20))


def test_the_last_offsets_of_the_fullest_partition_of_each_topic(broker):
    with Admin(broker.bootstrap_servers) as admin:
        assert newest_records(admin, ["flights", "not-there"], 10) == ()
        broker.produce("flights", [b"x"] * 4, partition=1)
        broker.produce("flights", [b"x"] * 3, partition=3)
        assert newest_records(admin, ["flights"], 10) == (InputRange(topic="flights", partition=1, start=0, end=4),)
        assert newest_records(admin, ["flights"], 3) == (InputRange(topic="flights", partition=1, start=1, end=4),)
        admin.delete_records({("flights", 1): 4})
        assert newest_records(admin, ["flights"], 2) == (InputRange(topic="flights", partition=3, start=1, end=3),)
