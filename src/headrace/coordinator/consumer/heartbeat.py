"""The answers to a consumer heartbeat, as wire messages.

Is a consumer heartbeat well-formed? The first rule that is broken answers. KIP-848; Kafka 4.3's rules and words.

ConsumerGroupHeartbeat (API 68; KIP-848, assignment interval KIP-1263): a member joins, lives, leaves.

Steps of a heartbeat (4 to 7 are `heartbeat_step`):
  1 validate the request            validate_request
  2 find or create the member       join: fencing by epoch; a lost reply is tolerated; static members
  3 update the member               join: what the request changes
  4 its regular expression          regular_expressions: valid? known? a look at the topics behind the answer
  5 bump the group epoch            when the member reads something else, or its topics changed
  6 target assignment               target_assignment: the assignor, at most once per interval
  7 current assignment              current_assignment: revoke first, then assign
  8 reply                           heartbeat_reply

Deliberate difference from Kafka 4.3.1: a known static member that joins again does not count against the maximum
group size (as Kafka 4.4), and need not have left (`static_membership`).
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NoReturn, cast

from kio.static.primitive import i32

from headrace.coordinator.consumer.group import ConsumerGroup
from headrace.coordinator.consumer.group_context import ConsumerGroupSoftState, GroupContext
from headrace.coordinator.consumer.heartbeat_step import heartbeat_step
from headrace.coordinator.consumer.join import admit_member, update_member
from headrace.coordinator.consumer.member import (
    ConsumerGroupMember,
    PartitionEpochs,
    Partitions,
    partitions_of,
    without_epochs,
)
from headrace.coordinator.consumer.timers import member_timers
from headrace.coordinator.errors import CoordinatorError
from headrace.coordinator.modern.member import JOIN_EPOCH, STATIC_LEAVE_EPOCH, UNCHANGED_TIMEOUT_MS
from headrace.coordinator.request_context import RequestContext
from headrace.coordinator.result import CoordinatorResult, Reply
from headrace.protocol.error_codes import ErrorCode
from headrace.protocol.kio_units import from_ms, to_ms
from headrace.protocol.messages import consumer_group_heartbeat_request as messages
from headrace.protocol.messages import consumer_group_heartbeat_response as response

__all__ = ["heartbeat_reply", "process_heartbeat", "validate_request"]

_NO_TIME = from_ms(0)


def heartbeat_reply(
    *,
    member_id: str,
    member_epoch: int,
    heartbeat_interval_ms: int = 0,
    assigned: PartitionEpochs | None = None,
) -> response.ConsumerGroupHeartbeatResponse:
    """`assigned` None: unchanged. To one that leaves, its epoch comes back as it was sent, and nothing else is said."""
    assignment = None
    if assigned is not None:
        assignment = response.Assignment(
            topic_partitions=tuple(
                response.TopicPartitions(topic_id=topic_id, partitions=cast("tuple[i32, ...]", tuple(sorted(of_topic))))
                for topic_id, of_topic in assigned.items()
            )
        )
    return response.ConsumerGroupHeartbeatResponse(
        throttle_time=_NO_TIME,
        error_code=ErrorCode.none,
        error_message=None,
        member_id=member_id,
        member_epoch=cast("i32", member_epoch),
        heartbeat_interval=from_ms(heartbeat_interval_ms),
        assignment=assignment,
    )


_LEAVE_EPOCH = -1
_MEMBER_ID_REQUIRED_SINCE = 1


def validate_request(
    request: messages.ConsumerGroupHeartbeatRequest, api_version: int, assignors: Collection[str]
) -> None:
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


def _check_join(request: messages.ConsumerGroupHeartbeatRequest) -> None:
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


def process_heartbeat(
    group: ConsumerGroup,
    soft: ConsumerGroupSoftState,
    request: messages.ConsumerGroupHeartbeatRequest,
    context: RequestContext,
    group_context: GroupContext,
) -> CoordinatorResult:
    """A member joins (epoch 0) or lives (epoch > 0).

    `group` is a new one when the group does not exist yet. Raises CoordinatorError.
    """
    owned = _owned(request)
    admission = admit_member(group, request, owned, max_size=group_context.configuration.max_size)
    updated = update_member(admission.member, request, context)
    step = heartbeat_step(admission, updated, owned, soft, group_context)
    before, after = admission.member, step.reconciled
    response = heartbeat_reply(
        member_id=after.member_id,
        member_epoch=after.member_epoch,
        heartbeat_interval_ms=group_context.configuration.heartbeat_interval_ms,
        assigned=after.assigned if _must_send_assignment(request, before, after) else None,
    )
    return CoordinatorResult(
        records=step.records(),
        replies=(Reply(token=context.token, response=response),),
        timers=(*step.timers(group_context.now_ms), *member_timers(admission.group, before, after, group_context)),
        events=step.events(),
        soft=step.soft,
    )


def _owned(request: messages.ConsumerGroupHeartbeatRequest) -> Partitions | None:
    if request.topic_partitions is None:
        return None
    return partitions_of((each.topic_id, each.partitions) for each in request.topic_partitions)


def _must_send_assignment(
    request: messages.ConsumerGroupHeartbeatRequest, before: ConsumerGroupMember, after: ConsumerGroupMember
) -> bool:
    """Return whether the reply carries the assignment.

    A joining member gets it, one that sends a full request, and one whose partitions changed.
    """
    says_all = (
        to_ms(request.rebalance_timeout) != UNCHANGED_TIMEOUT_MS
        and (request.subscribed_topic_names is not None or request.subscribed_topic_regex is not None)
        and request.topic_partitions is not None
    )
    if request.member_epoch == JOIN_EPOCH or says_all:
        return True
    return before.assigned is not after.assigned and without_epochs(before.assigned) != without_epochs(after.assigned)
