"""StreamsGroupMember and its states.

STABLE            has what its target says, or does not know of a newer target yet
UNREVOKED_TASKS   has been asked to revoke tasks and has not confirmed it
UNRELEASED_TASKS  waits for tasks that another member has not revoked
UNKNOWN           a newer broker wrote a state that is not known here
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import IntEnum

from headrace.coordinator.assignors.task_assignor import AssignedTasks
from headrace.coordinator.modern import ModernGroupMember
from headrace.coordinator.records.schemas import StreamsGroupMemberMetadataValue

__all__ = [
    "NO_METADATA",
    "MemberState",
    "StreamsGroupMember",
]

# Of a member whose metadata record compaction has taken, or that is not written yet. Topology epoch -1 is older than
# any.
NO_METADATA = StreamsGroupMemberMetadataValue(client_id="", client_host="", topology_epoch=-1, process_id="")


class MemberState(IntEnum):
    """Numbers of the current assignment record."""

    STABLE = 1
    UNREVOKED_TASKS = 2
    UNRELEASED_TASKS = 3
    UNKNOWN = 127

    @classmethod
    def of(cls, number: int) -> MemberState:
        # As in `consumer.member`: an unknown state must not keep the log from being loaded.
        return cls(number) if number in cls._value2member_map_ else cls.UNKNOWN


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamsGroupMember(ModernGroupMember):
    """Hard state of a member: its metadata record and its current assignment record. A static member that left for a
    while has STATIC_LEAVE_EPOCH."""

    metadata: StreamsGroupMemberMetadataValue = NO_METADATA
    state: MemberState = MemberState.STABLE
    assigned: AssignedTasks = AssignedTasks()  # noqa: RUF009 - frozen
    pending_revocation: AssignedTasks = AssignedTasks()  # noqa: RUF009 - frozen

    @property
    def process_id(self) -> str:
        return self.metadata.process_id

    @property
    def is_stable(self) -> bool:
        """Whether it has what its target says, or does not know of a newer target yet."""
        return self.state is MemberState.STABLE

    @property
    def is_revoking(self) -> bool:
        """Whether it has been asked to revoke something and has not confirmed it."""
        return self.state is MemberState.UNREVOKED_TASKS

    def with_assignment(
        self,
        *,
        epoch: int,
        state: MemberState,
        assigned: AssignedTasks,
        pending_revocation: AssignedTasks | None = None,
    ) -> StreamsGroupMember:
        """Return the member after one step. Its previous epoch is the present one, even if that stays (as in Kafka)."""
        return replace(
            self,
            member_epoch=epoch,
            # So a member whose reply was lost may repeat its heartbeat with the former epoch, if it owns nothing else
            # than what was assigned.
            previous_member_epoch=self.member_epoch,
            state=state,
            assigned=assigned,
            pending_revocation=pending_revocation or AssignedTasks(),
        )
