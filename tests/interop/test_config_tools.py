"""kafka-configs and kafka-features (4.3.1) and ours, on our broker and on Apache Kafka: the same text; and the recorded
answers that our broker is held against are Kafka's.

Kafka's tools run in one JVM (`kafka_tools.py`), ours in this process.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.broker.setting_requests import BROKER_SETTINGS, answers, golden
from tests.interop.kafka_broker import KafkaBroker
from tests.interop.kafka_tools import ToolServer

from headrace.broker.embedded import EmbeddedBroker
from headrace.cli.main import run

pytestmark = [pytest.mark.interop, pytest.mark.slow]

TOOLS = {"configs": "kafka.admin.ConfigCommand", "features": "org.apache.kafka.tools.FeatureCommand"}
STANDBYS, SESSION = "streams.num.standby.replicas", "streams.session.timeout.ms"

# What only looks is asked of both tools; what changes is done by one tool, and undone by the other.
SCRIPT: list[str] = [
    "both configs --describe --entity-type groups --entity-name config-tools",
    "both configs --describe --group config-tools --all",
    f"ours configs --alter --group config-tools --add-config {STANDBYS}=1,{SESSION}=46000",
    "both configs --describe --entity-type groups",
    "both configs --describe --group config-tools",
    "both configs --describe --group config-tools --all",
    f"theirs configs --alter --entity-type groups --entity-name config-tools --delete-config {STANDBYS}",
    "both configs --describe --group config-tools",
    f"theirs configs --alter --group config-tools --add-config {STANDBYS}=2 --delete-config {SESSION}",
    "both configs --describe --group config-tools",
    f"ours configs --alter --group config-tools --delete-config {STANDBYS}",
    "both configs --describe --group config-tools",
    "ours configs --alter --broker 1 --add-config log.retention.ms=1000000",
    "theirs configs --alter --broker-defaults --add-config group.streams.assignment.interval.ms=2000",
    "both configs --describe --entity-type brokers",
    "both configs --describe --broker 1",
    "both configs --describe --broker-defaults",
    "both configs --describe --group config-tools --all",
    "theirs configs --alter --broker 1 --delete-config log.retention.ms",
    "ours configs --alter --broker-defaults --delete-config group.streams.assignment.interval.ms",
    "both configs --describe --entity-type brokers --entity-name 7",
    "ours topics --create --topic config-tools --partitions 1 --replication-factor 1",
    "ours configs --alter --topic config-tools --add-config cleanup.policy=[compact,delete],retention.ms=5",
    "both configs --describe --topic config-tools",
    "theirs configs --alter --topic config-tools --delete-config retention.ms,cleanup.policy",
    "both configs --describe --topic config-tools",
    "both configs --describe --topic config-tools-missing",
    "ours topics --delete --topic config-tools",
    "ours configs --alter --client-metrics config-tools --add-config metrics=[a.,b.],interval.ms=1000",
    "both configs --describe --entity-type client-metrics",
    "both configs --describe --client-metrics config-tools --all",
    "theirs configs --alter --client-metrics config-tools --delete-config metrics",
    "both configs --describe --client-metrics config-tools",
    "ours configs --alter --client-metrics config-tools --delete-config interval.ms",
    "both configs --describe --client-metrics config-tools",
    "both features describe",
    "both features upgrade --feature streams.version=2",
    "both features upgrade --feature nope=1",
    "both features downgrade --feature streams.version=0 --dry-run",
    "theirs features downgrade --feature streams.version=0",
    "both features describe",
    "both features upgrade --feature streams.version=1 --dry-run",
    "ours features upgrade --feature streams.version=1",
    "both features disable --feature streams.version --feature nope --dry-run",
    "both features version-mapping --release-version 4.2",
    "both features version-mapping --release-version 4.0-IV1",
    "both features version-mapping",
]
REFUSED = [
    f"configs --alter --group config-tools --add-config {STANDBYS}=9",
    "configs --alter --group config-tools --add-config nope=1",
    "configs --alter --broker 1 --add-config group.streams.session.timeout.ms=50000",
    "configs --alter --topic config-tools-missing --add-config retention.ms=1",
    "configs --alter --group config-tools",
    "configs --alter --entity-type groups --add-config a=b",
    "configs --describe --entity-type groups --entity-default",
    "configs --describe --entity-type brokers --entity-name x",
    "features upgrade",
    "features upgrade --feature nope",
    "features upgrade --release-version 9.9",
]  # fmt: skip


@pytest.fixture(params=["ours", "kafka"])
def servers(request: pytest.FixtureRequest) -> Iterator[str]:
    if request.param == "kafka":
        kafka: KafkaBroker = request.getfixturevalue("kafka")
        yield kafka.bootstrap_servers
        return
    with EmbeddedBroker(config=BROKER_SETTINGS) as broker:
        yield broker.bootstrap_servers


@pytest.fixture
def headrace(capfd: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str]]:
    def command(*arguments: str) -> tuple[int, str]:
        capfd.readouterr()
        code = run(arguments)
        sys.stdout.flush()
        return code, capfd.readouterr().out

    return command


def alike(ours: tuple[int, str] | None, told: Any) -> bool:
    """The same code and lines. Kafka lists groups, of which others on its broker leave some, in no order."""
    assert ours is not None
    return ours[0] == told.code and sorted(ours[1].splitlines()) == sorted(told.out.splitlines())


def test_both_tools_say_the_same_and_see_each_others_changes(
    servers: str, tools: ToolServer, headrace: Callable[..., tuple[int, str]]
) -> None:
    at = ("--bootstrap-server", servers)
    for line in SCRIPT:
        who, command, *arguments = line.split()
        ours = headrace(command, *arguments, *at) if who != "theirs" else None
        told = tools.run(TOOLS[command], *at, *arguments) if who != "ours" else None
        if who == "both" and told is not None:
            deadline = time.monotonic() + 20
            while not alike(ours, told) and time.monotonic() < deadline:  # the broker follows its controller
                ours, told = headrace(command, *arguments, *at), tools.run(TOOLS[command], *at, *arguments)
            assert alike(ours, told), (line, ours, told)
        else:
            code = ours[0] if ours is not None else told.code if told is not None else None
            assert code == 0, (line, ours, told)


def test_both_tools_refuse_the_same(servers: str, tools: ToolServer, headrace: Callable[..., tuple[int, str]]) -> None:
    at = ("--bootstrap-server", servers)
    for line in REFUSED:
        command, *arguments = line.split()
        code, out = headrace(command, *arguments, *at)
        assert (code in (1, 2), out) == (True, ""), line
        told = tools.run(TOOLS[command], *at, *arguments)
        assert (told.code, told.out) == (1, ""), line


def test_the_recorded_answers_are_kafkas(kafka: KafkaBroker) -> None:
    told, expected = answers(kafka.bootstrap_servers), golden()
    assert list(told) == list(expected)
    for question, answer in told.items():
        assert answer == expected[question], question
