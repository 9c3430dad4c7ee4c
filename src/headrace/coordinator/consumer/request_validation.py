"""Is a consumer heartbeat well-formed? The first rule that is broken answers. KIP-848; Kafka 4.3's rules and words."""

from __future__ import annotations

from collections.abc import Collection
from typing import NoReturn

from headrace.coordinator.consumer.member import JOIN_EPOCH, STATIC_LEAVE_EPOCH, UNCHANGED_TIMEOUT_MS
from headrace.coordinator.errors import CoordinatorError
from headrace.protocol.error_codes import ErrorCode
from headrace.protocol.messages import consumer_group_heartbeat_request as m
from headrace.protocol.units import to_ms

__all__ = ["validate_request"]

_LEAVE_EPOCH = -1
_MEMBER_ID_REQUIRED_SINCE = 1


def validate_request(request: m.ConsumerGroupHeartbeatRequest, api_version: int, assignors: Collection[str]) -> None:
    """Raises CoordinatorError: INVALID_REQUEST, or UNSUPPORTED_ASSIGNOR."""
    epoch = request.member_epoch
    if api_version >= _MEMBER_ID_REQUIRED_SINCE or epoch > JOIN_EPOCH or epoch == _LEAVE_EPOCH:
        _check_not_blank("MemberId", request.member_id)
    _check_not_blank("GroupId", request.group_id)
    _check_not_blank("InstanceId", request.instance_id)
    _check_not_blank("RackId", request.rack_id)
    if epoch == JOIN_EPOCH:
        _check_join(request)
    elif epoch == STATIC_LEAVE_EPOCH and request.instance_id is None:
        _refuse("InstanceId can't be null.")
    elif epoch < STATIC_LEAVE_EPOCH:
        _refuse("MemberEpoch is invalid.")
    if request.server_assignor is not None and request.server_assignor not in assignors:
        raise CoordinatorError(
            ErrorCode.unsupported_assignor,
            f"ServerAssignor {request.server_assignor} is not supported. Supported assignors: {', '.join(assignors)}.",
        )


def _check_join(request: m.ConsumerGroupHeartbeatRequest) -> None:
    if to_ms(request.rebalance_timeout) == UNCHANGED_TIMEOUT_MS:
        _refuse("RebalanceTimeoutMs must be provided in first request.")
    if request.topic_partitions is None or request.topic_partitions:
        _refuse("TopicPartitions must be empty when (re-)joining.")
    if request.subscribed_topic_names is None and request.subscribed_topic_regex is None:
        _refuse("Either SubscribedTopicNames or SubscribedTopicRegex must be non-null when (re-)joining.")


def _check_not_blank(name: str, value: str | None) -> None:
    if value is not None and not value.strip():
        _refuse(f"{name} can't be empty.")


def _refuse(message: str) -> NoReturn:
    raise CoordinatorError(ErrorCode.invalid_request, message)
