"""Members that run streams in classic groups of Apache Kafka without streams groups.

4.3.1 with `group.coordinator.rebalance.protocols=classic,consumer`; with HEADRACE_LONG=1 also 4.1.1, where
streams groups are an early access feature that is off, 3.9.1, 3.5.2 and, with ZooKeeper, 2.8.2, which have none at all,
and two applications on each.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.client.streams_members import share_changes, take_changes
from tests.harness.polling import wait_until
from tests.interop.kafka_broker import KafkaBroker
from tests.interop.zookeeper_kafka import ZooKeeperKafka
from tests.longer import longer
from tests.spark.application.judgement import wrongly_counted
from tests.spark.application.processes import Application, Feed

from headrace.client.admin import Admin
from headrace.client.group_offsets import fetch_offsets
from headrace.client.membership.events import AssignmentChanged
from headrace.client.membership.topology import InternalTopic, Subtopology, Topology
from headrace.client.network_client import NetworkClient
from headrace.client.protocol_choice import find_group_protocol
from headrace.client.streams_member import StreamsMember
from headrace.client.transactions import Transactions, transaction_version

pytestmark = [pytest.mark.interop, pytest.mark.slow]

CHANGELOG = InternalTopic(name="app-counts-changelog", configs=(("cleanup.policy", "compact"),))
TOPOLOGY = Topology(
    subtopologies=(
        Subtopology(subtopology_id="flights", source_topics=("flights",), state_changelog_topics=(CHANGELOG,)),
    )
)
Kafka = KafkaBroker | ZooKeeperKafka
CLASSIC_ONLY = {"group.coordinator.rebalance.protocols": "classic,consumer"}
BROKERS: dict[str, Callable[[], Kafka]] = {
    "4.3.1": lambda: KafkaBroker("4.3.1", CLASSIC_ONLY),
    "4.1.1": lambda: KafkaBroker("4.1.1"),
    "3.9.1": lambda: KafkaBroker("3.9.1"),
    "3.5.2": lambda: KafkaBroker("3.5.2"),
    "2.8.2": lambda: ZooKeeperKafka("2.8.2"),
}


@pytest.fixture(
    scope="module",
    params=["4.3.1", *(pytest.param(version, marks=longer) for version in ("4.1.1", "3.9.1", "3.5.2", "2.8.2"))],
)
def kafka(request: pytest.FixtureRequest, kafka_tools: None) -> Iterator[Kafka]:
    with BROKERS[request.param]() as broker:
        with Admin(broker.bootstrap_servers) as admin:
            admin.create_topics({"flights": 4, "out": 1})
        yield broker


@pytest.fixture
def client(kafka: Kafka) -> Iterator[NetworkClient]:
    with NetworkClient(kafka.bootstrap_servers, api_timeout_ms=30_000) as connected:
        yield connected


def member_of(kafka: Kafka, group_id: str, **changes: Any) -> StreamsMember:
    settings = {"session_timeout_ms": 6_000, "heartbeat_interval_ms": 100, "group_protocol": "auto", **changes}
    return StreamsMember(group_id, TOPOLOGY, bootstrap_servers=kafka.bootstrap_servers, **settings)


def test_members_share_leave_die_and_return(kafka: Kafka, client: NetworkClient) -> None:
    choice = find_group_protocol(client, "app")
    assert choice.protocol == "classic"
    assert ("turned off" in choice.reason) == (kafka.version == "4.3.1")
    with member_of(kafka, "app") as first:
        take_changes(first, 4)
        assert len(Admin(client).list_topics()[CHANGELOG.name].partitions) == 4
        with member_of(kafka, "app") as second:
            share_changes([first, second], 2)
            owned = [*first.assignment.active["flights"], *second.assignment.active["flights"]]
            assert sorted(owned) == [0, 1, 2, 3]
        began = time.monotonic()
        take_changes(first, 4)
        assert time.monotonic() - began < 3.0, "a leave is noticed by the next heartbeat"
        third = member_of(kafka, "app", session_timeout_ms=1_500)
        share_changes([first, third], 2)
        third.abandon()
        take_changes(first, 4)


def test_a_static_member_returns_to_its_tasks(kafka: Kafka) -> None:
    with member_of(kafka, "static-app", group_instance_id="a") as first:
        second = member_of(kafka, "static-app", group_instance_id="b")
        share_changes([first, second], 2)
        before = second.assignment.active
        second.close(for_a_while=True)
        assert not any(isinstance(event, AssignmentChanged) for event in first.changes(0.3))
        with member_of(kafka, "static-app", group_instance_id="b") as again:
            share_changes([first, again], 2)
            assert again.assignment.active == before


def test_a_leave_abandons_a_parked_join(kafka: Kafka) -> None:
    slow = {"heartbeat_interval_ms": 60_000, "session_timeout_ms": 120_000}
    with member_of(kafka, "parked-app", **slow) as first:
        take_changes(first, 4)
        second = member_of(kafka, "parked-app")
        assert list(second.changes(1.0)) == [], "the join waits for the first member"
        began = time.monotonic()
        second.close()
        assert time.monotonic() - began < 4.0


def test_transactions_are_committed_across_generations(kafka: Kafka, client: NetworkClient) -> None:
    transactions = Transactions(client, transaction_timeout_ms=30_000, version=transaction_version(client))
    with member_of(kafka, "txn-app") as first:
        take_changes(first, 4)
        planned, member_id = first.assignment, first.member_id
        with member_of(kafka, "txn-app") as second:
            share_changes([first, second], 2)
            kept = first.assignment.active["flights"][0]
            generation = first.commit_generation(planned, [("flights", kept)])
            assert generation is not None
            assert generation > planned.member_epoch

            def commit(epoch: int) -> object:
                identity = transactions.initialise(["txn-app-0"])["txn-app-0"]
                offsets = {identity: {("flights", kept): 7}}
                named = {"member_id": member_id, "member_epoch": epoch}
                error = transactions.commit_offsets("txn-app", offsets, **named)["txn-app-0"]  # type: ignore[arg-type]
                transactions.end([identity], commit=error is None)  # type: ignore[list-item]
                return error

            assert "ILLEGAL_GENERATION" in str(commit(planned.member_epoch))
            assert commit(generation) is None
        offsets = fetch_offsets(client, "txn-app", [("flights", kept)], require_stable=True)
        assert offsets == {("flights", kept): 7}


@longer
@pytest.mark.spark
def test_applications_share_and_one_is_killed(kafka: Kafka, tmp_path: Path) -> None:
    servers, group_id, tasks = kafka.bootstrap_servers, "each-flight", 8
    first, second = (Application("each_flight.py", servers, tmp_path / name) for name in "ab")
    try:
        with Admin(servers) as admin, Feed(servers, 4) as feed:
            feed.run(300)
            first.start()
            second.start()
            wait_until(
                lambda: first.open_tasks == second.open_tasks == tasks // 2, "shared", first, second, timeout_s=240
            )
            second.kill()
            wait_until(lambda: first.open_tasks == tasks, "all tasks at the survivor", first, timeout_s=240)
            sent = feed.stop()

            def committed() -> int:
                listed = admin.committed_offsets(group_id).items()
                return sum(offset for (topic, _), offset in listed if topic == "flights")

            wait_until(lambda: committed() == sent, "caught up", first, timeout_s=240)
            sink = f"{group_id}-counted"
            wait_until(lambda: not wrongly_counted(servers, sink, range(sent)), "each flight once", first)
            assert first.stop() == 0
    finally:
        first.end()
        second.end()
