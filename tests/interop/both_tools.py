"""Kafka's group tools (4.3.1) and ours, pointed at one broker: what both print must be the same text.

Kafka's tools run in one JVM (`kafka_tools.py`), ours in this process. Rows are compared sorted: Kafka's tools print
them in the order of their hash maps. What a refusal is called in Java is left out of the comparison.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from tests.harness.commands import CommandResult
from tests.interop.kafka_tools import CONSUMER_GROUPS, STREAMS_GROUPS, ToolServer

from headrace.client.admin import Admin
from headrace.client.plain_records import PlainRecord, produce

__all__ = ["Cluster", "Headrace", "fill", "positions", "rows", "set_back"]

TOOLS = {"streams-groups": STREAMS_GROUPS, "consumer-groups": CONSUMER_GROUPS}
AT_MS = 1_700_000_000_000
EXCEPTION = re.compile(r"(?:java|org)\.[\w.]+(?:Exception|Error): ")
Headrace = Callable[..., CommandResult]


class Cluster:
    """One of the two brokers, with both sets of tools pointed at it."""

    command = "streams-groups"  # the one that `same` compares

    def __init__(self, name: str, servers: str, tools: ToolServer, headrace: Headrace) -> None:
        self.name, self.servers, self._tools, self._headrace = name, servers, tools, headrace
        self.admin = Admin(servers)

    def theirs(self, tool: str, *arguments: str) -> CommandResult:
        return self._tools.run(tool, "--bootstrap-server", self.servers, *arguments)

    def ours(self, command: str, *arguments: str) -> CommandResult:
        return self._headrace(command, *arguments, "--bootstrap-server", self.servers)

    def same(self, *arguments: str, before: Callable[[], object] = lambda: None) -> str:
        """Runs both tools with these arguments, and tells what both printed."""

        def of_kafka() -> CommandResult:
            before()
            return self.theirs(TOOLS[self.command], *arguments)

        following = of_kafka()
        for _ in range(5):
            theirs = following
            before()
            ours = self.ours(self.command, *arguments)
            if rows(ours.out) == rows(theirs.out):
                return ours.out
            # Groups of other tests live in this cluster too, and may change between two calls.
            following = of_kafka()
            if rows(following.out) == rows(theirs.out):
                break
        raise AssertionError((" ".join(arguments), ours, theirs))


def rows(text: str) -> tuple[str, list[str]]:
    """The header (a plain list and CSV have none), and all lines sorted; blank ones count."""
    lines = EXCEPTION.sub("", text).split("\n")
    head = next((line for line in lines if line), "")
    return head if " " in head else "", sorted(lines)


def fill(cluster: Cluster, topic: str) -> None:
    """3 partitions: 10 records with rising timestamps, 5 records, none. They are old, but not to be deleted for it."""
    cluster.admin.create_topics({topic: 3}, configs={topic: {"retention.ms": "-1"}}, replication_factor=1)
    for partition, count in ((0, 10), (1, 5)):
        records = [PlainRecord(value=b"v", timestamp_ms=AT_MS + 1000 * number) for number in range(count)]
        produce(cluster.admin.client, topic, records, partition=partition)


POSITIONS = {0: 4, 1: 5}


def set_back(cluster: Cluster, group: str, topic: str) -> Callable[[], None]:
    positions = {(topic, partition): offset for partition, offset in POSITIONS.items()}
    return lambda: cluster.admin.alter_offsets(group, positions)


def positions(cluster: Cluster, group: str) -> Mapping[int, int]:
    return {partition: offset for (_, partition), offset in cluster.admin.committed_offsets(group).items()}
