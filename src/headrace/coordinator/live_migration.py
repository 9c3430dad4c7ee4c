"""LiveMigration: requests whose group may be of another protocol than the sender's (KIP-848, "Migration").

A classic request goes to the consumer group that has members of both protocols, a consumer heartbeat may find a classic
group; everything else concerns one type of group. Classic members of a consumer group send JoinGroup, SyncGroup,
Heartbeat and LeaveGroup (APIs 11, 14, 12, 13).

JoinGroup. The subscription and the owned partitions are read from the metadata of the member's preferred protocol; the
member is then reconciled like by a heartbeat. The reply has the member epoch as generation and names no leader. If the
sender replaces a static member that was the last one to speak the consumer protocol, the group becomes a classic one.

Heartbeat replies REBALANCE_IN_PROGRESS while the member can come closer to its target by rejoining; it has its
rebalance timeout for that. SyncGroup returns the partitions that the member has.

Deliberate differences from Kafka 4.3.1: an unreadable subscription is INCONSISTENT_GROUP_PROTOCOL (there
UNKNOWN_SERVER_ERROR), and a known static member does not count against the maximum size.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from uuid import UUID

from headrace.assignors.assignor import Subscription
from headrace.assignors.consumer_protocol import MalformedUserData, decode_subscription
from headrace.coordinator.classic.group import CONSUMER_PROTOCOL_TYPE, identity_error
from headrace.coordinator.classic.requests import MEMBER_ID_REQUIRED_SINCE, leave_member_response, rebalance_timeout_ms
from headrace.coordinator.classic.transition import (
    follower_join_reply,
    heartbeat_reply,
    join_error_reply,
    leave_reply,
    sync_error_reply,
    sync_reply_with,
)
from headrace.coordinator.classic_groups import ClassicGroups
from headrace.coordinator.configuration import is_disabled
from headrace.coordinator.consumer import records
from headrace.coordinator.consumer.group import ConsumerGroup
from headrace.coordinator.consumer.group_context import (
    GroupContext,
    MayDescribe,
    cancel_member_timers,
    join_timer,
    session,
    sync_timer,
)
from headrace.coordinator.consumer.heartbeat import remove_members
from headrace.coordinator.consumer.heartbeat_step import (
    ConsumerGroupAdmission,
    HeartbeatStep,
    check_room,
    heartbeat_step,
)
from headrace.coordinator.consumer.member import ConsumerGroupMember, MemberState, without_epochs
from headrace.coordinator.consumer.regular_expressions import ConsumerGroupSoftState
from headrace.coordinator.consumer_groups import ConsumerGroups
from headrace.coordinator.group_conversion import DowngradeRule, assignment_bytes, partitions_by_id, upgrade_group
from headrace.coordinator.group_registry import ShardState
from headrace.coordinator.metadata_image import TopicImage
from headrace.coordinator.modern import Admission, find_static_member, rebalance_timer, replace_member
from headrace.coordinator.records.schemas import ClassicMemberMetadata
from headrace.coordinator.request_context import CoordinatorError, RequestContext
from headrace.coordinator.result import CancelTimer, CoordinatorResult, Reply, SetTimer
from headrace.protocol.error_codes import ErrorCode
from headrace.protocol.kio_units import to_ms
from headrace.protocol.messages import (
    consumer_group_heartbeat_request,
    heartbeat_request,
    join_group_request,
    leave_group_request,
    sync_group_request,
)

__all__ = ["LiveMigration", "classic_heartbeat", "classic_leave", "classic_sync", "join_consumer_group"]


_UNCHANGED_TIMEOUT_MS = -1
_NO_REGEX = ""


def join_consumer_group(
    group: ConsumerGroup,
    soft: ConsumerGroupSoftState,
    request: join_group_request.JoinGroupRequest,
    context: RequestContext,
    group_context: GroupContext,
    downgrades: DowngradeRule,
    *,
    fresh_id: str,
) -> CoordinatorResult:
    """Join a consumer group with the classic protocol (JoinGroup).

    Args:
        group: a group of the consumer protocol.
        soft: its state that is not recorded.
        request: JoinGroup of a new or known member.
        context: the caller.
        group_context: settings, topics and time.
        downgrades: decides whether the group becomes a classic group again.
        fresh_id: member id for a member without one.

    Raises:
        CoordinatorError: the join is refused. The response has no member id.
    """
    # 1. May it join? Policy, size, a protocol in common with the other classic members: a downgrade must remain
    #    possible.
    is_new = not request.member_id
    member_id = fresh_id if is_new else request.member_id
    known_id = None if request.group_instance_id is None else group.static_members.get(request.group_instance_id)
    if is_disabled(group_context.configuration.migration_policy):
        message = f"Group {group.group_id} is a consumer group, and groups may not migrate here."
        raise CoordinatorError(ErrorCode.inconsistent_group_protocol, message)
    check_room(group, member_id, known_id, max_size=group_context.configuration.max_size)
    _check_protocols(group, request)
    # 2. KIP-394: a dynamic member gets its id first. Nothing is remembered of it, unlike in a classic group: the id is
    #    only a name here, and a member exists from its second JoinGroup on.
    if is_new and request.group_instance_id is None and context.api_version >= MEMBER_ID_REQUIRED_SINCE:
        refused = join_error_reply(ErrorCode.member_id_required, member_id)
        return CoordinatorResult(replies=(Reply(token=context.token, response=refused),))
    # 3. The same steps as a heartbeat, with the subscription and the owned partitions from the embedded protocol.
    admission = _admission(group, member_id, request.group_instance_id, known_id, is_new=is_new)
    subscription = _subscription(request)
    updated = _updated(admission.member, request, context, subscription)
    owned = partitions_by_id(subscription.owned_partitions, group_context.image)
    # 4. A classic process takes the place of a static member that spoke the consumer protocol. If it was the last one,
    #    the group becomes a classic one with this request. The target is not computed before: the classic group will
    #    let its own leader assign.
    if known_id is not None and not group.members[known_id].uses_classic_protocol:
        members = {**admission.group.members, member_id: updated}
        if downgrades.is_due(list(members.values())):
            step = heartbeat_step(admission, updated, owned, soft, group_context, computes_target=False)
            result = _downgraded(step, downgrades, group_context.now_ms)
            if result is not None:
                return replace(result, replies=(_reply(step.reconciled, context), *result.replies))
    step = heartbeat_step(admission, updated, owned, soft, group_context)
    return CoordinatorResult(
        records=step.records(),
        replies=(_reply(step.reconciled, context),),
        timers=(*step.timers(group_context.now_ms), *_timers(group, step.reconciled, group_context)),
        events=step.events(),
        soft=step.soft,
    )


def _check_protocols(group: ConsumerGroup, request: join_group_request.JoinGroupRequest) -> None:
    """Check the protocols.

    Raises CoordinatorError(INCONSISTENT_GROUP_PROTOCOL): some protocol must be one of all classic members.
    """
    # A protocol of all classic members must remain: without one the group could not be downgraded, and the classic
    # members would be stranded in it.
    every = [each.metadata.classic_member_metadata for each in group.members.values()]
    known = [frozenset(name for name, _ in classic.supported_protocols) for classic in every if classic is not None]
    common = frozenset(each.name for each in request.protocols).intersection(*known)
    if request.protocol_type != CONSUMER_PROTOCOL_TYPE or not common:
        message = f"The classic members of group {group.group_id} are consumers that have a protocol in common."
        raise CoordinatorError(ErrorCode.inconsistent_group_protocol, message)


def _admission(
    group: ConsumerGroup, member_id: str, instance_id: str | None, known_id: str | None, *, is_new: bool
) -> ConsumerGroupAdmission:
    """Anybody may come with an id of its own; with an instance id only who has the instance, or has no id yet and takes
    its place. Raises CoordinatorError: UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID."""
    if instance_id is not None and not is_new:
        return Admission(group=group, member=find_static_member(group, instance_id, member_id))
    if known_id is None:
        member = group.members.get(member_id) or ConsumerGroupMember(member_id=member_id)
        return Admission(group=group, member=member)
    replacement = replace_member(group, group.members[known_id], member_id, records)
    return Admission(group=replacement.group, member=replacement.member, replacement=replacement)


def _subscription(request: join_group_request.JoinGroupRequest) -> Subscription:
    try:
        # The first protocol is the member's preferred one, and the only one whose name its reply has.
        return decode_subscription(bytes(request.protocols[0].metadata))
    except MalformedUserData as error:
        message = f"The metadata of protocol {request.protocols[0].name} are no subscription: {error}."
        raise CoordinatorError(ErrorCode.inconsistent_group_protocol, message) from None


def _updated(
    member: ConsumerGroupMember,
    request: join_group_request.JoinGroupRequest,
    context: RequestContext,
    subscription: Subscription,
) -> ConsumerGroupMember:
    """The same object if nothing differs."""
    known, timeout_ms = member.metadata, rebalance_timeout_ms(request, context)
    metadata = replace(
        known,
        instance_id=known.instance_id if request.group_instance_id is None else request.group_instance_id,
        rack_id=subscription.rack_id or known.rack_id,
        client_id=context.client_id,
        client_host=context.client_host,
        subscribed_topic_names=tuple(sorted(set(subscription.topics))),
        # A classic client resolves its patterns itself; it may have been a member with an expression before.
        subscribed_topic_regex=_NO_REGEX,
        rebalance_timeout_ms=known.rebalance_timeout_ms if timeout_ms == _UNCHANGED_TIMEOUT_MS else timeout_ms,
        classic_member_metadata=ClassicMemberMetadata(
            session_timeout_ms=to_ms(request.session_timeout),
            supported_protocols=tuple((each.name, bytes(each.metadata)) for each in request.protocols),
        ),
    )
    return member if metadata == known else replace(member, metadata=metadata)


def _downgraded(step: HeartbeatStep, downgrades: DowngradeRule, now_ms: int) -> CoordinatorResult | None:
    """The new member comes last, as in Kafka; it has the target of the member whose place it took."""
    group, joined_id = step.admission.group, step.reconciled.member_id
    members = [group.members[each] for each in sorted(group.members) if each != joined_id]
    reason = None
    # The classic group is written as Stable only if nothing is left to be done; else it begins with a rebalance.
    if group.assignment_epoch < step.metadata.epoch:
        reason = "a static member that reads something else came back"
    elif not all(each.is_reconciled_to(group.assignment_epoch) for each in members):
        reason = "members have not got their partitions yet"  # a Stable group does not tell them
    result = downgrades.downgrade_group(
        group,
        [*members, step.reconciled],
        now_ms=now_ms,
        rebalance_reason=reason,
        records=step.records(),
    )
    if result is None:
        return None
    gone = cancel_member_timers(group.group_id, step.replaced_id or "")
    return replace(result, timers=(*gone, *result.timers), events=(*step.events(), *result.events))


def _timers(
    group: ConsumerGroup, member: ConsumerGroupMember, group_context: GroupContext
) -> list[SetTimer | CancelTimer]:
    """Return the timers of a member that joined and has to send SyncGroup."""
    group_id, member_id = group.group_id, member.member_id
    # A classic member acts in requests of its own: after JoinGroup it has to send SyncGroup. The timer fences one that
    # does not; its new partitions would have no owner otherwise.
    due_ms = group_context.now_ms + member.metadata.rebalance_timeout_ms
    return [
        session(group, member, group_context),
        CancelTimer(key=rebalance_timer(group_id, member_id)),
        CancelTimer(key=join_timer(group_id, member_id)),
        SetTimer(key=sync_timer(group_id, member_id), deadline_ms=due_ms),
    ]


def _reply(member: ConsumerGroupMember, context: RequestContext) -> Reply:
    classic = member.metadata.classic_member_metadata
    assert classic is not None
    protocol = classic.supported_protocols[0][0]
    response = follower_join_reply(
        member.member_id, member.member_epoch, protocol_type=CONSUMER_PROTOCOL_TYPE, protocol_name=protocol
    )
    return Reply(token=context.token, response=response)


def classic_sync(
    group: ConsumerGroup,
    request: sync_group_request.SyncGroupRequest,
    context: RequestContext,
    group_context: GroupContext,
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
    # There is a newer target, and the member has nothing to revoke first: it is to join again. A member that is
    # revoking gets what is left to it, so that it gives the rest back.
    if group.assignment_epoch > member.member_epoch and member.state is not MemberState.UNREVOKED_PARTITIONS:
        timers = () if join_timer_runs else (_time_to_join(group, member, group_context),)
        return _sync_refused(context, ErrorCode.rebalance_in_progress, *timers)
    try:
        assignment = assignment_bytes(without_epochs(member.assigned), topics, subscription)
    except MalformedUserData:  # a record that another broker wrote: we looked at the metadata when it joined
        return _sync_refused(context, ErrorCode.inconsistent_group_protocol)
    response = sync_reply_with(assignment, request.protocol_type, request.protocol_name)
    return CoordinatorResult(
        replies=(Reply(token=context.token, response=response),),
        timers=(
            CancelTimer(key=sync_timer(group.group_id, member_id)),
            session(group, member, group_context),
        ),
    )


def classic_heartbeat(
    group: ConsumerGroup,
    request: heartbeat_request.HeartbeatRequest,
    context: RequestContext,
    group_context: GroupContext,
    *,
    join_timer_runs: bool,
) -> CoordinatorResult:
    """Process Heartbeat of a classic member: only timers change."""
    code = _refusal(group, request.member_id, request.group_instance_id, request.generation_id)
    timers: list[SetTimer | CancelTimer] = []
    if code is ErrorCode.none:
        member = group.members[request.member_id]
        # Every heartbeat of a valid member counts for its session, also one that is answered with
        # REBALANCE_IN_PROGRESS.
        timers.append(session(group, member, group_context))
        if _should_join_again(group, member):
            code = ErrorCode.rebalance_in_progress
            if not join_timer_runs:
                timers.append(_time_to_join(group, member, group_context))
    reply = Reply(token=context.token, response=heartbeat_reply(code))
    return CoordinatorResult(replies=(reply,), timers=tuple(timers))


def classic_leave(
    group: ConsumerGroup,
    request: leave_group_request.LeaveGroupRequest,
    context: RequestContext,
    group_context: GroupContext,
) -> CoordinatorResult:
    """Any members, of either protocol, each with an answer of its own; static ones also by their instance id alone."""
    codes: list[ErrorCode] = []
    leaving: dict[str, None] = {}
    for identity in request.members:
        member_id, instance_id = identity.member_id, identity.group_instance_id
        if not member_id and instance_id is not None:
            member_id = group.static_members.get(instance_id, "")
        codes.append(identity_error(group, member_id, instance_id))
        if codes[-1] is ErrorCode.none:
            leaving[member_id] = None
    members = tuple(leave_member_response(each, code) for each, code in zip(request.members, codes, strict=True))
    answer = CoordinatorResult(replies=(Reply(token=context.token, response=leave_reply(members)),))
    if not leaving:
        return answer
    return answer.followed_by(remove_members(group, tuple(leaving), group_context, event="MemberLeft", reason="leave"))


def _refusal(group: ConsumerGroup, member_id: str, instance_id: str | None, generation: int) -> ErrorCode:
    code = identity_error(group, member_id, instance_id)
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
    """Whether there is a newer target, partitions to revoke, or all that the member waits for is free."""
    # A classic member learns of a change only by REBALANCE_IN_PROGRESS, and each rejoin stops its processing. So it is
    # told only if rejoining would give it something; while it merely waits for others it stays as it is.
    if member.member_epoch < group.assignment_epoch or member.state is MemberState.UNREVOKED_PARTITIONS:
        return True
    return member.state is MemberState.UNRELEASED_PARTITIONS and not _waits_for_others(group, member)


def _waits_for_others(group: ConsumerGroup, member: ConsumerGroupMember) -> bool:
    return any(
        partition not in member.assigned.get(topic_id, {}) and partition in group.holders.of_topic(topic_id)
        for topic_id, of_topic in group.target_of(member.member_id).items()
        for partition in of_topic
    )


def _time_to_join(group: ConsumerGroup, member: ConsumerGroupMember, group_context: GroupContext) -> SetTimer:
    due_ms = group_context.now_ms + member.metadata.rebalance_timeout_ms
    return SetTimer(key=join_timer(group.group_id, member.member_id), deadline_ms=due_ms)


def _sync_refused(context: RequestContext, code: ErrorCode, *timers: SetTimer) -> CoordinatorResult:
    reply = Reply(token=context.token, response=sync_error_reply(code))
    return CoordinatorResult(replies=(reply,), timers=timers)


class LiveMigration:
    """Holds nothing of its own."""

    def __init__(
        self, state: ShardState, classic: ClassicGroups, consumer: ConsumerGroups, downgrades: DowngradeRule
    ) -> None:
        self._state = state
        self._classic = classic
        self._consumer = consumer
        self._downgrades = downgrades

    def consumer_group_heartbeat(
        self,
        request: consumer_group_heartbeat_request.ConsumerGroupHeartbeatRequest,
        context: RequestContext,
        *,
        now_ms: int,
        may_describe: MayDescribe | None = None,
    ) -> CoordinatorResult:
        """Process ConsumerGroupHeartbeat (API 68). Raises CoordinatorError."""
        return self._consumer.heartbeat(
            request,
            context,
            now_ms=now_ms,
            may_describe=may_describe,
            upgrade=lambda group, group_context: upgrade_group(group.membership, group_context),
        )

    def join_group(
        self,
        request: join_group_request.JoinGroupRequest,
        context: RequestContext,
        *,
        fresh_id: str,
        now_ms: int,
    ) -> CoordinatorResult:
        """Process JoinGroup (API 11). Raises CoordinatorError."""
        group = self._consumer_group(request.group_id)
        if group is None or self._classic.session_timeout_error(request) is not None:
            return self._classic.join_group(request, context, fresh_id=fresh_id, now_ms=now_ms)
        try:
            return join_consumer_group(
                group,
                self._consumer.soft_state(group.group_id),
                request,
                context,
                self._consumer.group_context(group.group_id, now_ms),
                self._downgrades,
                fresh_id=fresh_id,
            )
        except CoordinatorError as error:
            reply = Reply(token=context.token, response=join_error_reply(error.code))
            return CoordinatorResult(replies=(reply,))

    def sync_group(
        self, request: sync_group_request.SyncGroupRequest, context: RequestContext, *, now_ms: int
    ) -> CoordinatorResult:
        """Process SyncGroup (API 14)."""
        group = self._consumer_group(request.group_id)
        if group is None:
            return self._classic.sync_group(request, context, now_ms=now_ms)
        group_context = self._consumer.group_context(group.group_id, now_ms)
        runs = self._join_timer_runs(group, request.member_id)
        return classic_sync(group, request, context, group_context, self._consumer.topics_by_id(), join_timer_runs=runs)

    def heartbeat(
        self, request: heartbeat_request.HeartbeatRequest, context: RequestContext, *, now_ms: int
    ) -> CoordinatorResult:
        """Process Heartbeat (API 12). Raises CoordinatorError."""
        group = self._consumer_group(request.group_id)
        if group is None:
            return self._classic.heartbeat(request, context, now_ms=now_ms)
        group_context = self._consumer.group_context(group.group_id, now_ms)
        runs = self._join_timer_runs(group, request.member_id)
        return classic_heartbeat(group, request, context, group_context, join_timer_runs=runs)

    def leave_group(
        self, request: leave_group_request.LeaveGroupRequest, context: RequestContext, *, now_ms: int
    ) -> CoordinatorResult:
        """Process LeaveGroup (API 13). Raises CoordinatorError when the whole request is refused."""
        group = self._consumer_group(request.group_id)
        if group is None:
            return self._classic.leave_group(request, context, now_ms=now_ms)
        return classic_leave(group, request, context, self._consumer.group_context(group.group_id, now_ms))

    def _consumer_group(self, group_id: str) -> ConsumerGroup | None:
        """A consumer group with members."""
        group = self._state.registry.get(group_id)
        return group if isinstance(group, ConsumerGroup) and group.members else None

    def _join_timer_runs(self, group: ConsumerGroup, member_id: str) -> bool:
        return self._state.timers.deadline_ms(join_timer(group.group_id, member_id)) is not None
