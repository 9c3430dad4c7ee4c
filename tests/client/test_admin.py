"""Admin calls against our broker: topics, offsets of logs, committed offsets, groups, settings."""

from __future__ import annotations

import pytest

from headrace.broker.embedded import EmbeddedBroker
from headrace.client.admin import Admin
from headrace.client.admin_results import CommittedOffset
from headrace.client.group_offsets import commit_offsets, fetch_offsets
from headrace.client.network_client import NetworkClient
from headrace.errors import BrokerError, Fenced


@pytest.fixture
def admin(client: NetworkClient) -> Admin:
    return Admin(client)


def test_topics_come_grow_and_go(admin: Admin) -> None:
    admin.create_topics({"a": 2, "b": 1}, configs={"a": {"cleanup.policy": "compact"}})
    assert {name: len(topic.partitions) for name, topic in admin.list_topics().items()} == {
        "a": 2,
        "b": 1,
        "flights": 4,
    }
    admin.create_partitions({"a": 5})
    assert len(admin.describe_topics(["a", "nowhere"])["a"].partitions) == 5
    admin.delete_topics(["a", "b"])
    assert list(admin.list_topics()) == ["flights"]


def test_a_topic_that_exists_is_an_error_unless_it_may(admin: Admin) -> None:
    with pytest.raises(BrokerError) as caught:
        admin.create_topics({"flights": 4})
    assert caught.value.code == "topic-exists"
    assert caught.value.kafka_name == "TOPIC_ALREADY_EXISTS"
    admin.create_topics({"flights": 4}, exist_ok=True)


def test_deleting_what_is_not_there_is_an_error(admin: Admin) -> None:
    with pytest.raises(BrokerError) as caught:
        admin.delete_topics(["nowhere"])
    assert caught.value.code == "topic-missing"


def test_offsets_of_a_log(admin: Admin, broker: EmbeddedBroker) -> None:
    admin.create_topics({"one": 1})
    broker.produce("one", ["a", "b", "c"])
    key = ("one", 0)
    assert admin.list_offsets({key: "earliest"})[key].offset == 0
    assert admin.list_offsets({key: "latest"}, isolation_level="read_committed")[key].offset == 3
    first = admin.list_offsets({key: 0})[key]
    assert first.offset == 0
    assert first.timestamp_ms > 0
    assert admin.list_offsets({key: first.timestamp_ms + 10**9})[key].offset == -1


def test_deleted_records_move_the_start_of_the_log(admin: Admin, broker: EmbeddedBroker) -> None:
    admin.create_topics({"one": 1})
    broker.produce("one", ["a", "b", "c"])
    assert admin.delete_records({("one", 0): 2}) == {("one", 0): 2}
    assert admin.list_offsets({("one", 0): "earliest"})[("one", 0)].offset == 2
    assert admin.delete_records({("one", 0): -1}) == {("one", 0): 3}


def test_committed_offsets_of_a_group_without_members(admin: Admin, client: NetworkClient) -> None:
    admin.alter_offsets("app", {("flights", 0): 5, ("flights", 3): 7})
    assert admin.committed_offsets("app") == {("flights", 0): 5, ("flights", 3): 7}
    assert fetch_offsets(client, "app", [("flights", 1), ("flights", 3)]) == {("flights", 1): -1, ("flights", 3): 7}
    assert [group.group_id for group in admin.list_groups()] == ["app"]
    admin.delete_groups(["app"])
    assert admin.list_groups() == ()
    assert admin.committed_offsets("app") == {}


def test_a_commit_for_a_member_that_nobody_knows_is_fenced(admin: Admin, client: NetworkClient) -> None:
    admin.alter_offsets("app", {("flights", 0): 5})
    with pytest.raises(BrokerError) as caught:
        commit_offsets(client, "app", {("flights", 0): 6}, member_id="ghost", member_epoch=3)
    assert caught.value.facts["topic"] == "flights"
    assert isinstance(caught.value, Fenced)
    assert admin.committed_offsets("app") == {("flights", 0): 5}


def test_groups_that_do_not_exist_are_told(admin: Admin) -> None:
    for call in (lambda: admin.describe_streams_groups(["ghost"]), lambda: admin.delete_groups(["ghost"])):
        with pytest.raises(BrokerError) as caught:
            call()
        assert caught.value.code == "group-missing"


def test_settings_are_described(admin: Admin) -> None:
    admin.create_topics({"one": 1}, configs={"one": {"retention.ms": "60000"}})
    described = admin.describe_configs([("topic", "one")])["topic", "one"]
    assert described["retention.ms"].value == "60000"


def test_an_admin_of_its_own_closes_its_client(broker: EmbeddedBroker) -> None:
    with Admin(broker.bootstrap_servers, client_id="of-its-own") as admin:
        assert admin.list_topics()
        assert admin.client.client_id == "of-its-own"


def test_positions_travel_with_epoch_and_metadata(admin: Admin) -> None:
    given = {
        ("flights", 0): CommittedOffset(offset=5, leader_epoch=0, metadata="größer"),
        ("flights", 1): CommittedOffset(offset=1),
    }
    admin.alter_offsets("app", given)
    assert admin.list_group_offsets("app", require_stable=True) == given
    assert admin.list_group_offsets("app", [("flights", 1), ("flights", 2)]) == {("flights", 1): given["flights", 1]}


def test_single_positions_are_forgotten(admin: Admin) -> None:
    admin.alter_offsets("app", {("flights", 0): 5, ("flights", 1): 6})
    outcomes = admin.delete_offsets("app", [("flights", 0), ("absent", 3)])
    assert list(outcomes.done) == [("flights", 0)]
    assert outcomes.errors["absent", 3].code == "topic-missing"
    assert admin.committed_offsets("app") == {("flights", 1): 6}
    with pytest.raises(BrokerError) as caught:
        admin.delete_offsets("ghost", [("flights", 0)])
    assert caught.value.code == "group-missing"


def test_each_group_has_its_own_answer(admin: Admin) -> None:
    admin.alter_offsets("app", {("flights", 0): 5})
    described = admin.try_describe_streams_groups(["app", "ghost"])
    assert ({*described.errors}, dict(described.done)) == ({"app", "ghost"}, {})
    assert "classic" in described.errors["app"].message
    deleted = admin.try_delete_groups(["ghost", "app"])
    assert (list(deleted.done), list(deleted.errors)) == (["app"], ["ghost"])


@pytest.mark.parametrize("state", ["empty", "EMPTY", " Empty"])
def test_lists_are_filtered_in_any_spelling(admin: Admin, state: str) -> None:
    admin.alter_offsets("app", {("flights", 0): 5})
    assert [group.group_id for group in admin.list_groups(states=[state], types=["classic"], protocols=[""])] == ["app"]
    assert admin.list_groups(states=["not_ready"]) == admin.list_groups(types=["streams"]) == ()
    assert admin.list_groups(protocols=["consumer"]) == ()


def test_topics_that_are_gone_already(admin: Admin) -> None:
    admin.create_topics({"one": 1})
    admin.delete_topics(["one", "two"], missing_ok=True)
    assert "one" not in admin.list_topics()
