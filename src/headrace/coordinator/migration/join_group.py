"""JoinGroup (API 11) of a consumer group with members: the sender is a member that speaks the classic protocol.

What it subscribes to and owns is read from its preferred protocol's metadata, and it is moved towards its target as by
a heartbeat; the answer has its epoch as generation, and nobody is the leader. It asks for its partitions with
SyncGroup. When it takes the place of a static member that was the last to speak the consumer protocol, the group is a
classic one from then on.

Where we differ from Kafka 4.3.1, on purpose: a subscription that cannot be read is INCONSISTENT_GROUP_PROTOCOL (there
UNKNOWN_SERVER_ERROR), and a known static member does not count against the maximum size.
"""

from __future__ import annotations

from dataclasses import replace

from headrace.assignors.assignor import Subscription
from headrace.assignors.consumer_protocol import MalformedUserData, decode_subscription
from headrace.coordinator.classic import replies
from headrace.coordinator.classic.consumer_protocol import CONSUMER_PROTOCOL_TYPE
from headrace.coordinator.classic.join_group import MEMBER_ID_REQUIRED_SINCE, rebalance_timeout_ms
from headrace.coordinator.consumer.circumstances import Circumstances
from headrace.coordinator.consumer.group import ConsumerGroup
from headrace.coordinator.consumer.member import ConsumerGroupMember
from headrace.coordinator.consumer.member_admission import Admission, check_room
from headrace.coordinator.consumer.member_step import MemberStep, member_step
from headrace.coordinator.consumer.member_timers import join_timer, session, sync_timer, timers_of_gone
from headrace.coordinator.consumer.soft_state import ConsumerGroupSoftState
from headrace.coordinator.consumer.static_membership import replace_member, static_member
from headrace.coordinator.errors import CoordinatorError
from headrace.coordinator.member_timer_keys import rebalance_timer
from headrace.coordinator.migration.downgrade import Downgrades
from headrace.coordinator.migration.embedded_protocol import partitions_by_id
from headrace.coordinator.migration.policy import is_disabled
from headrace.coordinator.records.consumer_schemas import ClassicMemberMetadata
from headrace.coordinator.request_context import RequestContext
from headrace.coordinator.result import CancelTimer, CoordinatorResult, Reply, SetTimer
from headrace.protocol.error_codes import ErrorCode
from headrace.protocol.messages import join_group_request as req
from headrace.protocol.units import to_ms

__all__ = ["join_consumer_group"]

_UNCHANGED_TIMEOUT_MS = -1
_NO_REGEX = ""


def join_consumer_group(
    group: ConsumerGroup,
    soft: ConsumerGroupSoftState,
    request: req.JoinGroupRequest,
    context: RequestContext,
    circumstances: Circumstances,
    downgrades: Downgrades,
    *,
    fresh_id: str,
) -> CoordinatorResult:
    """Raises CoordinatorError; the answer has then no member id."""
    is_new = not request.member_id
    member_id = fresh_id if is_new else request.member_id
    known_id = None if request.group_instance_id is None else group.static_members.get(request.group_instance_id)
    if is_disabled(circumstances.configuration.migration_policy):
        message = f"Group {group.group_id} is a consumer group, and groups may not migrate here."
        raise CoordinatorError(ErrorCode.inconsistent_group_protocol, message)
    check_room(group, member_id, known_id, max_size=circumstances.configuration.max_size)
    _check_protocols(group, request)
    if is_new and request.group_instance_id is None and context.api_version >= MEMBER_ID_REQUIRED_SINCE:
        refused = replies.join_refused(ErrorCode.member_id_required, member_id)
        return CoordinatorResult(replies=(Reply(token=context.token, response=refused),))
    admission = _admission(group, member_id, request.group_instance_id, known_id, is_new=is_new)
    subscription = _subscription(request)
    updated = _updated(admission.member, request, context, subscription)
    owned = partitions_by_id(subscription.owned_partitions, circumstances.image)
    if known_id is not None and not group.members[known_id].uses_classic_protocol:
        members = {**admission.group.members, member_id: updated}
        if downgrades.is_due(list(members.values())):
            step = member_step(admission, updated, owned, soft, circumstances, computes_target=False)
            result = _downgraded(step, downgrades, circumstances.now_ms)
            if result is not None:
                return replace(result, replies=(_reply(step.reconciled, context), *result.replies))
    step = member_step(admission, updated, owned, soft, circumstances)
    return CoordinatorResult(
        records=step.records(),
        replies=(_reply(step.reconciled, context),),
        timers=(*step.timers(circumstances.now_ms), *_timers(group, step.reconciled, circumstances)),
        events=step.events(),
    )


def _check_protocols(group: ConsumerGroup, request: req.JoinGroupRequest) -> None:
    """Raises CoordinatorError(INCONSISTENT_GROUP_PROTOCOL): some protocol must be one of all classic members."""
    every = [each.metadata.classic_member_metadata for each in group.members.values()]
    known = [frozenset(name for name, _ in classic.supported_protocols) for classic in every if classic is not None]
    common = frozenset(each.name for each in request.protocols).intersection(*known)
    if request.protocol_type != CONSUMER_PROTOCOL_TYPE or not common:
        message = f"The classic members of group {group.group_id} are consumers that have a protocol in common."
        raise CoordinatorError(ErrorCode.inconsistent_group_protocol, message)


def _admission(
    group: ConsumerGroup, member_id: str, instance_id: str | None, known_id: str | None, *, is_new: bool
) -> Admission:
    """Anybody may come with an id of its own; with an instance id only who has the instance, or has no id yet and takes
    its place. Raises CoordinatorError: UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID."""
    if instance_id is not None and not is_new:
        return Admission(group=group, member=static_member(group, instance_id, member_id))
    if known_id is None:
        member = group.members.get(member_id) or ConsumerGroupMember(member_id=member_id)
        return Admission(group=group, member=member)
    replacement = replace_member(group, group.members[known_id], member_id)
    return Admission(group=replacement.group, member=replacement.member, replacement=replacement)


def _subscription(request: req.JoinGroupRequest) -> Subscription:
    try:
        return decode_subscription(bytes(request.protocols[0].metadata))
    except MalformedUserData as error:
        message = f"The metadata of protocol {request.protocols[0].name} are no subscription: {error}."
        raise CoordinatorError(ErrorCode.inconsistent_group_protocol, message) from None


def _updated(
    member: ConsumerGroupMember, request: req.JoinGroupRequest, context: RequestContext, subscription: Subscription
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
        subscribed_topic_regex=_NO_REGEX,
        rebalance_timeout_ms=known.rebalance_timeout_ms if timeout_ms == _UNCHANGED_TIMEOUT_MS else timeout_ms,
        classic_member_metadata=ClassicMemberMetadata(
            session_timeout_ms=to_ms(request.session_timeout),
            supported_protocols=tuple((each.name, bytes(each.metadata)) for each in request.protocols),
        ),
    )
    return member if metadata == known else replace(member, metadata=metadata)


def _downgraded(step: MemberStep, downgrades: Downgrades, now_ms: int) -> CoordinatorResult | None:
    """The new member comes last, as in Kafka; it has the target of the member whose place it took."""
    group, joined_id = step.admission.group, step.reconciled.member_id
    members = [group.members[each] for each in sorted(group.members) if each != joined_id]
    reason = None
    if group.assignment_epoch < step.metadata.epoch:
        reason = "a static member that reads something else came back"
    elif not all(each.is_reconciled_to(group.assignment_epoch) for each in members):
        reason = "members have not got their partitions yet"  # in a Stable group nobody would tell them
    result = downgrades.downgraded(
        group,
        [*members, step.reconciled],
        now_ms=now_ms,
        rebalance_reason=reason,
        records=step.records(),
    )
    if result is None:
        return None
    gone = timers_of_gone(group.group_id, step.replaced_id or "")
    return replace(result, timers=(*gone, *result.timers), events=(*step.events(), *result.events))


def _timers(
    group: ConsumerGroup, member: ConsumerGroupMember, circumstances: Circumstances
) -> list[SetTimer | CancelTimer]:
    """It joined, and is to ask for its assignment now."""
    group_id, member_id = group.group_id, member.member_id
    due_ms = circumstances.now_ms + member.metadata.rebalance_timeout_ms
    return [
        session(group, member, circumstances),
        CancelTimer(key=rebalance_timer(group_id, member_id)),
        CancelTimer(key=join_timer(group_id, member_id)),
        SetTimer(key=sync_timer(group_id, member_id), deadline_ms=due_ms),
    ]


def _reply(member: ConsumerGroupMember, context: RequestContext) -> Reply:
    classic = member.metadata.classic_member_metadata
    assert classic is not None
    protocol = classic.supported_protocols[0][0]
    response = replies.joined_as_follower(
        member.member_id, member.member_epoch, protocol_type=CONSUMER_PROTOCOL_TYPE, protocol_name=protocol
    )
    return Reply(token=context.token, response=response)
