"""Unions of streams with watermarks: what they compile to, what comes out under random order and cuts, refusals."""

from __future__ import annotations

import json
import random
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pyspark.sql import Row, Window
from pyspark.sql import functions as F
from pyspark.sql.streaming.stateful_processor import StatefulProcessor
from pyspark.sql.types import LongType, StringType, StructField, StructType, TimestampType
from tests.longer import LONG

from headrace.errors import HeadraceError
from headrace.spark.runtime.rows.row_schema import schemas_by_changelog
from headrace.spark.streams_app import StreamsApp
from headrace.spark.topology.nodes import RepartitionSink, Watermark, WindowedAggregate, WindowedTopN
from headrace.testing import TopologyTest

pytestmark = pytest.mark.spark

BASE = datetime(2026, 1, 1, tzinfo=UTC)
DELAYS = {"clicks": 5, "views": 20}  # seconds
SCHEMA = "id string, ts timestamp, n bigint"
ROWS = StructType([StructField("id", StringType()), StructField("ts", TimestampType()), StructField("n", LongType())])


@pytest.fixture
def app(spark, tmp_path):
    return StreamsApp("unions", spark=spark, bootstrap_servers="127.0.0.1:1", state_dir=tmp_path)


def at(second):
    return BASE + timedelta(seconds=second)


def marked(app, topic, **options):
    stream = app.stream(topic, schema=SCHEMA, **options)
    return stream.withWatermark("ts", f"{DELAYS.get(topic, 5)} seconds")


def united(app):
    """Return a union of two streams, one of which computes its columns."""
    views = app.stream("views", schema="viewer string, seen timestamp, n int")
    views = views.withColumn("ts", F.col("seen")).withColumn("id", F.lower("viewer")).drop("viewer")
    views = views.withWatermark("ts", f"{DELAYS['views']} seconds").drop("seen")
    return marked(app, "clicks").unionByName(views)


def by_window(stream, name="by-window"):
    aggregates = (F.count("*").alias("rows"), F.sum("n").alias("total"))
    return stream.groupBy(F.window("ts", "10 seconds"), "id").agg(*aggregates, name=name)


def test_each_side_keeps_a_clock_and_windows_close_by_both(app):
    both = united(app)
    assert both.columns == ["id", "ts", "n"]
    by_window(both).to_topic("out", output_mode="append")
    compiled = app.compile()
    clocks = {}
    for topic in ("clicks", "views"):
        [branch] = compiled.subtopology(topic).branches
        assert isinstance(branch.watermark, Watermark)
        assert isinstance(branch.sink, RepartitionSink)
        assert branch.sink.source_topics == (topic,)
        clocks[topic] = (branch.watermark.name, branch.watermark.source, branch.watermark.delay_us // 1_000_000)
    assert clocks == {
        "clicks": ("by-window-watermark-clicks", "clicks", 5),
        "views": ("by-window-watermark-views", "views", 20),
    }
    [operator] = compiled.subtopology("by-window").operators
    assert isinstance(operator, WindowedAggregate)
    assert operator.watermark_sources == ("clicks", "views")
    assert "which close by the watermark of clicks, views" in app.describe()


def test_a_watermark_behind_a_union_is_one_of_each_side(app):
    clicks, views = (app.stream(topic, schema=SCHEMA) for topic in ("clicks", "views"))
    by_window(clicks.unionByName(views).withWatermark("ts", "7 seconds")).to_topic("out")
    branches = [app.compile().subtopology(topic).branches[0] for topic in ("clicks", "views")]
    assert [branch.watermark.delay_us for branch in branches if branch.watermark] == [7_000_000] * 2


@pytest.mark.parametrize("change", ["another source", "another expression", "the sides exchanged"])
def test_a_changed_union_is_another_identity_of_stored_rows(spark, change):
    found = []
    for changed in (False, True):
        app = StreamsApp("unions", spark=spark)
        one, other = marked(app, "clicks"), marked(app, "views")
        if changed and change == "another source":
            other = marked(app, "likes")
        if changed and change == "another expression":
            other = other.withColumn("n", F.col("n") * 2)
        sides = (other, one) if changed and change == "the sides exchanged" else (one, other)
        by_window(sides[0].unionByName(sides[1])).to_topic("out")
        found.append(schemas_by_changelog(app.compile())["unions-by-window-changelog"])
    difference = found[0].difference(found[1])
    if change == "the sides exchanged":
        assert difference is None
    else:
        assert difference is not None
        assert "union of (clicks: " in difference


def test_columns_that_no_operator_reads_are_no_part_of_the_identity(spark):
    found = []
    for factor in (2, 3):
        app = StreamsApp("unions", spark=spark)
        sides = [marked(app, topic).withColumn("more", F.col("n") * factor) for topic in ("clicks", "views")]
        by_window(sides[0].unionByName(sides[1])).to_topic("out")
        found.append(schemas_by_changelog(app.compile())["unions-by-window-changelog"])
    assert found[0] == found[1]


def on_time(rows, delay, is_late):
    """Return the rows of one partition that are not late, and its newest event time."""
    newest, kept = None, []
    for row in rows:
        if newest is None or not is_late(row["ts"], newest - delay):
            kept.append(row)
        newest = row["ts"] if newest is None else max(newest, row["ts"])
    return kept, newest


def shuffled(seed, topic, count):
    """Rows of one topic by partition: event times that advance, in an order that is late now and then."""
    draw = random.Random(f"{seed} {topic}")
    partitions: tuple[list[dict[str, Any]], list[dict[str, Any]]] = ([], [])
    for number in range(count):
        second = number // 2 - draw.choice((0, 0, 1, 3, 6, 15, 30))
        partitions[draw.randrange(2)].append({"id": draw.choice("abcdefgh"), "ts": second, "n": number})
    return partitions


def expected(spark, feeds, is_late, group):
    """Return the groups of a Spark batch of the rows on time, and the least watermark."""
    rows, watermarks = [], []
    for topic, partitions in feeds.items():
        for part in partitions:
            kept, newest = on_time(part, DELAYS[topic], is_late)
            rows += [Row(id=row["id"], ts=at(row["ts"]), n=row["n"]) for row in kept]
            watermarks.append(newest - DELAYS[topic])
    frame = spark.createDataFrame(rows, ROWS).groupBy(group.alias("span"), "id")
    table = frame.agg(F.count("*").alias("rows"), F.sum("n").alias("total"))
    seconds = F.unix_seconds("span.end") - int(BASE.timestamp())
    found = {
        (row.id, row.start, row.end): (row.rows, row.total)
        for row in table.select("id", "span.start", seconds.alias("end"), "rows", "total").collect()
    }
    return found, min(watermarks)


def spans(rows, column):
    """(key, start, end) → values; a group that left twice fails."""
    found = {}
    for row in rows:
        start, end = (datetime.fromisoformat(row[column][side]) for side in ("start", "end"))
        key = row["id"], start.replace(tzinfo=None), int((end - BASE).total_seconds())
        assert key not in found, "it left twice"
        found[key] = (row["rows"], row["total"])
    return found


@pytest.mark.parametrize("seed", range(12 if LONG else 1))
def test_windows_sessions_and_joins_equal_spark_on_rows_on_time(spark, app, seed):
    by_window(united(app)).to_topic("windows", output_mode="append")
    gap = F.session_window("ts", "2 seconds")
    aggregates = (F.count("*").alias("rows"), F.sum("n").alias("total"))
    united(app).groupBy(gap, "id").agg(*aggregates, name="sessions").to_topic("sessions", output_mode="append")
    right = marked(app, "pages").selectExpr("id as page", "ts as opened", "n as page_n")
    # Each click and view with the pages opened in the three seconds before it; those without one leave alone.
    condition = F.expr("id = page AND ts BETWEEN opened AND opened + INTERVAL 3 SECONDS")
    united(app).join(right, condition, "left", name="opened").select("id", "n", "page_n").to_topic("joined")
    feeds = {topic: shuffled(seed, topic, 160) for topic in ("clicks", "views")}
    pages = shuffled(seed, "pages", 160)
    pending = {
        (topic, at): list(rows) for topic, parts in [*feeds.items(), ("pages", pages)] for at, rows in enumerate(parts)
    }
    draw = random.Random(seed)
    with TopologyTest(app, partitions={"clicks": 2, "views": 2, "pages": 2}) as test:
        while pending:
            for place in draw.sample(sorted(pending), draw.randrange(1, len(pending) + 1)):
                topic, partition = place
                count = draw.choice((5, 20, 60, 160))
                rows, pending[place] = pending[place][:count], pending[place][count:]
                if not pending[place]:
                    del pending[place]
                test.push(topic, [as_sent(topic, row) for row in rows], partition=partition)
            test.run()
            if draw.random() < 0.2:
                test.restart()
        windows, until = expected(
            spark, feeds, lambda time, mark: time // 10 * 10 + 10 <= mark, F.window("ts", "10 seconds")
        )
        assert spans(test.read("windows"), "window") == {key: one for key, one in windows.items() if key[2] <= until}
        sessions, until = expected(spark, feeds, lambda time, mark: time < mark, gap)
        closed = {key: one for key, one in sessions.items() if key[2] < until}
        assert len(closed) > 5
        assert spans(test.read("sessions"), "session_window") == closed
        assert pairs(test.read("joined")) == joined(feeds, pages)


def as_sent(topic, row):
    if topic == "views":
        return {"viewer": row["id"].upper(), "seen": at(row["ts"]), "n": row["n"]}
    return {"id": row["id"], "ts": at(row["ts"]), "n": row["n"]}


def pairs(rows):
    return sorted((row["id"], row["n"], -1 if row.get("page_n") is None else row["page_n"]) for row in rows)


def joined(feeds, pages):
    """The left join of the rows on time, without rows that may still find a partner."""
    sides: dict[str, list[dict[str, Any]]] = {"left": [], "right": []}
    watermarks = []
    for topic, partitions in [*feeds.items(), ("pages", pages)]:
        for part in partitions:
            kept, newest = on_time(part, DELAYS.get(topic, 5), lambda time, mark: time < mark)
            sides["right" if topic == "pages" else "left"] += kept
            if topic == "pages":
                watermarks.append(newest - 5)
    found = []
    for row in sides["left"]:
        partners = [one["n"] for one in sides["right"] if one["id"] == row["id"] and 0 <= row["ts"] - one["ts"] <= 3]
        found += [(row["id"], row["n"], number) for number in partners]
        if not partners and row["ts"] < min(watermarks):  # a partner is opened at or before it
            found.append((row["id"], row["n"], -1))
    return sorted(found)


def test_a_silent_side_holds_windows_back_unless_it_is_passed_over(app, spark, tmp_path):
    passing = StreamsApp(
        "passing",
        spark=spark,
        bootstrap_servers="127.0.0.1:1",
        state_dir=tmp_path / "passing",
        config={"headrace.watermark.idle.timeout.ms": 10_000},
    )
    for one in (app, passing):
        by_window(united(one)).to_topic("out", output_mode="append")
    for one, rows in ((app, 0), (passing, 2)):
        with TopologyTest(one) as test:
            test.push("clicks", [as_sent("clicks", {"id": "a", "ts": 1, "n": 1})])
            assert test.read("out") == []
            test.advance(11_000)
            test.push("clicks", [as_sent("clicks", {"id": "a", "ts": second, "n": 1}) for second in (12, 40)])
            assert len(test.read("out")) == rows
            test.advance(60_000)
            test.push("clicks", [as_sent("clicks", {"id": "a", "ts": 60, "n": 1})])
            test.run()
            silent = [found for row in test.progress for found in row["eventTime"].get("silentPartitions", [])]
            assert bool(silent) == (rows == 0), json.dumps(silent)


def test_ranks_over_windows_and_timers_follow_both_clocks(app):
    both = united(app).withColumn("window", F.window("ts", "10 seconds"))
    place = F.rank().over(Window.partitionBy("window").orderBy(F.desc("n")))
    both.withColumn("place", place).where("place <= 2", name="best").to_topic("best", output_mode="append")
    timed = united(app).groupBy("id").transformWithState(Repeating(), "id string", "Append", "EventTime", name="timed")
    timed.to_topic("timed")
    compiled = app.compile()
    [top] = compiled.subtopology("best").operators
    assert isinstance(top, WindowedTopN)
    [branch] = compiled.subtopology("timed").branches
    assert branch.transform is not None
    assert top.watermark_sources == branch.transform.watermark_sources == ("clicks", "views")
    clocks = [branch.watermark for branch in compiled.subtopology("views").branches if branch.watermark]
    assert [(one.name, one.delay_us) for one in clocks] == [
        ("best-watermark-views", 20_000_000),
        ("timed-watermark-views", 20_000_000),
    ]
    with TopologyTest(app, partitions={"clicks": 1, "views": 1}) as test:
        test.push("clicks", [as_sent("clicks", {"id": "a", "ts": second, "n": second}) for second in (1, 2, 3, 40)])
        assert test.read("best") == test.read("timed") == []
        test.push("views", [as_sent("views", {"id": "a", "ts": second, "n": second}) for second in (4, 31)])
        assert sorted(row["n"] for row in test.read("best")) == [3, 4]
        assert len(test.read("timed")) > 0


class Repeating(StatefulProcessor):
    """Yields its key when a timer one second behind each row is due."""

    def init(self, handle):
        self.handle = handle

    def handleInputRows(self, key, rows, timerValues):
        for row in rows:
            self.handle.registerTimer(int(row.ts.replace(tzinfo=UTC).timestamp() * 1000) + 1000)
        yield from ()

    def handleExpiredTimer(self, key, timerValues, expiredTimerInfo):
        yield Row(id=key[0])

    def close(self):
        pass


REFUSED = {
    "one side without a watermark": (
        lambda a: marked(a, "clicks").unionByName(a.stream("b", schema=SCHEMA)),
        "other has none",
    ),
    "event times of two names": (
        lambda a: (
            marked(a, "clicks")
            .withColumn("t", F.expr("ts + interval 1 hour"))
            .unionByName(
                a.stream("b", schema=SCHEMA)
                .withColumn("t", F.col("ts"))
                .withColumn("ts", F.expr("t + interval 1 hour"))
                .withWatermark("t", "1 second")
            )
        ),
        "one side is ts, of the other t;",
    ),
    "a stream with itself": (
        lambda a: by_window((s := marked(a, "clicks")).where("n > 1").unionByName(s.where("n < 1"))).to_topic("out"),
        "come twice",
    ),
    "a second watermark": (lambda a: united(a).withWatermark("ts", "1 second"), "has a watermark already"),
    "a deduplication": (lambda a: united(a).dropDuplicatesWithinWatermark(["id"]), "no common order"),
    "a window over another column": (
        lambda a: united(a).withColumn("u", F.expr("ts + interval 1 hour")).groupBy(F.window("u", "1 hour")).count(),
        "the same column",
    ),
    "records that are skipped": (
        lambda a: by_window(marked(a, "clicks").unionByName(marked(a, "likes", on_error="skip"))),
        "on_error",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_united_is_refused_at_the_line_of_the_call(app, name):
    program, message = REFUSED[name]
    with pytest.raises(HeadraceError, match=message) as caught:
        program(app)
    assert caught.value.code == "not-supported-here"
    assert "test_stream_union.py" in caught.value.facts["where"]
