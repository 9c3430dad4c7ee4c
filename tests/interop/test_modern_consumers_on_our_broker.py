"""Other people's consumers with `group.protocol=consumer` (KIP-848) on our broker: confluent-kafka and Kafka's Java
consumer 4.3.1, in one group, and what `kafka-consumer-groups` says of it."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Self

import pytest
from tests.harness.polling import wait_until
from tests.interop.kafka_broker import JVM_OF_SECONDS, archived
from tests.interop.kafka_jars import TOOLS_VERSION, compiled, java, kafka_jars
from tests.interop.kafka_tools import CONSUMER_GROUPS, ToolServer

from headrace.broker.embedded import EmbeddedBroker

pytestmark = [pytest.mark.interop, pytest.mark.slow]

SOURCES = Path(__file__).parent / "java_modern_consumer"
SETTINGS = {
    "group.consumer.min.session.timeout.ms": 1000,
    "group.consumer.session.timeout.ms": 3000,
    "group.consumer.min.heartbeat.interval.ms": 100,
    "group.consumer.heartbeat.interval.ms": 200,
    "group.consumer.assignment.interval.ms": 0,
}
PATIENCE_S = 90
ALL = {"t-0", "t-1", "t-2", "t-3"}


class JavaMember:
    """A process. `has`: the partitions it said it has last; `read`: how many records it has read."""

    def __init__(self, servers: str, group: str, wanted: str, **settings: str) -> None:
        command = [java(), "-Xmx128m", *JVM_OF_SECONDS, *archived(TOOLS_VERSION)]
        command += ["-cp", f"{kafka_jars(TOOLS_VERSION)}/*:{compiled(SOURCES)}", "ModernConsumer"]
        command += [servers, group, wanted, *(f"{name.replace('_', '.')}={each}" for name, each in settings.items())]
        self.has: set[str] = set()
        self.read = 0
        self.error = ""
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            read, *has = line.split()
            if read == "error":
                self.error = line
            elif read.isdigit():
                self.read, self.has = int(read), set(has)

    def stop(self) -> None:
        """It leaves its group."""
        assert self.process.stdin is not None
        if self.process.poll() is None:
            self.process.stdin.write("end\n")
            self.process.stdin.flush()
        self._end()

    def kill(self) -> None:
        self.process.kill()
        self._end()

    def _end(self) -> None:
        self.process.wait(timeout=40)
        self._listener.join(timeout=20)
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        self.process.stdout.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.kill()
        else:  # it ended by itself
            self._end()


class ConfluentMember:
    """A thread."""

    def __init__(self, servers: str, group: str, topic: str) -> None:
        from confluent_kafka import Consumer

        self.has: set[str] = set()
        self._stop = threading.Event()
        self._consumer = Consumer(
            {"bootstrap.servers": servers, "group.id": group, "group.protocol": "consumer", "log_level": 2}
        )
        self._consumer.subscribe([topic])
        self._thread = threading.Thread(target=self._poll)

    def _poll(self) -> None:
        while not self._stop.is_set():
            self._consumer.poll(0.1)
            self.has = {f"{each.topic}-{each.partition}" for each in self._consumer.assignment()}
        self._consumer.close()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(timeout=40)
        assert not self._thread.is_alive()


@pytest.fixture(scope="module")
def broker(kafka_tools: None) -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker({"t": 4, "logs-a": 1, "logs-b": 2, "other": 1}, config=SETTINGS) as broker:
        yield broker


def told_of_group(tools: ToolServer, servers: str, *arguments: str) -> list[list[str]]:
    told = tools.run(CONSUMER_GROUPS, "--bootstrap-server", servers, *arguments)
    assert told.code == 0, told.out + told.err
    return [line.split() for line in told.out.splitlines() if line.strip()]


def test_java_and_confluent_share_a_group(broker: EmbeddedBroker, tools: ToolServer) -> None:
    servers = broker.bootstrap_servers
    for number in range(40):
        broker.produce("t", [str(number)], partition=number % 4)
    with JavaMember(servers, "mixed", "topic:t") as first:
        wait_until(lambda: first.has == ALL and first.read == 40, "the first has all, and has read it")
        with ConfluentMember(servers, "mixed", "t") as other:
            wait_until(lambda: len(first.has) == len(other.has) == 2 and first.has | other.has == ALL, "both have two")
            _, row = told_of_group(tools, servers, "--describe", "--state", "--group", "mixed")
            assert row[0] == "mixed"
            assert row[-3:] == ["uniform", "Stable", "2"]
            members = told_of_group(tools, servers, "--describe", "--members", "--verbose", "--group", "mixed")
            assert len(members) == 3
            assert "CURRENT-EPOCH" in members[0]
            assert ["mixed", "Consumer"] in told_of_group(tools, servers, "--list", "--type")
        wait_until(lambda: first.has == ALL, "the other has left")
        with JavaMember(servers, "mixed", "topic:t") as killed:
            wait_until(lambda: len(first.has) == len(killed.has) == 2, "two again")
            killed.kill()
        wait_until(lambda: first.has == ALL, "the killed one's session is over")
        first.stop()
        assert not first.error
    wait_until(lambda: broker.group("mixed").state == "Empty", "empty")
    positions = told_of_group(tools, servers, "--describe", "--group", "mixed")
    assert sorted((row[2], row[3], row[5]) for row in positions[1:] if row[0] == "mixed") == [
        (str(number), "10", "0") for number in range(4)
    ]
    assert "successful" in " ".join(told_of_group(tools, servers, "--delete", "--group", "mixed")[0])


def test_a_subscription_pattern(broker: EmbeddedBroker) -> None:
    servers = broker.bootstrap_servers
    with JavaMember(servers, "by-pattern", "pattern:logs-.*") as member:
        wait_until(lambda: member.has == {"logs-a-0", "logs-b-0", "logs-b-1"}, "it has what matches")
        member.stop()
        assert not member.error
    with JavaMember(servers, "by-pattern", "pattern:logs-(") as member:
        wait_until(lambda: "missing closing )" in member.error, "it is told what is wrong")


@pytest.fixture
def patient() -> Iterator[EmbeddedBroker]:
    """A session lasts longer than a JVM takes to start on a busy machine."""
    with EmbeddedBroker({"t": 4}, config={**SETTINGS, "group.consumer.session.timeout.ms": 45_000}) as broker:
        yield broker


def test_a_static_restart_moves_nothing(patient: EmbeddedBroker, tools: ToolServer) -> None:
    servers = patient.bootstrap_servers

    def epoch() -> str:
        _, row = told_of_group(tools, servers, "--describe", "--state", "--verbose", "--group", "static")
        return row[-2]

    with (
        JavaMember(servers, "static", "topic:t", group_instance_id="one") as one,
        JavaMember(servers, "static", "topic:t", group_instance_id="two") as two,
    ):
        wait_until(lambda: len(one.has) == len(two.has) == 2 and one.has | two.has == ALL, "both have two")
        had, of_two, before = set(one.has), set(two.has), epoch()
        one.stop()
        with JavaMember(servers, "static", "topic:t", group_instance_id="one") as again:
            wait_until(lambda: again.has == had, "it has what it had")
            assert two.has == of_two
            assert epoch() == before
            again.stop()
        two.stop()
