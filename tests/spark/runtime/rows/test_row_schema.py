"""The decision about every kind of edit: compiled by Spark, compared without a broker."""

from __future__ import annotations

import pytest
from pyspark.sql import functions as F
from tests.spark import edits

from headrace.errors import StateError
from headrace.spark.runtime.rows.row_schema import judge_changelog, schemas_by_changelog
from headrace.spark.streams_app import StreamsApp

pytestmark = pytest.mark.spark
CHANGELOG = "demo-state-changelog"


@pytest.fixture(scope="module")
def stored(spark):
    """`stored(version)`: what that version of the program stores. Compiled once per version."""
    known = {}

    def compiled(version):
        if id(version) not in known:
            app = StreamsApp("demo", spark=spark, bootstrap_servers="localhost:1")
            version.build(app).to_topic("out", partitions=1)
            known[id(version)] = schemas_by_changelog(app.compile())[CHANGELOG]
        return known[id(version)]

    return compiled


def judged(old, new):
    """None, or why `new` may not use what `old` stored."""
    if old.difference(new) is None:
        judge_changelog(CHANGELOG, (old.key, old.value), new, "demo")
        return None
    with pytest.raises(StateError) as refused:
        judge_changelog(CHANGELOG, (old.key, old.value), new, "demo")
    assert refused.value.code == "state-schema-changed"
    assert str(old.state) in refused.value.message
    assert str(new.state) in refused.value.message
    return refused.value.facts["difference"]


@pytest.mark.parametrize("edit", edits.EDITS, ids=lambda edit: edit.name)
def test_an_edit_goes_on_or_is_refused_by_name(stored, edit):
    old, new = stored(edit.old), stored(edit.new)
    forth, back = judged(old, new), judged(new, old)
    print(f"{edit.name:55} {'refused: ' + forth if forth else 'goes on'}")
    if edit.refused is None:
        assert (forth, back) == (None, None)
        assert (old.state.fingerprint, old.inputs) == (new.state.fingerprint, new.inputs), "one layout for both"
    else:
        assert edit.refused in forth
        assert back is not None
        rows = (old.state, old.inputs), (new.state, new.inputs)
        assert rows[0] != rows[1]
    assert judged(old, old) is None


def test_versions_are_compatible_exactly_if_their_columns_are_equal(stored):
    """No pair may pass with rows of different columns, and none with equal columns be refused."""
    found = {str(version): stored(version) for edit in edits.EDITS for version in (edit.old, edit.new)}
    for old in found.values():
        for new in found.values():
            same = (old.state.columns, old.inputs) == (new.state.columns, new.inputs)
            assert (judged(old, new) is None) == same
            if old.state.columns != new.state.columns:
                assert old.state.fingerprint != new.state.fingerprint


def state_of(spark, table):
    app = StreamsApp("demo", spark=spark, bootstrap_servers="localhost:1")
    table(app.stream("flights", schema="origin string, n int, xs array<int>")).to_topic("out", partitions=1)
    [schema] = schemas_by_changelog(app.compile()).values()
    return [str(column) for column in schema.state.values]


def test_variables_of_lambda_functions_have_no_numbers_of_the_process(spark):
    def summed(merge):
        return lambda s: s.withColumn("x", F.aggregate("xs", F.lit(0), merge)).groupBy("origin").sum("x")

    first = state_of(spark, summed(lambda acc, x: acc - x))
    assert "variable0 - variable1" in first[0]
    assert state_of(spark, summed(lambda acc, x: acc - x)) == first
    assert state_of(spark, summed(lambda acc, x: x - acc)) != first


def test_columns_of_python_functions_are_known_by_their_names(spark):
    """Two lambdas have one text; were they known by it, a reorder would exchange their values."""
    up, down = F.udf(lambda n: n + 1, "int"), F.udf(lambda n: n - 1, "int")
    state = state_of(
        spark,
        lambda s: s.withColumn("more", up("n")).withColumn("less", down("n")).groupBy("origin").sum("more", "less"),
    )
    assert state == ["sum(less): int64", "sum(more): int64"]


def test_one_table_joined_twice_gives_two_columns(spark):
    def summed(first, second):
        def table(stream):
            one = spark.createDataFrame([("a", 1)], "code string, size int")
            other = spark.createDataFrame([("a", 1)], "key string, size2 int")
            sides = {"one": (one, F.col("origin") == F.col("code")), "other": (other, F.col("n") == F.col("key"))}
            return stream.join(*sides[first]).join(*sides[second]).groupBy("origin").sum("size", "size2")

        return table

    assert state_of(spark, summed("one", "other")) == state_of(spark, summed("other", "one"))
