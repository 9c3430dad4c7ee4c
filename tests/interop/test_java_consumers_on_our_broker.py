"""The Java consumer 4.3.1 in classic groups of our broker, by way of Kafka's console consumer, its performance tool and
`kafka-consumer-groups`."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.harness.commands import CommandResult
from tests.harness.polling import wait_until
from tests.interop.kafka_broker import JVM_OF_SECONDS, archived
from tests.interop.kafka_jars import TOOLS_VERSION, java, kafka_jars
from tests.interop.kafka_tools import CONSUMER_GROUPS, ToolServer
from tests.longer import longer
from tests.spark.application.processes import BrokerProcess

from headrace.client.admin import Admin

pytestmark = [pytest.mark.interop, pytest.mark.slow]

CONSUMER = "org.apache.kafka.tools.consumer.ConsoleConsumer"
PERFORMANCE = "org.apache.kafka.tools.ConsumerPerformance"
PRODUCER_PERFORMANCE = "org.apache.kafka.tools.ProducerPerformance"
COOPERATIVE = "org.apache.kafka.clients.consumer.CooperativeStickyAssignor"
RANGE = "org.apache.kafka.clients.consumer.RangeAssignor"
PARTITIONS, RECORDS = 4, 2_000
PATIENCE_S = 90.0


class Cluster:
    """Our broker with a topic of records, and Kafka's tools pointed at it."""

    def __init__(self, servers: str, tools: ToolServer) -> None:
        self.servers, self.tools = servers, tools

    def groups(self, *arguments: str) -> CommandResult:
        told = self.tools.run(CONSUMER_GROUPS, "--bootstrap-server", self.servers, *arguments)
        assert told.code == 0, told.out + told.err
        return told

    def rows(self, *arguments: str) -> list[list[str]]:
        """The lines of a table without its header."""
        lines = [line.split() for line in self.groups(*arguments).out.splitlines() if line.strip()]
        return lines[1:]

    def state(self, group: str) -> str:
        """As ListGroups tells it; "" for a group that is not there."""
        rows = self.rows("--list", "--state")
        return next((row[1] for row in rows if row[0] == group), "")

    def partitions(self, group: str) -> dict[str, str]:
        """Partition → its member, "-" for nobody."""
        return {row[2]: row[6] for row in self.rows("--describe", "--offsets", "--group", group) if row[0] == group}

    def is_shared(self, group: str, members: int) -> bool:
        if self.state(group) != "Stable":
            return False
        owners = self.partitions(group)
        return len(owners) == PARTITIONS and "-" not in owners.values() and len(set(owners.values())) == members


@pytest.fixture(scope="module")
def cluster(kafka_tools: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    directory = tmp_path_factory.mktemp("java-consumers")
    settings = {"group.initial.rebalance.delay.ms": 100, "group.min.session.timeout.ms": 1_000}
    with ToolServer() as tools, BrokerProcess(directory, settings) as broker:
        with Admin(broker.bootstrap_servers) as admin:
            admin.create_topics({"t": PARTITIONS})
        arguments = ("--topic", "t", "--num-records", str(RECORDS), "--record-size", "100", "--throughput", "-1")
        told = tools.run(
            PRODUCER_PERFORMANCE, *arguments, "--producer-props", f"bootstrap.servers={broker.bootstrap_servers}"
        )
        assert told.code == 0, told.err
        yield Cluster(broker.bootstrap_servers, tools)


class ConsoleConsumer:
    """A console consumer in a JVM of its own, so that it can be killed; what it reads goes to a file."""

    def __init__(self, cluster: Cluster, output: Path, group: str, **properties: object) -> None:
        given = [f"{name.replace('_', '.')}={value}" for name, value in properties.items()]
        command = [java(), "-Xmx128m", *JVM_OF_SECONDS, *archived(TOOLS_VERSION)]
        command += ["-cp", f"{kafka_jars(TOOLS_VERSION)}/*", CONSUMER]
        command += ["--bootstrap-server", cluster.servers, "--topic", "t", "--group", group, "--from-beginning"]
        for each in ("session.timeout.ms=2000", "heartbeat.interval.ms=300", *given):
            command += ["--command-property", each]
        self._output = output.open("wb")
        self.process = subprocess.Popen(command, stdout=self._output, stderr=subprocess.STDOUT)

    def stop(self) -> None:
        """As Ctrl-C: it leaves its group."""
        self.process.terminate()
        self.process.wait(timeout=40)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        self._output.close()


@pytest.mark.parametrize("assignor", [COOPERATIVE, pytest.param(RANGE, marks=longer)])
def test_java_consumers_share_a_group(cluster: Cluster, assignor: str, tmp_path: Path) -> None:
    group = f"shared-{assignor.rpartition('.')[2]}"
    consumers = [
        ConsoleConsumer(cluster, tmp_path / f"{index}.txt", group, partition_assignment_strategy=assignor)
        for index in range(2)
    ]
    try:
        wait_until(lambda: cluster.is_shared(group, 2), "both have some")
        members = cluster.rows("--describe", "--members", "--verbose", "--group", group)
        assert sorted(int(row[4]) for row in members) == [2, 2]
        assert {row[2] for row in members} == {"/127.0.0.1"}
        (state,) = cluster.rows("--describe", "--state", "--group", group)
        name = "cooperative-sticky" if assignor == COOPERATIVE else "range"
        assert state[-3:] == [name, "Stable", "2"]
        assert [group, "Classic"] in [row[:2] for row in cluster.rows("--list", "--type")]
        not_deleted = cluster.groups("--delete", "--group", group)
        assert "The group is not empty" in not_deleted.out + not_deleted.err
        consumers[0].kill()
        wait_until(lambda: cluster.is_shared(group, 1), "the other one has all")
        wait_until(lambda: all(row[5] == "0" for row in cluster.rows("--describe", "--group", group)), "all was read")
        consumers[1].stop()
        wait_until(lambda: cluster.state(group) == "Empty", "it has left")
    finally:
        for each in consumers:
            each.kill()
    cluster.groups("--reset-offsets", "--to-earliest", "--topic", "t", "--execute", "--group", group)
    assert {row[3] for row in cluster.rows("--describe", "--group", group)} == {"0"}
    assert "was successful" in cluster.groups("--delete", "--group", group).out
    assert cluster.state(group) == ""


def test_a_static_java_consumer_comes_back(cluster: Cluster, tmp_path: Path) -> None:
    """Killed and started anew within its session: the same partitions, the same generation's assignment."""
    group, static = "static", {"group_instance_id": "one", "session_timeout_ms": 30_000}
    first = ConsoleConsumer(cluster, tmp_path / "first.txt", group, **static)
    try:
        wait_until(lambda: cluster.is_shared(group, 1), "it has all")
        before = cluster.partitions(group)
        first.kill()
        second = ConsoleConsumer(cluster, tmp_path / "second.txt", group, **static)
        try:
            wait_until(lambda: cluster.is_shared(group, 1) and cluster.partitions(group) != before, "it is back")
            assert all(member.startswith("one-") for member in cluster.partitions(group).values())
        finally:
            second.kill()
    finally:
        first.kill()


@pytest.mark.parametrize("tool", [CONSUMER, PERFORMANCE])
def test_tools_that_read_in_a_group(cluster: Cluster, tool: str) -> None:
    group = tool.rpartition(".")[2]
    arguments = ["--bootstrap-server", cluster.servers, "--topic", "t", "--group", group]
    if tool == CONSUMER:
        arguments += ["--from-beginning", "--max-messages", str(RECORDS), "--timeout-ms", "30000"]
    else:
        arguments += ["--num-records", str(RECORDS), "--timeout", "30000"]
    told = cluster.tools.run(tool, *arguments)
    assert told.code == 0, told.out + told.err
    if tool == PERFORMANCE:
        header, figures = [line.split(", ") for line in told.out.splitlines() if ", " in line][:2]
        assert int(figures[header.index("data.consumed.in.nMsg")]) >= RECORDS, told.out
    else:
        assert len(told.out.splitlines()) == RECORDS
    assert cluster.state(group) == "Empty"
    assert sum(int(row[3]) for row in cluster.rows("--describe", "--group", group)) == RECORDS
