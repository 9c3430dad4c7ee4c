"""Admission of consumers, static ones among them, and revocation before assignment."""

from __future__ import annotations

from typing import Any

from tests.coordinator.consumer.heartbeat_scripts import join, refused, world

from headrace.protocol.error_codes import ErrorCode


def assigned(answer: Any) -> set[int]:
    return {partition for each in answer.assignment.topic_partitions for partition in each.partitions}


def test_a_partition_is_revoked_before_it_is_given_away() -> None:
    w = world()
    assert assigned(join(w, "a", "in")) == {0, 1, 2, 3}
    assert assigned(join(w, "b", "in")) == set()
    assert assigned(w.beat("a", 2)) == {0, 1}
    assert w.beat("b", 3).assignment is None
    topic_id = w.topics["in"].topic_id
    assert w.beat("a", 2, owned={(topic_id, 0), (topic_id, 1)}).member_epoch == 3
    assert assigned(w.beat("b", 3)) == {2, 3}
    group = w.group()
    assert group is not None
    assert group.state().value == "Stable"


def test_a_static_member_need_not_have_left() -> None:
    w = world()
    join(w, "a", "in", instance_id="one")
    assert assigned(join(w, "a", "in", instance_id="one")) == {0, 1, 2, 3}
    assert refused(join, w, "b", "in", instance_id="one") is ErrorCode.unreleased_instance_id


def test_a_known_static_member_finds_room_in_a_full_group() -> None:
    w = world(consumer_max_size=1)
    join(w, "a", "in", instance_id="one")
    assert refused(join, w, "x", "in") is ErrorCode.group_max_size_reached
    w.beat("a", -2, instance_id="one")
    assert assigned(join(w, "b", "in", instance_id="one")) == {0, 1, 2, 3}


def test_replacing_static_member_does_not_inherit_the_subscription() -> None:
    w = world({"logs-a": 1, "in": 1})
    w.beat("a", 0, owned=set(), timeout_ms=5_000, subscribed_topic_regex="logs-.*", instance_id="one")
    w.sleep(0)
    w.beat("a", -2, instance_id="one")
    answer = join(w, "b", "in", instance_id="one")
    assert [each.topic_id for each in answer.assignment.topic_partitions] == [w.topics["in"].topic_id]
    group = w.group()
    assert group is not None
    assert not group.subscriptions.regexes
