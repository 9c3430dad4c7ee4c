"""Stores as rows of a user: keys of every kind, over all tasks."""

from __future__ import annotations

import datetime as dt

import pytest
from pyspark.sql import functions as F

from headrace.testing import TopologyTest

pytestmark = pytest.mark.spark


def test_keys_may_be_null_long_typed_or_several(make_offline_app):
    app = make_offline_app()
    rows = app.stream("in", schema="name string, n int, day date")
    rows.groupBy("name").agg(F.count("*").alias("rows"), name="by-name").to_topic("by-name")
    rows.groupBy("n").agg(F.max("day").alias("newest"), name="by-n").to_topic("by-n")
    rows.groupBy("name", "n").agg(F.count("day").alias("days"), name="by-both").to_topic("by-both")
    long, day = "x" * 1000, dt.date(2024, 2, 29)
    with TopologyTest(app, partitions=3) as test:
        for name, n in ((long, 1), (None, 1), ("", None)):
            test.push("in", [{"name": name, "n": n, "day": "2024-02-29"}])
        assert test.state("by-name") == {name: {"name": name, "rows": 1} for name in (long, None, "")}
        assert test.state("by-n") == {n: {"n": n, "newest": day} for n in (1, None)}
        assert test.state("by-both")[None, 1] == {"name": None, "n": 1, "days": 1}
        assert len(test.state("by-both")) == 3


def test_entries_of_distinct_counts_are_no_groups(make_offline_app):
    app = make_offline_app()
    rows = app.stream("in", schema="name string, n int")
    rows.groupBy("name").agg(F.count_distinct("n").alias("values"), name="by-name").to_topic("by-name")
    with TopologyTest(app) as test:
        test.push("in", [{"name": name, "n": n} for name, n in ((None, 1), ("a", 1), ("a", 2), ("a", 1))])
        assert test.state("by-name") == {None: {"name": None, "values": 1}, "a": {"name": "a", "values": 2}}


def test_an_empty_store_has_no_rows(make_offline_app):
    app = make_offline_app()
    rows = app.stream("in", schema="name string, at timestamp", key="name")
    rows.groupBy("name").agg(F.count("*").alias("rows"), name="by-name").to_topic("by-name")
    rows.withWatermark("at", "1 minute").dropDuplicatesWithinWatermark(["name"]).to_topic("unique")
    with TopologyTest(app) as test:
        assert test.state("by-name") == {}
        assert test.state("unique-by-name") == {}


def test_typed_keys_of_a_deduplication_are_read(make_offline_app):
    app = make_offline_app()
    rows = app.stream("in", schema="n bigint, name string, at timestamp", key="name")
    rows.withWatermark("at", "1 minute").dropDuplicatesWithinWatermark(["n", "name"]).to_topic("unique")
    with TopologyTest(app, now_ms=1_704_067_200_000) as test:
        test.push("in", [{"n": 7, "name": "a", "at": "2024-01-01T00:00:01.5Z"}])
        at = dt.datetime(2024, 1, 1, 0, 0, 1, 500_000, tzinfo=dt.UTC)
        [name] = [part.deduplication.name for s in app.compile().subtopologies for part in s.branches]
        assert test.state(name) == {(7, "a"): at}
