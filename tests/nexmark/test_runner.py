"""All queries that run on streams, in one application over 20,000 events, verified; a run as the command does it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.harness.brokers import STREAMS_GROUPS_WITHOUT_DELAYS, broker_fixture

from headrace.broker.embedded import EmbeddedBroker
from headrace.client.admin import Admin
from headrace.client.producer import Producer
from headrace.nexmark.events import Workload
from headrace.nexmark.feed import create_topics, send_events
from headrace.nexmark.frames import event_frames
from headrace.nexmark.queries import QUERIES, Events
from headrace.nexmark.runner import (
    Observation,
    QueryRun,
    RunOptions,
    SentEvents,
    delete_run_topics,
    event_streams,
    topic_ranges,
)
from headrace.nexmark.verifier import closed_before_ms, compare, rows_of_files, rows_of_topic
from headrace.spark.streams_app import StreamsApp

pytestmark = [pytest.mark.spark, pytest.mark.slow]

EVENTS = 20_000
WORKLOAD = Workload(event_rate=200, disorder=100)
broker = broker_fixture({}, config=STREAMS_GROUPS_WITHOUT_DELAYS, scope="module")


def send(broker: EmbeddedBroker, prefix: str, events: int) -> None:
    with Admin(broker.bootstrap_servers) as admin:
        create_topics(admin, 2, prefix=prefix, workload=WORKLOAD, events=events)
        with Producer(admin.client) as producer:
            send_events(producer, WORKLOAD, 0, events, prefix=prefix)


@pytest.fixture(scope="module")
def events(spark: SparkSession) -> Iterator[Events]:
    made = event_frames(spark, WORKLOAD, EVENTS)
    frames = [made.person.persist(), made.auction.persist(), made.bid.persist()]
    yield Events(person=frames[0], auction=frames[1], bid=frames[2], spark=spark)
    for frame in frames:
        frame.unpersist()


@pytest.fixture(scope="module")
def finished(
    spark: SparkSession, broker: EmbeddedBroker, tmp_path_factory: pytest.TempPathFactory
) -> tuple[EmbeddedBroker, Path]:
    """One application with all queries, stopped when it has caught up; where its files are."""
    directory = tmp_path_factory.mktemp("nexmark")
    send(broker, "nexmark", EVENTS)
    app = StreamsApp(
        "nexmark-all", spark=spark, bootstrap_servers=broker.bootstrap_servers, state_dir=directory / "state"
    )
    streams = event_streams(app)
    for query in QUERIES.values():
        rows = query.build(streams)
        if query.kind == "files":
            rows.to_parquet(directory / query.name, partition_by=query.partition_by)
        else:
            rows.to_topic(f"{query.name}-results", key=query.key, output_mode=query.output_mode, partitions=2)
    with app.start() as running:
        running.wait_until("caught-up", timeout=300)
    return broker, directory


@pytest.mark.parametrize("name", QUERIES)
def test_the_result_of_a_query_is_that_of_a_spark_batch(
    name: str, finished: tuple[EmbeddedBroker, Path], events: Events, spark: SparkSession
) -> None:
    broker, directory = finished
    query = QUERIES[name]
    schema = query.build(events).schema
    if query.kind == "files":
        found = rows_of_files(spark, directory / name, schema)
    else:
        ranges = topic_ranges(broker.bootstrap_servers, f"{name}-results")
        found = rows_of_topic(spark, broker.bootstrap_servers, ranges, schema, table=query.kind == "table")
    comparison = compare(query, events, found, closed_ms=closed_before_ms(WORKLOAD, EVENTS))
    assert comparison.equal, comparison


def test_a_run_observes_verifies_and_cleans_up(broker: EmbeddedBroker, spark: SparkSession, tmp_path: Path) -> None:
    send(broker, "other", 2_000)
    options = RunOptions(
        events=2_000,
        workload=WORKLOAD,
        partitions=2,
        guarantee="exactly_once_v2",
        prefix="other",
        run_id="1",
        directory=tmp_path,
    )
    seen: list[Observation] = []
    with QueryRun(QUERIES["q17"], options, spark, broker.bootstrap_servers) as run:
        run.start()
        result = run.await_result(seen.append)
        run.stop()
        result = run.verify(result)
    assert result.comparison is not None
    assert result.comparison.equal
    assert result.records == 1_840
    assert seen[-1].records == 1_840
    assert result.last.state_rows == result.comparison.expected
    assert result.as_document()["comparison"]["equal"] is True
    delete_run_topics(QUERIES["q17"], options, broker.bootstrap_servers)
    with Admin(broker.bootstrap_servers) as admin:
        assert [topic for topic in admin.list_topics() if topic.startswith("other")] == [
            "other-auction",
            "other-bid",
            "other-person",
        ]


def test_the_age_of_events_that_are_not_committed() -> None:
    sent = SentEvents()
    assert sent.age_s(0, 1.0) == 0
    sent.add(10, 1.0)
    sent.add(30, 2.0)
    assert sent.age_s(9, 5.0) == 4.0
    assert sent.age_s(10, 5.0) == 3.0
    assert sent.age_s(30, 5.0) == 0
