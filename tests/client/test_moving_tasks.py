"""Tasks that move while records flow: nothing is processed twice or left out, and what stays is never taken away.

How long a moved task stands still is measured by `benchmarks/moved_task_pause.py`; here only what must always hold.
"""

from __future__ import annotations

import pytest
from tests.client.moving_tasks_script import move_tasks_around

from headrace.broker.embedded import EmbeddedBroker

pytestmark = pytest.mark.slow


def test_an_instance_comes_and_goes_and_every_record_is_processed_once() -> None:
    fast = {"group.streams.initial.rebalance.delay.ms": 0, "group.streams.assignment.interval.ms": 0}
    with EmbeddedBroker(topics={"flights": 8}, config=fast) as broker:
        move_tasks_around(broker.bootstrap_servers, "app", "flights", rounds=2)
