"""One Apache Kafka and one JVM with its tools for all tests of a run, started when the first test asks for them."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator

import pytest
from tests.harness.commands import CommandResult
from tests.interop.both_tools import Cluster, Headrace
from tests.interop.kafka_broker import KafkaBroker
from tests.interop.kafka_jars import TOOLS_VERSION, java, kafka_jars, skip_without_kafka
from tests.interop.kafka_tools import ToolServer

from headrace.broker.embedded import EmbeddedBroker
from headrace.cli.main import run


@pytest.fixture(scope="session")
def kafka_tools() -> None:
    """Kafka's jars are there and can be run; else the test is skipped with what is missing (in CI it fails)."""
    with skip_without_kafka():
        java()
        kafka_jars(TOOLS_VERSION)


@pytest.fixture(scope="session")
def kafka(kafka_tools: None) -> Iterator[KafkaBroker]:
    """A running Apache Kafka, 4.3.1 unless `.ci/matrix` names another version. Tests share it: use your own topics."""
    with KafkaBroker(os.environ.get("KAFKA_VERSION", "4.3.1")) as broker:
        yield broker


@pytest.fixture(scope="session")
def tools(kafka_tools: None) -> Iterator[ToolServer]:
    with ToolServer() as server:
        yield server


@pytest.fixture(scope="module")
def our_broker() -> Iterator[EmbeddedBroker]:
    quick = {"group.streams.initial.rebalance.delay.ms": 0, "group.streams.assignment.interval.ms": 0}
    quick |= {"group.initial.rebalance.delay.ms": 0, "group.consumer.assignment.interval.ms": 0}
    with EmbeddedBroker(config=quick) as broker:
        yield broker


@pytest.fixture
def headrace(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Headrace:
    monkeypatch.delenv("HEADRACE_DEBUG", raising=False)

    def command(*arguments: str) -> CommandResult:
        capfd.readouterr()
        code = run(arguments)
        sys.stdout.flush()
        return CommandResult(code, *capfd.readouterr())

    return command


@pytest.fixture(params=["ours", "kafka"])
def cluster(
    request: pytest.FixtureRequest, our_broker: EmbeddedBroker, tools: ToolServer, headrace: Headrace
) -> Iterator[Cluster]:
    servers = our_broker.bootstrap_servers
    if request.param == "kafka":
        kafka: KafkaBroker = request.getfixturevalue("kafka")
        servers = kafka.bootstrap_servers
    made = Cluster(request.param, servers, tools, headrace)
    yield made
    made.admin.close()
