"""`ParallelConsumer` and the assignors with user data on Apache Kafka 4.3.1: commits with metadata, resets, spares."""

from __future__ import annotations

from typing import Any

import pytest
from tests.client.running_consumers import RunningConsumer
from tests.client.running_pipelines import Journal, RunningPipeline
from tests.harness.polling import wait_until
from tests.interop.kafka_broker import KafkaBroker
from tests.interop.kafka_tools import CONSUMER_GROUPS, ToolServer

from headrace import Admin, Consumer
from headrace.assignors.experimental import LeaderIndependentSticky, WarmSpares
from headrace.client.network_client import NetworkClient
from headrace.client.parallel.offset_tracker import decode_finished
from headrace.client.plain_records import PlainRecord, produce

pytestmark = pytest.mark.interop


def filled(kafka: KafkaBroker, topic: str, partitions: int) -> None:
    with NetworkClient(kafka.bootstrap_servers) as client:
        Admin(client).create_topics({topic: partitions})
        produce(client, topic, [PlainRecord(key=b"k%d" % (n % 20), value=b"v%d" % n) for n in range(100)])


def test_a_pipeline_stops_goes_on_and_is_reset(kafka: KafkaBroker, tools: ToolServer) -> None:
    topic, group_id = "parallel-orders", "parallel-hooks"
    filled(kafka, topic, 1)
    first = Journal(holds=lambda record: record.offset == 10)
    with RunningPipeline(topic, group_id, kafka.bootstrap_servers, first, drain_timeout=0.1) as running:
        wait_until(lambda: len(first.ended) == 95, "all but one key are done")
    with NetworkClient(kafka.bootstrap_servers) as client:
        topic_id = client.known_topics([topic]).topics[topic].topic_id
    with Consumer(group_id=group_id, bootstrap_servers=kafka.bootstrap_servers) as asking:
        (committed,) = asking.committed([(topic, 0)]).values()
    assert committed is not None
    assert committed.offset == 10
    runs = decode_finished(10, committed.metadata, topic_id)
    assert runs is not None
    assert sum(end - start for start, end in runs) == 85, "Kafka keeps what is finished beyond it"
    first.gate.set()
    second = Journal()
    with RunningPipeline(topic, group_id, kafka.bootstrap_servers, second) as running:
        wait_until(lambda: len(second.ended) == 5, "the rest is done")
        wait_until(lambda: running.pipeline.stats.uncommitted == 0, "and committed")
    assert second.places == [(0, offset) for offset in range(10, 100, 20)]
    reset = ("--reset-offsets", "--to-offset", "97", "--execute")
    told = tools.run(
        CONSUMER_GROUPS, "--bootstrap-server", kafka.bootstrap_servers, "--group", group_id, "--topic", topic, *reset
    )
    assert told.code == 0, told.err
    third = Journal()
    with RunningPipeline(topic, group_id, kafka.bootstrap_servers, third):
        wait_until(lambda: sorted(third.places) == [(0, 97), (0, 98), (0, 99)], "it begins where the tool says")


@pytest.mark.parametrize("kind", [WarmSpares, LeaderIndependentSticky])
def test_user_data_travels_through_kafkas_coordinator(kafka: KafkaBroker, kind: Any) -> None:
    topic = f"user-data-{kind.__name__}"
    filled(kafka, topic, 4)
    assignors = [kind(), kind()]
    settings: dict[str, Any] = {
        "group_id": topic,
        "bootstrap_servers": kafka.bootstrap_servers,
        "group_protocol": "classic",
        "enable_auto_commit": False,
        "config": {"heartbeat.interval.ms": 200},
    }
    with (
        RunningConsumer(topic, partition_assignment_strategy=assignors[0], **settings) as one,
        RunningConsumer(topic, partition_assignment_strategy=assignors[1], **settings) as other,
    ):
        if kind is WarmSpares:
            wait_until(lambda: all(len(a.roles.active) == len(a.roles.spare) == 2 for a in assignors), "warm")
            one.stop()
            wait_until(lambda: len(assignors[1].roles.active) == 4, "the spare takes over")
        else:
            wait_until(lambda: len(one.assigned) == len(other.assigned) == 2, "they share")
            kept = other.assigned
            one.stop()
            wait_until(lambda: len(other.assigned) == 4, "who stays has everything")
            assert not [each for gone in other.heard.named("revoked") for each in gone if each in kept]
