"""`format("headrace")` on Apache Kafka: runs that die at any request, time-outs, leftovers, reading what they wrote."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql.types import StructType
from tests.harness.polling import wait_until
from tests.interop.kafka_broker import KafkaBroker
from tests.interop.test_transactions_like_kafka import set_transaction_version
from tests.longer import longer
from tests.spark.data_source.sink_queries import Crash, Query, open_ids, read_committed
from tests.spark.data_source.test_stream_writer import PROGRAM
from tests.spark.runtime.test_clusters import spark_home

from headrace.client.admin import Admin
from headrace.client.group_offsets import fetch_offsets
from headrace.client.network_client import NetworkClient
from headrace.client.producer import Producer
from headrace.errors import BrokerError, Fenced, SinkError
from headrace.spark.data_source.sink_transactions import open_transactions
from headrace.spark.data_source.source import HeadraceDataSource
from headrace.spark.data_source.stream_reader import TopicsStreamReader

pytestmark = [pytest.mark.interop, pytest.mark.slow]


class Sink:
    """A topic of its own on a shared cluster, and a query that writes to it."""

    def __init__(self, servers: str) -> None:
        self.servers, self.query_id, self.topic = servers, str(uuid.uuid4()), f"sink-{uuid.uuid4().hex[:8]}"

    def start(self, run: str, **options: str) -> Query:
        return Query(self.servers, run, query_id=self.query_id, **({"topic": self.topic} | options))

    def read(self) -> list[str]:
        return read_committed(self.servers, self.topic)

    def open_ids(self) -> list[str]:
        return open_ids(self.servers, self.query_id)


@pytest.fixture
def sink(kafka: KafkaBroker) -> Iterator[Sink]:
    made = Sink(kafka.bootstrap_servers)
    with Admin(kafka.bootstrap_servers) as admin:
        admin.create_topics({made.topic: 4})
        yield made
        admin.delete_topics([made.topic])


@pytest.fixture(params=[2, 0])
def transaction_version(request: pytest.FixtureRequest, kafka: KafkaBroker) -> Iterator[int]:
    """The feature `transaction.version`: at 2 as by default, and at 0 as in clusters that were upgraded from 3.x."""
    if request.param != 2:
        set_transaction_version(kafka.port, request.param)
    yield request.param
    if request.param != 2:
        set_transaction_version(kafka.port, 2)


@pytest.mark.usefixtures("transaction_version")
def test_a_driver_that_died_at_any_request_commits_each_row_once(sink: Sink) -> None:
    query = sink.start("run0")
    query.commit(0, query.write(0, ["0"]))
    expected = ["0"]
    for effects in range(1, 8):
        for applied in (False, True):
            number = len(expected) // 2 + 1
            rows = [f"{number}a", f"{number}b"]
            dead, later = sink.start(f"dead{number}"), sink.start(f"later{number}")
            with pytest.raises(Crash):
                dead.commit(number, dead.write(number, rows[:1], rows[1:]), effects=effects, applied=applied)
            later.commit(number, later.write(number, rows))
            expected += rows
            assert sink.read() == sorted(expected), (effects, applied)
    last = sink.start("last")
    last.commit(len(expected), last.write(len(expected), ["z"]))
    assert sink.open_ids() == []


def test_leftovers_are_aborted_and_runs_overtake_each_other(sink: Sink) -> None:
    dead, slow, fast = sink.start("dead"), sink.start("slow"), sink.start("fast")
    dead.write(0, ["a"], ["b"])
    late = slow.write(0, ["a"])
    fast.write(0, ["a"])
    assert len(sink.open_ids()) == 4
    fast.commit(0, fast.write(0, ["a"], attempt=1))
    assert sink.open_ids() == []
    with pytest.raises(Fenced, match="another run has decided"):
        slow.commit(0, late)
    slow.abort(0, late)
    assert sink.read() == ["a"]


def test_time_outs_end_in_whole_batches_or_in_a_refusal(sink: Sink) -> None:
    quick = {"kafka.transaction.timeout.ms": "1000"}
    first = sink.start("run1", **quick)
    # Kafka looks for overdue transactions every ten seconds.
    reports = first.write(0, ["a"], ["b"])
    other = Sink(sink.servers)
    other.topic = sink.topic
    begun = other.start("run1", **quick)
    with pytest.raises(Crash):
        begun.commit(0, begun.write(0, ["c"]), effects=5, applied=True)
    wait_until(lambda: not sink.open_ids() and not other.open_ids(), "the time-outs", timeout_s=60)
    with pytest.raises(SinkError, match="not open any more"):
        first.commit(0, reports)
    first.commit(0, first.write(0, ["a"], ["b"]))
    second = other.start("run2", **quick)
    with pytest.raises(SinkError, match="No row of it is in the topic"):
        second.commit(0, second.write(0, ["c"]))
    third = other.start("run3", **quick)
    third.commit(0, third.write(0, ["c"]))
    assert sink.read() == ["a", "b", "c"]


def test_what_the_broker_refuses_is_an_error_of_the_task(sink: Sink) -> None:
    with pytest.raises(BrokerError) as caught:
        sink.start("run1").write(0, ["x" * 2_000_000])
    assert caught.value.code == "record-too-large"
    with pytest.raises(BrokerError) as caught:
        sink.start("run1", topic="missing").write(0, ["a"])
    assert caught.value.code == "topic-missing"
    assert sink.open_ids() == []


def test_readers_see_what_is_committed(sink: Sink) -> None:
    query = sink.start("run1")
    query.commit(0, query.write(0, [f"{n}" for n in range(50)], ["x", "y"]))
    query.abort(1, query.write(1, ["aborted"]))
    given = {
        "kafka.bootstrap.servers": sink.servers,
        "subscribe": sink.topic,
        "kafka.isolation.level": "read_committed",
    }

    def read_batch(**options: str) -> list[str]:
        source = HeadraceDataSource(given | options)
        schema = source.schema()
        assert isinstance(schema, StructType)
        reader = source.reader(schema)
        batches = [batch for part in reader.partitions() for batch in reader.read(part)]
        return sorted(v.decode() for batch in batches for v in batch.column("value").to_pylist())  # type: ignore[union-attr]

    expected = sorted([f"{n}" for n in range(50)] + ["x", "y"])
    assert read_batch() == read_batch(minPartitions="9") == expected
    assert "aborted" in read_batch(**{"kafka.isolation.level": "read_uncommitted"})

    # A stream with commits to a group, in batches.
    source = HeadraceDataSource(
        given | {"startingOffsets": "earliest", "maxOffsetsPerTrigger": "20", "group.id": sink.topic}
    )
    schema = source.schema()
    assert isinstance(schema, StructType)
    reader = source.streamReader(schema)
    assert isinstance(reader, TopicsStreamReader)
    start, found = reader.initialOffset(), []
    for _ in range(6):
        end = json.loads(json.dumps(reader.latestOffset(start, reader.getDefaultReadLimit())))
        for part in reader.partitions(start, end):
            found += [v.decode() for batch in reader.read(part) for v in batch.column("value").to_pylist()]
        start = end
    reader.stop()
    assert sorted(found) == expected
    with NetworkClient(sink.servers) as client:
        committed = fetch_offsets(client, sink.topic, None)
    assert committed == {
        (topic, int(number)): offset for topic, by in start["offsets"].items() for number, offset in by.items()
    }


@longer
@pytest.mark.spark
def test_a_query_on_a_cluster_copies_each_row_once(kafka: KafkaBroker, tmp_path: Path) -> None:
    with Admin(kafka.bootstrap_servers) as admin:
        admin.create_topics({"orders": 2, "copies": 3})
    expected = [f"{n:04}" for n in range(60)]
    with NetworkClient(kafka.bootstrap_servers) as client, Producer(client) as producer:
        for partition in (0, 1):
            producer.send("orders", partition, None, pa.array(expected[partition::2]))
    options = {"servers": kafka.bootstrap_servers, "directory": str(tmp_path), "incidents": ["raise", "kill"]}
    options["master"] = "local-cluster[2,1,1024]"
    subprocess.run(
        [sys.executable, str(PROGRAM), json.dumps(options)],
        env=os.environ | {"SPARK_HOME": str(spark_home(tmp_path))},
        check=True,
        timeout=600,
    )
    assert read_committed(kafka.bootstrap_servers, "copies") == expected
    with NetworkClient(kafka.bootstrap_servers) as client:
        assert open_transactions(client, "headrace-") == []
