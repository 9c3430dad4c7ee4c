"""A member leaves: at once where the coordinator answers, and without a long wait where no broker is left."""

from __future__ import annotations

import threading
import time

from tests.cli.command_lines import flight_topology
from tests.harness.brokers import broker_fixture

from headrace.broker.embedded import EmbeddedBroker
from headrace.client.member_runner import MemberRunner
from headrace.client.membership.events import Assigned
from headrace.client.membership.membership_configuration import MembershipConfiguration
from headrace.client.network_client import NetworkClient

broker = broker_fixture({"flights": 2})


def joined(broker: EmbeddedBroker) -> MemberRunner:
    has_joined = threading.Event()
    runner = MemberRunner(
        NetworkClient(broker.bootstrap_servers, client_id="test"),
        MembershipConfiguration(
            group_id="flight-delays", member_id="m-1", process_id="p-1", topology=flight_topology()
        ),
        lambda event, _: has_joined.set() if isinstance(event, Assigned) else None,
    )
    runner.start()
    assert has_joined.wait(30)
    return runner


def test_the_coordinator_hears_of_it(broker: EmbeddedBroker) -> None:
    runner = joined(broker)
    runner.leave()
    assert runner.wait_left(30)
    assert broker.group("flight-delays").members == {}
    runner.stop()


def test_no_broker_is_waited_for_only_briefly(broker: EmbeddedBroker) -> None:
    runner = joined(broker)
    broker.kill()
    runner.leave()
    began = time.monotonic()
    assert not runner.wait_left(60)
    assert time.monotonic() - began < 20, "the limit is 1.5 s; the rest is for a loaded machine"
    runner.stop()
