"""A compiled program described as text."""

from __future__ import annotations

import json

import pytest
from pyspark.sql import functions as F
from tests.spark.compiled_programs import SCHEMA

from headrace.spark.runtime.slots import resident_slots
from headrace.spark.streams_app import StreamsApp
from headrace.spark.topology.nodes import DeadLetter

pytestmark = pytest.mark.spark


@pytest.fixture
def app(spark):
    return StreamsApp("demo", spark=spark, on_error=DeadLetter("bad"))


GOLDEN = """\
application demo

subtopology by-origin
  reads    demo-by-origin-repartition (internal)
  keeps    by-origin: origin, count
           changelog demo-by-origin-changelog
  then     withColumn
  writes   out (json, key origin, created with 4 partitions when missing)
  runs     in resident slots

subtopology flights
  reads    flights (json: origin, dep_delay)
  then     where
  groups   by origin
  writes   demo-by-origin-repartition (internal)
  runs     in resident slots"""


def test_described_as_text(app):
    flights = app.stream("flights", schema=SCHEMA).where("dep_delay > 0")
    flights.groupBy("origin").count().withColumn("many", F.col("count") > 9).to_topic("out", partitions=4)
    assert app.describe() == GOLDEN
    assert app.describe("mermaid").startswith("flowchart LR\n")
    assert '"changelog": "demo-by-origin-changelog"' in app.describe("json")


def test_a_description_names_why_there_are_no_resident_slots(app, spark, monkeypatch):
    flights = app.stream("flights", schema=SCHEMA)
    flights.withColumn("now", F.current_timestamp()).to_topic("out", partitions=4)
    [part] = json.loads(app.describe("json"))["subtopologies"]
    assert (part["resident_slots"], part["reason_for_jobs"]) == (False, "its Spark SQL tells the time")
    jobs = StreamsApp("demo", spark=spark, config={"headrace.execution": "micro-batch"})
    jobs.stream("flights", schema=SCHEMA).to_topic("out", partitions=4)
    assert 'runs     a job for each micro-batch: headrace.execution is "micro-batch"' in jobs.describe()
    monkeypatch.setattr(resident_slots, "threads_of", lambda _spark: 10)
    wide = StreamsApp("demo", spark=spark, config={"headrace.execution": "resident", "headrace.max.slots": 9})
    wide.stream("flights", schema=SCHEMA).to_topic("out", partitions=4)
    assert "it needs 9 threads of Spark's executor, 8 are left" in wide.describe()
