"""Applications in one thread: restarts, failures, and topics between subtopologies."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.dataset
import pytest
from pyspark.sql import functions as F
from tests.spark.offline_programs import EWR, JFK, SCHEMA, counted

from headrace.errors import RecordError
from headrace.testing import TopologyTest

pytestmark = pytest.mark.spark


def test_a_restart_processes_nothing_twice(make_offline_app):
    with TopologyTest(counted(make_offline_app())) as test:
        test.push("flights", [JFK])
        test.restart()
        test.restart()
        assert test.read("counts") == [{"origin": "JFK", "flights": 1}]


def test_a_record_that_does_not_decode_fails_the_run(make_offline_app):
    with TopologyTest(counted(make_offline_app())) as test:
        test.push("flights", [JFK, b'{"dep_delay": "x"', EWR])
        with pytest.raises(RecordError, match="flights-0@1") as raised:
            test.run()
        assert raised.value.code == "undecodable"
        assert test.read("counts") == [{"origin": "JFK", "flights": 1}], "what lies before it is processed"
        with pytest.raises(RecordError, match="flights-0@1"):
            test.run()


def test_parquet_files_are_readable_after_a_run(make_offline_app, tmp_path):
    app = make_offline_app()
    app.stream("flights", schema=SCHEMA).to_parquet(tmp_path / "table")
    with TopologyTest(app) as test:
        test.push("flights", [JFK])
        test.run()
        test.restart()
        test.push("flights", [EWR])
        test.run()
    assert pa.dataset.dataset(tmp_path / "table", ignore_prefixes=["_", "."]).to_table().to_pylist() == [JFK, EWR]


def test_a_topic_between_two_streams_of_the_application(make_offline_app):
    app = make_offline_app()
    app.stream("flights", schema=SCHEMA).where("dep_delay > 0").to_topic("late")
    app.stream("late", schema=SCHEMA).groupBy("origin").agg(F.count("*").alias("n")).to_topic("counts")
    with TopologyTest(app) as test:
        test.push("flights", [JFK, EWR, {**JFK, "dep_delay": -1.0}])
        assert test.table("counts") == {"JFK": {"origin": "JFK", "n": 1}, "EWR": {"origin": "EWR", "n": 1}}
