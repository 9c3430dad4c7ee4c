"""One Apache Kafka for all tests of a run, started when the first test asks for it."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from tests.interop.kafka_broker import KafkaBroker
from tests.interop.kafka_jars import TOOLS_VERSION, KafkaUnavailable, java, kafka_jars


@pytest.fixture(scope="session")
def kafka_tools() -> None:
    """Kafka's jars are there and can be run; else the test is skipped with what is missing (in CI it fails)."""
    try:
        java()
        kafka_jars(TOOLS_VERSION)
    except KafkaUnavailable as missing:
        if os.environ.get("CI"):
            raise  # a skip is not a pass
        pytest.skip(str(missing))


@pytest.fixture(scope="session")
def kafka(kafka_tools: None) -> Iterator[KafkaBroker]:
    """A running Apache Kafka 4.3.1. Tests share it: use topics and groups of your own."""
    with KafkaBroker("4.3.1") as broker:
        yield broker
