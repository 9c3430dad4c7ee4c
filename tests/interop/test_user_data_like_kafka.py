"""User data that Kafka 4.3.1's own classes write: the bytes with which the decoders are tested."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from tests.interop.kafka_jars import CONNECT, TOOLS_VERSION, compiled, java, kafka_jars
from tests.longer import longer

pytestmark = pytest.mark.interop
HERE = Path(__file__).parent
WRITTEN = HERE.parent / "assignors"
STREAMS = "org.apache.kafka.streams.processor.internals.assignment.StreamsUserData"


def printed(main_class: str, sources: str, version: str) -> list[str]:
    """Return the lines that a program writes, run with the jars of `version`."""
    classpath = f"{kafka_jars(version)}/*:{compiled(HERE / sources, version)}"
    command = [java(), "-XX:TieredStopAtLevel=1", "-cp", classpath, main_class]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout.splitlines()


def test_user_data_of_kafka_streams_is_as_written(kafka_tools: None) -> None:
    assert printed(STREAMS, "java_user_data", TOOLS_VERSION) == lines("streams_user_data.txt")


@longer
def test_user_data_of_kafka_connect_is_as_written(kafka_tools: None) -> None:
    assert printed("ConnectUserData", "connect_user_data", CONNECT) == lines("connect_user_data.txt")


def lines(name: str) -> list[str]:
    return (WRITTEN / name).read_text().splitlines()
