"""`TopologyTest`: applications in the test's own process, without a broker."""

from __future__ import annotations

import datetime as dt
import decimal
import json
import time

import pyarrow as pa
import pyarrow.dataset
import pytest
from pyspark.sql import functions as F
from tests.longer import longer
from tests.spark.offline_programs import EWR, JFK, SCHEMA, counted

from headrace import DeadLetter, StreamsApp
from headrace.errors import HeadraceError, TopologyError
from headrace.formats import Avro
from headrace.testing import TopologyTest

pytestmark = pytest.mark.spark


def delays(app):
    flights = app.stream("flights", schema=SCHEMA).where("dep_delay is not null")
    means = flights.groupBy("origin").agg(F.count("*").alias("n"), F.round(F.avg("dep_delay"), 1).alias("mean"))
    means.withColumn("many", F.col("n") > 1).to_topic("means")
    return app


def test_rows_are_counted_and_read_once(make_offline_app, tmp_path):
    with TopologyTest(counted(make_offline_app())) as test:
        test.push("flights", [JFK, EWR, JFK])
        assert test.read("counts") == [{"origin": "EWR", "flights": 1}, {"origin": "JFK", "flights": 2}]
        assert test.read("counts") == []
        test.push("flights", [JFK])
        test.run()
        test.push("flights", [JFK])
        assert test.read("counts") == [{"origin": "JFK", "flights": 3}, {"origin": "JFK", "flights": 4}]
        assert test.table("counts") == {
            "EWR": {"origin": "EWR", "flights": 1},
            "JFK": {"origin": "JFK", "flights": 4},
        }
        assert test.state("by-origin").get("JFK") == {"origin": "JFK", "flights": 4}
    assert not (tmp_path / "never-made").exists()


def test_spark_sql_runs_before_and_behind_an_aggregate(make_offline_app):
    with TopologyTest(delays(make_offline_app())) as test:
        test.push("flights", [JFK, {**JFK, "dep_delay": 4.5}, {**JFK, "dep_delay": None}, EWR])
        assert test.table("means") == {
            "JFK": {"origin": "JFK", "n": 2, "mean": 3.8, "many": True},
            "EWR": {"origin": "EWR", "n": 1, "mean": 9.0, "many": False},
        }
        assert test.state("by-origin") == {
            "JFK": {"origin": "JFK", "n": 2, "mean": 3.8},
            "EWR": {"origin": "EWR", "n": 1, "mean": 9.0},
        }


def test_stores_are_restored_from_changelogs(make_offline_app):
    with TopologyTest(delays(make_offline_app()), partitions=3) as test:
        test.push("flights", [JFK, EWR], key="origin")
        before = test.state("by-origin")
        assert test.restart() == 2
        assert test.state("by-origin") == before
        test.push("flights", [{**JFK, "dep_delay": 5.0}])
        assert test.read("means")[2:] == [{"origin": "JFK", "n": 2, "mean": 4.0, "many": True}]


def test_internal_topics_have_the_partitions_of_their_inputs(make_offline_app):
    with TopologyTest(counted(make_offline_app()), partitions={"flights": 3}) as test:
        for partition in range(3):
            test.push("flights", [JFK, EWR], partition=partition)
        test.run()
        assert {record.partition for record in test.records("flights")} == {0, 1, 2}
        repartitioned = test.records("delays-by-origin-repartition")
        assert len(repartitioned) <= 6, "a record is the partial result of one row or of several"
        places = {(record.key, record.partition) for record in repartitioned}
        assert len(places) == 2, "each origin has one partition"
        assert {(record.key, record.partition) for record in test.records("delays-by-origin-changelog")} == places
        assert test.table("counts")["JFK"]["flights"] == 3


def test_keys_follow_kafkas_partitioner(make_offline_app):
    from headrace.protocol.partitioner import partition_for_key

    app = make_offline_app()
    app.stream("flights", schema=SCHEMA).to_topic("copy", key="origin")
    with TopologyTest(app, partitions=8) as test:
        test.push("flights", [JFK, EWR], key=lambda row: row["origin"].lower())
        assert {r.key: r.partition for r in test.records("flights")} == {
            key: partition_for_key(key, 8) for key in (b"jfk", b"ewr")
        }
        assert {r.key: r.partition for r in test.records("copy")} == {
            key: partition_for_key(key, 8) for key in (b"JFK", b"EWR")
        }


def test_records_show_key_value_time_and_headers(make_offline_app):
    app = make_offline_app()
    rows = app.stream("flights", schema=SCHEMA).withColumn("at", F.col("_kafka.timestamp"))
    rows.withColumn("trace", F.col("_kafka.headers")[0]["value"].cast("string")).to_topic("copy")
    with TopologyTest(app, now_ms=1_000_000) as test:
        test.push("flights", [JFK, EWR], key=["a", None], timestamp_ms=[5, 6], headers=[("trace", b"t1")])
        test.advance(500)
        first, second = test.records("copy")
        assert (first.key, second.key) == (b"a", None)
        assert first.timestamp_ms == test.now_ms == 1_000_500
        assert json.loads(first.value or b"") == {**JFK, "at": "1970-01-01T00:00:00.005000Z", "trace": "t1"}
        assert test.records("flights")[0].headers == (("trace", b"t1"),)


def test_null_values_delete_keys(make_offline_app):
    app = make_offline_app()
    app.stream("names", schema="id string, name string").to_topic("by-id", key="id", value="string")
    with TopologyTest(app) as test:
        test.push("names", [{"id": "1", "name": "a"}, {"id": "2", "name": "b"}, {"id": "1", "name": None}])
        assert test.read("by-id") == ["a", "b", None]
        assert test.table("by-id") == {"2": "b"}


def test_raw_values_and_tombstones_pass(make_offline_app):
    app = make_offline_app()
    app.stream("in").select("key", "value").where("value is null or length(value) > 1").to_topic("out", value="raw")
    with TopologyTest(app) as test:
        test.push("in", [b"\xff\xfe", None, b"x", "text"], key=b"k")
        assert test.read("out") == [b"\xff\xfe", None, b"text"]
        assert {record.key for record in test.records("out")} == {b"k"}


def test_arrow_tables_and_typed_values_are_pushed(make_offline_app):
    app = make_offline_app()
    schema = "d decimal(20,2), t timestamp, b binary, day date"
    app.stream("in", schema=schema).to_topic("out")
    at, day = dt.datetime(2013, 1, 1, 5, 6, tzinfo=dt.UTC), dt.date(2013, 1, 1)
    row = {"d": decimal.Decimal("12345678901234567.25"), "t": at, "b": b"\x00\x01", "day": day}
    table = pa.table({"d": pa.array([row["d"]], pa.decimal128(20, 2)), "t": [at], "b": [row["b"]], "day": [day]})
    with TopologyTest(app) as test:
        test.push("in", [row])
        test.push("in", table)
        first, second = test.records("out")
        assert first.value == second.value
        assert b'"d":12345678901234567.25' in (first.value or b"")
        assert test.read("out")[0]["t"] == "2013-01-01T05:06:00.000000Z"


def test_avro_is_encoded_and_decoded(make_offline_app):
    app = make_offline_app()
    written = Avro(
        schema='{"type":"record","name":"F","fields":[{"name":"origin","type":"string"},{"name":"n","type":"int"}]}'
    )
    rows = app.stream("in", value=written).withColumn("n", F.col("n") + 1)
    rows.to_topic("out", value=Avro(schema=written.schema))
    with TopologyTest(app) as test:
        test.push("in", [{"origin": "JFK", "n": 1}])
        assert test.read("out") == [{"origin": "JFK", "n": 2}]
        with pytest.raises(TopologyError, match="does not fit"):
            test.push("in", [{"origin": "JFK", "n": "one"}])


# -- records that cannot be processed ---------------------------------------------------------------------------------


def test_bad_records_are_skipped_or_kept_aside(make_offline_app):
    app = make_offline_app(on_error=DeadLetter("bad"))
    counted(app)
    with TopologyTest(app) as test:
        test.push("flights", [JFK, "no json", EWR], key=["j", "k", "e"])
        assert len(test.read("counts")) == 2
        [bad] = test.records("bad")
        assert (bad.key, bad.value) == (b"k", b"no json")
        assert dict(bad.headers)["headrace.offset"] == b"1"
        assert sum(row["deadLetters"] for row in test.progress) == 1
    with TopologyTest(counted(make_offline_app("other", on_error="skip"))) as test:
        test.push("flights", [JFK, "no json"])
        assert len(test.read("counts")) == 1
        assert sum(row["skippedRecords"] for row in test.progress) == 1


# -- event time -------------------------------------------------------------------------------------------------------


def test_duplicates_and_late_rows_are_dropped(make_offline_app):
    app = make_offline_app()
    clicks = app.stream("clicks", schema="id string, at timestamp", key="id")
    clicks.withWatermark("at", "10 seconds").dropDuplicatesWithinWatermark(["id"]).to_topic("unique")

    def click(name, second):
        return {"id": name, "at": f"2024-01-01T00:{second // 60:02}:{second % 60:02}Z"}

    with TopologyTest(app, now_ms=1_704_067_200_000) as test:
        test.push("clicks", [click("a", 0), click("a", 3), click("b", 5)])
        assert [row["id"] for row in test.read("unique")] == ["a", "b"]
        test.restart()
        test.push("clicks", [click("b", 8), click("c", 60), click("d", 49), click("a", 51)])
        assert [row["id"] for row in test.read("unique")] == ["c", "a"], "b again, d too late"
        assert sum(s["numRowsDroppedByWatermark"] for row in test.progress for s in row["stateOperators"]) == 1
        second = dt.timedelta(seconds=1)
        newest = dt.datetime(2024, 1, 1, tzinfo=dt.UTC)
        state = test.state("unique-by-id")
        assert {key: state[key] for key in ("a", "c")} == {"a": newest + 51 * second, "c": newest + 60 * second}


def test_records_out_of_time_are_kept_aside(make_offline_app):
    app = make_offline_app()
    letters = {"on_late": DeadLetter("late"), "on_ahead": DeadLetter("ahead")}
    clicks = app.stream("clicks", schema="id string, at timestamp", key="id", **letters)
    clicks = clicks.withWatermark("at", "10 seconds")
    clicks.dropDuplicatesWithinWatermark(["id"]).to_topic("unique")
    windows = F.window("at", "1 minute", "30 seconds")
    clicks.groupBy(windows, "id").agg(F.count("*").alias("n"), name="kept").to_topic("kept", output_mode="append")
    spread = clicks.where("id <> 'z'").groupBy(F.window("at", "1 minute")).agg(F.count("*").alias("n"), name="spread")
    spread.where("n > 0").to_topic("spread", output_mode="append")

    def click(second):
        return {"id": "a", "at": f"2024-01-01T00:{second // 60:02}:{second % 60:02}Z"}

    with TopologyTest(app, now_ms=1_704_067_200_000) as test:
        test.push("clicks", [click(0), {"id": "n"}, {"id": "a", "at": "2024-01-02T00:00:00Z"}])
        test.push("clicks", [click(100)])
        assert test.records("late")[0].value == b'{"id":"n"}'
        test.restart()
        test.push("clicks", [click(65), click(20), click(131)])
        late = [(dict(r.headers)["headrace.offset"], dict(r.headers)["headrace.reason"]) for r in test.records("late")]
        assert sorted(late) == [
            (b"1", b"without an event time for unique-by-id"),
            (b"4", b"too late for kept-watermark"),
            (b"4", b"too late for unique-by-id"),
            (b"5", b"too late for kept-watermark"),
            (b"5", b"too late for spread-watermark"),
            (b"5", b"too late for unique-by-id"),
        ], "the row at 65 is late for one of its two windows, and is written once"
        assert {(r.key, dict(r.headers)["headrace.offset"]) for r in test.records("ahead")} == {(b"a", b"2")}
        assert len(test.records("ahead")) == 3, "one for each operator"
        assert [row["n"] for row in test.read("spread")] == [1, 2], "the row at 65 is on time for its minute"
        assert sum(row["deadLetters"] for row in test.progress) == 5, "since the restart"
        assert len(test.read("unique")) == 3


def test_two_streams_share_an_aggregate(make_offline_app):
    app = make_offline_app()
    both = app.stream("flights", schema=SCHEMA).unionByName(app.stream("delays", schema=SCHEMA))
    both.groupBy("origin").agg(F.count("*").alias("n")).to_topic("counts")
    with TopologyTest(app, partitions={"flights": 2, "delays": 3}) as test:
        test.push("flights", [JFK, JFK])
        test.push("delays", [JFK])
        assert test.table("counts") == {"JFK": {"origin": "JFK", "n": 3}}
        assert len({r.partition for r in test.records("delays-by-origin-changelog")}) == 1


def test_windows_close_by_the_watermarks_of_all_tasks(make_offline_app):
    app = make_offline_app()
    flights = app.stream("flights", schema="origin string, at timestamp").withWatermark("at", "10 seconds")
    windowed = flights.groupBy(F.window("at", "1 minute"), "origin").agg(F.count("*").alias("n"), name="by-minute")
    windowed.to_topic("by-minute", output_mode="append")

    def flight(minute):
        return {"origin": "JFK", "at": f"2024-01-01T00:{minute:02}:30Z"}

    with TopologyTest(app, partitions={"flights": 2}, now_ms=1_704_067_200_000) as test:
        test.push("flights", [flight(0), flight(0), flight(2)], partition=0)
        assert test.read("by-minute") == [], "the other task has sent no watermark"
        start = dt.datetime(2024, 1, 1, tzinfo=dt.UTC)
        first = {"start": start, "end": start + dt.timedelta(minutes=1)}
        assert test.state("by-minute")[start, "JFK"] == {"window": first, "origin": "JFK", "n": 2}
        test.push("flights", [flight(0), flight(3)], partition=1)
        [row] = test.read("by-minute")
        assert row["n"] == 3
        assert row["window"]["start"] == "2024-01-01T00:00:00.000000Z"
        assert len(test.state("by-minute")) == 2
        test.restart()
        test.push("flights", [flight(0)], partition=1)
        assert test.read("by-minute") == []
        assert sum(s["numRowsDroppedByWatermark"] for row in test.progress for s in row["stateOperators"]) == 1


@pytest.mark.parametrize(
    ("how", "expected"),
    [
        pytest.param("inner", [(1, 70)], marks=longer),
        pytest.param("left", [(1, 70), (2, None), (None, None)], marks=longer),
        pytest.param("right", [(1, 70), (None, 71), (None, 73)], marks=longer),
        ("full", [(1, 70), (2, None), (None, None), (None, 71), (None, 73)]),
        ("left_semi", [(1,)]),
    ],
)
def test_open_joins_are_restored_and_rows_without_a_partner_leave(make_offline_app, how, expected):
    app = make_offline_app()
    orders = app.stream("orders", schema="id bigint, at timestamp").withWatermark("at", "10 seconds")
    payments = app.stream("payments", schema="order bigint, amount bigint, paid timestamp")
    in_time = F.expr("id = order AND paid BETWEEN at AND at + INTERVAL 1 MINUTE")
    joined = orders.join(payments.withWatermark("paid", "10 seconds"), in_time, how, name="joined")
    joined.select(*(["id"] if how == "left_semi" else ["id", "amount"])).to_topic("out")

    def order(number, second):
        return {"id": number, "at": f"2024-01-01T00:{second // 60:02}:{second % 60:02}Z"}

    def payment(number, amount, second):
        return {"order": number, "amount": amount, "paid": order(0, second)["at"]}

    with TopologyTest(app, now_ms=1_704_067_200_000) as test:
        test.push("orders", [order(1, 0), order(2, 0), order(None, 5)])
        test.push("payments", [payment(3, 71, 30), payment(2, 72, 61)])  # of no order, and too late for its order
        test.run()
        test.restart()
        test.push("payments", [payment(1, 70, 60), payment(None, 73, 60)])
        test.run()
        test.restart()
        # Both watermarks pass what has been there; a late order of payment 71, and then nothing comes twice.
        test.push("orders", [order(9, 200), order(3, 20)])
        test.push("payments", [payment(8, 74, 200), payment(1, 75, 40)])
        test.run()
        late = sum(s["numRowsDroppedByWatermark"] for row in test.progress for s in row["stateOperators"])
        test.restart()
        found = [tuple(row.values()) for row in test.read("out")]
    late_payment = [(None, 72)] if how in ("right", "full") else []
    assert sorted(found, key=str) == sorted(expected + late_payment, key=str)
    assert late == 2


# -- mistakes ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "code", "says"),
    [
        (lambda t: t.push("flihgts", [JFK]), "topic-missing", 'did you mean "flights"'),
        (lambda t: t.push("counts", [JFK]), "topic-missing", "reads no topic"),
        (lambda t: t.push("flights", [{"orgin": "JFK"}]), "unresolved-column", 'did you mean "origin"'),
        (lambda t: t.push("flights", pa.table({"orgin": ["JFK"]})), "unresolved-column", 'did you mean "origin"'),
        (lambda t: t.push("flights", [JFK], key="carrier"), "unresolved-column", "no column of the row"),
        (lambda t: t.push("flights", [JFK], key=["a", "b"]), "bad-value", "2 keys are given for 1 rows"),
        (lambda t: t.push("flights", JFK), "bad-value", "a list of rows"),
        (lambda t: t.push("flights", [7]), "bad-value", "a row is a int"),
        (lambda t: t.push("flights", [{"origin": object()}]), "bad-value", "has no JSON form"),
        (lambda t: t.push("flights", [JFK], partition=1), "bad-value", "has no partition 1"),
        (lambda t: t.read("flights"), "bad-value", "is no topic that the application writes"),
        (lambda t: t.read("count"), "topic-missing", 'did you mean "counts"'),
        (lambda t: t.state("by-orign"), "bad-value", 'did you mean "by-origin"'),
        (lambda t: t.advance(-1), "bad-value", "time does not go back"),
    ],
)
def test_mistakes_are_refused_at_the_users_line(mistaken, call, code, says):
    with pytest.raises(HeadraceError, match=says) as raised:
        call(mistaken)
    assert raised.value.code == code
    assert "test_topology_test.py" in raised.value.facts["where"]
    assert raised.value.fix


@pytest.fixture(scope="module")
def mistaken(spark, tmp_path_factory):
    app = StreamsApp("mistaken", spark=spark, state_dir=tmp_path_factory.mktemp("mistaken"))
    with TopologyTest(counted(app)) as test:
        yield test


@pytest.mark.parametrize("partitions", [0, True, {"flights": -1}, {"flihgts": 2}, "many"])
def test_partitions_are_checked(make_offline_app, partitions):
    with pytest.raises(TopologyError):
        TopologyTest(counted(make_offline_app()), partitions=partitions)


# -- cost -------------------------------------------------------------------------------------------------------------


def test_a_topology_without_sql_runs_no_spark_job(make_offline_app, spark):
    tracker = spark.sparkContext.statusTracker()
    before = set(tracker.getJobIdsForGroup(None))
    app = counted(make_offline_app())
    spent = []
    for _ in range(5):  # the first one loads compiled code
        started = time.process_time()
        with TopologyTest(app) as test:
            test.push("flights", [JFK])
            assert test.read("counts") == [{"origin": "JFK", "flights": 1}]
        spent.append(time.process_time() - started)
    assert set(tracker.getJobIdsForGroup(None)) == before
    assert min(spent) < 0.1, spent
