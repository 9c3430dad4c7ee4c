"""The topology of a program: its names, and what the heartbeat says of it."""

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


def test_names_follow_from_the_computation(app):
    flights = app.stream("flights", schema=SCHEMA)
    names = [
        flights.groupBy("origin", "carrier").count(),
        flights.groupBy(F.upper("origin")).count(),
        flights.groupBy(F.date_trunc("hour", "t").alias("hour")).count(),
        flights.groupBy("n").agg({"dep_delay": "max"}),
        flights.groupBy("n").agg(F.count("*"), name="mine"),
    ]
    assert [table._aggregate.name for table in names] == [
        "by-origin-carrier",
        "by-upper-origin",
        "by-hour",
        "by-n",
        "mine",
    ]
    assert names[3].columns == ["n", "max(dep_delay)"]


def test_the_heartbeats_topology(app):
    flights = app.stream("flights", schema=SCHEMA)
    flights.groupBy("origin").count().to_topic("a")
    flights.groupBy("carrier").count().to_topic("b")
    topology = app.compile().description()
    assert [s.subtopology_id for s in topology.subtopologies] == ["by-carrier", "by-origin", "flights"]
    carrier, _, source = topology.subtopologies
    assert source.source_topics == ("flights",)
    assert source.repartition_sink_topics == ("demo-by-carrier-repartition", "demo-by-origin-repartition")
    [repartition] = carrier.repartition_source_topics
    assert dict(repartition.configs) == {"cleanup.policy": "delete", "retention.ms": "-1"}
    [changelog] = carrier.state_changelog_topics
    assert (changelog.name, dict(changelog.configs)) == ("demo-by-carrier-changelog", {"cleanup.policy": "compact"})
    assert topology.to_heartbeat() is not None


def test_the_order_of_a_program_does_not_matter_to_the_group(spark):
    def described(columns):
        app = StreamsApp("demo", spark=spark)
        flights = app.stream("flights", schema=SCHEMA)
        for column in columns:
            flights.groupBy(column).count().to_topic(column)
        return app.compile().description()

    assert described(["origin", "carrier", "n"]) == described(["n", "carrier", "origin"])
