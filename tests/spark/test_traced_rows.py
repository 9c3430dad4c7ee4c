"""Trace contexts from input records to output records, through Spark SQL and without it."""

from __future__ import annotations

import pytest
from pyspark.sql import functions as F
from tests.spark.offline_programs import EWR, JFK, SCHEMA

from headrace.testing import TopologyTest

pytestmark = pytest.mark.spark

PARENT = b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
ON = {"headrace.tracing": "opentelemetry"}
SAMPLED = [("traceparent", PARENT), ("tracestate", b"k=v"), ("other", b"x")]


def headers_of(test, topic):
    return [
        (record.value is not None and b"JFK" in record.value, dict(record.headers)) for record in test.records(topic)
    ]


def push(test):
    test.push("flights", [EWR])
    test.push("flights", [JFK, {**JFK, "dep_delay": None}], headers=SAMPLED)
    test.push("flights", [EWR], headers=[("traceparent", PARENT[:-1] + b"0")])


def is_continued(headers):
    found = headers["traceparent"]
    return found[:36] == PARENT[:36] and found != PARENT and found[-3:] == b"-01" and headers["tracestate"] == b"k=v"


def test_rows_carry_the_contexts_of_their_records(make_offline_app):
    app = make_offline_app(config=ON)
    flights = app.stream("flights", schema=SCHEMA)
    flights.to_topic("copies", key="origin")
    chosen = flights.where("dep_delay is not null").withColumn("late", F.col("dep_delay") > 2)
    chosen.select(F.explode(F.array(F.lit(1), F.lit(2))).alias("n"), "origin", "late").to_topic("pairs", key="origin")
    flights.groupBy("origin").agg(F.count("*").alias("n")).to_topic("counts")
    with TopologyTest(app) as test:
        push(test)
        for topic, sampled in (("copies", 2), ("pairs", 2)):
            rows = headers_of(test, topic)
            assert [is_jfk for is_jfk, _ in rows].count(True) == sampled
            for is_jfk, headers in rows:
                assert is_continued(headers) if is_jfk else headers == {}, (topic, headers)
        # One span continues in one span, whatever topic its records are written to.
        assert (
            len(
                {
                    headers["traceparent"]
                    for topic in ("copies", "pairs")
                    for _, headers in headers_of(test, topic)
                    if headers
                }
            )
            == 1
        )
        # Rows carry their contexts into the repartition topic, those without one are one record. A row of an aggregate
        # has many origins.
        repartitioned = [dict(record.headers) for record in test.records("delays-by-origin-repartition")]
        assert sorted(map(len, repartitioned)) == [0, 2, 2]
        assert all(is_continued(headers) for headers in repartitioned if headers)
        assert all(headers == {} for _, headers in headers_of(test, "counts"))
        assert test.table("counts")["JFK"]["n"] == 2


def test_contexts_are_not_read_where_traces_are_off(make_offline_app):
    app = make_offline_app()
    app.stream("flights", schema=SCHEMA).to_topic("copies", key="origin")
    with TopologyTest(app) as test:
        push(test)
        assert all(headers == {} for _, headers in headers_of(test, "copies"))


def test_bad_records_and_raw_values_keep_rows_and_contexts_together(make_offline_app):
    app = make_offline_app(config=ON, on_error="skip")
    app.stream("flights", schema=SCHEMA).to_topic("copies", key="origin")
    app.stream("raw").select("key", "value").to_topic("raw-copies")
    with TopologyTest(app) as test:
        test.push("flights", [b"{", b"{"])
        test.push("flights", [JFK], headers=SAMPLED)
        test.push("raw", [b"a"], headers=SAMPLED)
        test.push("raw", [b"b"])
        [(_, headers)] = headers_of(test, "copies")
        assert is_continued(headers)
        first, second = headers_of(test, "raw-copies")
        assert is_continued(first[1])
        assert second[1] == {}
