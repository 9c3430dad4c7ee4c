"""One embedded broker per test, a client of it, and ids that no other test uses."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import pytest
from tests.harness.brokers import STREAMS_GROUPS_WITHOUT_DELAYS, broker_fixture

from headrace.broker.embedded import EmbeddedBroker
from headrace.client.network_client import NetworkClient

_numbers = itertools.count()


broker = broker_fixture({"flights": 4}, config=STREAMS_GROUPS_WITHOUT_DELAYS)


@pytest.fixture
def client(broker: EmbeddedBroker) -> Iterator[NetworkClient]:
    with NetworkClient(broker.bootstrap_servers, client_id="test-client", api_timeout_ms=20_000) as connected:
        yield connected


@pytest.fixture
def unique() -> Callable[[str], str]:
    """`unique("app")` → "app-7"."""
    return lambda stem: f"{stem}-{next(_numbers)}"
