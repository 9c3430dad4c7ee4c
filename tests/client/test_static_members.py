"""Static members (`group.instance.id`) on our broker; the same script runs on Apache Kafka 4.4.0 in `tests/interop`."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.client.static_members_script import (
    EXPECTED,
    LOST_JOIN,
    TWO_LIVES,
    observe,
    observe_lost_join,
    observe_two_lives,
)

from headrace.broker.embedded import EmbeddedBroker

pytestmark = pytest.mark.slow

SESSION_TIMEOUT_MS = 1_500


@pytest.fixture
def broker() -> Iterator[EmbeddedBroker]:
    short = {
        "group.streams.initial.rebalance.delay.ms": 0,
        "group.streams.assignment.interval.ms": 0,
        "group.streams.min.session.timeout.ms": SESSION_TIMEOUT_MS,
        "group.streams.session.timeout.ms": SESSION_TIMEOUT_MS,
        "group.streams.min.heartbeat.interval.ms": 100,
        "group.streams.heartbeat.interval.ms": 500,
    }
    with EmbeddedBroker(topics={"flights": 4}, config=short) as running:
        yield running


def test_a_static_member_comes_back_to_its_tasks(broker: EmbeddedBroker) -> None:
    assert observe(broker.bootstrap_servers, "app", "flights", SESSION_TIMEOUT_MS) == EXPECTED


def test_a_join_whose_reply_is_lost_does_not_lock_the_member_out(broker: EmbeddedBroker) -> None:
    assert observe_lost_join(broker.bootstrap_servers, "app", "flights") == LOST_JOIN


def test_the_older_of_two_processes_ends_and_names_the_newer(broker: EmbeddedBroker) -> None:
    assert observe_two_lives(broker.bootstrap_servers, "app", "flights") == TWO_LIVES
