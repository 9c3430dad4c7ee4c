"""An application with state, exactly once, on three Apache Kafka brokers that are killed one after the other.

Leaders move, and so do the coordinators of the group and of the transactions. Judge is each single flight, as readers
of committed records see it, in a topic and in a Parquet table. A minute and three brokers: HEADRACE_LONG=1.
"""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path

import pytest
from pyarrow import parquet
from tests.harness.polling import wait_until
from tests.interop.kafka_cluster import KafkaCluster
from tests.longer import LONG
from tests.spark.application.judgement import wrongly_counted
from tests.spark.application.processes import Application, Feed, caught_up

from headrace.client.admin import Admin

pytestmark = [
    pytest.mark.interop,
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.foreign,
    pytest.mark.skipif(not LONG, reason="three Kafka brokers: HEADRACE_LONG=1"),
]

GROUP = "replicated-flights"
PARTITIONS = 6


def test_every_broker_is_killed_once(tmp_path: Path) -> None:
    table = tmp_path / "table"
    with KafkaCluster() as kafka:
        servers = kafka.bootstrap_servers
        application = Application("replicated_flights.py", servers, tmp_path / "a", FLIGHTS_TABLE=str(table))
        with Admin(servers) as admin, Feed(servers, PARTITIONS) as feed:
            admin.create_topics({"flights": PARTITIONS}, replication_factor=3)
            try:
                application.start()
                feed.run(per_second=300)

                def committed(at_least: int = 0) -> int:
                    committed = sum(admin.committed_offsets(GROUP).values())
                    return committed if committed > at_least else 0

                wait_until(partial(committed, 1500), "at work", application, kafka, timeout_s=400)
                for index, broker in enumerate(kafka.brokers):
                    at, began = committed(), time.monotonic()
                    broker.kill()
                    wait_until(
                        partial(committed, at + 600),
                        "at work with two brokers",
                        application,
                        broker,
                        timeout_s=300,
                    )
                    stood_s = time.monotonic() - began
                    kafka.restart(index)
                    at = committed()
                    wait_until(
                        partial(committed, at + 600),
                        "at work with three again",
                        application,
                        broker,
                        timeout_s=300,
                    )
                    wait_until(lambda: all_in_sync(admin), "in sync again", broker, timeout_s=300)
                    print(f"broker {index + 1}: 600 more records committed {stood_s:.1f} s after kill -9")
                sent = feed.stop()
                wait_until(lambda: caught_up(admin, GROUP), "caught up", application, kafka, timeout_s=300)
                assert application.process is not None
                assert application.process.poll() is None, "the application never ended"
                assert application.stop(120) == 0
            finally:
                application.end()
            assert len(feed.acknowledged) == sent
            assert wrongly_counted(servers, f"{GROUP}-counted", range(sent)) == []
            internal = admin.describe_topics([f"{GROUP}-by-id-changelog", f"{GROUP}-by-id-repartition"])
            replicas = {len(found) for topic in internal.values() for found in topic.replicas.values()}
            assert replicas == {3}, "internal topics have the cluster's default"
    rows = sorted(n for file in table.glob("*.parquet") for n in parquet.read_table(file)["id"].to_pylist())
    assert rows == list(range(sent)), f"{len(rows)} rows of {len(set(rows))} flights, {sent} were sent"
    print(f"{sent} flights, each counted once and once in the table")


def all_in_sync(admin: Admin) -> bool:
    """Whether every partition has its three replicas again: else the next kill would leave one of two."""
    topics = admin.describe_topics(sorted(admin.list_topics(include_internal=True)))
    return all(len(found) == 3 for topic in topics.values() for found in topic.in_sync.values())
