"""Connections to a broker with topics, for requests made by hand."""

from __future__ import annotations

from typing import Any

import pytest
from tests.harness.brokers import Connect

from headrace.broker.embedded import EmbeddedBroker


@pytest.fixture
def client(broker: EmbeddedBroker, connect: Connect) -> Any:
    """A connection to a broker with the topic `t`."""
    broker.create_topics({"t": 2})
    return connect(broker)


@pytest.fixture
def tool(broker: EmbeddedBroker, connect: Connect) -> Any:
    """A connection to a broker with the topics `a` and `b`."""
    broker.create_topics({"a": 3, "b": 2})
    return connect(broker)
