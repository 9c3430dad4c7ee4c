"""ConsumerGroupHeartbeat (API 68; KIP-848, assignment interval KIP-1263): a member joins, heartbeats or leaves.

Steps of a heartbeat (2 to 7 are in `heartbeat_step`; Kafka's `GroupMetadataManager.consumerGroupHeartbeat`):
  1 validate the request            validate_request
  2 find or create the member       admit_member: fencing by epoch; a lost reply is tolerated; static members
  3 update the member               update_member: what the request changes
  4 its regular expression          regular_expressions: valid? known? topics are matched after the reply
  5 bump the group epoch            if the member subscribes to other topics, or its topics changed
  6 target assignment               target_assignment: the assignor, at most once per interval
  7 current assignment              current_assignment: revoke first, then assign
  8 reply                           heartbeat_reply

A member leaves for good with epoch -1, temporarily with -2, or is fenced: session or rebalance timeout. The records of
a removed member are the same in all cases. The remaining members get a new target with the next heartbeat of any
member, as in Kafka. If all of them speak the classic protocol, the group may become a classic one.

Deliberate difference from Kafka 4.3.1: a known static member that joins again does not count against the maximum
group size (as Kafka 4.4), and need not have left (`modern`).
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import NoReturn, cast

from kio.static.primitive import i32

from headrace.coordinator.consumer import records
from headrace.coordinator.consumer.group import ConsumerGroup
from headrace.coordinator.consumer.group_context import (
    GroupContext,
    cancel_member_timers,
    join_timer,
    member_timers,
    sync_timer,
)
from headrace.coordinator.consumer.heartbeat_step import admit_member, heartbeat_step, update_member, with_static_leave
from headrace.coordinator.consumer.member import (
    NO_METADATA,
    ConsumerGroupMember,
    MemberState,
    PartitionEpochs,
    Partitions,
    partitions_of,
    without_epochs,
)
from headrace.coordinator.consumer.regular_expressions import ConsumerGroupSoftState
from headrace.coordinator.modern import (
    JOIN_EPOCH,
    STATIC_LEAVE_EPOCH,
    UNCHANGED_TIMEOUT_MS,
    find_static_member,
    rebalance_timer,
    unknown_member,
)
from headrace.coordinator.request_context import CoordinatorError, RequestContext
from headrace.coordinator.result import CancelTimer, CoordinatorEvent, CoordinatorRecord, CoordinatorResult, Reply
from headrace.protocol.error_codes import ErrorCode
from headrace.protocol.kio_units import from_ms, to_ms
from headrace.protocol.messages import consumer_group_heartbeat_request as m
from headrace.protocol.messages import consumer_group_heartbeat_request as messages
from headrace.protocol.messages import consumer_group_heartbeat_response as response

__all__ = [
    "fence_member",
    "heartbeat_reply",
    "process_heartbeat",
    "process_leave",
    "rebalance_timed_out",
    "remove_members",
    "session_timed_out",
    "validate_request",
]


_NO_TIME = from_ms(0)


def heartbeat_reply(
    *,
    member_id: str,
    member_epoch: int,
    heartbeat_interval_ms: int = 0,
    assigned: PartitionEpochs | None = None,
) -> response.ConsumerGroupHeartbeatResponse:
    """Return the reply. `assigned` None: unchanged. A member that leaves gets only its own epoch back."""
    # Null is "unchanged"; an empty list takes everything away.
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
    """Validate a heartbeat. Raises CoordinatorError: INVALID_REQUEST, or UNSUPPORTED_ASSIGNOR."""
    epoch = request.member_epoch
    # In version 0 the coordinator makes the id of a joining member. Since version 1 the client does (KIP-1082): if the
    # reply to a join is lost, the repeated join finds the same member instead of adding a second one, which would hold
    # partitions until its session expires.
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
    # Last, as in Kafka: a request that is malformed as well gets INVALID_REQUEST.
    if request.server_assignor is not None and request.server_assignor not in assignors:
        raise CoordinatorError(
            ErrorCode.unsupported_assignor,
            f"ServerAssignor {request.server_assignor} is not supported. Supported assignors: {', '.join(assignors)}.",
        )


def _check_join(request: messages.ConsumerGroupHeartbeatRequest) -> None:
    if to_ms(request.rebalance_timeout) == UNCHANGED_TIMEOUT_MS:
        _refuse("RebalanceTimeoutMs must be provided in first request.")
    # A joining member owns nothing: a fenced one must have abandoned its partitions before it sends this.
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
    """Process a heartbeat of a member that joins (epoch 0) or is in the group (epoch > 0).

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
    # A client sends all fields after a request that failed or timed out. It cannot know whether the last reply was lost
    # with a new assignment in it, so it gets the assignment again (Kafka: full requests in
    # GroupMetadataManager.consumerGroupHeartbeat).
    says_all = (
        to_ms(request.rebalance_timeout) != UNCHANGED_TIMEOUT_MS
        and (request.subscribed_topic_names is not None or request.subscribed_topic_regex is not None)
        and request.topic_partitions is not None
    )
    if request.member_epoch == JOIN_EPOCH or says_all:
        return True
    # The epochs of single partitions are not sent, so a change of them alone is none.
    return before.assigned is not after.assigned and without_epochs(before.assigned) != without_epochs(after.assigned)


def process_leave(
    group: ConsumerGroup,
    request: m.ConsumerGroupHeartbeatRequest,
    context: RequestContext,
    group_context: GroupContext,
) -> CoordinatorResult:
    """Process a leave, permanent (epoch -1) or temporary (epoch -2). The member's own epoch is not compared.

    Raises:
        CoordinatorError: UNKNOWN_MEMBER_ID; FENCED_INSTANCE_ID if the instance id belongs to another member.
    """
    # The epoch is not compared: a member that is behind may leave as well.
    if request.instance_id is not None:
        find_static_member(group, request.instance_id, request.member_id)
    elif request.member_id not in group.members:
        raise unknown_member(group, request.member_id)
    if request.member_epoch == STATIC_LEAVE_EPOCH:
        result = _static_leave(group, group.members[request.member_id])
    else:
        result = remove_members(group, (request.member_id,), group_context, event="MemberLeft", reason="leave")
    response = heartbeat_reply(member_id=request.member_id, member_epoch=request.member_epoch)
    return replace(result, replies=(Reply(token=context.token, response=response),))


def session_timed_out(group: ConsumerGroup, member_id: str, group_context: GroupContext) -> CoordinatorResult | None:
    """Fence a member without a heartbeat within its session."""
    return fence_member(group, member_id, group_context, reason="the member session expired")


def rebalance_timed_out(group: ConsumerGroup, member_id: str, group_context: GroupContext) -> CoordinatorResult | None:
    """Fence a member that has not revoked its partitions within its rebalance timeout."""
    member = group.members.get(member_id)
    # The demand may have been met, and the timer fired before its cancellation was applied.
    if member is None or member.state is not MemberState.UNREVOKED_PARTITIONS or member.is_away:
        return None
    return fence_member(group, member_id, group_context, reason="the rebalance timeout expired")


def fence_member(
    group: ConsumerGroup, member_id: str, group_context: GroupContext, *, reason: str
) -> CoordinatorResult | None:
    """Return the removal of a member; None if it is not a member any more."""
    if member_id not in group.members:
        return None
    return remove_members(group, (member_id,), group_context, event="MemberFenced", reason=reason)


def remove_members(
    group: ConsumerGroup, member_ids: Collection[str], group_context: GroupContext, *, event: str, reason: str
) -> CoordinatorResult:
    """Return tombstones of members and of regular expressions that only they had, and a new group epoch.

    The group may become a classic group instead (`GroupContext.downgrade`), without these members. `event`: the name of
    the event for each of them.
    """
    events = tuple(
        CoordinatorEvent(name=event, group_id=group.group_id, details=(("member_id", each), ("reason", reason)))
        for each in member_ids
    )
    if group_context.downgrade is not None:
        downgraded = group_context.downgrade(group, member_ids, now_ms=group_context.now_ms)
        if downgraded is not None:
            return replace(downgraded, events=(*events, *downgraded.events))
    group_id = group.group_id
    subscriptions = group.subscriptions
    found: list[CoordinatorRecord] = []
    for member_id in member_ids:
        subscriptions = subscriptions.changed(group.members[member_id].metadata, NO_METADATA)
        found.extend(records.member_tombstones(group_id, member_id))
    # Expressions without a subscriber get their tombstones in the same step; Kafka does the same
    # (`maybeDeleteResolvedRegularExpressions`).
    forgotten = {group.members[each].regex: None for each in member_ids}
    found.extend(
        records.regular_expression_tombstone(group_id, regex)
        for regex in forgotten
        if regex is not None and regex not in subscriptions.regexes
    )
    # The hash is written without the topics of the removed members. A stale one would make the next comparison raise
    # the epoch a second time for the same change.
    metadata = replace(
        group.metadata, epoch=group.group_epoch + 1, metadata_hash=subscriptions.metadata_hash(group_context.image)
    )
    found.append(records.group_metadata_record(group_id, metadata))
    cause = "a member left" if event == "MemberLeft" else reason
    details = (("epoch", str(metadata.epoch)), ("reason", cause))
    return CoordinatorResult(
        records=tuple(found),
        timers=tuple(timer for each in member_ids for timer in cancel_member_timers(group_id, each)),
        events=(*events, CoordinatorEvent(name="GroupEpochBumped", group_id=group_id, details=details)),
    )


def _static_leave(group: ConsumerGroup, member: ConsumerGroupMember) -> CoordinatorResult:
    """Return the one record of a static leave.

    The session runs on from the last heartbeat; nothing is left to be revoked, nor to be joined.
    """
    details = (("member_id", member.member_id), ("reason", "will be back"))
    keys = (rebalance_timer, join_timer, sync_timer)
    return CoordinatorResult(
        records=(records.current_assignment_record(group.group_id, with_static_leave(member)),),
        timers=tuple(CancelTimer(key=key(group.group_id, member.member_id)) for key in keys),
        events=(CoordinatorEvent(name="StaticMemberAway", group_id=group.group_id, details=details),),
    )
