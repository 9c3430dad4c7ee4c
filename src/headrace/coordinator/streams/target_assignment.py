"""Target assignment of a streams group: the assignor's result for every member, when it is computed, its records.

The assignor runs at most once per assignment interval. If it may not run yet, or the group waits for more members, a
named timer runs it later: the target exists when the timer fires, not only at the next heartbeat of a member.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from headrace.coordinator.assignors.task_assignor import AssignableSubtopology, GroupSpec, MemberSpec, TaskAssignor
from headrace.coordinator.configuration import StreamsGroupConfiguration
from headrace.coordinator.result import CoordinatorRecord, TimerKey
from headrace.coordinator.streams import records
from headrace.coordinator.streams.group import NO_TASKS, StreamsGroup
from headrace.coordinator.streams.group_context import NO_OFFSETS, MemberTaskOffsets
from headrace.coordinator.streams.member import StreamsGroupMember
from headrace.coordinator.streams.topics.configured_topology import ConfiguredTopology
from headrace.coordinator.tasks import TasksTuple

__all__ = ["TargetAssignment", "compute_target", "initial_delay_timer", "interval_end_ms", "interval_timer"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetAssignment:
    """A computed target and the records that make it the group's."""

    epoch: int
    targets: Mapping[str, TasksTuple]
    records: tuple[CoordinatorRecord, ...]

    def target_of(self, member_id: str) -> TasksTuple:
        return self.targets.get(member_id, NO_TASKS)


def initial_delay_timer(group_id: str) -> TimerKey:
    """Return the key of the initial delay's timer."""
    return TimerKey(kind="initial-delay", group_id=group_id)


def interval_timer(group_id: str) -> TimerKey:
    """Return the key of the timer that ends the assignment interval."""
    return TimerKey(kind="assignment-interval", group_id=group_id)


def interval_end_ms(group: StreamsGroup, configuration: StreamsGroupConfiguration, now_ms: int) -> int | None:
    """When the assignor may run again; None = now. A clock that went back does not lock the group."""
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
    members: Mapping[str, StreamsGroupMember] = group.members
    if joining is not None:
        members = {**group.members, joining.member_id: joining}
    assigned: Mapping[str, TasksTuple] = {}
    current = {each: members[each] for each in members if members[each].metadata.topology_epoch >= configured.epoch}
    if configured.is_ready and current:
        assigned = assignor.assign(_group_spec(group, current, configured, dict(assignment_configs), task_offsets))
    targets = {member_id: assigned.get(member_id, NO_TASKS) for member_id in sorted(members)}
    written = [
        records.target_assignment_record(group.group_id, member_id, target)
        for member_id, target in targets.items()
        if group.target.get(member_id) != target
    ]
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
