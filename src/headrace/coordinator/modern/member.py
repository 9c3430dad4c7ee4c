"""ModernGroupMember: state that members of consumer and streams groups have in common.

Kafka's `coordinator.group.modern.ModernGroupMember`. A subclass adds its metadata record, its assignment and a
`MemberState`, whose numbers are those of its current assignment record.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["JOIN_EPOCH", "LEAVE_EPOCH", "STATIC_LEAVE_EPOCH", "UNCHANGED_TIMEOUT_MS", "ModernGroupMember"]

# Member epochs that are requests rather than epochs (KIP-848, "Member epoch").
JOIN_EPOCH, LEAVE_EPOCH, STATIC_LEAVE_EPOCH = 0, -1, -2
UNCHANGED_TIMEOUT_MS = -1
"""Rebalance timeout of a heartbeat that does not change it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModernGroupMember:
    """Identity and epochs of a member.

    A static member that left temporarily has STATIC_LEAVE_EPOCH as its epoch. The previous epoch is kept because a
    reply may be lost: the member then heartbeats with the epoch before (see `join.check_epoch`).
    """

    member_id: str
    member_epoch: int = JOIN_EPOCH
    previous_member_epoch: int = JOIN_EPOCH

    @property
    def is_away(self) -> bool:
        """Whether it is a static member that left temporarily (epoch -2)."""
        return self.member_epoch == STATIC_LEAVE_EPOCH

    @property
    def is_stable(self) -> bool:
        """Whether it has what its target says, or does not know of a newer target yet."""
        raise NotImplementedError

    @property
    def is_revoking(self) -> bool:
        """Whether it has been asked to revoke something and has not confirmed it."""
        raise NotImplementedError

    def is_reconciled_to(self, assignment_epoch: int) -> bool:
        """Whether it has the target of this epoch."""
        return self.is_stable and self.member_epoch == assignment_epoch
