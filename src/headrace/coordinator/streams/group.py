"""StreamsGroup: hard state, changed only by `replay_*`, with an index of the members that hold each task.

Compaction may leave any subset of a group's records, so every replay creates what it needs and tolerates missing state.
Epochs start at 1, so the first join is group epoch 2 (Kafka 4.3).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from enum import Enum

from headrace.coordinator.assignors.task_assignor import Task, TasksTuple
from headrace.coordinator.modern import FIRST_EPOCH, ModernGroup
from headrace.coordinator.records.schemas import (
    StreamsGroupCurrentMemberAssignmentValue,
    StreamsGroupMemberMetadataValue,
    StreamsGroupMetadataValue,
    StreamsGroupTargetAssignmentMemberValue,
    StreamsGroupTargetAssignmentMetadataValue,
    StreamsGroupTopologyValue,
)
from headrace.coordinator.result import CoordinatorRecord
from headrace.coordinator.streams import records
from headrace.coordinator.streams.member import NO_METADATA, MemberState, StreamsGroupMember

__all__ = ["GroupState", "StreamsGroup", "TaskHolders"]

_Holders = dict[Task, dict[str, None]]


class TaskHolders:
    """Task → member ids, by role. Standby and warm-up tasks may have several holders; an active one has one."""

    __slots__ = ("_active", "_standby", "_warmup")

    def __init__(self) -> None:
        # Dictionaries as ordered sets: their order is that of insertion and the same under every PYTHONHASHSEED.
        self._active: dict[Task, str] = {}
        self._standby: _Holders = {}
        self._warmup: _Holders = {}

    def copy(self) -> TaskHolders:
        other = TaskHolders()
        other._active = dict(self._active)
        other._standby = {task: dict(holders) for task, holders in self._standby.items()}
        other._warmup = {task: dict(holders) for task, holders in self._warmup.items()}
        return other

    def active(self, task: Task) -> str | None:
        return self._active.get(task)

    def standby(self, task: Task) -> Iterable[str]:
        return self._standby.get(task, ())

    def warmup(self, task: Task) -> Iterable[str]:
        return self._warmup.get(task, ())

    def hold(self, member: StreamsGroupMember) -> None:
        for tasks in (member.assigned, member.pending_revocation):
            for task in tasks.active:
                # A task that is pending revocation is still held: the member may be processing it.
                self._active[task] = member.member_id
            _add(self._standby, tasks.standby, member.member_id)
            _add(self._warmup, tasks.warmup, member.member_id)

    def release(self, member: StreamsGroupMember) -> None:
        for tasks in (member.assigned, member.pending_revocation):
            for task in tasks.active:
                # Replay goes record by record, and after compaction the record of the next holder may come first. Only
                # the present holder's release frees the task.
                if self._active.get(task) == member.member_id:
                    del self._active[task]
            _remove(self._standby, tasks.standby, member.member_id)
            _remove(self._warmup, tasks.warmup, member.member_id)


def _add(holders: _Holders, tasks: Iterable[Task], member_id: str) -> None:
    for task in tasks:
        holders.setdefault(task, {})[member_id] = None


def _remove(holders: _Holders, tasks: Iterable[Task], member_id: str) -> None:
    for task in tasks:
        of_task = holders.get(task)
        if of_task is not None:
            of_task.pop(member_id, None)
            if not of_task:
                del holders[task]


NO_TASKS = TasksTuple()


class GroupState(Enum):
    """Derived, never stored; in this order of precedence. Values are the names on the wire."""

    EMPTY = "Empty"
    NOT_READY = "NotReady"
    ASSIGNING = "Assigning"
    RECONCILING = "Reconciling"
    STABLE = "Stable"


@dataclass(slots=True, kw_only=True, eq=False)
class StreamsGroup(ModernGroup[StreamsGroupMember, TasksTuple]):
    """Mutable, because replay writes it. `target` holds a member's target from its first assignment on.

    `static_members`: instance id → member id. `with_endpoint`: ids of members with an endpoint, so that a heartbeat in
    a large group without endpoints does not look at every member.
    """

    group_id: str
    metadata: StreamsGroupMetadataValue
    topology: StreamsGroupTopologyValue | None
    members: dict[str, StreamsGroupMember]
    target: dict[str, TasksTuple]
    target_metadata: StreamsGroupTargetAssignmentMetadataValue
    holders: TaskHolders
    static_members: dict[str, str]
    with_endpoint: dict[str, None]

    @classmethod
    def new(cls, group_id: str) -> StreamsGroup:
        return cls(
            group_id=group_id,
            metadata=StreamsGroupMetadataValue(epoch=FIRST_EPOCH, metadata_hash=0),
            topology=None,
            members={},
            target={},
            target_metadata=StreamsGroupTargetAssignmentMetadataValue(assignment_epoch=FIRST_EPOCH),
            holders=TaskHolders(),
            static_members={},
            with_endpoint={},
        )

    @property
    def group_epoch(self) -> int:
        return self.metadata.epoch

    @property
    def assignment_epoch(self) -> int:
        return self.target_metadata.assignment_epoch

    @property
    def is_blank(self) -> bool:
        """Whether the group has no state: only tombstones are left of its records."""
        nothing = not (self.members or self.target or self.topology)
        return nothing and self.group_epoch == self.assignment_epoch == FIRST_EPOCH

    def target_of(self, member_id: str) -> TasksTuple:
        return self.target.get(member_id, NO_TASKS)

    def state(self) -> GroupState:
        if not self.members:
            return GroupState.EMPTY
        # -1 is "not validated": a topic is missing, or has the wrong number of partitions.
        if self.topology is None or self.metadata.validated_topology_epoch != self.topology.epoch:
            return GroupState.NOT_READY
        if self.group_epoch > self.assignment_epoch:
            return GroupState.ASSIGNING
        return GroupState.STABLE if self.are_members_reconciled else GroupState.RECONCILING

    def replay_metadata(self, value: StreamsGroupMetadataValue) -> None:
        self.metadata = value

    def replay_topology(self, value: StreamsGroupTopologyValue | None) -> None:
        self.topology = value

    def replay_target_metadata(self, value: StreamsGroupTargetAssignmentMetadataValue | None) -> None:
        self.target_metadata = value or StreamsGroupTargetAssignmentMetadataValue(assignment_epoch=FIRST_EPOCH)

    def replay_target(self, member_id: str, value: StreamsGroupTargetAssignmentMemberValue | None) -> None:
        if value is None:
            self.target.pop(member_id, None)
        else:
            self.target[member_id] = records.target_tasks(value)

    def tombstones(self) -> tuple[CoordinatorRecord, ...]:
        """Return the tombstones of the whole group, which has no members any more."""
        return records.group_tombstones(self.group_id)

    def hard_state(self) -> Iterator[CoordinatorRecord]:
        """Yield records that rebuild this group. Their order differs from the log's."""
        yield records.group_metadata_record(self.group_id, self.metadata)
        if self.topology is not None:
            yield records.topology_record(self.group_id, self.topology)
        yield records.target_assignment_metadata_record(
            self.group_id,
            epoch=self.target_metadata.assignment_epoch,
            timestamp_ms=self.target_metadata.assignment_timestamp,
        )
        for member_id in sorted(self.members):
            member = self.members[member_id]
            if member.metadata is not NO_METADATA:
                yield records.member_record(self.group_id, member)
            yield records.current_assignment_record(self.group_id, member)
        for member_id in sorted(self.target):
            yield records.target_assignment_record(self.group_id, member_id, self.target[member_id])

    # --- what ModernGroup asks ---

    def _copy(self) -> StreamsGroup:
        return replace(
            self,
            members=dict(self.members),
            target=dict(self.target),
            holders=self.holders.copy(),
            static_members=dict(self.static_members),
            with_endpoint=dict(self.with_endpoint),
        )

    def _new_member(self, member_id: str) -> StreamsGroupMember:
        return StreamsGroupMember(member_id=member_id)

    def _metadata_of(self, member: StreamsGroupMember | None) -> StreamsGroupMemberMetadataValue:
        return NO_METADATA if member is None else member.metadata

    def _index_metadata(
        self,
        member_id: str,
        before: StreamsGroupMemberMetadataValue,  # noqa: ARG002 - see ModernGroup
        after: StreamsGroupMemberMetadataValue | None,
    ) -> None:
        if after is not None and after.user_endpoint is not None:
            self.with_endpoint[member_id] = None
        else:
            self.with_endpoint.pop(member_id, None)

    def _with_current(
        self, member: StreamsGroupMember, value: StreamsGroupCurrentMemberAssignmentValue
    ) -> StreamsGroupMember:
        epoch = value.member_epoch
        return replace(
            member,
            member_epoch=epoch,
            previous_member_epoch=value.previous_member_epoch,
            state=MemberState.of(value.state),
            assigned=records.assigned_tasks(
                value.active_tasks, value.standby_tasks, value.warmup_tasks, member_epoch=epoch
            ),
            pending_revocation=records.assigned_tasks(
                value.active_tasks_pending_revocation,
                value.standby_tasks_pending_revocation,
                value.warmup_tasks_pending_revocation,
                member_epoch=epoch,
            ),
        )

    def _holders(self) -> TaskHolders:
        return self.holders

    def _reset_holders(self) -> None:
        self.holders = TaskHolders()
