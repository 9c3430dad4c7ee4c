"""`transformWithState` as a program writes it: processors of Spark in a `TopologyTest`, and what is refused."""

from __future__ import annotations

import datetime as dt
import decimal
import threading

import pytest
from pyspark.sql import functions as F
from pyspark.sql.streaming import StatefulProcessor
from pyspark.sql.types import LongType, Row, StructType
from tests.spark.refused_programs import refused

from headrace.errors import UserCodeError
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
