"""`StreamsMember`: the same membership in a thread, for runtimes that are not Spark."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
from tests.client.streams_members import is_asked_to_shut_down, served_partitions, share_changes, take_changes
from tests.harness.polling import wait_until

from headrace.broker.embedded import EmbeddedBroker
from headrace.client.admin import Admin
from headrace.client.group_offsets import commit_offsets, fetch_offsets
from headrace.client.membership.endpoints import Endpoint
from headrace.client.membership.events import (
    Assigned,
    AssignmentChanged,
    Left,
    Lost,
    NotReady,
    TargetSeen,
)
from headrace.client.membership.target_assignment_poller import describe_request
from headrace.client.membership.topology import InternalTopic, Subtopology, Topology
from headrace.client.network_client import NetworkClient
from headrace.client.streams_member import StreamsMember
from headrace.errors import BrokerError, ConfigError, Fenced
from headrace.protocol.partitioner import partition_for_key

TOPOLOGY = Topology(subtopologies=(Subtopology(subtopology_id="flights", source_topics=("flights",)),))


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
        seen: list[object] = []
        while not any(isinstance(event, Left) for event in seen):
            seen += member.changes(timeout=None)
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
        identity: dict[str, Any] = {"member_id": planned_with.member_id, "member_epoch": planned_with.member_epoch}
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


def test_every_member_knows_the_endpoint_that_serves_a_key(broker: EmbeddedBroker) -> None:
    servers, here, there = broker.bootstrap_servers, Endpoint("here", 8081), Endpoint("there", 8082)
    with StreamsMember("app", TOPOLOGY, bootstrap_servers=servers, endpoint=str(here)) as first:
        take_changes(first, 4)
        wait_until(lambda: served_partitions(first, "flights") == {here: 4})
        with StreamsMember("app", TOPOLOGY, bootstrap_servers=servers, endpoint=str(there)) as second:
            take_changes(first, 2)
            take_changes(second, 2)
            wait_until(
                lambda: (
                    served_partitions(first, "flights") == served_partitions(second, "flights") == {here: 2, there: 2}
                )
            )
            for number in range(20):
                key = b"key-%d" % number
                owner = first if partition_for_key(key, 4) in first.assignment.active["flights"] else second
                expected = here if owner is first else there
                assert first.endpoint_for("flights", key) == second.endpoint_for("flights", key) == expected
        take_changes(first, 4)
        wait_until(lambda: served_partitions(first, "flights") == {here: 4})


def test_waiting_members_know_every_endpoint_once_the_topic_exists(broker: EmbeddedBroker) -> None:
    servers, here, there = broker.bootstrap_servers, Endpoint("here", 8081), Endpoint("there", 8082)
    topology = Topology(subtopologies=(Subtopology(subtopology_id="later", source_topics=("later",)),))
    with (
        StreamsMember("app", topology, bootstrap_servers=servers, endpoint=str(here)) as first,
        StreamsMember("app", topology, bootstrap_servers=servers, endpoint=str(there)) as second,
    ):
        for member in (first, second):
            assert any(isinstance(event, NotReady) for event in member.changes(20))
        with NetworkClient(servers) as client:
            Admin(client).create_topics({"later": 2})
        wait_until(
            lambda: served_partitions(first, "later") == served_partitions(second, "later") == {here: 1, there: 1}
        )


@pytest.mark.parametrize("endpoint", ["here", "here:http"])
def test_invalid_endpoint_is_refused(endpoint: str) -> None:
    with pytest.raises(ConfigError, match=r"application\.server"):
        StreamsMember("app", TOPOLOGY, bootstrap_servers="127.0.0.1:1", endpoint=endpoint)


def test_one_member_can_ask_all_to_stop(broker: EmbeddedBroker) -> None:
    servers = broker.bootstrap_servers
    with (
        StreamsMember("app", TOPOLOGY, bootstrap_servers=servers) as first,
        StreamsMember("app", TOPOLOGY, bootstrap_servers=servers) as second,
    ):
        share_changes((first, second), 2)
        first.request_shutdown()
        for member in (first, second):
            wait_until(partial(is_asked_to_shut_down, member))


def test_a_joiner_sees_its_target_before_the_owner_gives_anything_back(broker: EmbeddedBroker) -> None:
    servers = broker.bootstrap_servers
    with StreamsMember("app", TOPOLOGY, bootstrap_servers=servers) as owner:
        take_changes(owner, 4)
        with StreamsMember("app", TOPOLOGY, bootstrap_servers=servers, early_look=True) as joiner:
            seen = wait_until(lambda: [event for event in joiner.changes(0.1) if isinstance(event, TargetSeen)])[-1]
            to_come = seen.to_come
            assert sum(map(len, to_come.values())) == 2
            assert joiner.assignment.active == {}, "its owner has not given anything back"
            take_changes(owner, 2)
            take_changes(joiner, 2)
            assert joiner.assignment.active == to_come


def test_offsets_of_tasks_can_be_seen_in_the_group(broker: EmbeddedBroker, client: NetworkClient) -> None:
    with StreamsMember("app", TOPOLOGY, bootstrap_servers=broker.bootstrap_servers) as member:
        member.report_offsets({("flights", 0): 41, ("flights", 3): 7}, {("flights", 0): 50})
        take_changes(member, 4)

        def described() -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
            request = describe_request("app")
            (group,) = client.call(request, node=client.coordinator_for("app")).groups
            (one,) = group.members
            return (
                [(int(o.partition), int(o.offset)) for o in one.task_offsets],
                [(int(o.partition), int(o.offset)) for o in one.task_end_offsets],
            )

        wait_until(lambda: described() == ([(0, 41), (3, 7)], [(0, 50)]))


def test_settings_come_in_kafkas_spelling_too(broker: EmbeddedBroker) -> None:
    config = {
        "bootstrap.servers": broker.bootstrap_servers,
        "client.id": "by-config",
        "group.instance.id": "pod-7",
        "client.rack": "rack-1",
    }
    with StreamsMember("app", TOPOLOGY, config=config) as member, Admin(broker.bootstrap_servers) as admin:
        take_changes(member, 4)
        (described,) = admin.describe_streams_groups(["app"])["app"].members
        assert (described.client_id, described.instance_id, described.rack_id) == ("by-config", "pod-7", "rack-1")


def test_a_changelog_that_is_not_compacted_keeps_the_group_not_ready(broker: EmbeddedBroker) -> None:
    changelog = InternalTopic(name="app-store-changelog", configs=(("cleanup.policy", "compact"),))
    topology = Topology(
        subtopologies=(
            Subtopology(subtopology_id="flights", source_topics=("flights",), state_changelog_topics=(changelog,)),
        )
    )
    with Admin(broker.bootstrap_servers) as admin:
        admin.create_topics({changelog.name: 4}, configs={changelog.name: {"cleanup.policy": "delete"}})
        with StreamsMember("app", topology, bootstrap_servers=broker.bootstrap_servers) as member:
            seen: list[object] = []
            while not any(isinstance(event, NotReady) for event in seen):
                seen += member.changes(timeout=None)
            ((code, detail),) = next(event.status for event in seen if isinstance(event, NotReady))
            assert code == 3
            assert detail.endswith("; set app-store-changelog (cleanup.policy=compact, found delete).")
            assert [group.state for group in admin.list_groups()] == ["NotReady"]
            admin.alter_configs("topic", changelog.name, {"cleanup.policy": "compact"})
            take_changes(member, 4)
            # A broker-wide default counts too: the topic no longer has a value of its own.
            admin.alter_configs("topic", changelog.name, {"cleanup.policy": None})
            take_changes(member, 0)
            admin.alter_configs("broker", "", {"log.cleanup.policy": "compact"})
            take_changes(member, 4)
