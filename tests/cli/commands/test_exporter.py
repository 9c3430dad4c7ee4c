"""`headrace exporter`: a page of a real broker, from memory, through restarts and failures."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.cli.command_lines import GROUP, Command, Worker
from tests.client.running_consumers import RunningConsumer
from tests.harness.polling import wait_until
from tests.metrics.parsed_text import parsed

from headrace.broker.embedded import EmbeddedBroker
from headrace.cli.exporter.cluster_snapshot import Selection
from headrace.cli.exporter.collector import STALE_INTERVALS, Collector
from headrace.cli.exporter.name_filter import NameFilter
from headrace.client.admin import Admin

EVERYTHING = Selection(groups=NameFilter(), topics=NameFilter())


def page(headrace: Command, broker: EmbeddedBroker, *options: str) -> dict[str, float]:
    outcome = headrace("exporter", "--once", "--bootstrap-server", broker.bootstrap_servers, *options)
    assert outcome.code == 0, outcome.err
    return parsed(outcome.out)


def test_groups_of_all_three_types_have_their_members_and_lag(
    headrace: Command, broker: EmbeddedBroker, worker: Worker
) -> None:
    settings: dict[str, object] = {"bootstrap.servers": broker.bootstrap_servers}
    classic = RunningConsumer("flights", group_id="old", config=settings | {"group.protocol": "classic"})
    modern = RunningConsumer("flights", group_id="new", config=settings | {"group.protocol": "consumer"})
    with classic, modern:
        wait_until(lambda: len(classic.assigned) == len(modern.assigned) == 4, "both have everything")
        found = page(headrace, broker)
    for group, kind, role, count in (
        (GROUP, "streams", "active", 6),
        ("new", "consumer", "partition", 4),
        ("old", "classic", "partition", 4),
    ):
        assert found[f'kafka_consumergroup_members{{consumergroup="{group}"}}'] == 1
        assert found[f'headrace_consumergroup_assigned{{consumergroup="{group}",role="{role}"}}'] == count
        assert found[f'headrace_consumergroup_state{{consumergroup="{group}",type="{kind}",state="Stable"}}'] == 1
    assert found[f'headrace_consumergroup_epoch{{consumergroup="{GROUP}"}}'] > 0
    assert found['headrace_consumergroup_assigned_pending{consumergroup="new"}'] == 0
    assert 'headrace_consumergroup_epoch{consumergroup="old"}' not in found
    assert found["headrace_exporter_up"] == 1
    assert not [name for name in found if "__consumer_offsets" in name]


def test_lag_follows_commits_and_filters_select(headrace: Command, broker: EmbeddedBroker) -> None:
    for number in range(4):
        broker.produce("flights", [b"x"] * 5, partition=number)
    with Admin(broker.bootstrap_servers) as admin:
        ends = admin.list_offsets({("flights", number): "latest" for number in range(4)})
        admin.alter_offsets("mine", {key: end.offset - 2 for key, end in ends.items()})
        admin.alter_offsets("other", {("flights", 0): 0})
    found = page(headrace, broker, "--group-filter", "m.*")
    assert found['kafka_consumergroup_lag_sum{consumergroup="mine",topic="flights"}'] == 8
    assert found['kafka_topic_partitions{topic="flights"}'] == 4
    assert not [name for name in found if "other" in name]
    assert not [name for name in page(headrace, broker, "--topic-exclude", "fl.*") if "flights" in name]
    few = page(headrace, broker, "--max-groups", "1", "--max-partitions", "3")
    assert few["headrace_exporter_groups_left_out"] == 1
    assert few["headrace_exporter_partitions_left_out"] >= 1
    wrong = headrace("exporter", "--once", "--group-filter", "(", "--bootstrap-server", broker.bootstrap_servers)
    assert (wrong.code, "Invalid pattern" in wrong.err) == (1, True)


def test_once_fails_without_a_broker(headrace: Command) -> None:
    outcome = headrace("exporter", "--once", "--timeout", "300", "--bootstrap-server", "127.0.0.1:1")
    assert outcome.code == 3
    assert outcome.out == ""


def test_scrapes_are_served_from_memory(broker: EmbeddedBroker) -> None:
    collector = Collector(lambda: Admin(broker.bootstrap_servers), EVERYTHING, interval_seconds=60)
    assert collector.collect() is None
    before = broker.metrics()
    for _ in range(50):
        assert "kafka_brokers 1.0" in collector.page()
    after = broker.metrics()
    requests = [name for name in before if name.startswith("kafka_network_RequestMetrics_Count")]
    assert requests
    assert [name for name in requests if after[name] != before[name]] == []
    collector.close()


def test_values_stay_for_three_intervals_of_an_outage_and_come_back(tmp_path: Path) -> None:
    now = 0.0
    with EmbeddedBroker(data_dir=tmp_path) as broker:
        port = int(broker.bootstrap_servers.rpartition(":")[2])
        with Admin(broker.bootstrap_servers) as admin:
            admin.create_topics({"t": 1})
        servers = broker.bootstrap_servers
        collector = Collector(
            lambda: Admin(servers, api_timeout_ms=500), EVERYTHING, interval_seconds=10, clock=lambda: now
        )
        assert collector.page().count("\n") < 15  # the health alone
        assert collector.collect() is None
    now = 10.0
    assert collector.collect() is not None
    found = parsed(collector.page())
    assert found["headrace_exporter_up"] == 0
    assert found['headrace_exporter_collections_total{outcome="failed"}'] == 1
    assert found['kafka_topic_partitions{topic="t"}'] == 1
    assert found["headrace_exporter_snapshot_age_seconds"] == 10
    now = 10.0 * STALE_INTERVALS + 1
    assert "kafka_topic_partitions" not in collector.page()
    with EmbeddedBroker(data_dir=tmp_path, port=port):
        wait_until(lambda: collector.collect() is None, "the broker is found again")
        found = parsed(collector.page())
    assert found["headrace_exporter_up"] == 1
    assert found['kafka_topic_partitions{topic="t"}'] == 1
    collector.close()


@contextmanager
def running_exporter(broker: EmbeddedBroker, *options: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    command = [sys.executable, "-m", "headrace.cli.main", "exporter", "--port", "0", "--interval", "1"]
    process = subprocess.Popen(
        [*command, "--bootstrap-server", broker.bootstrap_servers, *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ,
    )
    try:
        assert process.stdout is not None
        found = re.search(r"http://127\.0\.0\.1:\d+/metrics", process.stdout.readline())
        assert found is not None
        yield process, found[0]
    finally:
        process.kill()
        process.communicate()


def test_the_process_serves_on_loopback_and_ends_at_sigterm(broker: EmbeddedBroker) -> None:
    with running_exporter(broker) as (process, url):

        def served() -> dict[str, float]:
            with urllib.request.urlopen(url, timeout=10) as response:
                assert response.headers["Content-Type"].startswith("text/plain; version=0.0.4")
                return parsed(response.read().decode())

        wait_until(lambda: served().get('headrace_exporter_collections_total{outcome="ok"}', 0) >= 2, "it collects")
        assert served()['kafka_topic_partitions{topic="flights"}'] == 4
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0
