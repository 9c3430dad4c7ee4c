"""Rules of consumer groups that the scripts beside Kafka cannot show: bounds, rights, restarts, what differs."""

from __future__ import annotations

from typing import Any

import pytest
from tests.coordinator.consumer.consumer_histories import GROUP

from headrace.coordinator.consumer.heartbeat import validate_request
from headrace.coordinator.request_context import CoordinatorError
from headrace.protocol.error_codes import ErrorCode
from headrace.protocol.kio_units import from_ms
from headrace.protocol.messages import consumer_group_heartbeat_request as m

# Regular expressions.


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
