"""A member goes: it leaves (epoch -1), its session ends, or it does not revoke in time; or a static member leaves for a
while (epoch -2, `static_membership`): it stays a member as long as its session lasts.

The records of a member that goes are the same in all cases. Who stays gets a new target with the next heartbeat of
somebody, as in Kafka. When all who stay speak the classic protocol the group may become a classic one instead.
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
    """Epoch -1 or -2; any member epoch will do. Raises UNKNOWN_MEMBER_ID, and FENCED_INSTANCE_ID for an instance whose
    member is another."""
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
    """No heartbeat within the session: the member is fence_member."""
    return fence_member(group, member_id, group_context, reason="the member session expired")


def rebalance_timed_out(group: ConsumerGroup, member_id: str, group_context: GroupContext) -> CoordinatorResult | None:
    """The member was told to revoke partitions and has not within its rebalance timeout: it is fence_member."""
    member = group.members.get(member_id)
    if member is None or member.state is not MemberState.UNREVOKED_PARTITIONS or member.is_away:
        return None
    return fence_member(group, member_id, group_context, reason="the rebalance timeout expired")


def fence_member(
    group: ConsumerGroup, member_id: str, group_context: GroupContext, *, reason: str
) -> CoordinatorResult | None:
    """None: it is no member any more."""
    if member_id not in group.members:
        return None
    return remove_members(group, (member_id,), group_context, event="MemberFenced", reason=reason)


def remove_members(
    group: ConsumerGroup, member_ids: Collection[str], group_context: GroupContext, *, event: str, reason: str
) -> CoordinatorResult:
    """Members' tombstones, those of regular expressions that nobody else has, and a new group epoch; or the group moves
    to the classic protocol, and they are not in it. `event`: what is told of each."""
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
