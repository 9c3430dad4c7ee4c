"""Static members (`group.instance.id`) on our broker; the same script runs on Apache Kafka 4.4.0 in `tests/interop`."""

from __future__ import annotations

import pytest
from tests.client.static_members_script import (
    EXPECTED,
    LOST_JOIN,
    TWO_LIVES,
    observe,
    observe_lost_join,
    observe_two_lives,
)
from tests.harness.brokers import STREAMS_GROUPS_WITHOUT_DELAYS, broker_fixture

from headrace.broker.embedded import EmbeddedBroker

pytestmark = pytest.mark.slow

SESSION_TIMEOUT_MS = 1_500


SHORT_SESSIONS = {
    "group.streams.min.session.timeout.ms": SESSION_TIMEOUT_MS,
    "group.streams.session.timeout.ms": SESSION_TIMEOUT_MS,
    "group.streams.min.heartbeat.interval.ms": 100,
    "group.streams.heartbeat.interval.ms": 500,
}
broker = broker_fixture({"flights": 4}, config={**STREAMS_GROUPS_WITHOUT_DELAYS, **SHORT_SESSIONS})


def test_a_static_member_comes_back_to_its_tasks(broker: EmbeddedBroker) -> None:
    assert observe(broker.bootstrap_servers, "app", "flights", SESSION_TIMEOUT_MS) == EXPECTED


def test_a_join_whose_reply_is_lost_does_not_lock_the_member_out(broker: EmbeddedBroker) -> None:
    assert observe_lost_join(broker.bootstrap_servers, "app", "flights") == LOST_JOIN


def test_the_older_of_two_processes_ends_and_names_the_newer(broker: EmbeddedBroker) -> None:
    assert observe_two_lives(broker.bootstrap_servers, "app", "flights") == TWO_LIVES
