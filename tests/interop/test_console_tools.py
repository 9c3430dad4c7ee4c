"""Kafka's console tools (4.3.1) against our broker, ours against Apache Kafka, both compared on the same broker.

What one tool does, the other must see. Text is compared line by line; rows sorted, since Kafka's tools print them in
the order of their hash maps. (Groups: `test_streams_group_tools.py`. `tests/cli/test_as_kafkas_tools.py` goes through
more flags, on our broker only.)
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.harness.values import not_none
from tests.interop.kafka_broker import KafkaBroker
from tests.interop.kafka_jars import TOOLS_VERSION, java, kafka_jars
from tests.interop.kafka_tools import TOPICS, ToolServer
from tests.spark.application.processes import BrokerProcess, headrace, records_of

from headrace.client.admin import Admin

pytestmark = [pytest.mark.interop, pytest.mark.slow]

OFFSETS = "org.apache.kafka.tools.GetOffsetShell"
CONSUMER = "org.apache.kafka.tools.consumer.ConsoleConsumer"
PRODUCER = "org.apache.kafka.tools.ConsoleProducer"


class Cluster:
    """One of the two brokers, with both sets of tools pointed at it."""

    def __init__(self, servers: str, tools: ToolServer) -> None:
        self.servers, self._tools = servers, tools

    def theirs(self, main_class: str, *arguments: str) -> list[str]:
        out = self._tools.run(main_class, "--bootstrap-server", self.servers, *arguments)
        assert out.code == 0, out.out + out.err
        return told(out.out)

    def ours(self, *arguments: str, input: bytes | None = None) -> list[str]:
        out = headrace(*arguments, "--bootstrap-server", self.servers, input=input)
        assert out.returncode == 0, out.stderr.decode()
        return told(out.stdout.decode())


def told(text: str) -> list[str]:
    """The first line, and the others sorted."""
    head, *rows = [line for line in text.splitlines() if line] or [""]
    return [head, *sorted(rows)]


def same(ours: list[str], theirs: list[str]) -> bool:
    """With a header it is first in both; a plain list has none, and is a list of names."""
    return ours == theirs if len(theirs[0].split()) > 1 else sorted(ours) == sorted(theirs)


@pytest.fixture(scope="module")
def our_broker(tmp_path_factory: pytest.TempPathFactory, kafka_tools: None) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("broker") / "data") as broker:
        yield broker


@pytest.fixture(params=["ours", "kafka"])
def cluster(request: pytest.FixtureRequest, our_broker: BrokerProcess, tools: ToolServer) -> Cluster:
    if request.param == "ours":
        return Cluster(our_broker.bootstrap_servers, tools)
    kafka: KafkaBroker = request.getfixturevalue("kafka")
    return Cluster(kafka.bootstrap_servers, tools)


def test_topics(cluster: Cluster) -> None:
    config = ["--partitions", "3", "--replication-factor", "1", "--config", "retention.ms=86400000"]
    assert cluster.theirs(TOPICS, "--create", "--topic", "made-by-kafkas", *config) == ["Created topic made-by-kafkas."]
    assert cluster.ours("topics", "--create", "--topic", "made-by-ours", *config) == ["Created topic made-by-ours."]
    assert same(cluster.ours("topics", "--list"), cluster.theirs(TOPICS, "--list"))
    for topic in ("made-by-kafkas", "made-by-ours"):
        described = without_elr(cluster.theirs(TOPICS, "--describe", "--topic", topic))
        assert without_elr(cluster.ours("topics", "--describe", "--topic", topic)) == described
        assert "PartitionCount: 3" in described[0]
        assert "retention.ms=86400000" in described[0]

    cluster.theirs(TOPICS, "--alter", "--topic", "made-by-ours", "--partitions", "5")
    cluster.ours("topics", "--alter", "--topic", "made-by-kafkas", "--partitions", "4")
    assert len(cluster.ours("topics", "--describe", "--topic", "made-by-ours")) == 1 + 5
    assert len(cluster.theirs(TOPICS, "--describe", "--topic", "made-by-kafkas")) == 1 + 4
    cluster.theirs(TOPICS, "--delete", "--topic", "made-by-ours")
    cluster.ours("topics", "--delete", "--topic", "made-by-kafkas")
    assert not {"made-by-ours", "made-by-kafkas"} & {
        *cluster.ours("topics", "--list"),
        *cluster.theirs(TOPICS, "--list"),
    }


def without_elr(lines: list[str]) -> list[str]:
    """Eligible leader replicas come from DescribeTopicPartitions, which we do not call: ours says "N/A", as Kafka's
    tool does on a broker without that API."""
    return [line.partition("\tElr: ")[0] for line in lines]


def test_consoles(cluster: Cluster) -> None:
    """Written by either producer, printed alike by both consumers, counted alike by the offset tool."""
    topic = "console"
    with Admin(cluster.servers) as admin:
        admin.create_topics({topic: 2}, replication_factor=1)
    lines = [f"k{n}\tvalue {n} ü" for n in range(40)]
    produced_by_kafkas_console(cluster.servers, topic, lines[:20])
    keyed = ("--property", "parse.key=true", "--compression-codec", "zstd")
    cluster.ours("console-producer", "--topic", topic, *keyed, input="".join(f"{x}\n" for x in lines[20:]).encode())

    found = [(m.key(), m.value(), m.partition()) for m in records_of(cluster.servers, topic)]
    assert sorted(f"{not_none(key).decode()}\t{not_none(value).decode()}" for key, value, _ in found) == sorted(lines)
    counts = [sum(partition == p for _, _, partition in found) for p in range(2)]
    assert min(counts) > 0
    ends = cluster.theirs(OFFSETS, "--topic", topic)
    assert sorted(ends) == [f"{topic}:{p}:{count}" for p, count in enumerate(counts)]
    assert sorted(cluster.theirs(OFFSETS, "--topic", topic, "--time", "earliest")) == [f"{topic}:0:0", f"{topic}:1:0"]

    shown = [
        part
        for name in ("key", "offset", "partition", "timestamp")
        for part in ("--formatter-property", f"print.{name}=true")
    ]
    for partition, count in enumerate(counts):
        which = ["--topic", topic, "--partition", str(partition), "--max-messages", str(count), *shown]
        which += ["--offset", "earliest"]
        theirs = cluster.theirs(CONSUMER, *which)
        assert len(theirs) == count
        assert cluster.ours("console-consumer", *which) == theirs


def produced_by_kafkas_console(servers: str, topic: str, lines: list[str]) -> None:
    command = [java(), "-Xmx256m", "-cp", f"{kafka_jars(TOOLS_VERSION)}/*", PRODUCER, "--bootstrap-server", servers]
    command += ["--topic", topic, "--property", "parse.key=true", "--producer-property", "acks=all"]
    text = "".join(f"{line}\n" for line in lines)
    out = subprocess.run(command, input=text, capture_output=True, text=True, check=False, timeout=120)
    assert out.returncode == 0, out.stderr


def test_our_tools_name_missing_topics_and_groups(cluster: Cluster, tmp_path: Path) -> None:
    for arguments, code in (
        (["topics", "--describe", "--topic", "flihgts-that-never-were"], "topic-missing"),
        (["streams-groups", "--describe", "--group", "nobody"], "group-missing"),
        (["console-consumer", "--topic", "flihgts-that-never-were", "--from-beginning"], "topic-missing"),
    ):
        out = headrace(*arguments, "--bootstrap-server", cluster.servers)
        assert out.returncode == 1, out
        assert out.stdout == b""
        assert out.stderr.decode().startswith(f"error[{code}]: ")
        assert "Traceback" not in out.stderr.decode()
