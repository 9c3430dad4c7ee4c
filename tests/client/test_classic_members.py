"""Members that run streams in a classic group, on a broker whose streams groups are turned off."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from tests.client.streams_members import is_asked_to_shut_down, share_changes, take_changes
from tests.harness.brokers import CLASSIC_GROUPS_WITHOUT_DELAYS
from tests.harness.polling import wait_until

from headrace.broker.embedded import EmbeddedBroker
from headrace.client.admin import Admin
from headrace.client.admin_results import CommittedOffset
from headrace.client.consumer.consumer import Consumer
from headrace.client.group_offsets import commit_offsets, fetch_offsets
from headrace.client.guardian_link import GuardianLink, GuardianSettings
from headrace.client.membership.assignment import AssignmentSnapshot
from headrace.client.membership.events import Assigned, AssignmentChanged, Fatal, Left, Lost
from headrace.client.membership.topology import InternalTopic, Subtopology, Topology
from headrace.client.network_client import NetworkClient
from headrace.client.protocol_choice import find_group_protocol
from headrace.client.streams_member import StreamsMember
from headrace.errors import Fenced

CHANGELOG = InternalTopic(name="app-counts-changelog", configs=(("cleanup.policy", "compact"),))
TOPOLOGY = Topology(
    subtopologies=(
        Subtopology(subtopology_id="flights", source_topics=("flights",), state_changelog_topics=(CHANGELOG,)),
    )
)
WITHOUT_STREAMS = {
    **CLASSIC_GROUPS_WITHOUT_DELAYS,
    "group.coordinator.rebalance.protocols": "classic,consumer",
    "group.min.session.timeout.ms": 500,
}


@pytest.fixture(name="broker")
def broker_without_streams() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker({"flights": 4}, config=WITHOUT_STREAMS) as running:
        yield running


def member_of(broker: EmbeddedBroker, **changes: object) -> StreamsMember:
    settings = {"session_timeout_ms": 3_000, "heartbeat_interval_ms": 100, "group_protocol": "auto", **changes}
    return StreamsMember("app", TOPOLOGY, bootstrap_servers=broker.bootstrap_servers, **settings)  # type: ignore[arg-type]


def owned(*members: StreamsMember) -> list[int]:
    return sorted(number for member in members for number in member.assignment.active.get("flights", ()))


def test_two_members_share_and_one_leaves(broker: EmbeddedBroker) -> None:
    with member_of(broker) as first:
        assert first.group_protocol.protocol == "classic"
        assert "turned off" in first.group_protocol.reason
        take_changes(first, 4)
        with member_of(broker) as second:
            share_changes([first, second], 2)
            assert owned(first, second) == [0, 1, 2, 3]
        began = time.monotonic()
        take_changes(first, 4)
        assert time.monotonic() - began < 2.0, "a leave is noticed by the next heartbeat, not by the session timeout"


def test_the_leader_creates_internal_topics(broker: EmbeddedBroker) -> None:
    with member_of(broker) as member, Admin(broker.bootstrap_servers) as admin:
        take_changes(member, 4)
        assert len(admin.list_topics()[CHANGELOG.name].partitions) == 4
        assert admin.describe_configs([("topic", CHANGELOG.name)])["topic", CHANGELOG.name]["cleanup.policy"].value == (
            "compact"
        )


def test_tasks_of_a_dead_member_move_after_its_session(broker: EmbeddedBroker) -> None:
    with member_of(broker) as first:
        take_changes(first, 4)
        second = member_of(broker, session_timeout_ms=1_000)
        share_changes([first, second], 2)
        second.abandon()
        take_changes(first, 4)


def test_a_static_member_returns_to_its_tasks(broker: EmbeddedBroker) -> None:
    with member_of(broker, group_instance_id="a", session_timeout_ms=10_000) as first:
        second = member_of(broker, group_instance_id="b", session_timeout_ms=10_000)
        share_changes([first, second], 2)
        before = second.assignment.active
        second.close(for_a_while=True)
        assert not any(isinstance(event, AssignmentChanged) for event in first.changes(0.5))
        with member_of(broker, group_instance_id="b", session_timeout_ms=10_000) as again:
            share_changes([first, again], 2)
            assert again.assignment.active == before


def test_all_members_stop_when_one_asks(broker: EmbeddedBroker) -> None:
    with member_of(broker) as first, member_of(broker) as second:
        share_changes([first, second], 2)
        second.request_shutdown()
        wait_until(lambda: is_asked_to_shut_down(first))


def test_a_leave_abandons_a_parked_join(broker: EmbeddedBroker) -> None:
    with ExitStack() as members:
        first = members.enter_context(member_of(broker, heartbeat_interval_ms=60_000, session_timeout_ms=120_000))
        take_changes(first, 4)
        # The first member sends no heartbeat for a minute, so the join of the second one waits for it.
        second = member_of(broker)
        assert not any(isinstance(event, Assigned) for event in second.changes(1.0))
        began = time.monotonic()
        second.close()
        assert time.monotonic() - began < 3.0
        assert [event for event in second.changes(0.1) if isinstance(event, Left | Lost)] == [Left(confirmed=True)]


def test_a_commit_across_a_rebalance_has_the_newest_generation(broker: EmbeddedBroker, client: NetworkClient) -> None:
    with member_of(broker) as first:
        take_changes(first, 4)
        planned = first.assignment
        tasks = [("flights", number) for number in range(4)]
        with member_of(broker) as second:
            # The first member does not acknowledge: it holds all four tasks while the generation rises.
            wait_until(lambda: _has_seen_another_generation(first, planned))
            generation = first.commit_generation(planned, tasks)
            assert generation is not None
            assert generation > planned.member_epoch
            with pytest.raises(Fenced, match="ILLEGAL_GENERATION"):
                _commit(client, first, planned.member_epoch)
            wait_until(lambda: _is_committed(client, first, planned))
            first.acknowledge(first.assignment.active)
            share_changes([first, second], 2)
            kept = [("flights", number) for number in first.assignment.active["flights"]]
            assert first.commit_generation(planned, kept) is not None
            assert first.commit_generation(planned, tasks) is None, "two of the tasks have another owner"
        assert fetch_offsets(client, "app", [("flights", 0)]) == {("flights", 0): 7}


def test_an_acknowledged_task_that_returns_is_no_task_of_older_batches(broker: EmbeddedBroker) -> None:
    with member_of(broker) as first:
        take_changes(first, 4)
        planned = first.assignment
        with member_of(broker) as second:
            share_changes([first, second], 2)
            moved = second.assignment.active["flights"]
        take_changes(first, 4)
        assert first.commit_generation(planned, [("flights", moved[0])]) is None
        assert first.commit_generation(first.assignment, [("flights", moved[0])]) is not None


def test_a_running_classic_group_stays_classic_when_streams_groups_come() -> None:
    config = {**WITHOUT_STREAMS, "group.coordinator.rebalance.protocols": "classic,consumer,streams"}
    with EmbeddedBroker({"flights": 4}, config=config) as newer, NetworkClient(newer.bootstrap_servers) as client:
        assert find_group_protocol(client, "app").protocol == "streams"
        with member_of(newer, group_protocol="classic") as first:
            take_changes(first, 4)
            assert find_group_protocol(client, "app").protocol == "classic"
            with member_of(newer) as second:
                share_changes([first, second], 2)
        wait_until(lambda: find_group_protocol(client, "app").protocol == "streams")
        with member_of(newer) as member:
            assert member.group_protocol.protocol == "streams"
            take_changes(member, 4)
        with member_of(newer, group_protocol="classic") as member:
            take_changes(member, 4)


def test_streams_groups_are_refused_where_they_are_off(broker: EmbeddedBroker) -> None:
    with member_of(broker, group_protocol="streams") as member:
        assert _fatal_code(member) == "streams-protocol-off"


def test_a_group_of_consumers_is_refused(broker: EmbeddedBroker) -> None:
    consumers = Consumer(
        group_id="app", group_protocol="classic", bootstrap_servers=broker.bootstrap_servers, auto_offset_reset="latest"
    )
    with consumers as consumer:
        consumer.subscribe(["flights"])
        wait_until(lambda: consumer.poll(0.1) is not None and bool(consumer.assignment()))
        with member_of(broker, group_protocol="classic") as member:
            assert _fatal_code(member) == "group-kind"


def test_a_session_outside_of_the_brokers_bounds_is_refused(broker: EmbeddedBroker) -> None:
    with member_of(broker, session_timeout_ms=400) as member:
        assert _fatal_code(member) == "heartbeat-refused"


def _fatal_code(member: StreamsMember) -> str:
    fatal = wait_until(lambda: next((each for each in member.changes(0.1) if isinstance(each, Fatal)), None))
    assert isinstance(fatal, Fatal)
    return fatal.error.code


def guardian_settings(broker: EmbeddedBroker) -> GuardianSettings:
    return GuardianSettings(
        bootstrap_servers=broker.bootstrap_servers,
        group_id="app",
        topology=TOPOLOGY,
        member_id="",
        process_id="p",
        session_timeout_ms=20_000,
        heartbeat_interval_ms=100,
        group_protocol="classic",
    )


def test_a_guardian_holds_a_classic_membership(broker: EmbeddedBroker) -> None:
    with GuardianLink(guardian_settings(broker)) as link:
        take_changes(link, 4)
        held = link.assignment.held_since
        assert held is not None
        assert set(held) == {("flights", number) for number in range(4)}
        with member_of(broker) as other:
            _share(link, other)


def test_a_restarted_guardian_continues_its_classic_member(broker: EmbeddedBroker) -> None:
    with GuardianLink(guardian_settings(broker)) as link:
        take_changes(link, 4)
        member_id = link.assignment.member_id
        began = time.monotonic()
        link.restart()
        take_changes(link, 4)
        assert link.assignment.member_id == member_id
        assert time.monotonic() - began < 15.0, "not after the session timeout of 20 s"


def _share(link: GuardianLink, other: StreamsMember) -> None:
    def shared() -> bool:
        for event in link.events(0.05):
            if isinstance(event, Assigned | AssignmentChanged):
                link.acknowledge(event.assignment.active)
        for event in other.changes(0.05):
            other.acknowledge(event)
        shares = [link.assignment.active.get("flights", ()), other.assignment.active.get("flights", ())]
        return sorted(map(len, shares)) == [2, 2]

    wait_until(shared)


def _has_seen_another_generation(member: StreamsMember, planned: AssignmentSnapshot) -> bool:
    list(member.changes(0.05))
    newest = member.assignment
    return newest.member_epoch > planned.member_epoch and len(newest.active["flights"]) == 2


def _commit(client: NetworkClient, member: StreamsMember, generation: int) -> None:
    commit_offsets(
        client,
        "app",
        {("flights", 0): CommittedOffset(offset=7)},
        member_id=member.member_id,
        member_epoch=generation,
        timeout_ms=5_000,
    )


def _is_committed(client: NetworkClient, member: StreamsMember, planned: AssignmentSnapshot) -> bool:
    generation = member.commit_generation(planned, [("flights", 0)])
    assert generation is not None
    try:
        _commit(client, member, generation)
    except Fenced:
        return False  # another generation began in between
    return True
