"""A broker for the tests of the sink."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from headrace.broker.embedded import EmbeddedBroker


@pytest.fixture
def running() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker({"orders": 4}) as broker:
        yield broker
