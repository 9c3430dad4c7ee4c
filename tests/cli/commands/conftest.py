"""A member of a streams group that has its tasks."""

from __future__ import annotations

import pytest
from tests.cli.command_lines import Join, Worker

from headrace.broker.embedded import EmbeddedBroker


@pytest.fixture
def worker(broker: EmbeddedBroker, join: Join) -> Worker:
    broker.produce("flights", [b"x"] * 40)
    member = join()
    assert member.has_tasks.wait(20)
    return member
