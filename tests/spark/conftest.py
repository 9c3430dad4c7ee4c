"""One Spark session for the tests of this package, built as applications build theirs; a broker per test."""

import contextlib
import json
import time

import pandas as pd
import pytest
from pyspark.sql import functions as F
from tests.harness.spark_sessions import spark_fixture

from headrace.spark.streams_app import StreamsApp

spark = spark_fixture()


@pytest.fixture
def broker():
    from headrace.broker.embedded import EmbeddedBroker

    with EmbeddedBroker({"flights": 4}, config={"group.streams.initial.rebalance.delay.ms": 0}) as running:
        yield running


@pytest.fixture
def make_app(spark, broker, tmp_path):

    def make(name="flight-counts", *, instance="a", **settings):
        return StreamsApp(
            name, spark=spark, bootstrap_servers=broker.bootstrap_servers, state_dir=tmp_path / instance, **settings
        )

    return make


@pytest.fixture
def make_offline_app(spark, tmp_path):
    """Applications without a broker anywhere, for `TopologyTest`."""

    def make(name="delays", **settings):
        state_dir = tmp_path / "never-made"
        return StreamsApp(name, spark=spark, bootstrap_servers="127.0.0.1:1", state_dir=state_dir, **settings)

    return make


@pytest.fixture
def two_partitions(spark):
    """Few partitions in Spark's own joins, whose hundreds would take longer than all else."""
    name = "spark.sql.shuffle.partitions"
    before = spark.conf.get(name)
    spark.conf.set(name, "2")
    yield
    spark.conf.set(name, before)


@pytest.fixture
def running():
    """`start(app)`, stopped at the end whatever happened."""
    with contextlib.ExitStack() as stack:
        yield lambda app: stack.enter_context(app.start())


class Flights:
    """Records that are easy to count, and what comes out of counting them."""

    ORIGINS = ("EWR", "JFK", "LGA")
    SCHEMA = "origin string, dep_delay double, n bigint"

    @staticmethod
    def flight(number):
        delay = None if number % 10 == 0 else float(number % 60)
        return {"origin": Flights.ORIGINS[number % 3], "dep_delay": delay, "n": number}

    @staticmethod
    def send(broker, numbers, topic="flights"):
        broker.produce(topic, [json.dumps(Flights.flight(number)) for number in numbers])

    @staticmethod
    def newest(broker, topic):
        """The last value of each key, as a compacted topic would keep them."""
        return {record.key.decode(): json.loads(record.value) for record in broker.records(topic)}

    @staticmethod
    def count_by_origin(app, **settings):

        flights = app.stream("flights", schema=Flights.SCHEMA, **settings)
        counts = flights.groupBy("origin").agg(F.count("*").alias("flights"), F.sum("n").alias("total"))
        counts.to_topic("by-origin", partitions=2)
        return app

    @staticmethod
    def are_told(progress, count):
        """Whether the progress of `count_by_origin` has `count` flights and all partial results made of them."""
        first = [each for each in progress if each["subtopology"] == "flights"]
        second = [each for each in progress if each["subtopology"] != "flights"]
        made = sum(each["sink"]["numOutputRows"] for each in first)
        read = [sum(each["numInputRows"] for each in each_stage) for each_stage in (first, second)]
        return read == [count, made] and made > 0

    @staticmethod
    def send_keyed(broker, numbers):
        """By origin, so that counting by origin needs no repartition topic."""
        values = [json.dumps(Flights.flight(number)) for number in numbers]
        broker.produce("flights", values, key=lambda value: json.loads(value)["origin"])

    @staticmethod
    def count_slowly(app):
        """Counts whose micro-batches last long enough to be hit."""
        from pyspark.sql import functions as F

        @F.pandas_udf("long")
        def slowly(numbers: pd.Series) -> pd.Series:
            time.sleep(0.4)
            return numbers

        rows = app.stream("flights", schema="origin string, n bigint", key="origin")
        rows.withColumn("n", slowly("n")).groupBy("origin").agg(
            F.count("*").alias("flights"), F.sum("n").alias("total")
        ).to_topic("by-origin", partitions=2)
        return app

    @staticmethod
    def counted(numbers):
        mine = {origin: [n for n in numbers if Flights.flight(n)["origin"] == origin] for origin in Flights.ORIGINS}
        return {o: {"origin": o, "flights": len(ns), "total": sum(ns)} for o, ns in mine.items() if ns}


@pytest.fixture(scope="session")
def flights():
    return Flights


@pytest.fixture(scope="module")
def registry():
    from tests.interop.kafka_jars import skip_without_kafka
    from tests.interop.schema_registry import RunningSchemaRegistry

    from headrace.spark.formats.schema_registry import close_clients

    with skip_without_kafka(), RunningSchemaRegistry() as running:
        yield running
        close_clients()
