"""What a program compiles to: subtopologies, names, splits, pruned columns, the heartbeat's topology."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest
from pyspark.sql import functions as F
from tests.harness.values import not_none
from tests.spark.compiled_programs import SCHEMA, split_of

from headrace.spark import spark_internals as internals
from headrace.spark.runtime.chains import build_chains
from headrace.spark.streams_app import StreamsApp
from headrace.spark.topology.nodes import DeadLetter, RepartitionSink, RepartitionSource, TopicSink

pytestmark = pytest.mark.spark


@pytest.fixture
def app(spark):
    return StreamsApp("demo", spark=spark, on_error=DeadLetter("bad"))


def test_a_count_behind_a_repartition(app):
    flights = app.stream("flights", schema=SCHEMA)
    flights.where("dep_delay > 0").groupBy("origin").agg(F.count("*").alias("flights")).to_topic("out", partitions=4)
    compiled = app.compile()
    assert [part.subtopology_id for part in compiled.subtopologies] == ["by-origin", "flights"]
    behind, front = compiled.subtopologies
    [source] = front.sources
    assert (source.topics, source.columns_needed, source.on_error) == (
        ("flights",),
        ("origin", "dep_delay"),
        DeadLetter("bad"),
    )
    [branch] = front.branches
    assert [call.method for call in branch.before] == ["where"]
    assert branch.projection.key_sql == (("g0", "origin"),)
    assert (branch.projection.input_sql, branch.projection.bare) == ((), False)
    columns: dict[str, Any] = {
        "columns": (("g0", '"string"'), ("b0", '"long"')),
        "expressions": ("origin", "partial count(*)"),
    }
    assert branch.sink == RepartitionSink(
        topic="demo-by-origin-repartition",
        partials_of=replace(behind.branches[0].aggregate, takes_partials=False),
        row_columns=(("g0", '"string"'),),
        combines=False,  # a record that fails behind the topic is passed over, and must be one row
        **columns,
    )
    # What fails behind the repartition topic follows the policy of the stream that writes it.
    policy: dict[str, Any] = {"on_error": DeadLetter("bad"), "origins": ("flights",)}
    expected = RepartitionSource(topic="demo-by-origin-repartition", **columns, **policy)
    assert behind.sources == (expected,)
    [branch] = behind.branches
    assert (branch.aggregate.name, branch.aggregate.changelog_topic) == ("by-origin", "demo-by-origin-changelog")
    assert branch.aggregate.results == (("origin", "g0"), ("flights", "b0"))
    assert branch.aggregate.bare
    assert isinstance(branch.sink, TopicSink)
    assert (branch.sink.key_columns, branch.sink.partitions) == (None, 4)
    assert branch.sink.value_columns == ("origin", "flights")


def test_the_declared_key_moves_no_rows(app):
    keyed = app.stream("flights", schema=SCHEMA, key="origin")
    keyed.where("n > 1").groupBy("origin").count().to_topic("a")
    [part] = app.compile().subtopologies
    assert (part.subtopology_id, part.aggregates[0].name) == ("flights", "by-origin")
    assert part.branches[0].projection is not None


@pytest.mark.parametrize(
    "group",
    [
        lambda s: s.withColumn("origin", F.upper("origin")).groupBy("origin"),
        lambda s: s.groupBy("origin", "carrier"),
        lambda s: s.groupBy(F.upper("origin")),
        lambda s: s.unionByName(s).groupBy("origin"),
    ],
)
def test_anything_else_than_the_declared_key_moves_them(app, group):
    group(app.stream("flights", schema=SCHEMA, key="origin")).count().to_topic("a")
    assert len(app.compile().subtopologies) == 2


def test_bare_projections_name_source_columns(app):
    split = split_of(app, F.count("*"), F.sum("n"), before=lambda s: s.drop("t").select("n", "origin"))
    assert split.projection.bare
    assert split.projection.source_columns == (("g0", "origin"), ("i0", "n"))
    for before in (lambda s: s.where("n > 1"), lambda s: s.withColumn("n", F.col("n") + 1)):
        assert not split_of(app, F.sum("n"), before=before).projection.bare


def test_columns_are_pruned_over_all_branches(app):
    flights = app.stream("flights", schema=SCHEMA)
    flights.groupBy("origin").count().to_topic("a")
    flights.select("carrier", "_kafka.offset").to_topic("b")
    source = app.compile().subtopology("flights").sources[0]
    assert source.columns_needed == ("origin", "carrier", "_kafka")


def test_hidden_columns_stay_hidden(app):
    stream = app.stream("flights", schema=SCHEMA).select("*", F.col("_kafka.partition").alias("p"))
    stream = stream.drop("_kafka", "__headrace_task", "n").selectExpr("*", "p + 1 as q")
    assert stream.columns == ["origin", "carrier", "dep_delay", "t", "p", "q"]
    assert stream.where("_kafka.topic = 'x'").columns == stream.columns
    assert [field.name for field in stream.schema] == stream.columns
    assert stream.dtypes[-1] == ("q", "int")
    assert stream._template.columns[-2:] == ["__headrace_key", "q"] or "__headrace_key" in stream._template.columns


def test_a_raw_stream_has_the_columns_of_sparks_source(app):
    raw = app.stream("anything")
    assert raw.columns == ["key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers"]
    parsed = raw.select(F.from_json(F.col("value").cast("string"), "a int").alias("j")).select("j.a")
    parsed.to_topic("out")
    assert app.compile().subtopologies[0].sources[0].columns_needed == ("value",)


def test_a_union_becomes_branches(app):
    one = app.stream("one", schema="a int, b string")
    other = app.stream("two", schema="b string, a bigint")
    both = one.unionByName(other)
    assert both.dtypes == [("a", "bigint"), ("b", "string")]
    both.where("a > 1").groupBy("b").count().to_topic("out")
    compiled = app.compile()
    assert [part.subtopology_id for part in compiled.subtopologies] == ["by-b", "one", "two"]
    for name in ("one", "two"):
        [branch] = compiled.subtopology(name).branches
        assert [call.method for call in branch.before] == ["unionByName", "where"]
        assert branch.sink.topic == "demo-by-b-repartition"


def test_foreach_batch(app):
    seen = []
    stream = app.stream("lines", value="string").where("value != ''")
    assert stream.foreachBatch(lambda frame, number: seen.append(number)) is stream
    sink = app.compile().subtopologies[0].branches[0].sink
    sink.function(None, 3)
    assert (seen, sink.columns) == ([3], ("value",))


def test_sinks_choose_their_columns(app):
    stream = app.stream("flights", schema=SCHEMA)
    stream.select("origin", "carrier").to_topic("a", key="origin", value="string")
    stream.select(F.col("carrier").alias("value")).to_topic("b", value="raw")
    stream.to_topic("c", key=["n", "Origin"])
    sinks = {b.sink.topic: b.sink for b in app.compile().subtopologies[0].branches}
    assert (sinks["a"].key_columns, sinks["a"].value_columns) == (("origin",), ("carrier",))
    assert sinks["b"].value_columns == ("value",)
    assert sinks["c"].key_columns == ("n", "origin")


def test_importing_headrace_loads_neither_arrow_nor_spark():
    heavy = "[m for m in ('pyarrow', 'numba', 'pyspark', 'lmdb', 'pandas') if m in sys.modules]"
    script = f"import sys, headrace; headrace.DeadLetter('x'); headrace.HeadraceError; print({heavy})"
    told = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60)
    assert told.stdout.strip() == "[]"


def test_a_missing_extra_is_named():
    script = (
        "import sys; sys.modules['pyspark'] = None\n"
        "try:\n    from headrace import StreamsApp\nexcept ImportError as error:\n    print(error)"
    )
    told = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60)
    assert told.stdout.startswith("StreamsApp needs the package pyspark, which is not installed")


@pytest.mark.parametrize(
    "calls",
    [
        lambda s: s.select("origin", "n").select("origin"),
        lambda s: s.withColumn("m", F.col("n") + 1).drop("m", "n", "t", "carrier", "dep_delay"),
        lambda s: s.toDF("a", "b", "c", "d", "e").select("a"),
        lambda s: s.select("*", F.col("_kafka.offset").alias("at")).select("origin"),
    ],
)
def test_a_column_that_is_named_and_used_by_no_result_is_not_read(app, calls):
    """Micro-batches resolve the names of all recorded calls, those of columns that are not read as well."""
    calls(app.stream("flights", schema=SCHEMA)).to_topic("out")
    [part] = app.compile().subtopologies
    assert part.sources[0].columns_needed == ("origin",)
    chains = build_chains(app.spark, part, slots=1)
    assert "null" not in internals.optimised(not_none(chains.main).kept()).toString()
