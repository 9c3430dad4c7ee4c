"""Members that leave a consumer group (epoch -1, or -2 for a while) or are fenced: session or rebalance timeout.

The records of a removed member are the same in all cases. The remaining members get a new target with the next
heartbeat of any member, as in Kafka. If all of them speak the classic protocol, the group may become a classic one.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from headrace.coordinator.consumer import records
from headrace.coordinator.consumer.group import ConsumerGroup
from headrace.coordinator.consumer.group_context import GroupContext
from headrace.coordinator.consumer.heartbeat import heartbeat_reply
from headrace.coordinator.consumer.join import with_static_leave
from headrace.coordinator.consumer.member import NO_METADATA, ConsumerGroupMember, MemberState
from headrace.coordinator.consumer.timers import cancel_member_timers, join_timer, sync_timer
from headrace.coordinator.modern.join import find_static_member, unknown_member
from headrace.coordinator.modern.member import STATIC_LEAVE_EPOCH
from headrace.coordinator.modern.timers import rebalance_timer
from headrace.coordinator.request_context import RequestContext
from headrace.coordinator.result import CancelTimer, CoordinatorEvent, CoordinatorRecord, CoordinatorResult, Reply
from headrace.protocol.messages import consumer_group_heartbeat_request as m

__all__ = ["fence_member", "process_leave", "rebalance_timed_out", "remove_members", "session_timed_out"]


def process_leave(
    group: ConsumerGroup,
    request: m.ConsumerGroupHeartbeatRequest,
    context: RequestContext,
    group_context: GroupContext,
) -> CoordinatorResult:
    """A member leaves for good (epoch -1) or temporarily (epoch -2); its own epoch is not compared.

    Raises:
        CoordinatorError: UNKNOWN_MEMBER_ID; FENCED_INSTANCE_ID if the instance id belongs to another member.
    """
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
    forgotten = {group.members[each].regex: None for each in member_ids}
    found.extend(
        records.regular_expression_tombstone(group_id, regex)
        for regex in forgotten
        if regex is not None and regex not in subscriptions.regexes
    )
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
    """One record. The session runs on from the last heartbeat; nothing is left to be revoked, nor to be joined."""
    details = (("member_id", member.member_id), ("reason", "will be back"))
    keys = (rebalance_timer, join_timer, sync_timer)
    return CoordinatorResult(
        records=(records.current_assignment_record(group.group_id, with_static_leave(member)),),
        timers=tuple(CancelTimer(key=key(group.group_id, member.member_id)) for key in keys),
        events=(CoordinatorEvent(name="StaticMemberAway", group_id=group.group_id, details=details),),
    )
