"""Kafka's console tools (4.3.1) in one JVM that answers command after command: `ToolServer().run(GROUPS, "--list", …)`.

A tool's first start costs a JVM (1-2 s), each further one some 50 ms. Standard input is not passed on.
"""

from __future__ import annotations

import subprocess
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.harness.commands import CommandResult
from tests.interop.kafka_broker import JVM_OF_SECONDS, archived
from tests.interop.kafka_jars import TOOLS_VERSION, java, kafka_jars

__all__ = ["CONSUMER_GROUPS", "GROUPS", "STREAMS_GROUPS", "TOPICS", "ToolServer"]

STREAMS_GROUPS = "org.apache.kafka.tools.streams.StreamsGroupCommand"
GROUPS = "org.apache.kafka.tools.GroupsCommand"
CONSUMER_GROUPS = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"
TOPICS = "org.apache.kafka.tools.TopicCommand"

SOURCE = Path(__file__).parent / "java" / "ToolServer.java"


class ToolServer:
    """A context manager. One command at a time."""

    def __init__(self) -> None:
        command = [java(), "-Xmx256m", *JVM_OF_SECONDS, *archived(TOOLS_VERSION)]
        command += ["-cp", f"{kafka_jars(TOOLS_VERSION)}/*", str(SOURCE)]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()  # the server's loop ends
        try:
            self._process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()

    def run(self, main_class: str, *arguments: str) -> CommandResult:
        """Runs `main_class` with these arguments; they hold no tabs and no line breaks."""
        assert not any(mark in argument for argument in arguments for mark in "\t\n")
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write("\t".join([main_class, *arguments]).encode() + b"\n")
        self._process.stdin.flush()
        head = self._process.stdout.readline().split()
        assert len(head) == 3, f"the tool server ended while it ran {main_class} {arguments}"
        code, out, err = (int(part) for part in head)
        read = self._process.stdout.read
        return CommandResult(code, read(out).decode(), read(err).decode())
