"""JoinGroup (API 11), SyncGroup (API 14), Heartbeat (API 12) and LeaveGroup (API 13) of members of a classic group.

JoinGroup: a member joins the next generation. The reply is parked until the generation is complete. Checks and cases,
in this order:
1. the group has room (`group.max.size`);
2. the member supports a protocol that all members support;
3. no member id, known instance id: the sender replaces the static member (KIP-345);
4. no member id, dynamic member: it gets an id and, from version 4 on, must send JoinGroup again with it (KIP-394);
5. a member id that was handed out: the member joins;
6. a known member id: the member rejoins, which starts a rebalance if its metadata changed or it is the leader.

SyncGroup: the leader sends the assignment of every member, the others wait for theirs. The assignment is written to the
log before any member receives it. If it exceeds the size of a record, all members are refused and rejoin, as in Kafka.

LeaveGroup: several members at once from version 3 on, each with its own error code. Static members may be named by
instance id alone, which is how an operator removes them (KIP-345).
"""

from __future__ import annotations

from dataclasses import replace

from headrace.coordinator.classic.group import (
    CONSUMER_PROTOCOL_TYPE,
    ClassicGroupState,
    ClassicMember,
    ClassicMembership,
    identity_error,
    subscribed_topics,
)
from headrace.coordinator.classic.rebalance import (
    prepare_or_complete_rebalance,
    prepare_rebalance,
    propagate_assignment_error,
)
from headrace.coordinator.classic.transition import (
    NEW_MEMBER_TIMEOUT_MS,
    SYNC,
    ClassicTransition,
    heartbeat_reply,
    join_error_reply,
    join_reply,
    leave_reply,
    session_timer,
    sync_error_reply,
    sync_reply,
)
from headrace.coordinator.request_context import CoordinatorError, RequestContext
from headrace.coordinator.result import CoordinatorResult, Reply, SetTimer
from headrace.protocol.error_codes import ErrorCode
from headrace.protocol.kio_units import to_ms
from headrace.protocol.messages import heartbeat_request
from headrace.protocol.messages import join_group_request as req
from headrace.protocol.messages import leave_group_request as leave_request
from headrace.protocol.messages import leave_group_response as leave_response
from headrace.protocol.messages import sync_group_request as sync_request

__all__ = [
    "MEMBER_ID_REQUIRED_SINCE",
    "heartbeat",
    "join_group",
    "leave_group",
    "leave_member_response",
    "rebalance_timeout_ms",
    "replace_static_member",
    "sync_group",
]


_SKIP_ASSIGNMENT_SINCE = 9


def replace_static_member(
    transition: ClassicTransition, sender: ClassicMember, context: RequestContext, reason: str
) -> None:
    """Replace a static member by `sender`, which has its instance id and a new member id."""
    group = transition.group
    leader_before = group.leader
    # 1. The former process is fenced: whatever it waits for is refused, and its session no longer counts.
    old = group.members[group.static_members[sender.instance_id or ""]]
    old = transition.refuse_parked_join(old, ErrorCode.fenced_instance_id, old.member_id)
    old = transition.refuse_parked_sync(old, ErrorCode.fenced_instance_id)
    transition.cancel_session_timer(old.member_id)
    member = group.replace_member_id(old, sender.member_id)
    transition.set_session_timer(member)
    transition.add_event(
        "MemberReplaced", instance=sender.instance_id or "", member=member.member_id, old=old.member_id
    )
    member = replace(
        member,
        protocols=sender.protocols,
        rebalance_timeout_ms=sender.rebalance_timeout_ms,
        session_timeout_ms=sender.session_timeout_ms,
        join_token=context.token,
    )
    group.put(member)
    # 2. A stable group need not rebalance if the selected protocol and the subscribed topics stay (KIP-345): that is
    #    what static membership is for. Kafka: GroupMetadataManager.updateStaticMemberThenRebalanceOrCompleteJoin.
    if (
        group.state is not ClassicGroupState.STABLE
        or group.select_protocol() != group.protocol
        or (group.protocol_type == CONSUMER_PROTOCOL_TYPE and _reads_others(old, sender, group.protocol))
    ):
        prepare_or_complete_rebalance(
            transition, f"static member {sender.instance_id} comes back as {member.member_id}; {reason}"
        )
        return
    # 3. No rebalance: the reply goes out with the present generation, and the new member id is written to the log, or a
    #    restart of the coordinator would bring the old one back.
    group.put(replace(member, join_token=None))
    transition.write_group()
    if context.api_version >= _SKIP_ASSIGNMENT_SINCE:
        # A leader computes an assignment when it reads that it is the leader, and its SyncGroup would have no effect in
        # a stable group. From version 9 on `skip_assignment` prevents it (KIP-814); before, the reply names the former
        # leader, so the member acts as a follower.
        is_leader = group.leader == member.member_id
        transition.reply(context.token, join_reply(group, member.member_id, skip_assignment=is_leader))
    else:
        transition.reply(context.token, join_reply(group, member.member_id, leader=leader_before))


def _reads_others(old: ClassicMember, new: ClassicMember, protocol: str | None) -> bool:
    """Whether the topics differ: different bytes may name the same topics, since they also hold owned partitions."""
    topics = [subscribed_topics(each.metadata(protocol)) for each in (old, new)]
    return None not in topics and topics[0] != topics[1]


_S = ClassicGroupState
MEMBER_ID_REQUIRED_SINCE = 4
_NAMED_REBALANCE_TIMEOUT_SINCE = 1


def join_group(
    transition: ClassicTransition, request: req.JoinGroupRequest, context: RequestContext, *, fresh_id: str
) -> None:
    """`fresh_id` makes new member ids unique. Raises CoordinatorError where Kafka has an unexpected error."""
    group, member_id = transition.group, request.member_id
    sender = _sender(request, context)
    if not _has_room(transition, member_id):
        # A handed-out id is withdrawn together with the refusal. Otherwise the join phase would wait for it until its
        # session expires, because `all_joined` counts ids that were handed out.
        group.remove(member_id)
        _refuse(transition, context, ErrorCode.group_max_size_reached)
    elif not group.supports_protocols(request.protocol_type, sender.protocol_names):
        _refuse(transition, context, ErrorCode.inconsistent_group_protocol, member_id)
    elif not member_id:
        prefix = context.client_id if sender.instance_id is None else sender.instance_id
        _join_as_new(transition, request, context, replace(sender, member_id=f"{prefix}-{fresh_id}"))
    elif member_id in group.pending_joins:
        if sender.instance_id is not None:
            message = f"Member id {member_id} was given to a dynamic member; it came with an instance id."
            raise CoordinatorError(ErrorCode.unknown_server_error, message)
        _add(transition, request, context, sender)
    elif (code := identity_error(group, member_id, sender.instance_id)) is not ErrorCode.none:
        _refuse(transition, context, code, member_id)
    else:
        _join_again(transition, request, context, sender)


def _sender(request: req.JoinGroupRequest, context: RequestContext) -> ClassicMember:
    return ClassicMember(
        member_id=request.member_id,
        instance_id=request.group_instance_id,
        client_id=context.client_id,
        client_host=context.client_host,
        rebalance_timeout_ms=rebalance_timeout_ms(request, context),
        session_timeout_ms=to_ms(request.session_timeout),
        protocols=tuple((each.name, bytes(each.metadata)) for each in request.protocols),
    )


def rebalance_timeout_ms(request: req.JoinGroupRequest, context: RequestContext) -> int:
    """Return the rebalance timeout of a request; in version 0 it is the session timeout."""
    is_named = context.api_version >= _NAMED_REBALANCE_TIMEOUT_SINCE
    return to_ms(request.rebalance_timeout if is_named else request.session_timeout)


def _has_room(transition: ClassicTransition, member_id: str) -> bool:
    """Whether the group takes a member. While members join only those that joined count, since `group.max.size` may
    have become smaller.
    """
    # Kafka: ClassicGroup.acceptJoiningMember. During a rebalance only members that joined count: all others will be
    # removed.
    group, most = transition.group, transition.configuration.max_size
    if group.is_empty:
        return True
    member = group.members.get(member_id)
    if group.state is _S.PREPARING_REBALANCE:
        return (member is not None and member.is_awaiting_join) or group.joined_count < most
    return member is not None or len(group.members) < most


def _join_as_new(
    transition: ClassicTransition, request: req.JoinGroupRequest, context: RequestContext, sender: ClassicMember
) -> None:
    group = transition.group
    if sender.instance_id is not None and sender.instance_id in group.static_members:
        replace_static_member(transition, sender, context, _reason(request))
    elif sender.instance_id is None and context.api_version >= MEMBER_ID_REQUIRED_SINCE:
        group.pending_joins[sender.member_id] = None
        transition.set_session_timer(sender)
        _refuse(transition, context, ErrorCode.member_id_required, sender.member_id)
    else:
        _add(transition, request, context, sender)


def _add(
    transition: ClassicTransition, request: req.JoinGroupRequest, context: RequestContext, sender: ClassicMember
) -> None:
    group = transition.group
    # KIP-134: the initial delay is extended for as long as members keep arriving, so that an application that starts
    # with many instances does not rebalance for each of them.
    if group.state is _S.PREPARING_REBALANCE and group.follows_empty:
        group.member_added = True
    if not group.members:
        group.protocol_type = request.protocol_type
    group.pending_joins.pop(sender.member_id, None)
    member = replace(sender, is_new=True, join_token=context.token)
    group.put(member)
    # Not its session timeout: its JoinGroup may be parked longer than that, and consumers send no heartbeats before the
    # reply to their first JoinGroup.
    transition.set_session_timer(member, NEW_MEMBER_TIMEOUT_MS)
    transition.add_event("MemberJoined", member=member.member_id)
    prepare_or_complete_rebalance(transition, f"member {member.member_id} joins; {_reason(request)}")


def _join_again(
    transition: ClassicTransition, request: req.JoinGroupRequest, context: RequestContext, sender: ClassicMember
) -> None:
    group = transition.group
    member = group.members[sender.member_id]
    is_leader = group.leader == member.member_id
    changed = member.protocols != sender.protocols
    if group.is_empty:
        _refuse(transition, context, ErrorCode.unknown_member_id, member.member_id)
    elif group.state is _S.PREPARING_REBALANCE or changed or (is_leader and group.state is _S.STABLE):
        # A leader may have seen a change that is not in its metadata, such as new partitions.
        why = "its metadata changed" if changed else "it is the leader" if is_leader else "a rebalance runs"
        # An earlier JoinGroup is parked if its connection was lost, or if two clients use one member id.
        member = transition.refuse_parked_join(member, ErrorCode.rebalance_in_progress, member.member_id)
        group.put(
            replace(
                member,
                protocols=sender.protocols,
                rebalance_timeout_ms=sender.rebalance_timeout_ms,
                session_timeout_ms=sender.session_timeout_ms,
                join_token=context.token,
            )
        )
        prepare_or_complete_rebalance(transition, f"member {member.member_id} joins again, {why}; {_reason(request)}")
    else:
        # It did not receive the answer, or is a follower that joins as it was.
        transition.reply(context.token, join_reply(group, member.member_id))


def _refuse(transition: ClassicTransition, context: RequestContext, code: ErrorCode, member_id: str = "") -> None:
    transition.reply(context.token, join_error_reply(code, member_id))


def _reason(request: req.JoinGroupRequest) -> str:
    return f"client reason: {request.reason or 'not provided'}"


_BATCH_OVERHEAD = 128
"""Bytes of a batch and a record beside key and value, and some to spare."""
_MEMBER_OVERHEAD = 20


def sync_group(transition: ClassicTransition, request: sync_request.SyncGroupRequest, context: RequestContext) -> None:
    """Answer SyncGroup: park it, return the assignment, or distribute it if the sender is the leader."""
    group, member_id = transition.group, request.member_id
    code = _sync_refusal(group, request)
    if code is not ErrorCode.none:
        transition.reply(context.token, sync_error_reply(code))
        return
    group.pending_syncs.pop(member_id, None)
    if not group.pending_syncs:
        transition.cancel_group_timer(SYNC)
    member = group.members[member_id]
    if group.state is _S.STABLE:
        transition.reply(context.token, sync_reply(group, member))
        return
    # An earlier SyncGroup is parked if its connection was lost, or if two clients use one member id.
    member = transition.refuse_parked_sync(member, ErrorCode.rebalance_in_progress)
    group.put(replace(member, sync_token=context.token))
    if group.leader == member_id:
        _assign(transition, request)


def _sync_refusal(group: ClassicMembership, request: sync_request.SyncGroupRequest) -> ErrorCode:
    if group.is_empty:
        return ErrorCode.unknown_member_id
    code = identity_error(group, request.member_id, request.group_instance_id)
    if code is not ErrorCode.none:
        return code
    if request.generation_id != group.generation:
        return ErrorCode.illegal_generation
    if _differs(request.protocol_type, group.protocol_type or None) or _differs(request.protocol_name, group.protocol):
        return ErrorCode.inconsistent_group_protocol
    if group.state is _S.PREPARING_REBALANCE:
        return ErrorCode.rebalance_in_progress
    return ErrorCode.none


def _differs(named: str | None, own: str | None) -> bool:
    """Whether the request names another protocol than the group. Versions before 5 name none."""
    return named is not None and own is not None and named != own


def _assign(transition: ClassicTransition, request: sync_request.SyncGroupRequest) -> None:
    """Write and distribute the leader's assignment. A member that it omits gets no bytes; unknown ones are ignored."""
    group = transition.group
    # 1. Size first: a record that the log refuses would leave the members waiting. All rejoin instead, as in Kafka.
    assignments = {each.member_id: bytes(each.assignment) for each in request.assignments}
    if _record_bytes(group, assignments) > transition.configuration.max_record_bytes:
        propagate_assignment_error(transition, ErrorCode.unknown_server_error)
        prepare_rebalance(transition, "the leader's assignment is too large for a record")
        return
    # 2. The record holds the assignments, the members get theirs only once it is written.
    transition.write_group(assignments)
    group.enter(_S.STABLE, transition.now_ms)
    transition.add_event("RebalanceCompleted", generation=str(group.generation), members=str(len(group.members)))
    for member in tuple(group.members.values()):
        token = member.sync_token
        member = replace(member, assignment=assignments.get(member.member_id, b""), sync_token=None)
        group.put(member)
        if token is not None:
            transition.reply(token, sync_reply(group, member))
            transition.set_session_timer(member)


def _record_bytes(group: ClassicMembership, assignments: dict[str, bytes]) -> int:
    """An upper bound that is close."""
    total = _BATCH_OVERHEAD + 2 * len(group.group_id.encode()) + len(group.protocol_type) + len(group.protocol or "")
    for member in group.members.values():
        texts = (member.member_id, member.instance_id or "", member.client_id, member.client_host)
        total += _MEMBER_OVERHEAD + sum(2 + len(text.encode()) for text in texts)
        total += len(member.metadata(group.protocol)) + len(assignments.get(member.member_id, b""))
    return total


def heartbeat(
    group: ClassicMembership, request: heartbeat_request.HeartbeatRequest, context: RequestContext, *, now_ms: int
) -> CoordinatorResult:
    """Process a heartbeat: restart the member's session."""
    code = identity_error(group, request.member_id, request.group_instance_id)
    if code is ErrorCode.none and request.generation_id != group.generation:
        code = ErrorCode.illegal_generation
    if code is not ErrorCode.none:
        return _heartbeat_result(context, code)
    if group.state is ClassicGroupState.PREPARING_REBALANCE:
        code = ErrorCode.rebalance_in_progress
    # The session restarts during a rebalance too. REBALANCE_IN_PROGRESS reaches a member that may be in the middle of a
    # batch; it has its whole rebalance timeout to finish it and rejoin.
    deadline_ms = now_ms + group.members[request.member_id].session_timeout_ms
    timer = SetTimer(key=session_timer(group.group_id, request.member_id), deadline_ms=deadline_ms)
    return _heartbeat_result(context, code, timer)


def _heartbeat_result(context: RequestContext, code: ErrorCode, *timers: SetTimer) -> CoordinatorResult:
    return CoordinatorResult(
        replies=(Reply(token=context.token, response=heartbeat_reply(code)),),
        timers=timers,
    )


def leave_group(
    transition: ClassicTransition, request: leave_request.LeaveGroupRequest, context: RequestContext
) -> None:
    """Answer LeaveGroup: remove the named members and rebalance the rest."""
    group = transition.group
    # One rebalance for all: an operator who scales down by ten static members causes one generation, not ten (KIP-345).
    codes = [_leave(transition, identity) for identity in request.members]
    gone = [
        each.member_id or each.group_instance_id or ""
        for each, code in zip(request.members, codes, strict=True)
        if code is ErrorCode.none
    ]
    if gone and not group.is_empty:
        prepare_or_complete_rebalance(transition, f"members left: {', '.join(gone)}")
    members = tuple(leave_member_response(each, code) for each, code in zip(request.members, codes, strict=True))
    transition.reply(context.token, leave_reply(members))


def leave_member_response(identity: leave_request.MemberIdentity, code: ErrorCode) -> leave_response.MemberResponse:
    """Return the result for one member of a LeaveGroup request."""
    return leave_response.MemberResponse(
        member_id=identity.member_id, group_instance_id=identity.group_instance_id, error_code=code
    )


def _leave(transition: ClassicTransition, identity: leave_request.MemberIdentity) -> ErrorCode:
    group = transition.group
    member_id, instance_id = identity.member_id, identity.group_instance_id
    if not member_id and instance_id is not None:
        member_id = group.static_members.get(instance_id, "")
    if member_id in group.pending_joins:
        group.remove(member_id)
        transition.cancel_session_timer(member_id)
        return ErrorCode.none
    code = identity_error(group, member_id, instance_id)
    if code is ErrorCode.none:
        transition.remove(group.members[member_id])
        transition.add_event("MemberLeft", member=member_id, reason=identity.reason or "not provided")
    return code
