"""Timers of a streams group and its members, and what happens to the group without a request.

Timers fire, topics or settings change, the group is loaded. Each session starts anew with a heartbeat; the rebalance
timeout runs from a new demand to revoke tasks until the member has revoked them (KIP-1071).
"""

from __future__ import annotations

from dataclasses import replace

from headrace.coordinator.modern.timers import rebalance_timer, revocation_timers, session_timer
from headrace.coordinator.records.schemas import StreamsGroupMetadataValue
from headrace.coordinator.result import CancelTimer, CoordinatorEvent, CoordinatorResult, SetTimer
from headrace.coordinator.streams import records
from headrace.coordinator.streams.events import epoch_reason, topology_events
from headrace.coordinator.streams.group import StreamsGroup
from headrace.coordinator.streams.group_context import GroupContext, StreamsGroupSoftState
from headrace.coordinator.streams.leave_and_fence import remove_member
from headrace.coordinator.streams.member import MemberState, StreamsGroupMember
from headrace.coordinator.streams.target_assignment import compute_target, interval_end_ms, interval_timer
from headrace.coordinator.streams.topics.configured_topology import ConfiguredTopology

__all__ = [
    "assignment_due",
    "member_timers",
    "on_context_change",
    "rebalance_timed_out",
    "session_timed_out",
    "timers_after_load",
]


def member_timers(
    group: StreamsGroup, before: StreamsGroupMember, after: StreamsGroupMember, group_context: GroupContext
) -> list[SetTimer | CancelTimer]:
    """The session anew with each heartbeat; the rebalance timeout from each new demand to revoke until it is met."""
    now_ms = group_context.now_ms
    session_ms = group_context.configuration.session_timeout_ms
    timers: list[SetTimer | CancelTimer] = [
        SetTimer(key=session_timer(group.group_id, after.member_id), deadline_ms=now_ms + session_ms)
    ]
    timers.extend(
        revocation_timers(
            group.group_id,
            before,
            after,
            is_same_demand=before.pending_revocation == after.pending_revocation,
            rebalance_timeout_ms=after.metadata.rebalance_timeout_ms,
            now_ms=now_ms,
        )
    )
    return timers


def session_timed_out(
    group: StreamsGroup, soft: StreamsGroupSoftState, member_id: str, group_context: GroupContext
) -> CoordinatorResult | None:
    """Fence a member without a heartbeat within its session."""
    if member_id not in group.members:
        return None
    return remove_member(
        group, soft, member_id, group_context, event="MemberFenced", reason="the member session expired"
    )


def rebalance_timed_out(
    group: StreamsGroup, soft: StreamsGroupSoftState, member_id: str, group_context: GroupContext
) -> CoordinatorResult | None:
    """Fence a member that has not revoked its tasks within its rebalance timeout."""
    member = group.members.get(member_id)
    if member is None or member.state is not MemberState.UNREVOKED_TASKS or member.is_away:
        return None
    return remove_member(
        group, soft, member_id, group_context, event="MemberFenced", reason="the rebalance timeout expired"
    )


def assignment_due(
    group: StreamsGroup, soft: StreamsGroupSoftState, group_context: GroupContext
) -> CoordinatorResult | None:
    """The initial delay or the assignment interval is over: the target is computed now.

    Never inside the initial delay: heartbeats answer "no tasks" then, which must not be this target's epoch.
    """
    is_due = group.members and group.group_epoch > group.assignment_epoch and not group_context.initial_delay_runs
    if group.topology is None or not is_due:
        return None
    configured = soft.configured_topology(group, group.topology, group_context.image)
    return _computed(group, soft, group.metadata, configured, group_context)


def on_context_change(
    group: StreamsGroup, soft: StreamsGroupSoftState, group_context: GroupContext
) -> CoordinatorResult | None:
    """Follow a new image or new settings, without a heartbeat, if they change what the assignor sees.

    The group gets a new epoch, and the target as soon as the initial delay and the assignment interval allow. Topics
    are only created in heartbeats, with the rights of the member that sent it.
    """
    if group.topology is None or not group.members:
        return None
    configured = soft.configured_topology(group, group.topology, group_context.image)
    metadata = group.metadata
    wanted = StreamsGroupMetadataValue(
        epoch=metadata.epoch,
        metadata_hash=configured.metadata_hash,
        validated_topology_epoch=configured.validated_epoch,
        last_assignment_configs=group_context.configuration.assignment_configs,
    )
    if wanted == metadata:
        return _interval_timer_anew(group, group_context)
    soft_changes = None
    if wanted.metadata_hash != metadata.metadata_hash and _has_endpoints(group):
        soft_changes = soft.bump_endpoint_epoch  # tasks may stay and have other partitions
    bumped = replace(wanted, epoch=metadata.epoch + 1)
    record = records.group_metadata_record(group.group_id, bumped)
    reason = epoch_reason(metadata, bumped, joined=False, member_changed=False)
    events = (_epoch_event(group, bumped.epoch, reason), *topology_events(group, configured))
    if group_context.initial_delay_runs:
        return CoordinatorResult(records=(record,), events=events, soft=soft_changes)
    end_ms = interval_end_ms(group, group_context.configuration, group_context.now_ms)
    if end_ms is not None:
        timer = SetTimer(key=interval_timer(group.group_id), deadline_ms=end_ms)
        return CoordinatorResult(records=(record,), timers=(timer,), events=events, soft=soft_changes)
    computed = _computed(group, soft, bumped, configured, group_context)
    return replace(computed, records=(record, *computed.records), events=(*events, *computed.events), soft=soft_changes)


def _has_endpoints(group: StreamsGroup) -> bool:
    return any(member.metadata.user_endpoint is not None for member in group.members.values())


def _interval_timer_anew(group: StreamsGroup, group_context: GroupContext) -> CoordinatorResult | None:
    """Adjust a running interval timer to a changed interval."""
    if not group_context.interval_timer_runs:
        return None
    end_ms = interval_end_ms(group, group_context.configuration, group_context.now_ms)
    due_ms = group_context.now_ms if end_ms is None else end_ms
    return CoordinatorResult(timers=(SetTimer(key=interval_timer(group.group_id), deadline_ms=due_ms),))


def timers_after_load(group: StreamsGroup, group_context: GroupContext) -> list[SetTimer | CancelTimer]:
    """After a replay: sessions start anew, open revocations and due assignments are taken up."""
    now_ms = group_context.now_ms
    timers: list[SetTimer | CancelTimer] = []
    for member_id in sorted(group.members):
        member = group.members[member_id]
        session_ms = group_context.configuration.session_timeout_ms
        timers.append(SetTimer(key=session_timer(group.group_id, member_id), deadline_ms=now_ms + session_ms))
        if member.is_revoking and not member.is_away:
            due_ms = now_ms + member.metadata.rebalance_timeout_ms
            timers.append(SetTimer(key=rebalance_timer(group.group_id, member_id), deadline_ms=due_ms))
    if group.members and group.group_epoch > group.assignment_epoch and not group_context.initial_delay_runs:
        end_ms = interval_end_ms(group, group_context.configuration, now_ms)
        due_ms = now_ms if end_ms is None else end_ms
        timers.append(SetTimer(key=interval_timer(group.group_id), deadline_ms=due_ms))
    return timers


def _computed(
    group: StreamsGroup,
    soft: StreamsGroupSoftState,
    metadata: StreamsGroupMetadataValue,
    configured: ConfiguredTopology,
    group_context: GroupContext,
) -> CoordinatorResult:
    computed = compute_target(
        group,
        epoch=metadata.epoch,
        configured=configured,
        assignment_configs=metadata.last_assignment_configs,
        assignor=group_context.assignor,
        now_ms=group_context.now_ms,
        task_offsets=soft.task_offsets,
    )
    event = CoordinatorEvent(
        name="TargetAssignmentComputed", group_id=group.group_id, details=(("epoch", str(metadata.epoch)),)
    )
    timers = (CancelTimer(key=interval_timer(group.group_id)),) if group_context.interval_timer_runs else ()
    return CoordinatorResult(records=computed.records, timers=timers, events=(event,))


def _epoch_event(group: StreamsGroup, epoch: int, reason: str) -> CoordinatorEvent:
    details = (("epoch", str(epoch)), ("reason", reason))
    return CoordinatorEvent(name="GroupEpochBumped", group_id=group.group_id, details=details)
