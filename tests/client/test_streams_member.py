"""`StreamsMember`: the same membership in a thread, for runtimes that are not Spark."""

from __future__ import annotations

import time

import pytest

from penstock.broker.embedded import EmbeddedBroker
from penstock.client.group_offsets import commit_offsets, fetch_offsets
from penstock.client.membership.events import Assigned, AssignmentChanged, Left, Lost
from penstock.client.membership.topology import InternalTopic, Subtopology, Topology
from penstock.client.network_client import NetworkClient
from penstock.client.streams_member import StreamsMember
from penstock.errors import BrokerError, Fenced

TOPOLOGY = Topology(subtopologies=(Subtopology(subtopology_id="flights", source_topics=("flights",)),))


def take_changes(member: StreamsMember, tasks: int) -> None:
    until = time.monotonic() + 20
    while sum(map(len, member.assignment.active.values())) != tasks:
        assert time.monotonic() < until, f"not {tasks} tasks but {member.assignment}"
        for change in member.changes(timeout=0.1):
            member.acknowledge(change)


def test_two_members_share_and_one_leaves(broker: EmbeddedBroker) -> None:
    with StreamsMember("app", TOPOLOGY, bootstrap_servers=broker.bootstrap_servers) as first:
        take_changes(first, 4)
        with StreamsMember("app", TOPOLOGY, bootstrap_servers=broker.bootstrap_servers) as second:
            take_changes(first, 2)
            take_changes(second, 2)
            owned = [*first.assignment.active["flights"], *second.assignment.active["flights"]]
            assert sorted(owned) == [0, 1, 2, 3]
        take_changes(first, 4)


def test_leaving_is_told(broker: EmbeddedBroker) -> None:
    with StreamsMember("app", TOPOLOGY, bootstrap_servers=broker.bootstrap_servers, member_id="m") as member:
        take_changes(member, 4)
        member.leave()
        seen = [event for _ in range(50) for event in member.changes(timeout=0.1)]
        assert [event for event in seen if isinstance(event, Lost | Left)] == [
            Lost(reason="left"),
            Left(confirmed=True),
        ]
        assert member.member_id == "m"


def test_internal_topics_appear_with_the_first_member(broker: EmbeddedBroker) -> None:
    changelog = InternalTopic(name="app-counts-changelog", configs=(("cleanup.policy", "compact"),))
    stateful = Topology(
        subtopologies=(
            Subtopology(subtopology_id="flights", source_topics=("flights",), state_changelog_topics=(changelog,)),
        )
    )
    with (
        StreamsMember("app", stateful, bootstrap_servers=broker.bootstrap_servers) as member,
        NetworkClient(broker.bootstrap_servers) as client,
    ):
        take_changes(member, 4)
        assert len(client.known_topics([changelog.name]).topics[changelog.name].partitions) == 4


def test_offsets_are_committed_with_the_epoch_of_the_snapshot(broker: EmbeddedBroker) -> None:
    with (
        StreamsMember("app", TOPOLOGY, bootstrap_servers=broker.bootstrap_servers) as member,
        NetworkClient(broker.bootstrap_servers) as client,
    ):
        take_changes(member, 4)
        planned_with = member.assignment
        identity = {"member_id": planned_with.member_id, "member_epoch": planned_with.member_epoch}
        commit_offsets(client, "app", {("flights", 1): 11}, **identity)
        assert fetch_offsets(client, "app", [("flights", 1)], **identity) == {("flights", 1): 11}
        for wrong in ({"member_epoch": planned_with.member_epoch + 1}, {"member_id": "ghost"}):
            with pytest.raises(Fenced) as refused:
                commit_offsets(client, "app", {("flights", 1): 12}, **(identity | wrong))
            assert refused.value.code == "member-fenced"
        assert fetch_offsets(client, "app", [("flights", 1)]) == {("flights", 1): 11}


def test_an_outsider_cannot_commit_while_there_are_members(broker: EmbeddedBroker) -> None:
    with (
        StreamsMember("app", TOPOLOGY, bootstrap_servers=broker.bootstrap_servers) as member,
        NetworkClient(broker.bootstrap_servers) as client,
    ):
        take_changes(member, 4)
        with pytest.raises(BrokerError) as refused:
            commit_offsets(client, "app", {("flights", 0): 1})
        assert refused.value.kafka_name == "UNKNOWN_MEMBER_ID"


def test_the_first_event_is_the_join(broker: EmbeddedBroker) -> None:
    with StreamsMember("app", TOPOLOGY, bootstrap_servers=broker.bootstrap_servers) as member:
        first = next(iter(member.changes(timeout=20)))
        assert isinstance(first, Assigned)
        assert first.assignment.member_epoch > 0
        member.acknowledge(first)
        later = [change for change in member.changes(timeout=0.2) if isinstance(change, AssignmentChanged)]
        assert all(not change.revoked for change in later)
