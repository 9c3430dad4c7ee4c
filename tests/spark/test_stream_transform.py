"""`transformWithState` as a program writes it: processors of Spark in a `TopologyTest`, and what is refused."""

from __future__ import annotations

import datetime as dt
import decimal
import threading
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from pyspark.sql import Window
from pyspark.sql import functions as F
from pyspark.sql.streaming import StatefulProcessor
from pyspark.sql.types import LongType, Row, StructType
from tests.spark.refused_programs import refused

from headrace.errors import TopologyError, UserCodeError
from headrace.spark.runtime.stores.store_names import ELEMENT
from headrace.testing import TopologyTest

pytestmark = pytest.mark.spark

READINGS = "id STRING, place INT, temperature DOUBLE, at TIMESTAMP"
VIOLATIONS = "id STRING, n BIGINT, newest TIMESTAMP, hot ARRAY<DOUBLE>"


class Violations(StatefulProcessor):
    """The example of PySpark's documentation, more or less: counts the readings that are too hot."""

    def init(self, handle):
        self.violations = handle.getValueState("violations", "n BIGINT, newest TIMESTAMP")

    def handleInputRows(self, key, rows, timerValues):
        n, newest = self.violations.get() or (0, None)
        hot = []
        for row in rows:
            assert row.id == key[0]
            if row.temperature > 100:
                hot.append(row.temperature)
        n += len(hot)
        if hot:
            newest = row.at.replace(tzinfo=None)
        self.violations.update((n, newest))
        yield Row(id=key[0], n=n, newest=newest, hot=hot)


def violations(app, **settings):
    readings = app.stream("readings", schema=READINGS)
    found = readings.groupBy("id").transformWithState(Violations(), VIOLATIONS, "Update", "None", **settings)
    found.to_topic("violations")
    return app


def reading(name, temperature, second=0):
    return {"id": name, "place": 1, "temperature": temperature, "at": f"2026-01-01T00:00:{second:02}Z"}


def test_a_processor_of_spark_keeps_state_for_each_key(make_offline_app):
    with TopologyTest(violations(make_offline_app()), partitions=2) as test:
        test.push("readings", [reading("a", 120.0, 1), reading("b", 3.0), reading("a", 101.5, 2)])
        rows = {row["id"]: row for row in test.read("violations")}
        assert rows["a"] == {"id": "a", "n": 2, "newest": "2026-01-01T00:00:02.000000Z", "hot": [120.0, 101.5]}
        assert rows["b"] == {"id": "b", "n": 0, "newest": None, "hot": []}
        assert test.restart() > 0
        test.push("readings", [reading("a", 1.0), reading("b", 200.0, 5)])
        rows = {row["id"]: row for row in test.read("violations")}
        assert (rows["a"]["n"], rows["a"]["newest"]) == (2, "2026-01-01T00:00:02.000000Z")
        assert rows["b"]["n"] == 1
        # The key of a record is that of its group.
        assert {record.key for record in test.records("violations")} == {b"a", b"b"}


def test_rows_of_a_processor_are_a_stream(make_offline_app):
    app = make_offline_app()
    readings = app.stream("readings", schema=READINGS).where("place > 0")
    found = readings.groupBy("place", F.col("id").substr(1, 1)).transformWithState(
        Pairs(), "place INT, letter STRING, n INT", "Append", "None", name="pairs"
    )
    found.where("n > 1").withColumn("twice", F.col("n") * 2).groupBy("letter").agg(F.sum("twice")).to_topic("sums")
    with TopologyTest(app) as test:
        test.push(
            "readings", [reading("ab", 1.0), reading("ac", 1.0), reading("b", 1.0), {**reading("b", 1), "place": 0}]
        )
        assert test.read("sums") == [{"letter": "a", "sum(twice)": 4}]


class Pairs(StatefulProcessor):
    """Counts rows by a key of two columns, of which one is computed."""

    def init(self, handle):
        self.n = handle.getMapState("n", StructType().add("none", LongType()), "n INT")

    def handleInputRows(self, key, rows, timerValues):
        n = (self.n.getValue((None,)) or (0,))[0] + len(list(rows))
        self.n.updateValue((None,), (n,))
        yield Row(place=key[0], letter=key[1], n=n)


class Types(StatefulProcessor):
    """Keeps what it gets, of every type, and yields what it kept before."""

    def init(self, handle):
        self.kept = handle.getValueState("kept", KEPT)

    def handleInputRows(self, key, rows, timerValues):
        for row in rows:
            kept = self.kept.get()
            yield Row(id=key[0], kept=repr(kept), row=repr(tuple(row)))
            at = row.at and NAIVE
            self.kept.update((row.a, row.b, row.c, row.d, row.e, row.f, row.g, row.h, at, row.i))


NAIVE = dt.datetime(2026, 1, 2, 3, 4, 5, 6)  # noqa: DTZ001 as a processor writes it
ALL = (
    "id STRING, a BOOLEAN, b TINYINT, c SMALLINT, d INT, "
    "e FLOAT, f DOUBLE, g DECIMAL(9,2), h DATE, at TIMESTAMP, i BINARY"
)
KEPT = ALL.removeprefix("id STRING, ")


def test_values_of_every_type_are_kept(make_offline_app):
    app = make_offline_app()
    found = app.stream("in", schema=ALL).groupBy("id")
    found.transformWithState(Types(), "id STRING, kept STRING, row STRING", "Update", "none").to_topic("out")
    with TopologyTest(app) as test:
        row = {"id": "x", "a": True, "b": 1, "c": -2, "d": 3, "e": 0.5, "f": 1e300, "g": "1.50", "h": "2026-01-02"}
        row |= {"at": "2026-01-02T03:04:05Z", "i": "AA=="}
        test.push("in", [row, {"id": "x"}])
        test.run()
        test.push("in", [{"id": "x"}])
        first, second, third = test.read("out")
        kept = (True, 1, -2, 3, 0.5, 1e300, decimal.Decimal("1.50"), dt.date(2026, 1, 2))
        assert first["kept"] == "None"
        assert second["kept"] == repr((*kept, NAIVE, b"\x00"))
        assert third["kept"] == repr((None,) * 10)
        assert first["row"].startswith(repr(("x", *kept))[:-1])


def test_a_processor_that_raises_ends_the_application_by_name(make_offline_app):
    class Raises(StatefulProcessor):
        def init(self, handle):
            self.n = handle.getValueState("n", "n INT")

        def handleInputRows(self, key, rows, timerValues):
            self.n.update((1,))
            if key == ("b",):
                raise ArithmeticError("cannot do b")
            yield Row(id=key[0])

    app = make_offline_app()
    app.stream("in", schema="id STRING, n INT").groupBy("id").transformWithState(
        Raises(), "id STRING", "Update", "none"
    ).to_topic("out")
    with TopologyTest(app) as test:
        test.push("in", [{"id": "a"}])
        assert test.read("out") == [{"id": "a"}]
        test.push("in", [{"id": "a"}, {"id": "b"}])
        with pytest.raises(UserCodeError, match=r"Raises failed in handleInputRows for the key \('b',\).*cannot do b"):
            test.run()
        assert test.read("out") == []


def test_what_a_processor_cannot_have_is_refused_at_its_line(make_offline_app):
    rows = make_offline_app().stream("in", schema="id STRING, n INT, tags ARRAY<STRING>")
    flat = rows.drop("tags")

    class Asks(Violations):
        def __init__(self, asks=lambda handle: None):
            self.asks = asks

        def init(self, handle):
            self.asks(handle)

    def of(processor, grouped=flat, output="id STRING", mode="Update", time="None", **more):
        return grouped.groupBy("id").transformWithState(processor, output, mode, time, **more)

    assert (
        "tags" in refused(lambda: rows.groupBy("id").transformWithState(Asks(), "id STRING", "Update", "None")).message
    )
    assert (
        "Unknown time mode"
        in refused(lambda: flat.groupBy("id").transformWithState(Asks(), "id STRING", "Update", "x")).message
    )
    assert (
        "outputMode"
        in refused(lambda: flat.groupBy("id").transformWithState(Asks(), "id STRING", "Complete", "None")).message
    )
    assert (
        "instance"
        in refused(lambda: flat.groupBy("id").transformWithState(Asks, "id STRING", "Update", "None")).message
    )
    locked = refused(
        lambda: flat.groupBy("id").transformWithState(Asks(threading.Lock()), "id STRING", "Update", "None")
    )
    assert "cannot be pickled" in locked.message
    assert (
        "nested"
        in refused(
            lambda: flat.groupBy("id").transformWithState(
                Asks(lambda handle: handle.getValueState("a", "n ARRAY<INT>")), "id STRING", "Update", "None"
            )
        ).message
    )
    for asks, words in [
        (lambda handle: handle.getValueState("a", "n INT", 1000), "Cannot use TTL for state=a in timeMode=NoTime"),
        (lambda handle: handle.getValueState("a", "n INT").get(), "no key has its turn in init"),
        (
            lambda handle: [handle.getValueState("a", "n INT"), handle.getListState("a", "n INT")],
            "already been defined",
        ),
        (lambda handle: handle.registerTimer(1), "register_timer with invalid handle state=CREATED"),
        (lambda handle: 1 / 0, "division by zero"),
    ]:
        with pytest.raises(UserCodeError, match=words):
            of(Asks(asks))


def test_a_processor_needs_exactly_once(make_offline_app):
    app = make_offline_app(processing_guarantee="at_least_once")
    readings = app.stream("readings", schema=READINGS).groupBy("id")
    error = refused(lambda: readings.transformWithState(Violations(), VIOLATIONS, "Update", "None").to_topic("out"))
    assert 'a stateful processor needs exactly once ("transformed-by-id")' in error.message


def test_the_description_names_processor_and_variables(make_offline_app):
    text = violations(make_offline_app(), name="hot").describe()
    assert "keeps    hot: Violations by id (value violations)" in text
    assert "delays-hot-changelog" in text
    assert "key id" in text


class Frames(StatefulProcessor):
    """Counts rows in DataFrames, and says what it got."""

    def init(self, handle):
        self.handle = handle
        self.n = handle.getValueState("n", "n BIGINT")

    def handleInputRows(self, key, rows, timerValues):
        frame = pd.concat(rows)
        n = (self.n.get() or (0,))[0] + len(frame)
        self.n.update((n,))
        self.handle.registerTimer(int(frame["at"].max().timestamp() * 1000) + 1000)
        yield pd.DataFrame(
            {"n": [n], "id": [key[0]], "newest": [frame["at"].max()], "hot": [list(frame["temperature"])]}
        )

    def handleExpiredTimer(self, key, timerValues, expiredTimerInfo):
        yield pd.DataFrame({"id": key[:1], "n": [-1], "newest": [pd.NaT], "hot": [None]})


def test_a_processor_of_dataframes_takes_and_yields_pandas(make_offline_app):
    app = make_offline_app()
    readings = app.stream("readings", schema=READINGS).withWatermark("at", "0 seconds").groupBy("id")
    readings.transformWithStateInPandas(Frames(), VIOLATIONS, "Update", "EventTime").to_topic("out")
    with TopologyTest(app) as test:
        test.push("readings", [reading("a", 1.5, 1), reading("b", 2.0, 2), reading("a", 2.5, 3)])
        rows = sorted(test.read("out"), key=lambda row: (row["id"], -row["n"]))
        assert rows == [
            {"id": "a", "n": 2, "newest": "2026-01-01T00:00:03.000000Z", "hot": [1.5, 2.5]},
            {"id": "b", "n": 1, "newest": "2026-01-01T00:00:02.000000Z", "hot": [2.0]},
            {"id": "b", "n": -1, "newest": None, "hot": None},
        ]
        test.restart()
        test.push("readings", [reading("a", 9.0, 9)])
        assert [row["n"] for row in test.read("out")] == [3, -1]


def test_timers_of_event_time_follow_the_watermark(make_offline_app):
    class Silent(StatefulProcessor):
        """Yields keys that had no reading for ten seconds."""

        def init(self, handle):
            self.handle = handle

        def handleInputRows(self, key, rows, timerValues):
            for timer in list(self.handle.listTimers()):
                self.handle.deleteTimer(timer)
            self.handle.registerTimer(max(int(row.at.timestamp() * 1000) for row in rows) + 10_000)
            yield from ()

        def handleExpiredTimer(self, key, timerValues, expiredTimerInfo):
            assert timerValues.getCurrentWatermarkInMs() >= expiredTimerInfo.getExpiryTimeInMs()
            yield Row(id=key[0])

    app = make_offline_app()
    readings = app.stream("readings", schema=READINGS).withWatermark("at", "5 seconds")
    silent = readings.groupBy("id").transformWithState(Silent(), "id STRING", "Append", "EventTime")
    silent.to_topic("silent")
    with TopologyTest(app, partitions=2) as test:
        test.push("readings", [reading("a", 1.0, 0), reading("b", 1.0, 20)], partition=0)
        assert test.read("silent") == []  # the other partition has no clock yet
        test.push("readings", [reading("c", 1.0, 14)], partition=1)
        assert test.read("silent") == []
        test.push("readings", [reading("c", 1.0, 15)], partition=1)
        assert test.read("silent") == [{"id": "a"}]
        # A row that is late by its own partition's clock is dropped.
        test.push("readings", [reading("a", 1.0, 9), reading("d", 1.0, 11)], partition=1)
        test.run()
        assert sum(row["numRowsDroppedByWatermark"] for p in test.progress for row in p["stateOperators"]) == 1
        test.restart()
        for partition in range(2):
            test.push("readings", [reading("z", 1.0, 59)], partition=partition)
        assert sorted(row["id"] for row in test.read("silent")) == ["b", "c", "d"]
    with pytest.raises(TopologyError, match="needs a watermark"):
        app.stream("in", schema=READINGS).groupBy("id").transformWithState(Silent(), "id STRING", "Append", "EventTime")


class Begun(Violations):
    """Goes on counting from the initial state, and notes its time."""

    def init(self, handle):
        super().init(handle)
        self.handle = handle

    def handleInitialState(self, key, initialState, timerValues):
        assert initialState.asDict() == {"id": key[0], "n": initialState.n, "since": initialState.since}
        self.violations.update((initialState.n, initialState.since.replace(tzinfo=None)))
        self.handle.registerTimer(timerValues.getCurrentProcessingTimeInMs() + 1000)

    def handleExpiredTimer(self, key, timerValues, expiredTimerInfo):
        n, newest = self.violations.get()
        yield Row(id=key[0], n=n, newest=newest, hot=None)


def test_an_initial_state_is_taken_once_and_its_timers_fire(make_offline_app, spark):
    app = make_offline_app()
    given = spark.createDataFrame(
        [(number, f"id-{number}", dt.datetime(2025, 1, 1, tzinfo=dt.UTC)) for number in range(20)],
        "n BIGINT, id STRING, since TIMESTAMP",
    )
    readings = app.stream("readings", schema=READINGS).groupBy("id")
    readings.transformWithState(
        Begun(), VIOLATIONS, "Update", "ProcessingTime", initialState=given.groupBy("id")
    ).to_topic("out")
    with TopologyTest(app, partitions=4, now_ms=1_000_000) as test:
        test.push("readings", [reading("id-7", 120.0, 1), reading("new", 101.0, 2)])
        rows = {row["id"]: row["n"] for row in test.read("out")}
        assert rows == {"id-7": 8, "new": 1}
        test.restart()
        # All tasks have begun, those without rows as well.
        test.advance(2000)
        rows = {row["id"]: row for row in test.read("out")}
        assert {name: row["n"] for name, row in rows.items()} == {f"id-{n}": n + (n == 7) for n in range(20)}
        assert rows["id-3"]["newest"] == "2025-01-01T00:00:00.000000Z"
        test.push("readings", [reading("id-7", 120.0, 3)])
        assert [row["n"] for row in test.read("out")] == [9]


def test_an_initial_state_that_cannot_be_taken_is_refused(make_offline_app, spark):
    readings = make_offline_app().stream("readings", schema=READINGS).groupBy("id")
    frame = spark.createDataFrame([("a", 1)], "id STRING, n INT")

    asked = (VIOLATIONS, "Update", "ProcessingTime")
    for given, words in [
        (frame, "grouped rows of a plain DataFrame, not DataFrame"),
        (readings, "grouped rows of a plain DataFrame, not GroupedStream"),
        (frame.groupBy("n"), 'types "integer", the stream by "string"'),
        (frame.groupBy(F.upper("id")), "grouped by columns"),
        (frame.rollup("id"), "grouped by columns"),
    ]:
        with pytest.raises(TopologyError) as caught:
            readings.transformWithState(Begun(), *asked, initialState=given)
        assert words in caught.value.message
    error = refused(lambda: readings.transformWithState(Violations(), *asked, initialState=frame.groupBy("id")))
    assert "no handleInitialState" in error.message


class Reminder(StatefulProcessor):
    """Reminds of a key each minute of processing time, twice."""

    def init(self, handle):
        self.handle = handle
        self.left = handle.getValueState("left", "n INT", 1_000_000)

    def handleInputRows(self, key, rows, timerValues):
        self.left.update((2,))
        self.handle.registerTimer(timerValues.getCurrentProcessingTimeInMs() + 60_000)
        yield from ()

    def handleExpiredTimer(self, key, timerValues, expiredTimerInfo):
        left = self.left.get()[0] - 1
        yield Row(
            id=key[0], left=left, late=timerValues.getCurrentProcessingTimeInMs() - expiredTimerInfo.getExpiryTimeInMs()
        )
        if left:
            self.left.update((left,))
            self.handle.registerTimer(expiredTimerInfo.getExpiryTimeInMs() + 60_000)


def test_timers_of_processing_time_fire_without_new_records(make_offline_app):
    app = make_offline_app()
    readings = app.stream("readings", schema=READINGS).groupBy("id")
    readings.transformWithState(Reminder(), "id STRING, left INT, late BIGINT", "Append", "ProcessingTime").to_topic(
        "out"
    )
    with TopologyTest(app, partitions=2, now_ms=1_000_000) as test:
        test.push("readings", [reading("a", 1.0)])
        test.run()
        test.advance(30_000)
        test.push("readings", [reading("b", 1.0)])
        assert test.read("out") == []
        test.advance(29_999)
        assert test.read("out") == []
        test.advance(1)
        assert test.read("out") == [{"id": "a", "left": 1, "late": 0}]
        test.restart()
        test.advance(45_000)
        assert test.read("out") == [{"id": "b", "left": 1, "late": 15_000}]
        test.advance(60_000)
        assert sorted(row["id"] for row in test.read("out")) == ["a", "b"]
        test.advance(10_000_000)
        assert test.read("out") == []


def test_the_fraud_rule_of_the_examples_forgets_old_payments(spark):
    program = Path("examples/gallery/declined_payments.py")
    names: dict[str, Any] = {"__name__": "program"}
    exec(compile(program.read_text(), str(program), "exec"), names)  # as `headrace run` does
    app = names["app"]

    def at(minute, card="4711", declined=True):
        return {"card": card, "amount": float(minute), "declined": declined, "at": f"2026-01-01T00:{minute:02}:00Z"}

    with TopologyTest(app) as test:
        test.push("payments", [at(0), at(0, "42"), at(5), at(6, declined=False), at(11)])
        assert test.read("alerts") == []  # the one of minute 0 is eleven minutes old
        test.push("payments", [at(14), at(20, "42")])
        [alert] = test.read("alerts")
        assert alert == {"card": "4711", "payments": 3, "amount": 30.0, "at": "2026-01-01T00:14:00.000000Z"}
        test.restart()
        test.push("payments", [at(59, "1")])
        test.push("payments", [at(59), at(59)])
        assert test.read("alerts") == []
        # The first two cards have no state left except that of the last payments.
        kept: dict[bytes | None, bytes] = {}
        for record in test.records("declined-payments-transformed-by-card-changelog"):
            kept.pop(record.key, None)
            kept |= {} if record.value is None else {record.key: record.value}
        elements = [key for key in kept if key is not None and key[:1] == ELEMENT]
        assert len(elements) == 3


class LastTen(StatefulProcessor):
    """Nexmark's q6 over given winners: the mean price of the last ten auctions of a seller."""

    def init(self, handle):
        self.last = handle.getListState("last", "price BIGINT")

    def handleInputRows(self, key, rows, timerValues):
        last = list(self.last.get())
        for row in rows:
            last = [*last[-9:], (row.price,)]
            yield Row(seller=key[0], id=row.id, mean=sum(price for (price,) in last) / len(last))
        self.last.put(last)


def test_the_mean_of_the_last_ten_is_that_of_a_window_over_rows(make_offline_app, spark):
    app = make_offline_app()
    winners = app.stream("winners", schema="seller BIGINT, id BIGINT, price BIGINT").groupBy("seller")
    winners.transformWithState(LastTen(), "seller BIGINT, id BIGINT, mean DOUBLE", "Append", "None").to_topic("means")
    rows = [{"seller": number * number % 3, "id": number, "price": number * 37 % 101} for number in range(90)]
    with TopologyTest(app, partitions=3) as test:
        for begin in (0, 31, 32, 60):
            end = {0: 31, 31: 32, 32: 60, 60: 90}[begin]
            test.push("winners", rows[begin:end], key="seller")
            test.run()
        found = sorted((row["seller"], row["id"], row["mean"]) for row in test.read("means"))
    frame = spark.createDataFrame(rows, "seller BIGINT, id BIGINT, price BIGINT")
    last_ten = Window.partitionBy("seller").orderBy("id").rowsBetween(-9, 0)
    expected = frame.select("seller", "id", F.avg("price").over(last_ten)).collect()
    assert found == sorted(map(tuple, expected))
