"""A compiled program described as text."""

from __future__ import annotations

import pytest
from pyspark.sql import functions as F
from tests.spark.compiled_programs import SCHEMA

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

subtopology flights
  reads    flights (json: origin, dep_delay)
  then     where
  groups   by origin
  writes   demo-by-origin-repartition (internal)"""


def test_described_as_text(app):
    flights = app.stream("flights", schema=SCHEMA).where("dep_delay > 0")
    flights.groupBy("origin").count().withColumn("many", F.col("count") > 9).to_topic("out", partitions=4)
    assert app.describe() == GOLDEN
    assert app.describe("mermaid").startswith("flowchart LR\n")
    assert '"changelog": "demo-by-origin-changelog"' in app.describe("json")
