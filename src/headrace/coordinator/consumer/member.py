"""ConsumerGroupMember and its states.

STABLE                 has what its target says, or does not know of a newer target yet
UNREVOKED_PARTITIONS   was told to give partitions up and has not confirmed
UNRELEASED_PARTITIONS  waits for partitions that somebody else has not given up
UNKNOWN                a newer broker wrote a state that we do not know
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import IntEnum

from headrace.coordinator.consumer.partitions import PartitionEpochs
from headrace.coordinator.records.consumer_schemas import ConsumerGroupMemberMetadataValue

__all__ = [
    "JOIN_EPOCH",
    "NO_METADATA",
    "STATIC_LEAVE_EPOCH",
    "UNCHANGED_TIMEOUT_MS",
    "ConsumerGroupMember",
    "MemberState",
]

JOIN_EPOCH, STATIC_LEAVE_EPOCH = 0, -2
UNCHANGED_TIMEOUT_MS = -1
NO_METADATA = ConsumerGroupMemberMetadataValue(client_id="", client_host="", subscribed_topic_regex="")


class MemberState(IntEnum):
    """Numbers of the current assignment record; those of streams groups are others."""

    STABLE = 0
    UNREVOKED_PARTITIONS = 1
    UNRELEASED_PARTITIONS = 2
    UNKNOWN = 127

    @classmethod
    def of(cls, number: int) -> MemberState:
        return cls(number) if number in cls._value2member_map_ else cls.UNKNOWN


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerGroupMember:
    """Hard state of a member: its metadata record and its current assignment record. A static member that left for a
    while has STATIC_LEAVE_EPOCH."""

    member_id: str
    metadata: ConsumerGroupMemberMetadataValue = NO_METADATA
    member_epoch: int = JOIN_EPOCH
    previous_member_epoch: int = JOIN_EPOCH
    state: MemberState = MemberState.STABLE
    assigned: PartitionEpochs = field(default_factory=dict)
    pending_revocation: PartitionEpochs = field(default_factory=dict)

    @property
    def regex(self) -> str | None:
        """The regular expression it subscribes to; an empty one is none."""
        return self.metadata.subscribed_topic_regex or None

    @property
    def is_away(self) -> bool:
        """A static member that left for a while: epoch -2."""
        return self.member_epoch == STATIC_LEAVE_EPOCH

    @property
    def uses_classic_protocol(self) -> bool:
        return self.metadata.classic_member_metadata is not None

    def is_reconciled_to(self, assignment_epoch: int) -> bool:
        return self.state is MemberState.STABLE and self.member_epoch == assignment_epoch

    def moved_to(
        self,
        *,
        epoch: int,
        state: MemberState,
        assigned: PartitionEpochs,
        pending_revocation: PartitionEpochs | None = None,
    ) -> ConsumerGroupMember:
        """The member one step on. The previous epoch becomes the present one even when that stays (as in Kafka)."""
        return replace(
            self,
            member_epoch=epoch,
            previous_member_epoch=self.member_epoch,
            state=state,
            assigned=assigned,
            pending_revocation=pending_revocation or {},
        )
