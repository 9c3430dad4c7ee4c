"""Which columns `verify` compares as multisets, and lists with values that were counted again."""

from __future__ import annotations

import math
from typing import Any

import pytest
from pyspark.sql import Row
from pyspark.sql import functions as F

from headrace.spark.verification.verify_lists import is_ambiguous, is_repeated, list_columns


@pytest.mark.parametrize(
    ("found", "wanted", "repeats", "expected"),
    [
        ([2, 1], [1, 2], 0, True),
        ([1, 2, 1], [1, 2], 1, True),
        ([1, 2, 1], [1, 2], 0, False),
        ([1, 2, 1, 2], [1, 2], 1, False),
        ([1, 2, 3], [1, 2], 1, False),
        ([1], [1, 2], 1, False),
        ([math.nan, None], [None, math.nan], 0, True),
        ([Row(t=1, x=None)], [Row(t=1, x=None)], 0, True),
        ([Row(t=1, x=None)], [Row(t=1, x=2)], 0, False),
        (None, [1], 1, False),
        ("1", ["1"], 0, False),
    ],
)
def test_only_values_that_are_there_may_be_repeated(found: Any, wanted: Any, repeats: int, expected: bool) -> None:
    assert is_repeated(found, wanted, repeats) is expected


@pytest.mark.spark
def test_whole_lists_are_multisets_and_results_of_lists_are_not_compared(make_offline_app):
    stream = make_offline_app("lists").stream("in", schema="k string, n int")
    table = stream.groupBy("k").agg(
        F.count("*").alias("rows"),
        F.collect_list("n").alias("all"),
        F.sort_array(F.collect_set("n"), asc=False).alias("sorted"),
        F.slice(F.collect_list("n"), 1, 2).alias("first"),
        F.array_join(F.collect_set("n"), ",").alias("text"),
        F.percentile("n", [0.5]).alias("middle"),
        F.mode("n").alias("mode"),
    )
    table = table.withColumn("part", F.slice("all", 1, 2)).withColumn("all", F.array_sort("all"))
    assert list_columns(table) == (frozenset({"sorted"}), ("all", "first", "text", "part"))
    assert list_columns(stream.groupBy("k").agg(F.median("n"), F.count("*"))) == (frozenset(), ())


@pytest.mark.spark
@pytest.mark.parametrize(
    ("call", "expected"),
    [
        ("collect_set(n)", True),
        ("mode(n)", True),
        ("mode(n, true)", False),
        ("median(n)", False),
        ("max(n)", False),
        ("percentile_approx(n, 0.5)", True),
    ],
)
def test_functions_with_several_results_in_spark_are_ambiguous(make_offline_app, call, expected):
    table = make_offline_app("lists").stream("in", schema="k string, n int").groupBy("k").agg(F.expr(call))
    assert is_ambiguous(table._aggregate) is expected
    assert not is_ambiguous(None)
