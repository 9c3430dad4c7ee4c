"""Windows in `groupBy`: what is recognised, what is compiled, and what is refused."""

import pytest
from pyspark.sql import Window
from pyspark.sql import functions as F

from headrace.errors import HeadraceError
from headrace.spark.runtime.rows.row_schema import schemas_by_changelog
from headrace.spark.streams_app import StreamsApp
from headrace.spark.topology.nodes import Aggregate, RepartitionSink, TimeWindow, WindowedAggregate

pytestmark = pytest.mark.spark

SECOND = 1_000_000


@pytest.fixture
def clicks(spark, tmp_path):
    app = StreamsApp("windows", spark=spark, bootstrap_servers="127.0.0.1:1", state_dir=tmp_path)
    return app.stream("clicks", schema="id string, ts timestamp, text string, n bigint")


def operator_of(table, **sink):
    table.to_topic("out", **sink)
    [operator] = [one for part in table._app.compile().subtopologies for one in part.operators]
    return operator


@pytest.mark.parametrize(
    ("window", "name", "measures"),
    [
        (lambda: F.window("ts", "10 minutes"), "window", (600, 600, 0)),
        (lambda: F.window("ts", "1 hour", "10 minutes"), "window", (3600, 600, 0)),
        (lambda: F.window("ts", "10 minutes", "3 minutes", "1 minute").alias("w"), "w", (600, 180, 60)),
        (lambda: F.window(F.col("ts"), "1 day", startTime="-1 hour"), "window", (86_400, 86_400, 82_800)),
        (lambda: F.expr("window(ts, '2 hours')"), "window", (7200, 7200, 0)),
        (lambda: F.window(F.to_timestamp("text"), "10 minutes"), "window", (600, 600, 0)),
    ],
)
def test_windows_are_recognised_with_their_measures(clicks, window, name, measures):
    table = clicks.groupBy("id", window()).agg(F.count("*").alias("clicks"), F.max("n").alias("most"))
    assert table.columns == ["id", name, "clicks", "most"]
    assert table.schema[name].dataType.simpleString() == "struct<start:timestamp,end:timestamp>"
    operator = operator_of(table)
    assert type(operator) is Aggregate
    found = operator.window
    assert isinstance(found, TimeWindow)
    assert found.group == "g1"
    assert (found.size_us, found.slide_us, found.start_us) == tuple(second * SECOND for second in measures)
    assert operator.name == f"by-id-{name}"
    assert operator.bare, "results need no Spark SQL"


def test_a_watermark_closes_windows_and_has_a_store_of_its_own(clicks):
    marked = clicks.withWatermark("ts", "1 minute")
    operator = operator_of(marked.groupBy(F.window("ts", "10 minutes"), "id").count(), output_mode="append")
    assert type(operator) is WindowedAggregate
    assert (operator.output_mode, operator.watermark_sources) == ("append", ("clicks",))
    compiled = clicks._app.compile()
    [branch] = compiled.subtopology("clicks").branches
    assert isinstance(branch.sink, RepartitionSink)
    assert (branch.watermark.delay_us, branch.sink.source_topics) == (60 * SECOND, ("clicks",))
    assert set(schemas_by_changelog(compiled)) == {
        "windows-by-window-id-changelog",
        "windows-by-window-id-watermark-changelog",
    }
    described = clicks._app.describe()
    assert "windows of 0:10:00, which close by the watermark of clicks" in described
    assert "by-window-id-watermark: newest ts less 0:01:00; drops rows of closed windows" in described


def test_another_size_is_another_state_and_another_delay_is_not(clicks):
    def schemas(delay, size):
        app = StreamsApp("windows", spark=clicks._app.spark, bootstrap_servers="127.0.0.1:1")
        rows = app.stream("clicks", schema="id string, ts timestamp").withWatermark("ts", delay)
        rows.groupBy(F.window("ts", size), "id").count().to_topic("out")
        return {topic: schema.state.hash for topic, schema in schemas_by_changelog(app.compile()).items()}

    first = schemas("1 minute", "10 minutes")
    assert schemas("2 minutes", "10 minutes") == first
    longer = schemas("1 minute", "11 minutes")
    assert longer.keys() == first.keys()
    assert longer["windows-by-window-id-changelog"] != first["windows-by-window-id-changelog"]
    assert longer["windows-by-window-id-watermark-changelog"] == first["windows-by-window-id-watermark-changelog"]


def test_windows_by_the_declared_key_need_no_repartition_topic(clicks):
    keyed = clicks._app.stream("keyed", schema="id string, ts timestamp, kind string", key="id")
    marked = keyed.withWatermark("ts", "1 minute")
    operator = operator_of(marked.groupBy(F.window("ts", "10 minutes"), "kind", "id").count())
    assert operator.watermark_store == "by-window-kind-id-watermark"
    [part] = clicks._app.compile().subtopologies
    assert part.changelog_topics == (
        "windows-by-window-kind-id-watermark-changelog",
        "windows-by-window-kind-id-changelog",
    )


REFUSED = {
    "a month": (lambda s: s.groupBy(F.window("ts", "1 month")).count(), "refused-by-spark", "month"),
    "a slide longer than the window": (
        lambda s: s.groupBy(F.window("ts", "1 hour", "2 hours")).count(),
        "refused-by-spark",
        "slide",
    ),
    "a window over text": (lambda s: s.groupBy(F.window("text", "1 hour")).count(), "not-supported-here", "cast it"),
    "an unknown column": (lambda s: s.groupBy(F.window("tss", "1 hour")).count(), "unresolved-column", "tss"),
    "another column than the watermark's": (
        lambda s: (
            s.withColumn("u", F.expr("ts + interval 1 hour"))
            .withWatermark("ts", "1 hour")
            .groupBy(F.window("u", "1 hour"))
        ),
        "not-supported-here",
        "the same column",
    ),
    "several topics": (
        lambda s: (
            s._app.stream(["a", "b"], schema="id string, ts timestamp")
            .withWatermark("ts", "1 hour")
            .groupBy(F.window("ts", "1 hour"))
            .count()
        ),
        "not-supported-here",
        "several topics (a, b)",
    ),
    "skipped records": (
        lambda s: (
            s._app.stream("a", schema="id string, ts timestamp", on_error="skip")
            .withWatermark("ts", "1 hour")
            .groupBy(F.window("ts", "1 hour"))
            .count()
        ),
        "not-supported-here",
        "on_error",
    ),
    "append without a watermark": (
        lambda s: s.groupBy(F.window("ts", "1 hour")).count().to_topic("out", output_mode="append"),
        "not-supported-here",
        "withWatermark",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_has_no_window_is_refused_with_a_fix(clicks, name):
    program, code, words = REFUSED[name]
    with pytest.raises(HeadraceError) as caught:
        program(clicks)
    assert (caught.value.code, words in f"{caught.value} {caught.value.fix}") == (code, True), str(caught.value)
    assert caught.value.fix


@pytest.mark.parametrize(
    "program",
    [
        lambda s: s.withWatermark("ts", "1 hour").groupBy(F.window("ts", "1 hour"), "id").count(),
        lambda s: s.withWatermark("ts", "1 hour").dropDuplicatesWithinWatermark(["id"]),
        lambda s: s.withColumn("rn", F.row_number().over(Window.partitionBy("id").orderBy("ts"))).where("rn = 1"),
    ],
    ids=["windows", "duplicates", "top-n"],
)
def test_operators_that_could_lose_rows_at_least_once_are_refused(spark, tmp_path, program):
    app = StreamsApp("windows", spark=spark, state_dir=tmp_path, processing_guarantee="at_least_once")
    rows = program(app.stream("clicks", schema="id string, ts timestamp", key="id"))
    with pytest.raises(HeadraceError) as caught:
        rows.to_topic("out")
    assert (caught.value.code, "exactly once" in str(caught.value)) == ("not-supported-here", True)
    kept = app.stream("others", schema="id string, ts timestamp").groupBy(F.window("ts", "1 hour")).count()
    kept.to_topic("kept")
