"""Conversion of a streams group to its records and back. Lists are sorted, so equal state has equal bytes."""

from __future__ import annotations

from collections.abc import Mapping

from headrace.coordinator.assignors.task_assignor import AssignedTasks, Task, TasksTuple, by_subtopology
from headrace.coordinator.records.schemas import (
    CurrentTaskIds,
    StreamsGroupCurrentMemberAssignmentKey,
    StreamsGroupCurrentMemberAssignmentValue,
    StreamsGroupMemberMetadataKey,
    StreamsGroupMetadataKey,
    StreamsGroupMetadataValue,
    StreamsGroupTargetAssignmentMemberKey,
    StreamsGroupTargetAssignmentMemberValue,
    StreamsGroupTargetAssignmentMetadataKey,
    StreamsGroupTargetAssignmentMetadataValue,
    StreamsGroupTopologyKey,
    StreamsGroupTopologyValue,
    TaskIds,
)
from headrace.coordinator.result import CoordinatorRecord
from headrace.coordinator.streams.member import StreamsGroupMember

__all__ = [
    "assigned_tasks",
    "current_assignment_record",
    "group_metadata_record",
    "group_tombstones",
    "member_record",
    "member_tombstones",
    "target_assignment_metadata_record",
    "target_assignment_record",
    "target_tasks",
    "topology_record",
]


def group_metadata_record(group_id: str, value: StreamsGroupMetadataValue) -> CoordinatorRecord:
    """Return the record of the group epoch and what it was bumped for."""
    return CoordinatorRecord(key=StreamsGroupMetadataKey(group_id=group_id), value=value)


def member_record(group_id: str, member: StreamsGroupMember) -> CoordinatorRecord:
    """Return the record of a member's metadata."""
    key = StreamsGroupMemberMetadataKey(group_id=group_id, member_id=member.member_id)
    return CoordinatorRecord(key=key, value=member.metadata)


def topology_record(group_id: str, value: StreamsGroupTopologyValue) -> CoordinatorRecord:
    """Return the record of the topology."""
    return CoordinatorRecord(key=StreamsGroupTopologyKey(group_id=group_id), value=value)


def target_assignment_record(group_id: str, member_id: str, tasks: TasksTuple) -> CoordinatorRecord:
    """Return the record of a member's target."""
    value = StreamsGroupTargetAssignmentMemberValue(
        active_tasks=_task_ids(tasks.active),
        standby_tasks=_task_ids(tasks.standby),
        warmup_tasks=_task_ids(tasks.warmup),
    )
    return CoordinatorRecord(
        key=StreamsGroupTargetAssignmentMemberKey(group_id=group_id, member_id=member_id), value=value
    )


def target_assignment_metadata_record(group_id: str, *, epoch: int, timestamp_ms: int) -> CoordinatorRecord:
    """Return the record of the epoch and time (ms) of the target assignment."""
    value = StreamsGroupTargetAssignmentMetadataValue(assignment_epoch=epoch, assignment_timestamp=timestamp_ms)
    return CoordinatorRecord(key=StreamsGroupTargetAssignmentMetadataKey(group_id=group_id), value=value)


def current_assignment_record(group_id: str, member: StreamsGroupMember) -> CoordinatorRecord:
    """Return the record of a member's epoch, state and current assignment."""
    value = StreamsGroupCurrentMemberAssignmentValue(
        member_epoch=member.member_epoch,
        previous_member_epoch=member.previous_member_epoch,
        state=int(member.state),
        active_tasks=_active_task_ids(member.assigned.active),
        standby_tasks=_plain_task_ids(member.assigned.standby),
        warmup_tasks=_plain_task_ids(member.assigned.warmup),
        active_tasks_pending_revocation=_active_task_ids(member.pending_revocation.active),
        standby_tasks_pending_revocation=_plain_task_ids(member.pending_revocation.standby),
        warmup_tasks_pending_revocation=_plain_task_ids(member.pending_revocation.warmup),
    )
    key = StreamsGroupCurrentMemberAssignmentKey(group_id=group_id, member_id=member.member_id)
    return CoordinatorRecord(key=key, value=value)


def member_tombstones(group_id: str, member_id: str) -> tuple[CoordinatorRecord, ...]:
    """Return the tombstones of a member: current assignment, target, metadata, in this order."""
    # In this order: Kafka's replay refuses a member's tombstone while its current assignment or target is there, and
    # then fails to load the partition.
    return (
        CoordinatorRecord(
            key=StreamsGroupCurrentMemberAssignmentKey(group_id=group_id, member_id=member_id), value=None
        ),
        CoordinatorRecord(
            key=StreamsGroupTargetAssignmentMemberKey(group_id=group_id, member_id=member_id), value=None
        ),
        CoordinatorRecord(key=StreamsGroupMemberMetadataKey(group_id=group_id, member_id=member_id), value=None),
    )


def group_tombstones(group_id: str) -> tuple[CoordinatorRecord, ...]:
    """Return the tombstones of a group without members: target metadata, group metadata, topology, in this order."""
    # Replay requires that no member and no target epoch are left when the group goes.
    return (
        CoordinatorRecord(key=StreamsGroupTargetAssignmentMetadataKey(group_id=group_id), value=None),
        CoordinatorRecord(key=StreamsGroupMetadataKey(group_id=group_id), value=None),
        CoordinatorRecord(key=StreamsGroupTopologyKey(group_id=group_id), value=None),
    )


def target_tasks(value: StreamsGroupTargetAssignmentMemberValue) -> TasksTuple:
    """Return a recorded target as the coordinator keeps it."""
    return TasksTuple(
        active=_tasks(value.active_tasks), standby=_tasks(value.standby_tasks), warmup=_tasks(value.warmup_tasks)
    )


def assigned_tasks(
    active: tuple[CurrentTaskIds, ...],
    standby: tuple[CurrentTaskIds, ...],
    warmup: tuple[CurrentTaskIds, ...],
    *,
    member_epoch: int,
) -> AssignedTasks:
    """Assigned tasks as the coordinator keeps them; where epochs lack or do not fit, the member's epoch stands in."""
    epochs: dict[Task, int] = {}
    for tasks in active:
        known = tasks.assignment_epochs or ()
        # Kafka 4.2 failed on a length that differs; 4.3 and later log it and take the member's epoch.
        fits = len(known) == len(tasks.partitions)
        for index, partition in enumerate(tasks.partitions):
            epochs[tasks.subtopology_id, partition] = known[index] if fits else member_epoch
    return AssignedTasks(active=dict(sorted(epochs.items())), standby=_tasks(standby), warmup=_tasks(warmup))


def _tasks(groups: tuple[TaskIds, ...] | tuple[CurrentTaskIds, ...]) -> tuple[Task, ...]:
    # Sorted by (subtopology, partition), as tasks are compared everywhere; a record may have any order.
    return tuple(sorted((tasks.subtopology_id, partition) for tasks in groups for partition in tasks.partitions))


def _task_ids(tasks: tuple[Task, ...]) -> tuple[TaskIds, ...]:
    return tuple(TaskIds(subtopology_id=name, partitions=partitions) for name, partitions in by_subtopology(tasks))


def _plain_task_ids(tasks: tuple[Task, ...]) -> tuple[CurrentTaskIds, ...]:
    return tuple(
        CurrentTaskIds(subtopology_id=name, partitions=partitions) for name, partitions in by_subtopology(tasks)
    )


def _active_task_ids(tasks: Mapping[Task, int]) -> tuple[CurrentTaskIds, ...]:
    return tuple(
        CurrentTaskIds(
            subtopology_id=name,
            partitions=partitions,
            # Only active tasks have epochs: offsets are committed for them alone.
            assignment_epochs=tuple(tasks[name, partition] for partition in partitions),
        )
        for name, partitions in by_subtopology(tuple(tasks))
    )
