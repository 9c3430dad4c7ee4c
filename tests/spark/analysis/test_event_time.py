"""`withWatermark` and `dropDuplicatesWithinWatermark` in programs: what they compile to, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import functions as F

from headrace.errors import HeadraceError, UnboundedStateWarning
from headrace.spark.streams_app import StreamsApp
from headrace.spark.topology.nodes import DeadLetter, Deduplication, OutOfTime

pytestmark = pytest.mark.spark

SCHEMA = "id string, n int, d double, m map<string, int>, ts timestamp, local timestamp_ntz, text string"
KEY = ["id"]


@pytest.fixture
def app(spark):
    return StreamsApp("demo", spark=spark)


@pytest.fixture
def clicks(app):
    return app.stream("clicks", schema=SCHEMA, key="id")


def compiled(stream: Any) -> Deduplication:
    stream.to_topic("unique")
    [part] = stream._app.compile().subtopologies
    [branch] = part.branches
    assert branch.deduplication is not None
    return branch.deduplication


def test_a_deduplication_and_the_columns_it_reads(clicks):
    marked = clicks.withWatermark("ts", "10 minutes").dropDuplicatesWithinWatermark(KEY)
    marked.withColumn("m2", F.col("n") + 1).select("m2").to_topic("unique")
    [part] = clicks._app.compile().subtopologies
    [branch] = part.branches
    where = branch.deduplication.where
    assert branch.deduplication == Deduplication(
        name="unique-by-id",
        key_columns=(("id", '"string"'),),
        key_expressions=("id",),
        event_time_expression="ts",
        delay_us=600_000_000,
        max_ahead_us=3_600_000_000,
        changelog_topic="demo-unique-by-id-changelog",
        where=where,
    )
    assert [call.method for call in branch.before] == ["withWatermark"]
    assert [call.method for call in branch.between] == ["withColumn", "select"]
    assert set(part.sources[0].columns_needed) == {"id", "n", "ts"}
    assert part.changelog_topics == ("demo-unique-by-id-changelog",)


def test_the_key_does_not_depend_on_the_order_of_its_columns_nor_on_names(app):
    declared = []
    for names in (["n", "key"], ["key", "n"]):
        rows = StreamsApp("demo", spark=app.spark).stream("clicks", schema=SCHEMA, key="id")
        rows = rows.withColumnRenamed("id", "key").withColumn("at", F.date_trunc("second", "ts"))
        rows = rows.withWatermark("at", "interval 1 minute 500 milliseconds").drop("at", "ts")
        declared.append(compiled(rows.dropDuplicatesWithinWatermark(names)))
    assert declared[0].key_expressions == declared[1].key_expressions == ("id", "n")
    assert declared[0].name == declared[1].name == "unique-by-key-n"
    assert (declared[0].delay_us, declared[0].event_time_expression) == (60_500_000, "date_trunc('second', ts)")


def test_settings_and_names(spark):
    app = StreamsApp("demo", spark=spark, config={"headrace.event.time.max.ahead.ms": 5})
    rows = app.stream("clicks", value="raw", key="key").withWatermark("timestamp", "1 month")
    found = compiled(rows.dropDuplicatesWithinWatermark(["key"], name="clicks-once"))
    assert (found.name, found.max_ahead_us) == ("clicks-once", 5000)
    assert found.delay_us == 31 * 86_400_000_000, "a month as in Spark"


def test_all_columns_are_the_key_by_default(clicks):
    rows = clicks.select("id", "n", "ts").withWatermark("ts", "1 minute")
    assert compiled(rows.dropDuplicatesWithinWatermark()).key_expressions == ("id", "n", "ts")


def test_a_watermark_without_an_operator_changes_nothing(clicks):
    clicks.withWatermark("ts", "1 minute").where("n > 1").to_topic("out")
    [part] = clicks._app.compile().subtopologies
    assert [call.method for call in part.branches[0].before] == ["where"]
    assert "ts" in part.sources[0].columns_needed


DESCRIBED = """\
application demo

subtopology clicks
  reads    clicks (json: id, n, d, m, ts, local, text)
  then     withWatermark
  keeps    unique-by-id: first row by id within 0:10:00 of ts
           changelog demo-unique-by-id-changelog
  then     where
  writes   unique (json, key of the input)
  runs     a job for each micro-batch: it keeps state between two parts of Spark SQL"""


def test_described(clicks):
    unique = clicks.withWatermark("ts", "10 minutes").dropDuplicatesWithinWatermark(KEY).where("n > 0")
    assert "dropDuplicatesWithinWatermark" in unique._repr_html_()
    unique.to_topic("unique")
    app = clicks._app
    assert app.describe() == DESCRIBED
    assert 's0_unique_by_id[("unique-by-id")]' in app.describe("mermaid")
    assert '"delay_ms": 600000.0' in app.describe("json")


def marked(stream: Any) -> Any:
    return stream.withWatermark("ts", "1 minute")


def unique(stream: Any) -> Any:
    return marked(stream).dropDuplicatesWithinWatermark(KEY)


def other(stream: Any, **settings: Any) -> Any:
    return marked(stream._app.stream("others", schema=SCHEMA, **settings))


REFUSED = {
    "an unknown column": (lambda s: s.withWatermark("tz", "1 minute"), "unresolved-column", 'no column "tz"'),
    "no interval": (lambda s: s.withWatermark("ts", "soon"), "refused-by-spark", "'soon'"),
    "a negative delay": (lambda s: s.withWatermark("ts", "-1 minute"), "refused-by-spark", "negative"),
    "a long delay": (lambda s: s.withWatermark("ts", "2000 years"), "bad-value", "thousand years"),
    "no timestamp": (lambda s: s.withWatermark("n", "1 minute"), "not-supported-here", "of type int"),
    "no instant": (lambda s: s.withWatermark("local", "1 minute"), "not-supported-here", "timestamp_ntz"),
    "a second watermark": (lambda s: marked(s).withWatermark("ts", "2 minutes"), "not-supported-here", "already"),
    "no watermark": (lambda s: s.dropDuplicatesWithinWatermark(KEY), "not-supported-here", "without a watermark"),
    "an unknown key": (
        lambda s: marked(s).dropDuplicatesWithinWatermark(["idd"]),
        "unresolved-column",
        'did you mean "id"',
    ),
    "no list": (lambda s: marked(s).dropDuplicatesWithinWatermark("id"), "wrong-type", "subset"),
    "a list of columns": (lambda s: marked(s).dropDuplicatesWithinWatermark([F.col("id")]), "wrong-type", "subset"),
    "an empty list": (lambda s: marked(s).dropDuplicatesWithinWatermark([]), "not-supported-here", "not among"),
    "the key is not declared": (
        lambda s: other(s).dropDuplicatesWithinWatermark(KEY),
        "not-supported-here",
        "declared",
    ),
    "another key": (lambda s: marked(s).dropDuplicatesWithinWatermark(["n"]), "not-supported-here", "not among"),
    "a changed key": (
        lambda s: marked(s.withColumn("id", F.upper("id"))).dropDuplicatesWithinWatermark(KEY),
        "not-supported-here",
        "as it was read",
    ),
    "a column of the same name": (
        lambda s: marked(s.select("ts", F.explode(F.array("id", "text")).alias("id"))).dropDuplicatesWithinWatermark(
            KEY
        ),
        "not-supported-here",
        "as it was read",
    ),
    "a double in the key": (
        lambda s: marked(s).dropDuplicatesWithinWatermark(["id", "d"]),
        "not-supported-here",
        "no key",
    ),
    "a map in the key": (lambda s: marked(s).dropDuplicatesWithinWatermark(["id", "m"]), "refused-by-spark", "MAP"),
    "a collation in the key": (
        lambda s: marked(s.withColumn("c", F.expr("text collate UTF8_LCASE"))).dropDuplicatesWithinWatermark(
            ["id", "c"]
        ),
        "not-supported-here",
        "no key",
    ),
    "skipped records": (
        lambda s: other(s, key="id", on_error="skip").dropDuplicatesWithinWatermark(KEY),
        "not-supported-here",
        "on_error",
    ),
    "dead letters": (
        lambda s: other(s, key="id", on_error=DeadLetter("bad")).dropDuplicatesWithinWatermark(KEY),
        "not-supported-here",
        "on_error",
    ),
    "several topics": (
        lambda s: marked(s._app.stream(["a", "b"], schema=SCHEMA, key="id")).dropDuplicatesWithinWatermark(KEY),
        "not-supported-here",
        "several topics (a, b)",
    ),
    "a union": (
        lambda s: marked(s.unionByName(s._app.stream("o", schema=SCHEMA))).dropDuplicatesWithinWatermark(KEY),
        "not-supported-here",
        "several topics (clicks, o)",
    ),
    "the union of a stream with itself": (
        lambda s: marked(s.unionByName(s)).dropDuplicatesWithinWatermark(KEY),
        "not-supported-here",
        "several topics",
    ),
    "a union behind a watermark": (lambda s: marked(s).unionByName(s), "not-supported-here", "the other has none"),
    "a union behind it": (lambda s: s.unionByName(unique(s)), "not-supported-here", "behind drop"),
    "a group without a window behind a watermark": (
        lambda s: marked(s).groupBy("id").agg(F.count("*")),
        "not-supported-here",
        "needs a window",
    ),
    "a group behind it": (lambda s: unique(s).groupBy("id"), "not-supported-here", "behind drop"),
    "a second one": (
        lambda s: unique(s).dropDuplicatesWithinWatermark(KEY),
        "not-supported-here",
        "behind drop",
    ),
    "a watermark behind it": (lambda s: marked(unique(s)), "not-supported-here", "behind drop"),
    "a function": (lambda s: unique(s).foreachBatch(lambda frame, _: None), "not-supported-here", "a topic"),
    "Parquet": (lambda s: unique(s).to_parquet("/tmp/unique"), "not-supported-here", "a topic"),
    "a bad name": (
        lambda s: marked(s).dropDuplicatesWithinWatermark(KEY, name="a b"),
        "bad-value",
        "no name for state",
    ),
    "two of one name": (
        lambda s: [unique(s).to_topic("a"), unique(s.where("n > 1")).to_topic("b")],
        "state-name-taken",
        "two deduplications",
    ),
    "an aggregate of the same name": (
        lambda s: [s.groupBy("n").agg(F.count("*"), name="unique-by-id").to_topic("a"), unique(s).to_topic("b")],
        "state-name-taken",
        "an aggregate and",
    ),
    "two ways out": (lambda s: unique(s).to_topic("a").to_topic("b"), "not-supported-here", "already leaves"),
}


def test_drop_duplicates_without_a_watermark_warns_at_the_line_of_the_call(clicks):
    with pytest.warns(UnboundedStateWarning, match="keeps every value of id for ever") as caught:
        first = clicks.dropDuplicates(["id"])
    assert [Path(one.filename).name for one in caught] == ["test_event_time.py"]
    first.where("n > 1").drop("d", "m").to_topic("first")
    text = clicks._app.describe()
    assert "keeps    unique-by-id: first row by id, for ever" in text
    [part] = clicks._app.compile().subtopologies
    [branch] = part.branches
    assert (branch.deduplication.delay_us, branch.deduplication.event_time_expression) == (0, "")
    assert first.columns == clicks.columns


FOR_EVER = {
    "a watermark": (lambda s: marked(s).dropDuplicates(KEY), "all the same"),
    "a key that the records do not have": (lambda s: s.dropDuplicates(["n"]), "different partitions"),
    "a key of doubles": (lambda s: s.dropDuplicates(["id", "d"]), "that is no key"),
    "a union": (lambda s: s.unionByName(s).dropDuplicates(KEY), "several topics"),
    "a second one": (lambda s: unique(s).drop_duplicates(KEY), "behind dropDuplicatesWithinWatermark"),
    "a group": (lambda s: s.select("id", "n").drop_duplicates(KEY).groupBy("id"), "behind dropDuplicates is"),
}


@pytest.mark.filterwarnings("ignore::headrace.errors.UnboundedStateWarning")
@pytest.mark.parametrize("name", FOR_EVER)
def test_drop_duplicates_is_refused(clicks, name):
    program, words = FOR_EVER[name]
    with pytest.raises(HeadraceError) as caught:
        program(clicks)
    assert (caught.value.code, words in str(caught.value)) == ("not-supported-here", True), str(caught.value)
    assert "test_event_time.py" in caught.value.facts["where"]


@pytest.mark.parametrize("name", REFUSED)
def test_refused(clicks, name):
    program, code, words = REFUSED[name]
    with pytest.raises(HeadraceError) as caught:
        program(clicks)
    assert (caught.value.code, words in str(caught.value)) == (code, True), str(caught.value)
    assert caught.value.fix
    assert "test_event_time.py" in caught.value.facts["where"]


def test_records_out_of_time_name_their_topics(spark, app):
    late, ahead = DeadLetter("clicks-late"), DeadLetter("clicks-ahead")
    stream = app.stream("clicks", schema=SCHEMA, key="id", on_late=late, on_ahead=ahead)
    deduplication = compiled(stream.withWatermark("ts", "10 minutes").dropDuplicatesWithinWatermark(KEY))
    assert deduplication.out_of_time == OutOfTime(topic="clicks", late=late, ahead=ahead)
    assert app.compile().subtopologies[0].sources[0].dead_letter_topics == ("clicks-late", "clicks-ahead")
    described = json.loads(app.describe("json"))["subtopologies"][0]["sources"][0]
    assert (described["on_late"], described["on_ahead"]) == ("dead letter: clicks-late", "dead letter: clicks-ahead")
    refused: list[tuple[dict[str, Any], str]] = [
        ({"on_late": "skip"}, "on_late is 'skip', none of drop"),
        ({"on_ahead": DeadLetter("clicks")}, "would come again for ever"),
        ({"on_late": DeadLetter("no topic")}, "no topic"),
    ]
    for policies, message in refused:
        with pytest.raises(HeadraceError, match=message):
            StreamsApp("other", spark=spark).stream("clicks", schema=SCHEMA, **policies)


def test_policies_for_event_times_that_no_operator_compares_are_refused(spark):
    unread = StreamsApp("unread", spark=spark)
    unread.stream("clicks", schema=SCHEMA, on_ahead="drop").withWatermark("ts", "1 minute").to_topic("copy")
    with pytest.raises(HeadraceError, match="so on_ahead has no effect"):
        unread.compile()
    timed = StreamsApp("timed", spark=spark, config={"headrace.watermark.idle.timeout.ms": 1000})
    rows = timed.stream("clicks", schema=SCHEMA, on_late=DeadLetter("late")).withWatermark("ts", "1 minute")
    rows.groupBy(F.window("ts", "1 minute")).agg(F.count("*").alias("n")).to_topic("counts")
    with pytest.raises(HeadraceError, match="where their records are not known"):
        timed.compile()
