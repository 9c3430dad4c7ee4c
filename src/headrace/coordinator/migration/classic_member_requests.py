"""SyncGroup, Heartbeat and LeaveGroup (APIs 14, 12, 13) of members of a consumer group that speak the classic protocol.

A generation is the member's epoch. Heartbeats say REBALANCE_IN_PROGRESS as long as the member can come closer to its
target by joining again; it has its rebalance timeout for that. SyncGroup says which partitions it has.
"""

from __future__ import annotations

from collections.abc import Mapping
from uuid import UUID

from headrace.assignors.consumer_protocol import MalformedUserData
from headrace.coordinator.classic import replies
from headrace.coordinator.classic.consumer_protocol import CONSUMER_PROTOCOL_TYPE
from headrace.coordinator.classic.leave_group import answered
from headrace.coordinator.classic.member_checks import member_refusal
from headrace.coordinator.consumer.circumstances import Circumstances
from headrace.coordinator.consumer.group import ConsumerGroup
from headrace.coordinator.consumer.member import ConsumerGroupMember, MemberState
from headrace.coordinator.consumer.member_timers import join_timer, session, sync_timer
from headrace.coordinator.consumer.membership_end import members_removed
from headrace.coordinator.consumer.partitions import without_epochs
from headrace.coordinator.metadata_image import TopicImage
from headrace.coordinator.migration.embedded_protocol import assignment_bytes
from headrace.coordinator.records.consumer_schemas import ClassicMemberMetadata
from headrace.coordinator.request_context import RequestContext
from headrace.coordinator.result import CancelTimer, CoordinatorResult, Reply, SetTimer
from headrace.protocol.error_codes import ErrorCode
from headrace.protocol.messages import heartbeat_request, leave_group_request, sync_group_request

__all__ = ["classic_heartbeat", "classic_leave", "classic_sync"]


def classic_sync(
    group: ConsumerGroup,
    request: sync_group_request.SyncGroupRequest,
    context: RequestContext,
    circumstances: Circumstances,
    topics: Mapping[UUID, TopicImage],
    *,
    join_timer_runs: bool,
) -> CoordinatorResult:
    """`topics` by id. What a leader assigns is not looked at: there is none."""
    member_id = request.member_id
    code = _refusal(group, member_id, request.group_instance_id, request.generation_id)
    if code is not ErrorCode.none:
        return _sync_refused(context, code)
    member = group.members[member_id]
    protocol, subscription = _classic(member).supported_protocols[0]
    if request.protocol_type not in (None, CONSUMER_PROTOCOL_TYPE) or request.protocol_name not in (None, protocol):
        return _sync_refused(context, ErrorCode.inconsistent_group_protocol)
    if group.assignment_epoch > member.member_epoch and member.state is not MemberState.UNREVOKED_PARTITIONS:
        timers = () if join_timer_runs else (_time_to_join(group, member, circumstances),)
        return _sync_refused(context, ErrorCode.rebalance_in_progress, *timers)
    try:
        assignment = assignment_bytes(without_epochs(member.assigned), topics, subscription)
    except MalformedUserData:  # a record that another broker wrote: we looked at the metadata when it joined
        return _sync_refused(context, ErrorCode.inconsistent_group_protocol)
    response = replies.synced_with(assignment, request.protocol_type, request.protocol_name)
    return CoordinatorResult(
        replies=(Reply(token=context.token, response=response),),
        timers=(
            CancelTimer(key=sync_timer(group.group_id, member_id)),
            session(group, member, circumstances),
        ),
    )


def classic_heartbeat(
    group: ConsumerGroup,
    request: heartbeat_request.HeartbeatRequest,
    context: RequestContext,
    circumstances: Circumstances,
    *,
    join_timer_runs: bool,
) -> CoordinatorResult:
    """Changes nothing but timers."""
    code = _refusal(group, request.member_id, request.group_instance_id, request.generation_id)
    timers: list[SetTimer | CancelTimer] = []
    if code is ErrorCode.none:
        member = group.members[request.member_id]
        timers.append(session(group, member, circumstances))
        if _should_join_again(group, member):
            code = ErrorCode.rebalance_in_progress
            if not join_timer_runs:
                timers.append(_time_to_join(group, member, circumstances))
    reply = Reply(token=context.token, response=replies.heartbeat(code))
    return CoordinatorResult(replies=(reply,), timers=tuple(timers))


def classic_leave(
    group: ConsumerGroup,
    request: leave_group_request.LeaveGroupRequest,
    context: RequestContext,
    circumstances: Circumstances,
) -> CoordinatorResult:
    """Any members, of either protocol, each with an answer of its own; static ones also by their instance id alone."""
    codes: list[ErrorCode] = []
    leaving: dict[str, None] = {}
    for identity in request.members:
        member_id, instance_id = identity.member_id, identity.group_instance_id
        if not member_id and instance_id is not None:
            member_id = group.static_members.get(instance_id, "")
        codes.append(member_refusal(group, member_id, instance_id))
        if codes[-1] is ErrorCode.none:
            leaving[member_id] = None
    members = tuple(answered(each, code) for each, code in zip(request.members, codes, strict=True))
    answer = CoordinatorResult(replies=(Reply(token=context.token, response=replies.left(members)),))
    if not leaving:
        return answer
    return answer.before(members_removed(group, tuple(leaving), circumstances, event="MemberLeft", reason="leave"))


def _refusal(group: ConsumerGroup, member_id: str, instance_id: str | None, generation: int) -> ErrorCode:
    code = member_refusal(group, member_id, instance_id)
    if code is not ErrorCode.none:
        return code
    member = group.members[member_id]
    if not member.uses_classic_protocol:
        return ErrorCode.unknown_member_id
    return ErrorCode.none if generation == member.member_epoch else ErrorCode.illegal_generation


def _classic(member: ConsumerGroupMember) -> ClassicMemberMetadata:
    classic = member.metadata.classic_member_metadata
    assert classic is not None
    return classic


def _should_join_again(group: ConsumerGroup, member: ConsumerGroupMember) -> bool:
    """There is a newer target; or it has something to give up; or all that it waits for is free by now."""
    if member.member_epoch < group.assignment_epoch or member.state is MemberState.UNREVOKED_PARTITIONS:
        return True
    return member.state is MemberState.UNRELEASED_PARTITIONS and not _waits_for_others(group, member)


def _waits_for_others(group: ConsumerGroup, member: ConsumerGroupMember) -> bool:
    return any(
        partition not in member.assigned.get(topic_id, {}) and partition in group.holders.of_topic(topic_id)
        for topic_id, of_topic in group.target_of(member.member_id).items()
        for partition in of_topic
    )


def _time_to_join(group: ConsumerGroup, member: ConsumerGroupMember, circumstances: Circumstances) -> SetTimer:
    due_ms = circumstances.now_ms + member.metadata.rebalance_timeout_ms
    return SetTimer(key=join_timer(group.group_id, member.member_id), deadline_ms=due_ms)


def _sync_refused(context: RequestContext, code: ErrorCode, *timers: SetTimer) -> CoordinatorResult:
    reply = Reply(token=context.token, response=replies.sync_refused(code))
    return CoordinatorResult(replies=(reply,), timers=timers)
