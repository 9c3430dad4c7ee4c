"""Embedded brokers, clients of them, and ids that no other test uses."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import pytest
from tests.harness.brokers import STREAMS_GROUPS_WITHOUT_DELAYS, broker_fixture

from headrace.broker.embedded import EmbeddedBroker
from headrace.client.admin import Admin
from headrace.client.network_client import NetworkClient
from headrace.client.transactions import Transactions, transaction_version

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


@pytest.fixture(params=[2, 1], ids=["version 2", "version 1"])
def version(request: pytest.FixtureRequest) -> int:
    """The cluster's `transaction.version`; tests that use it run with both."""
    return int(request.param)


@pytest.fixture
def txn_broker(version: int) -> Iterator[EmbeddedBroker]:
    """A broker at the transaction version of the test, with the topics `a` and `b`."""
    with EmbeddedBroker({"a": 2, "b": 1}) as running:
        if version != 2:
            with Admin(running.bootstrap_servers) as admin:
                admin.update_features({"transaction.version": version}, upgrade_type="safe_downgrade")
        yield running


@pytest.fixture
def txn_client(txn_broker: EmbeddedBroker) -> Iterator[NetworkClient]:
    with NetworkClient(txn_broker.bootstrap_servers, api_timeout_ms=20_000) as made:
        yield made


@pytest.fixture
def transactions(txn_client: NetworkClient, version: int) -> Transactions:
    assert transaction_version(txn_client) == version
    return Transactions(txn_client, transaction_timeout_ms=10_000, version=version)
