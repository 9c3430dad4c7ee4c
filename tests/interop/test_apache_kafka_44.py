"""Apache Kafka 4.4.0: static members, which 4.3.1 does not have, and one run of the stateful program.

The script of the static members is the one that runs on our broker (`tests/client/test_static_members.py`).
"""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.client.static_members_script import (
    EXPECTED,
    LOST_JOIN_ON_KAFKA,
    TWO_LIVES,
    observe,
    observe_lost_join,
    observe_two_lives,
)
from tests.interop.kafka_broker import KafkaBroker
from tests.spark.application.processes import Application, flight, newest, send_flights

from headrace.client.admin import Admin
from headrace.client.guardian_link import GuardianDied, GuardianLink, GuardianSettings
from headrace.client.membership.events import Assigned, InstanceIdTaken
from headrace.client.membership.topology import Subtopology, Topology
from headrace.client.network_client import NetworkClient
from headrace.protocol.api_keys import ApiKey, VersionRange

pytestmark = [pytest.mark.interop, pytest.mark.slow]

SESSION_TIMEOUT_MS = 1_500


@pytest.fixture(scope="module")
def kafka_44(kafka_tools: None) -> Iterator[KafkaBroker]:
    with KafkaBroker("4.4.0") as broker:
        with Admin(broker.bootstrap_servers) as admin:
            admin.create_topics({"flights": 4}, replication_factor=1)
        yield broker


def settle_fast(broker: KafkaBroker, group: str) -> str:
    """A group with a short session and without an assignment interval."""
    with Admin(broker.bootstrap_servers) as admin:
        settings = {
            "streams.session.timeout.ms": str(SESSION_TIMEOUT_MS),
            "streams.assignment.interval.ms": "0",
        }
        admin.alter_configs("group", group, settings)
    return group


def test_it_speaks_heartbeat_1(kafka_44: KafkaBroker) -> None:
    with NetworkClient(kafka_44.bootstrap_servers) as client:
        assert client.supported_range(ApiKey.STREAMS_GROUP_HEARTBEAT) == VersionRange(0, 1)


def test_a_static_member_comes_back_to_its_tasks(kafka_44: KafkaBroker) -> None:
    group = settle_fast(kafka_44, "static")
    assert observe(kafka_44.bootstrap_servers, group, "flights", SESSION_TIMEOUT_MS) == EXPECTED


def test_a_join_whose_reply_is_lost_does_not_lock_the_member_out(kafka_44: KafkaBroker) -> None:
    assert observe_lost_join(kafka_44.bootstrap_servers, "lost-join", "flights") == LOST_JOIN_ON_KAFKA


def test_the_older_of_two_processes_ends_and_names_the_newer(kafka_44: KafkaBroker) -> None:
    group = settle_fast(kafka_44, "two-lives")
    assert observe_two_lives(kafka_44.bootstrap_servers, group, "flights") == TWO_LIVES


def test_a_new_guardian_takes_the_id_over_from_a_killed_one(kafka_44: KafkaBroker) -> None:
    """With the session's default, 45 s: it does not wait for that."""
    settings = GuardianSettings(
        bootstrap_servers=kafka_44.bootstrap_servers,
        group_id="guarded",
        topology=Topology(subtopologies=(Subtopology(subtopology_id="flights", source_topics=("flights",)),)),
        member_id="m-1",
        process_id="p-1",
        instance_id="pod-1",
    )
    with GuardianLink.start(settings) as link:
        assert events_until(link, Assigned)
        os.kill(link.pid, signal.SIGKILL)
        assert events_until(link, GuardianDied)
        link.restart()
        seen = events_until(link, Assigned)
        assert not [event for event in seen if isinstance(event, InstanceIdTaken)]


def events_until(link: GuardianLink, kind: type[object]) -> list[object]:
    seen: list[object] = []
    until = time.monotonic() + 30
    while not any(isinstance(event, kind) for event in seen):
        assert time.monotonic() < until, f"no {kind.__name__} but {seen}"
        seen += link.events(0.1)
    return seen


@pytest.mark.spark
def test_an_application_catches_up_on_kafka_4_4(kafka_44: KafkaBroker, tmp_path: Path) -> None:
    flights = range(500)
    send_flights(kafka_44.bootstrap_servers, flights, 4)
    Application("flight_delays.py", kafka_44.bootstrap_servers, tmp_path).run_until_caught_up()
    found = newest(kafka_44.bootstrap_servers, "flight-delays-by-origin")
    expected = Counter(one["origin"] for one in map(flight, flights) if one["dep_delay"] is not None)
    assert {origin: row["flights"] for origin, row in found.items()} == expected
