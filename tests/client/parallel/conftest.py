"""Topics of a parallel consumer."""

from __future__ import annotations

import pytest
from tests.client.parallel.parallel_handlers import Make, Topic

from headrace import EmbeddedBroker


@pytest.fixture
def topic(broker: EmbeddedBroker) -> Make:
    return lambda partitions=1, records=0, keys=5: Topic(broker, partitions, records, keys)
