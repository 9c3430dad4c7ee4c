"""ModernGroup and ModernGroupMember: hard state that consumer and streams groups have in common, and its replay.

Kafka's classes of these names in `org.apache.kafka.coordinator.group.modern`. Compaction may leave any subset of a
group's records, so every replay creates what it needs and tolerates missing state (KAFKA-19862 was a replay that did
not).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Generic, Protocol, Self, TypeVar

__all__ = [
    "FIRST_EPOCH",
    "JOIN_EPOCH",
    "LEAVE_EPOCH",
    "STATIC_LEAVE_EPOCH",
    "UNCHANGED_TIMEOUT_MS",
    "Holders",
    "ModernGroup",
    "ModernGroupMember",
]


# Member epochs that are requests rather than epochs (KIP-848, "Member epoch").
JOIN_EPOCH, LEAVE_EPOCH, STATIC_LEAVE_EPOCH = 0, -1, -2
UNCHANGED_TIMEOUT_MS = -1
"""Rebalance timeout of a heartbeat that does not change it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModernGroupMember:
    """Identity and epochs of a member.

    A static member that left temporarily has STATIC_LEAVE_EPOCH as its epoch. The previous epoch is kept because a
    reply may be lost: the member then heartbeats with the epoch before (see `heartbeat.check_epoch`).
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


Member = TypeVar("Member", bound=ModernGroupMember)
Target = TypeVar("Target")
AnyMember = TypeVar("AnyMember", bound=ModernGroupMember, contravariant=True)

FIRST_EPOCH = 1
"""Epoch of a group without records, so that the first join is group epoch 2, as in Kafka 4.3."""


class Holders(Protocol[AnyMember]):
    """Index of the members that hold a partition or task, assigned or still pending revocation."""

    def hold(self, member: AnyMember) -> None:
        """Add all that a member holds."""

    def release(self, member: AnyMember) -> None:
        """Remove all that a member holds, except what another member holds by now."""


class ModernGroup(Generic[Member, Target]):
    """Members, their targets, static members and holders. Mutable: replay writes it, and nothing else does.

    A dataclass that inherits from it declares the fields and the hooks below. `static_members`: instance id → member
    id. `target`: a member's target, from its first assignment on.
    """

    __slots__ = ()

    group_id: str
    members: dict[str, Member]
    target: dict[str, Target]
    static_members: dict[str, str]

    @property
    def group_epoch(self) -> int:
        """Epoch of the group's metadata: rises with everything that the assignor must see."""
        raise NotImplementedError

    @property
    def assignment_epoch(self) -> int:
        """Group epoch that the present target was computed for; at most `group_epoch`."""
        raise NotImplementedError

    @property
    def is_empty(self) -> bool:
        """Whether it has no members."""
        return not self.members

    @property
    def are_members_reconciled(self) -> bool:
        """Whether every member has its target."""
        epoch = self.assignment_epoch
        return all(member.is_reconciled_to(epoch) for member in self.members.values())

    def target_of(self, member_id: str) -> Target:
        """Return the member's target; an empty one if it has none."""
        raise NotImplementedError

    def with_replaced_member(self, known: Member, member: Member) -> Self:
        """Return a copy of the group in which `member` has the place of `known`, with its target and its holdings."""
        copy = self._copy()
        # 1. Both ids leave: `member` may have been a member under its own id, whose holdings are free then.
        for member_id in (known.member_id, member.member_id):
            copy.replay_member(member_id, None)
        # 2. The target moves to the new id.
        copy.target.pop(known.member_id, None)
        copy.target[member.member_id] = self.target_of(known.member_id)
        # 3. The new id joins with the metadata and the assignment of the old one.
        copy.replay_member(member.member_id, self._metadata_of(member))
        copy.members[member.member_id] = member
        copy._holders().hold(member)
        return copy

    def replay_member(self, member_id: str, value: Any | None) -> None:
        """Replay a member's metadata record; None, a tombstone, removes the member."""
        member = self.members.get(member_id)
        before = self._metadata_of(member)
        # An instance id belongs to the last member that was recorded with it: during a replacement the tombstone of the
        # replaced member may come after the record of its replacement.
        if before.instance_id is not None and self.static_members.get(before.instance_id) == member_id:
            del self.static_members[before.instance_id]
        self._index_metadata(member_id, before, value)
        if value is not None:
            self.members[member_id] = self._with_metadata(member or self._new_member(member_id), value)
            if value.instance_id is not None:
                self.static_members[value.instance_id] = member_id
        elif member is not None:
            self._holders().release(member)
            del self.members[member_id]

    def replay_current(self, member_id: str, value: Any | None) -> None:
        """Replay a member's current assignment record; a tombstone leaves the member without an assignment."""
        member = self.members.get(member_id)
        if value is None:
            if member is None:
                return
            updated = self._with_metadata(self._new_member(member_id), self._metadata_of(member))
        else:
            updated = self._with_current(member or self._new_member(member_id), value)
        if member is not None:
            self._holders().release(member)
        self._holders().hold(updated)
        self.members[member_id] = updated

    def rebuild_holders(self) -> None:
        """Index all members anew, after a load.

        A log in the middle of compaction may show a record of an old holder beside that of the new one, though both
        never held the same partition or task at once.
        """
        self._reset_holders()
        for member_id in sorted(self.members):
            self._holders().hold(self.members[member_id])

    def _with_metadata(self, member: Member, value: Any) -> Member:
        return replace(member, metadata=value)  # type: ignore[call-arg]

    # --- what a subclass declares ---

    def _copy(self) -> Self:
        raise NotImplementedError

    def _new_member(self, member_id: str) -> Member:
        raise NotImplementedError

    def _metadata_of(self, member: Member | None) -> Any:
        raise NotImplementedError

    def _index_metadata(self, member_id: str, before: Any, after: Any | None) -> None:
        raise NotImplementedError

    def _with_current(self, member: Member, value: Any) -> Member:
        raise NotImplementedError

    def _holders(self) -> Holders[Member]:
        raise NotImplementedError

    def _reset_holders(self) -> None:
        raise NotImplementedError
