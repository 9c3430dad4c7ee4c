"""A broker with records for the tests of a module, and consumers of it that are closed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from tests.client.consumer.consumed_records import Make

from headrace.broker.embedded import EmbeddedBroker
from headrace.client.consumer.consumer import Consumer
from headrace.client.network_client import NetworkClient
from headrace.client.plain_records import PlainRecord, produce


@pytest.fixture(scope="module")
def shared_broker() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker(topics={"t": 2, "empty": 1}) as broker, NetworkClient(broker.bootstrap_servers) as client:
        for number in range(2):
            records = [
                PlainRecord(key=b"k%d" % n, value=b"v%d" % n, timestamp_ms=1_000 * n, headers=(("h", b"x"),))
                for n in range(100)
            ]
            produce(client, "t", records, partition=number, compression="lz4" if number else "none")
        yield broker


@pytest.fixture
def make(shared_broker: EmbeddedBroker) -> Iterator[Make]:
    made: list[Consumer] = []

    def new(**settings: Any) -> Consumer:
        settings.setdefault("auto_offset_reset", "earliest")
        made.append(Consumer(bootstrap_servers=shared_broker.bootstrap_servers, **settings))
        return made[-1]

    yield new
    for consumer in made:
        consumer.close()
