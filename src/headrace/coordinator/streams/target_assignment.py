"""Target assignment of a streams group: the assignor's result for every member, when it is computed, its records.

In Kafka: `TargetAssignmentBuilder` of `org.apache.kafka.coordinator.group.streams`. The assignor runs at most once per
assignment interval. If it may not run yet, or the group waits for more members, a named timer runs it later: the target
exists when the timer fires, not only at the next heartbeat of a member. New topics or settings start it as well, and a
load of the group takes up what was due.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from headrace.coordinator.assignors.task_assignor import (
    AssignableSubtopology,
    GroupSpec,
    MemberSpec,
    TaskAssignor,
    TasksTuple,
)
from headrace.coordinator.configuration import StreamsGroupConfiguration
from headrace.coordinator.modern import rebalance_timer, session_timer
from headrace.coordinator.records.schemas import StreamsGroupMetadataValue
from headrace.coordinator.result import CancelTimer, CoordinatorEvent, CoordinatorRecord, CoordinatorResult, SetTimer
from headrace.coordinator.streams import records
from headrace.coordinator.streams.configured_topology import ConfiguredTopology
from headrace.coordinator.streams.group import NO_TASKS, StreamsGroup
from headrace.coordinator.streams.group_context import (
    NO_OFFSETS,
    GroupContext,
    MemberTaskOffsets,
    StreamsGroupSoftState,
    epoch_reason,
    interval_timer,
    topology_events,
)
from headrace.coordinator.streams.member import StreamsGroupMember

__all__ = [
    "TargetAssignment",
    "assignment_due",
    "compute_target",
    "interval_end_ms",
    "on_context_change",
    "timers_after_load",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetAssignment:
    """A computed target and the records that make it the group's."""

    epoch: int
    targets: Mapping[str, TasksTuple]
    records: tuple[CoordinatorRecord, ...]

    def target_of(self, member_id: str) -> TasksTuple:
        return self.targets.get(member_id, NO_TASKS)


def interval_end_ms(group: StreamsGroup, configuration: StreamsGroupConfiguration, now_ms: int) -> int | None:
    """Return the time at which the assignor may run again; None: now.

    A clock that went back does not lock the group.
    """
    # KIP-1263. 0 means that the assignor never ran, or that a broker before 4.3 ran it. A time in the future (the clock
    # went back) counts as over: otherwise the group would stand still until the clock catches up.
    last_ms = group.target_metadata.assignment_timestamp
    end_ms = last_ms + configuration.assignment_interval_ms
    if last_ms == 0 or configuration.assignment_interval_ms == 0 or not last_ms <= now_ms < end_ms:
        return None
    return end_ms


def compute_target(
    group: StreamsGroup,
    *,
    epoch: int,
    configured: ConfiguredTopology,
    assignment_configs: tuple[tuple[str, str], ...],
    assignor: TaskAssignor,
    now_ms: int,
    task_offsets: Mapping[str, MemberTaskOffsets],
    joining: StreamsGroupMember | None = None,
) -> TargetAssignment:
    """Return the target for `epoch`.

    No member has tasks if the topology is not ready. A member with an older topology has none either: it does not know
    what the tasks are (Kafka 4.3.1 and 4.4 assign it some).

    Args:
        assignment_configs: the settings in this epoch's metadata record.
        joining: a member as its heartbeat changes it, in place of the stored one.

    The records are one per member whose target changed (always for a new member), then the metadata record.
    """
    # 1. The group as it will be once this heartbeat's records are replayed. Replay happens after the append, so the
    #    stored member is still the old one here.
    members: Mapping[str, StreamsGroupMember] = group.members
    if joining is not None:
        members = {**group.members, joining.member_id: joining}
    # 2. Members with an older topology do not take part. Their tasks would be computed for subtopologies that they do
    #    not have; with an empty target they drain until they are restarted with the new topology.
    assigned: Mapping[str, TasksTuple] = {}
    current = {each: members[each] for each in members if members[each].metadata.topology_epoch >= configured.epoch}
    if configured.is_ready and current:
        assigned = assignor.assign(_group_spec(group, current, configured, dict(assignment_configs), task_offsets))
    # 3. Every member gets a target, also an empty one. A record is written only if it differs: most assignments move
    #    few tasks, and each record lists all tasks of its member.
    targets = {member_id: assigned.get(member_id, NO_TASKS) for member_id in sorted(members)}
    written = [
        records.target_assignment_record(group.group_id, member_id, target)
        for member_id, target in targets.items()
        if group.target.get(member_id) != target
    ]
    # 4. The metadata record comes last, as in TargetAssignmentBuilder.build. Compaction and a torn write then leave
    #    targets without an epoch, never an epoch without its targets.
    written.append(records.target_assignment_metadata_record(group.group_id, epoch=epoch, timestamp_ms=now_ms))
    return TargetAssignment(epoch=epoch, targets=targets, records=tuple(written))


def _group_spec(
    group: StreamsGroup,
    members: Mapping[str, StreamsGroupMember],
    configured: ConfiguredTopology,
    configs: Mapping[str, str],
    task_offsets: Mapping[str, MemberTaskOffsets],
) -> GroupSpec:
    return GroupSpec(
        members={
            member_id: MemberSpec(
                process_id=members[member_id].process_id,
                instance_id=members[member_id].metadata.instance_id,
                rack_id=members[member_id].metadata.rack_id,
                client_tags=members[member_id].metadata.client_tags,
                previous=group.target_of(member_id),
                task_offsets=task_offsets.get(member_id, NO_OFFSETS).offsets,
                task_end_offsets=task_offsets.get(member_id, NO_OFFSETS).end_offsets,
            )
            for member_id in sorted(members)
        },
        subtopologies=tuple(
            AssignableSubtopology(subtopology_id=each.subtopology_id, tasks=each.tasks, stateful=each.is_stateful)
            for each in configured.subtopologies.values()
        ),
        num_standby_replicas=int(configs.get("num.standby.replicas", "0")),
        rack_aware_assignment_tags=tuple(filter(None, configs.get("rack.aware.assignment.tags", "").split(","))),
    )


def assignment_due(
    group: StreamsGroup, soft: StreamsGroupSoftState, group_context: GroupContext
) -> CoordinatorResult | None:
    """Compute the target when the initial delay or the assignment interval is over.

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
    # 1. Compared by value with the group's stored metadata, so an image that changes other topics costs no record.
    if wanted == metadata:
        return _interval_timer_anew(group, group_context)
    soft_changes = None
    if wanted.metadata_hash != metadata.metadata_hash and _has_endpoints(group):
        soft_changes = soft.bump_endpoint_epoch  # tasks may stay and have other partitions
    # 2. A new group epoch says that the target is out of date. Kafka writes it with the next heartbeat of any member;
    #    here it is written at once, so a group whose members are slow to heartbeat does not lag behind its topics.
    bumped = replace(wanted, epoch=metadata.epoch + 1)
    record = records.group_metadata_record(group.group_id, bumped)
    reason = epoch_reason(metadata, bumped, joined=False, member_changed=False)
    events = (_epoch_event(group, bumped.epoch, reason), *topology_events(group, configured))
    # 3. The target follows when the initial delay or the assignment interval ends. Both have a timer that computes it.
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
    """Return the timers after a replay: sessions start again, open revocations and due assignments are taken up."""
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
