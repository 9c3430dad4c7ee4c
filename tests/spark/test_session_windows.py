"""`F.session_window` in `groupBy`: what is recognised, what comes out, and what is refused."""

import json
from datetime import UTC, datetime, timedelta

import pytest
from pyspark.sql import functions as F

from headrace.errors import HeadraceError
from headrace.spark.streams_app import StreamsApp
from headrace.spark.topology.nodes import RepartitionSink, SessionWindow, WindowedAggregate
from headrace.testing import TopologyTest

pytestmark = pytest.mark.spark

SECOND = 1_000_000
BASE = datetime(2026, 1, 1, tzinfo=UTC)
SCHEMA = "id string, ts timestamp, text string, n bigint"


@pytest.fixture
def clicks(spark, tmp_path):
    app = StreamsApp("sessions", spark=spark, bootstrap_servers="127.0.0.1:1", state_dir=tmp_path)
    return app.stream("clicks", schema=SCHEMA)


def at(second):
    return BASE + timedelta(seconds=second)


def shown(second):
    return at(second).strftime("%Y-%m-%dT%H:%M:%S.000000Z")


def sessions(stream, delay="5 seconds", gap="10 seconds"):
    marked = stream.withWatermark("ts", delay)
    return marked.groupBy(F.session_window("ts", gap), "id").agg(F.count("*").alias("clicks"), F.sum("n").alias("sum"))


def test_sessions_are_compiled_with_their_gap_and_clock(clicks):
    table = sessions(clicks)
    assert table.columns == ["session_window", "id", "clicks", "sum"]
    assert table.schema["session_window"].dataType.simpleString() == "struct<start:timestamp,end:timestamp>"
    table.to_topic("out", output_mode="append")
    compiled = clicks._app.compile()
    [operator] = [one for part in compiled.subtopologies for one in part.operators]
    assert isinstance(operator, WindowedAggregate)
    assert operator.window == SessionWindow(group="g0", gap_us=10 * SECOND)
    assert operator.name == "by-session_window-id"
    assert operator.bare, "results need no Spark SQL"
    [branch] = compiled.subtopology("clicks").branches
    assert isinstance(branch.sink, RepartitionSink)
    assert branch.sink.key_columns == ("g1",)
    described = clicks._app.describe()
    assert "sessions with gaps of 0:00:10, which close by the watermark of clicks" in described
    assert "drops earlier rows" in described
    assert '"gap_ms": 10000.0' in clicks._app.describe(format="json")


@pytest.mark.parametrize("keyed", [False, True], ids=["repartitioned", "by-the-record-key"])
def test_closed_sessions_leave_once_and_open_ones_are_state(clicks, keyed):
    stream = clicks._app.stream("keyed", schema=SCHEMA, key="id") if keyed else clicks
    topic = "keyed" if keyed else "clicks"
    table = sessions(stream).withColumn("seconds", F.expr("unix_seconds(session_window.end) % 1000"))
    table.to_topic("out", output_mode="append")
    with TopologyTest(clicks._app) as test:

        def push(*rows):
            test.push(topic, [{"id": key, "ts": None if s is None else at(s), "n": n} for key, s, n in rows])

        push(("a", 0, 1), ("b", 2, 2), ("a", 10, 3), ("b", 13, 4), ("a", None, 5))
        assert test.read("out") == []
        push(("b", 20, 6), ("a", 21, 7), ("b", 14, 8))
        rows = test.read("out")
        assert [(row["id"], row["session_window"], row["clicks"], row["sum"]) for row in rows] == [
            ("b", {"start": shown(2), "end": shown(12)}, 1, 2)
        ]
        push(("c", 26, 9), ("c", 27, 0))
        [row] = test.read("out")
        assert (row["id"], row["session_window"], row["clicks"]) == ("a", {"start": shown(0), "end": shown(20)}, 2)
        assert {key: row["sum"] for key, row in test.state("by-session_window-id").items()} == {
            (at(13), "b"): 10,  # the row at 14 s was late
            (at(21), "a"): 7,
            (at(26), "c"): 9,
        }


def test_a_session_that_grows_deletes_its_row_in_update_mode(clicks):
    sessions(clicks).to_topic("out")
    with TopologyTest(clicks._app) as test:
        test.push("clicks", [{"id": "a", "ts": at(0), "n": 1}, {"id": "a", "ts": at(20), "n": 2}])
        assert len(test.table("out")) == 2
        test.push("clicks", [{"id": "a", "ts": at(15), "n": 4}])
        test.run()
        records = {json.loads(one.key or b"")["session_window"]["start"]: one.value for one in test.records("out")[-2:]}
        assert set(records) == {shown(15), shown(20)}
        assert records[shown(20)] is None
        rows = {row["session_window"]["start"]: row["sum"] for row in test.table("out").values()}
        assert rows == {shown(0): 1, shown(15): 6}


def marked(stream):
    return stream.withWatermark("ts", "1 hour")


REFUSED = {
    "no watermark": (
        lambda s: s.groupBy(F.session_window("ts", "1 hour"), "id"),
        "not-supported-here",
        "withWatermark",
    ),
    "no key": (lambda s: marked(s).groupBy(F.session_window("ts", "1 hour")), "needs-shuffle", "name a column"),
    "a gap per row": (
        lambda s: marked(s).groupBy(
            F.session_window("ts", F.when(F.col("n") > 1, "1 hour").otherwise("2 hours")), "id"
        ),
        "not-supported-here",
        "a gap per row",
    ),
    "a day": (lambda s: marked(s).groupBy(F.session_window("ts", "1 day"), "id"), "not-supported-here", "24 hours"),
    "a month": (lambda s: marked(s).groupBy(F.session_window("ts", "1 month"), "id"), "not-supported-here", "days or"),
    "no interval": (lambda s: marked(s).groupBy(F.session_window("ts", "long"), "id"), "bad-value", "positive"),
    "no gap": (lambda s: marked(s).groupBy(F.session_window("ts", "0 seconds"), "id"), "bad-value", "positive"),
    "a negative gap": (lambda s: marked(s).groupBy(F.session_window("ts", "-1 hour"), "id"), "bad-value", "positive"),
    "a session of text": (
        lambda s: marked(s).groupBy(F.session_window("text", "1 hour"), "id"),
        "not-supported-here",
        "cast it",
    ),
    "another column than the watermark's": (
        lambda s: marked(s.withColumn("u", F.expr("ts + interval 1 hour"))).groupBy(
            F.session_window("u", "1 hour"), "id"
        ),
        "not-supported-here",
        "the same column",
    ),
    "two windows": (
        lambda s: marked(s).groupBy(F.session_window("ts", "1 hour"), F.window("ts", "1 hour"), "id"),
        None,
        "window",
    ),
    "a distinct count": (
        lambda s: marked(s).groupBy(F.session_window("ts", "1 hour"), "id").agg(F.countDistinct("n")),
        "not-supported-here",
        "exact distinct counts of sessions",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_no_session_is_refused_with_a_fix(clicks, name):
    program, code, words = REFUSED[name]
    with pytest.raises(HeadraceError) as caught:
        program(clicks)
    assert code is None or caught.value.code == code, str(caught.value)
    assert words in f"{caught.value} {caught.value.fix}", str(caught.value)
    assert caught.value.fix
