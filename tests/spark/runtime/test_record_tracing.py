"""Failures behind Spark SQL follow `on_error` like any other: sums that overflow, what sinks cannot take."""

import json
import random

import pytest
from pyspark.sql import functions as F

from headrace.client.admin import Admin
from headrace.errors import RecordError
from headrace.spark.topology.nodes import DeadLetter

pytestmark = pytest.mark.spark

LARGE = (1 << 62) + 1


def sums(app, **settings):
    rows = app.stream("numbers", schema="name string, n bigint", **settings)
    rows.groupBy("name").agg(F.sum("n").alias("total"), F.count("*").alias("records")).to_topic("totals", partitions=1)
    return app


def send(broker, *pairs, partition=0):
    broker.produce("numbers", [json.dumps({"name": name, "n": n}) for name, n in pairs], partition=partition)


def totals(broker):
    newest = {record.key: json.loads(record.value) for record in broker.records("totals")}
    return {row["name"]: (row["total"], row["records"]) for row in newest.values()}


@pytest.fixture
def numbers(broker):
    broker.create_topics({"numbers": 1, "numbers.bad": 1})
    return broker


@pytest.mark.parametrize("keyed", [True, False], ids=["in one task", "behind a repartition topic"])
def test_a_sum_that_overflows_leaves_out_the_records_that_do_not_fit(numbers, make_app, running, keyed):
    settings = {"on_error": DeadLetter("numbers.bad"), **({"key": "name"} if keyed else {})}
    send(numbers, ("a", LARGE), ("b", 1))
    with running(sums(make_app("sums", processing_guarantee="exactly_once_v2"), **settings)) as started:
        started.wait_until("caught-up", timeout=90)
        # 2 and -1 fit beside what is stored; LARGE does not, wherever micro-batches begin.
        send(numbers, ("a", LARGE), ("a", 2), ("b", 3), ("a", LARGE), ("a", -1), ("c", -LARGE), ("c", -LARGE), ("b", 4))
        started.wait_until("caught-up", timeout=90)
        assert totals(numbers) == {"a": (LARGE + 1, 3), "b": (8, 3), "c": (-LARGE, 1)}
    with running(sums(make_app("sums", processing_guarantee="exactly_once_v2"), **settings)) as started:
        send(numbers, ("a", 1))
        started.wait_until("caught-up", timeout=90)
        assert totals(numbers)["a"] == (LARGE + 2, 4)
    dead = numbers.records("numbers.bad")
    assert len(dead) == 3
    assert all(b"leaves the range of int64" in dict(record.headers)["headrace.reason"] for record in dead)
    if keyed:
        assert [dict(record.headers)["headrace.offset"] for record in dead] == [b"2", b"5", b"8"]
        assert {json.loads(record.value)["n"] for record in dead} == {LARGE, -LARGE}
        return
    for record in dead:
        headers = {name: value.decode() for name, value in record.headers}
        assert headers["headrace.topic"] == headers["__streams.errors.topic"] == "sums-by-name-repartition"
        assert headers["headrace.offset"] == headers["__streams.errors.offset"]
        assert headers["headrace.reason"] == headers["__streams.errors.message"]
        assert headers["headrace.sources"] == "numbers"
    rows = [json.loads(dict(record.headers)["headrace.row"]) for record in dead]
    assert sorted((row["name"], row["partial sum(n)"]) for row in rows) == [("a", LARGE), ("a", LARGE), ("c", -LARGE)]


def test_a_sum_that_overflows_names_the_record(numbers, make_app, running):
    send(numbers, ("a", LARGE), ("a", 7), ("a", LARGE), ("a", 1))
    with pytest.raises(RecordError) as raised:
        running(sums(make_app("sums"), key="name")).awaitTermination(90)
    assert raised.value.code == "arithmetic-overflow"
    assert "numbers-0@2" in str(raised.value)
    assert totals(numbers) == {"a": (LARGE + 7, 2)}, "everything before it counts"


def test_error_behind_a_repartition_topic_names_record_and_sources(numbers, make_app, running):
    send(numbers, ("a", LARGE), ("a", LARGE))
    with pytest.raises(RecordError) as raised:
        running(sums(make_app("sums"))).awaitTermination(90)
    error = raised.value
    assert error.facts["topic"] == "sums-by-name-repartition"
    assert error.facts["source_topics"] == ["numbers"]
    record = f"sums-by-name-repartition-0@{error.facts['offset']}"
    assert f"{record} (of an internal topic, made from records of numbers)" in error.message


def test_results_that_sql_cannot_process_name_the_record(numbers, make_app, running):
    app = make_app("results")
    rows = app.stream("numbers", schema="name string, n bigint", key="name", on_error="skip")
    table = rows.groupBy("name").agg(F.max("n").cast("int").alias("most"))
    table.to_topic("totals", partitions=1)
    send(numbers, ("a", 1), ("a", LARGE), ("a", 3), ("b", LARGE), ("c", 5))
    started = running(app)
    started.wait_until("caught-up", timeout=90)
    newest = {record.key: json.loads(record.value)["most"] for record in numbers.records("totals")}
    assert newest == {b"a": 3, b"c": 5}
    assert sum(row["skippedRecords"] for row in started.recentProgress) == 2


@pytest.mark.parametrize("grouped", [False, True], ids=["a stream", "an aggregate"])
def test_records_that_are_larger_than_the_topic_takes(numbers, make_app, running, grouped):
    with Admin(numbers.bootstrap_servers) as admin:
        admin.create_topics({"totals": 1})
        admin.alter_configs("topic", "totals", {"max.message.bytes": "2000"})
    app = make_app("large", processing_guarantee="exactly_once_v2")
    rows = app.stream("numbers", schema="name string, n bigint", key="name", on_error="skip")
    (rows.groupBy("name").count() if grouped else rows.select("name")).to_topic("totals", partitions=1)
    send(numbers, ("a", 1), (random.Random(1).randbytes(3000).hex(), 2), ("b", 3))
    started = running(app)
    started.wait_until("caught-up", timeout=90)
    assert {json.loads(record.value)["name"] for record in numbers.records("totals")} == {"a", "b"}


def test_a_value_that_a_sink_cannot_write_leaves_out_its_record(numbers, make_app, running, spark):
    """The far date in a zone east of Greenwich: no such local time in Python's calendar."""
    zone = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", "Europe/Berlin")
    try:
        app = make_app("far")
        rows = app.stream("numbers", schema="name string, at array<timestamp>", on_error=DeadLetter("numbers.bad"))
        rows.to_topic("totals", partitions=1)
        texts = ["2020-01-01T00:00:00Z", "9999-12-31T23:59:59Z", "2021-01-01T00:00:00Z"]
        numbers.produce("numbers", [json.dumps({"name": text, "at": [text]}) for text in texts], partition=0)
        started = running(app)
        started.wait_until("caught-up", timeout=90)
    finally:
        spark.conf.set("spark.sql.session.timeZone", zone)
    written = {json.loads(record.value)["name"] for record in numbers.records("totals")}
    dead = {json.loads(record.value)["name"] for record in numbers.records("numbers.bad")}
    assert written | dead == set(texts)
    assert {texts[0], texts[2]} <= written
