"""Kafka's own tools (4.3.1) and ours, side by side on the same broker and group: the same text, byte for byte.

Rows are compared sorted: Kafka's tool prints them in the order of its hash maps.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.cli.command_lines import GROUP, Command, Worker
from tests.interop.kafka_jars import KafkaUnavailable, java
from tests.interop.kafka_tools import ToolServer

from headrace.broker.embedded import EmbeddedBroker
from headrace.client.admin import Admin
from headrace.client.network_client import NetworkClient
from headrace.client.plain_records import PlainRecord, produce

pytestmark = pytest.mark.interop
TOOLS = {
    "topics": "org.apache.kafka.tools.TopicCommand",
    "groups": "org.apache.kafka.tools.GroupsCommand",
    "streams-groups": "org.apache.kafka.tools.streams.StreamsGroupCommand",
    "console-consumer": "org.apache.kafka.tools.consumer.ConsoleConsumer",
}


@pytest.fixture(scope="module")
def kafka() -> Iterator[ToolServer]:
    try:
        java()
        server = ToolServer()
    except KafkaUnavailable as why:
        pytest.skip(str(why))
    with server:
        yield server


def rows_sorted(text: str) -> list[str]:
    """The blank lines and the header where they are, the rows in order."""
    lines = text.splitlines()
    return [*lines[:1], *sorted(line for line in lines[1:] if line)]


@pytest.mark.parametrize(
    "arguments",
    [
        ["streams-groups", "--list"],
        ["streams-groups", "--list", "--state"],
        ["streams-groups", "--describe", "--group", GROUP],
        ["streams-groups", "--describe", "--group", GROUP, "--offsets", "--verbose"],
        ["streams-groups", "--describe", "--group", GROUP, "--members"],
        ["streams-groups", "--describe", "--group", GROUP, "--members", "--verbose"],
        ["streams-groups", "--describe", "--group", GROUP, "--state"],
        ["streams-groups", "--describe", "--group", GROUP, "--state", "--verbose"],
        ["groups", "--list"],
        ["topics", "--list"],
        ["topics", "--describe", "--topic", "flights"],
    ],
    ids=" ".join,
)
def test_the_same_text(
    headrace: Command, broker: EmbeddedBroker, join: object, kafka: ToolServer, arguments: list[str]
) -> None:
    broker.produce("flights", [b"x"] * 40)
    assert callable(join)
    worker: Worker = join()
    assert worker.has_tasks.wait(20)
    settle(broker)
    at = ("--bootstrap-server", broker.bootstrap_servers)
    ours = headrace(*arguments, *at)
    assert ours.code == 0
    assert rows_sorted(ours.out) == rows_sorted(kafka.run(TOOLS[arguments[0]], *arguments[1:], *at).out)


def settle(broker: EmbeddedBroker) -> None:
    with Admin(broker.bootstrap_servers) as admin:
        while admin.describe_streams_groups([GROUP])[GROUP].state != "Stable":
            pass


def test_the_consoles_print_the_same(headrace: Command, broker: EmbeddedBroker, kafka: ToolServer) -> None:
    with NetworkClient(broker.bootstrap_servers) as client:
        records = [
            PlainRecord(value=b"v", key=b"k", timestamp_ms=1_700_000_000_000, headers=(("a", b"1"), ("b", None))),
            PlainRecord(value=None, timestamp_ms=1),
            PlainRecord(value="größer".encode(), key=b"", timestamp_ms=2),
        ]
        produce(client, "flights", records, partition=2)
    arguments = [
        "console-consumer",
        "--topic",
        "flights",
        "--partition",
        "2",
        "--offset",
        "earliest",
        "--max-messages",
        "3",
    ]
    for part in ("timestamp", "partition", "offset", "headers", "key"):
        arguments += ["--formatter-property", f"print.{part}=true"]
    at = ("--bootstrap-server", broker.bootstrap_servers)
    assert headrace(*arguments, *at).out == kafka.run(TOOLS[arguments[0]], *arguments[1:], *at).out
