"""Rules of consumer groups that the scripts beside Kafka cannot show: bounds, rights, restarts, what differs."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from tests.coordinator.consumer.consumer_histories import CONTEXT, GROUP, World

from headrace.coordinator.consumer.heartbeat import validate_request
from headrace.coordinator.records.consumer_schemas import (
    ConsumerGroupMetadataKey,
    ConsumerGroupPartitionMetadataKey,
    ConsumerGroupPartitionMetadataValue,
)
from headrace.coordinator.request_context import CoordinatorError
from headrace.coordinator.result import CoordinatorRecord, CoordinatorResult
from headrace.protocol.error_codes import ErrorCode
from headrace.protocol.kio_units import from_ms
from headrace.protocol.messages import consumer_group_heartbeat_request as m


def world(topics: dict[str, int] | None = None, **settings: int) -> World:
    made = World(settings=settings)
    for name, partitions in (topics or {"in": 4}).items():
        made.create(name, partitions)
    return made


def join(w: World, member_id: str, *names: str, **given: Any) -> Any:
    return w.beat(member_id, 0, owned=set(), timeout_ms=5_000, subscribed_topic_names=names, **given)


def assigned(answer: Any) -> set[int]:
    return {partition for each in answer.assignment.topic_partitions for partition in each.partitions}


def refused(call: Any, *arguments: Any, **given: Any) -> ErrorCode:
    with pytest.raises(CoordinatorError) as error:
        call(*arguments, **given)
    return error.value.code


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


def test_a_group_is_heard_again_after_a_restart() -> None:
    """Sessions begin anew, an open revocation ends in time."""
    w = world()
    join(w, "a", "in")
    join(w, "b", "in")
    w.beat("a", 2)
    w.sleep(4_000)
    w.shard = w.fresh()
    w.sleep(4_900)
    assert w.beat("b", 3).error_code is ErrorCode.none
    w.sleep(200)
    group = w.group()
    assert group is not None
    assert list(group.members) == ["b"]
    w.sleep(8_000)
    assert not group.members


def test_an_empty_consumer_group_becomes_a_classic_one_but_no_streams_group() -> None:
    w = world()
    join(w, "a", "in")
    w.beat("a", -1)
    assert refused(w.shard._registry.streams_group_to_join, GROUP) is ErrorCode.group_id_not_found
    _, records = w.shard._registry.classic_group_to_join(GROUP)
    assert [type(record.key).__name__ for record in records][-1] == "ConsumerGroupMetadataKey"
    w.apply(CoordinatorResult(records=records))
    assert w.shard.group(GROUP) is None


def test_what_a_broker_before_4_1_wrote_is_taken_out_with_the_next_epoch() -> None:
    w = world()
    join(w, "a", "in")
    old = CoordinatorRecord(
        key=ConsumerGroupPartitionMetadataKey(group_id=GROUP), value=ConsumerGroupPartitionMetadataValue()
    )
    w.apply(CoordinatorResult(records=(old,)))
    w.shard = w.fresh()
    join(w, "b", "in")
    group = w.group()
    assert group is not None
    assert group.partition_metadata is None


# Regular expressions.


def by_regex(w: World, regex: str, **given: Any) -> CoordinatorResult:
    request = m.ConsumerGroupHeartbeatRequest(
        group_id=GROUP,  # type: ignore[arg-type]
        member_id="a",
        member_epoch=0,  # type: ignore[arg-type]
        rebalance_timeout=from_ms(5_000),
        subscribed_topic_regex=regex,
        topic_partitions=(),
    )
    return w.apply(w.shard.consumer_group_heartbeat(request, CONTEXT, now_ms=w.now_ms, **given))


def topics_of(w: World) -> list[str]:
    group = w.group()
    assert group is not None
    return sorted(name for value in group.subscriptions.resolved.values() for name in value.topics)


def test_topics_are_looked_at_behind_the_answer() -> None:
    w = world({"logs-a": 1, "logs-b": 2, "in": 1})
    assert not by_regex(w, "logs-.*").replies[0].response.assignment.topic_partitions  # type: ignore[attr-defined]
    w.sleep(0)
    assert topics_of(w) == ["logs-a", "logs-b"]
    answer = w.beat("a", 1)
    assert (answer.member_epoch, len(answer.assignment.topic_partitions)) == (2, 2)


def test_who_takes_a_static_members_place_does_not_read_what_that_one_did() -> None:
    w = world({"logs-a": 1, "in": 1})
    w.beat("a", 0, owned=set(), timeout_ms=5_000, subscribed_topic_regex="logs-.*", instance_id="one")
    w.sleep(0)
    w.beat("a", -2, instance_id="one")
    answer = join(w, "b", "in", instance_id="one")
    assert [each.topic_id for each in answer.assignment.topic_partitions] == [w.topics["in"].topic_id]
    group = w.group()
    assert group is not None
    assert not group.subscriptions.regexes


def test_topics_that_may_not_be_described_are_not_there() -> None:
    w = world({"logs-a": 1, "logs-b": 2})
    by_regex(w, ".*", may_describe=lambda name: name != "logs-a")
    w.sleep(0)
    assert topics_of(w) == ["logs-b"]


def test_a_new_topic_is_found_ten_seconds_after_the_last_look() -> None:
    w = world({"logs-a": 1})
    by_regex(w, "logs-.*")
    w.sleep(5_000)
    w.create("logs-b", 1)
    w.beat("a", 1)
    w.sleep(5_000)
    assert topics_of(w) == ["logs-a"]
    w.sleep(1)
    w.beat("a", 2)
    w.sleep(0)
    assert topics_of(w) == ["logs-a", "logs-b"]


def test_a_hostile_expression_is_done_in_portions_and_given_up() -> None:
    random = Random(1)
    w = world({f"{number}-{''.join(random.choices('ab', k=200))}": 1 for number in range(40)})
    by_regex(w, "[0-9]*-(a|b)*a(a|b){900}.*")
    events, portions = [], 0
    for _ in range(5_000):
        deadline_ms = w.shard.next_deadline_ms()
        assert deadline_ms is not None
        if deadline_ms > w.now_ms + 1_000:
            break
        w.now_ms = max(w.now_ms, deadline_ms)
        portions += 1
        for result in w.shard.on_timers(now_ms=w.now_ms):
            events += [event.name for event in w.apply(result).events]
        if w.now_ms % 50 == 0:
            w.beat("a", 1)
    assert "RegularExpressionGivenUp" in events
    assert portions > 10
    assert topics_of(w) == []


def test_a_look_that_the_log_refused_is_made_again() -> None:
    w = world({"logs-a": 1})
    by_regex(w, "logs-.*")
    lost = list(w.shard.on_timers(now_ms=w.now_ms))  # the runner could not append them
    assert [type(record.key) for record in lost[0].records][-1] is ConsumerGroupMetadataKey
    assert topics_of(w) == []
    w.apply(w.shard.on_loaded(now_ms=w.now_ms))
    w.beat("a", 1)
    w.sleep(0)
    assert topics_of(w) == ["logs-a"]


VALID: dict[str, Any] = {
    "group_id": GROUP,
    "member_id": "a",
    "member_epoch": 0,
    "instance_id": None,
    "rack_id": None,
    "rebalance_timeout": from_ms(5_000),
    "subscribed_topic_names": ("in",),
    "subscribed_topic_regex": None,
    "server_assignor": None,
    "topic_partitions": (),
}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"member_id": " "}, "MemberId can't be empty."),
        ({"group_id": ""}, "GroupId can't be empty."),
        ({"instance_id": ""}, "InstanceId can't be empty."),
        ({"rack_id": " "}, "RackId can't be empty."),
        ({"rebalance_timeout": from_ms(-1)}, "RebalanceTimeoutMs must be provided in first request."),
        ({"topic_partitions": None}, "TopicPartitions must be empty when (re-)joining."),
        ({"subscribed_topic_names": None}, "Either SubscribedTopicNames or SubscribedTopicRegex must be non-null"),
        ({"member_epoch": -2}, "InstanceId can't be null."),
        ({"member_epoch": -3}, "MemberEpoch is invalid."),
    ],
)
def test_malformed_heartbeats_are_invalid_requests_in_the_words_of_kafka(change: dict[str, Any], message: str) -> None:
    with pytest.raises(CoordinatorError) as refusal:
        validate_request(m.ConsumerGroupHeartbeatRequest(**{**VALID, **change}), 1, ("uniform", "range"))
    assert refusal.value.code is ErrorCode.invalid_request
    assert refusal.value.message.startswith(message)


def test_an_unknown_assignor_is_refused_with_the_known_ones() -> None:
    request = m.ConsumerGroupHeartbeatRequest(**{**VALID, "server_assignor": "greedy"})
    with pytest.raises(CoordinatorError, match="Supported assignors: uniform, range") as refusal:
        validate_request(request, 1, ("uniform", "range"))
    assert refusal.value.code is ErrorCode.unsupported_assignor


def test_before_version_1_a_joining_member_needs_no_id() -> None:
    validate_request(m.ConsumerGroupHeartbeatRequest(**{**VALID, "member_id": ""}), 0, ("uniform",))
