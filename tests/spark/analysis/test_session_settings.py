"""Session settings that change values: a program that is started with other ones has another identity of its rows."""

from __future__ import annotations

import pytest
from pyspark.sql import functions as F

from headrace.errors import TopologyError
from headrace.spark.runtime.rows.row_schema import schemas_by_changelog
from headrace.spark.streams_app import StreamsApp

pytestmark = pytest.mark.spark

SCHEMA = "text string, at timestamp, price decimal(38,10), n int"


@pytest.fixture
def with_setting(spark):
    """Call a function while a setting has another value."""
    before: dict[str, str | None] = {}

    def call(name, value, function):
        before.setdefault(name, spark.conf.get(name, None))
        spark.conf.set(name, value)
        try:
            return function()
        finally:
            restore(name)

    def restore(name):
        if before[name] is None:
            spark.conf.unset(name)
        else:
            spark.conf.set(name, before[name])

    return call


def stored(spark, group, value):
    app = StreamsApp("settings", spark=spark)
    rows = app.stream("rows", schema=SCHEMA)
    rows.groupBy(F.expr(group).alias("g")).agg(F.max(F.expr(value)).alias("most"), name="most").to_topic("out")
    return schemas_by_changelog(app.compile())["settings-most-changelog"]


ANSI, ZONE = "spark.sql.ansi.enabled", "spark.sql.session.timeZone"
DECIMALS, TIMES = "spark.sql.decimalOperations.allowPrecisionLoss", "spark.sql.legacy.timeParserPolicy"
CHANGES_VALUES = {  # setting, its value, expressions of the group and of the input
    "ansi, of a group": (ANSI, "false", "cast(text as int)", "n"),
    "ansi, of an input": (ANSI, "false", "text", "cast(text as int) + 1"),
    "time zone, of a group": (ZONE, "Europe/Berlin", "to_date(at)", "n"),
    "time zone, of an input": (ZONE, "Europe/Berlin", "text", "cast(at as string)"),
    "time zone, of times as they were read": (ZONE, "Europe/Berlin", "text", "at"),
    "decimals": (DECIMALS, "false", "text", "cast(price * 2 as double)"),
    "times of an older Spark": (TIMES, "LEGACY", "to_timestamp(text, 'yy')", "n"),
    "another legacy rule": ("spark.sql.legacy.castComplexTypesToString.enabled", "true", "text", "n % 3"),
}


@pytest.mark.parametrize("name", CHANGES_VALUES)
def test_a_setting_that_changes_a_stored_value_is_named_by_the_refusal(spark, with_setting, name):
    setting, value, group, argument = CHANGES_VALUES[name]
    usual = stored(spark, group, argument)
    other = with_setting(setting, value, lambda: stored(spark, group, argument))
    difference = usual.difference(other)
    assert difference is not None
    assert (value if setting == ZONE else f"{setting}={value}") in difference
    assert usual.difference(stored(spark, group, argument)) is None, "the setting is as before"


def test_a_time_zone_that_is_set_behind_the_source_is_refused(spark, with_setting):
    app = StreamsApp("settings", spark=spark)
    app.stream("rows", schema=SCHEMA).to_topic("out")
    app.stream("texts", schema="text string").to_topic("texts-out")
    app.compile()
    with pytest.raises(
        TopologyError, match=r'timestamps of "rows" are read in UTC, but the session is in Europe/Berlin now'
    ):
        with_setting(ZONE, "Europe/Berlin", app.compile)


CHANGES_NOTHING = {
    "ansi, of columns": (ANSI, "false", "text", "n"),
    "time zone, of numbers": (ZONE, "Europe/Berlin", "text", "cast(n as bigint) + 1"),
    "a setting at its default": (ANSI, "true", "try_cast(text as int)", "n + 1"),
    "a setting of the engine": ("spark.sql.shuffle.partitions", "3", "try_cast(text as int)", "n + 1"),
}


@pytest.mark.parametrize("name", CHANGES_NOTHING)
def test_a_setting_that_changes_no_stored_value_changes_nothing(spark, with_setting, name):
    setting, value, group, argument = CHANGES_NOTHING[name]
    usual = stored(spark, group, argument)
    assert with_setting(setting, value, lambda: stored(spark, group, argument)) == usual


def test_names_in_another_case_show_in_the_text_of_the_column(spark, with_setting):
    def by_case():
        app = StreamsApp("settings", spark=spark)
        rows = app.stream("rows", schema="A int, text string")
        rows.groupBy("text").agg(F.max("A").alias("most"), name="most").to_topic("out")
        return schemas_by_changelog(app.compile())["settings-most-changelog"].state.values

    [usual] = by_case()
    assert with_setting("spark.sql.caseSensitive", "true", by_case) == (usual,)
    assert usual.expression == "A"
