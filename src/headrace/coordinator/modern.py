"""ModernGroup and ModernGroupMember, and the steps of a heartbeat that consumer and streams groups have in common.

Kafka's classes of these names in `org.apache.kafka.coordinator.group.modern`. Compaction may leave any subset of a
group's records, so every replay creates what it needs and tolerates missing state (KAFKA-19862 was a replay that did
not).

Static members: an instance id outlives the process that uses it (KIP-848; KIP-1071, as in Kafka 4.4). A static member
that leaves with epoch -2 keeps its place, its partitions or tasks, and its session: no other member gets them until it
is back or its session expires. A member that joins with its instance id takes its place under a new member id.

Timers: each heartbeat restarts the session. The rebalance timeout runs from each new demand to revoke until the member
has revoked (KIP-848, KIP-1071).

Deliberate difference from Kafka 4.3.1 and 4.4: the same member may rejoin without having left, like a dynamic member.
The reply to its last join may be lost, or it was fenced; Kafka's UNRELEASED_INSTANCE_ID is fatal to its clients.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Generic, Protocol, Self, TypeVar

from headrace.coordinator.request_context import CoordinatorError
from headrace.coordinator.result import CancelTimer, CoordinatorEvent, CoordinatorRecord, SetTimer, TimerKey
from headrace.protocol.error_codes import ErrorCode

__all__ = [
    "FIRST_EPOCH",
    "JOIN_EPOCH",
    "LEAVE_EPOCH",
    "STATIC_LEAVE_EPOCH",
    "UNCHANGED_TIMEOUT_MS",
    "Admission",
    "Holders",
    "MemberRecords",
    "ModernGroup",
    "ModernGroupMember",
    "Replacement",
    "cancel_replaced_member_timers",
    "check_epoch",
    "check_released",
    "find_member",
    "find_static_member",
    "heartbeat_events",
    "rebalance_timer",
    "replace_member",
    "revocation_timers",
    "session_timer",
    "unknown_member",
]

# Member epochs that are requests rather than epochs (KIP-848, "Member epoch").
JOIN_EPOCH, LEAVE_EPOCH, STATIC_LEAVE_EPOCH = 0, -1, -2
UNCHANGED_TIMEOUT_MS = -1
"""Rebalance timeout of a heartbeat that does not change it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModernGroupMember:
    """Identity and epochs of a member.

    A static member that left temporarily has STATIC_LEAVE_EPOCH as its epoch. The previous epoch is kept because a
    reply may be lost: the member then heartbeats with the epoch before (see `check_epoch`).
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


AnyGroup = TypeVar("AnyGroup", bound=ModernGroup[Any, Any])


# -- steps of a heartbeat ----------------------------------------------------------------------------------------------


class MemberRecords(Protocol):
    """The builders of a member's records: `consumer.records` or `streams.records`."""

    def member_tombstones(self, group_id: str, member_id: str, /) -> tuple[CoordinatorRecord, ...]: ...
    def member_record(self, group_id: str, member: Any, /) -> CoordinatorRecord: ...
    def target_assignment_record(self, group_id: str, member_id: str, target: Any, /) -> CoordinatorRecord: ...
    def current_assignment_record(self, group_id: str, member: Any, /) -> CoordinatorRecord: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Replacement(Generic[AnyGroup, Member]):
    """A static member under its new member id.

    `group` is a copy of the group after the replacement, on which the rest of the heartbeat works; `records` make it
    true. `abandons_holdings`: the new id was a member before, and what it held has no owner now.
    """

    group: AnyGroup
    member: Member
    replaced_id: str
    records: tuple[CoordinatorRecord, ...]
    abandons_holdings: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Admission(Generic[AnyGroup, Member]):
    """The member as it was before this heartbeat, in its group; after a replacement, both as the replacement leaves
    them."""

    group: AnyGroup
    member: Member
    replacement: Replacement[AnyGroup, Member] | None = None

    @property
    def replaced_id(self) -> str | None:
        """The member id whose place a static member took; None if it took none."""
        return None if self.replacement is None else self.replacement.replaced_id


def unknown_member(group: ModernGroup[Any, Any], member_id: str) -> CoordinatorError:
    """Return the error for a sender that is not a member; the caller raises it."""
    message = f"Member {member_id} is not a member of group {group.group_id}."
    return CoordinatorError(ErrorCode.unknown_member_id, message)


def find_static_member(group: ModernGroup[Member, Any], instance_id: str, member_id: str) -> Member:
    """Return the member of an instance id.

    Raises:
        CoordinatorError: UNKNOWN_MEMBER_ID; FENCED_INSTANCE_ID if another member id has the instance.
    """
    known_id = group.static_members.get(instance_id)
    if known_id is None:
        raise CoordinatorError(ErrorCode.unknown_member_id, f"Instance id {instance_id} is unknown.")
    # A newer process took the instance over. Its id is in the message, so that an operator finds the twin.
    if known_id != member_id:
        raise CoordinatorError(
            ErrorCode.fenced_instance_id,
            f"Static member {member_id} with instance id {instance_id} was fenced by member {known_id}.",
        )
    return group.members[known_id]


def find_member(group: ModernGroup[Member, Any], member_id: str, instance_id: str | None) -> Member:
    """Return the member that sent a request. Raises as `find_static_member`."""
    if instance_id is not None:
        return find_static_member(group, instance_id, member_id)
    if member_id not in group.members:
        raise unknown_member(group, member_id)
    return group.members[member_id]


def check_released(known: ModernGroupMember, instance_id: str, member_id: str) -> None:
    """Raise CoordinatorError(UNRELEASED_INSTANCE_ID) unless the member of the instance has left temporarily."""
    if not known.is_away:
        raise CoordinatorError(
            ErrorCode.unreleased_instance_id,
            f"Static member {member_id} with instance id {instance_id} cannot join the group because the instance id "
            f"is owned by {known.member_id} member.",
        )


def check_epoch(
    member: ModernGroupMember, received: int, *, group_type: str, owns_nothing_else: Callable[[], bool]
) -> None:
    """Raise CoordinatorError(FENCED_MEMBER_EPOCH) unless the member may heartbeat with this epoch.

    The current epoch is valid. The previous one is valid if the member owns nothing beyond its assignment
    (`owns_nothing_else`): it did not receive the last reply, and sends its heartbeat again.
    """
    # 1. In step.
    if received == member.member_epoch:
        return
    # 2. One reply behind: the coordinator moved the member on, and the reply was lost. It may continue only if it owns
    #    nothing beyond its assignment, since it has not been told to take anything since. Otherwise it holds partitions
    #    of a life that was fenced, perhaps together with their new owner.
    if received == member.previous_member_epoch < member.member_epoch and owns_nothing_else():
        return
    # 3. Behind by more, or ahead (a coordinator that lost records): the member abandons everything and rejoins with
    #    epoch 0.
    relation = "greater" if received > member.member_epoch else "smaller"
    raise CoordinatorError(
        ErrorCode.fenced_member_epoch,
        f"The {group_type} group member has a {relation} member epoch ({received}) than the one known by the group "
        f"coordinator ({member.member_epoch}). The member must abandon all its partitions and rejoin.",
    )


def replace_member(
    group: AnyGroup, known: Member, member_id: str, records: MemberRecords
) -> Replacement[AnyGroup, Member]:
    """Give the place of a static member, its target and what it holds to `member_id`, which starts at epoch 0."""
    # Target and holdings move to the new id, so the assignor sees the same member, and a restart of a static member
    # moves nothing (KIP-345, KIP-848). Epoch 0 makes the new process learn its assignment with its first reply.
    member = replace(known, member_id=member_id, member_epoch=JOIN_EPOCH, previous_member_epoch=JOIN_EPOCH)
    group_id = group.group_id
    return Replacement(
        group=group.with_replaced_member(known, member),
        member=member,
        replaced_id=known.member_id,
        # In Kafka's order (GroupMetadataManager.replaceMember): the old id goes before the new one comes.
        records=(
            *records.member_tombstones(group_id, known.member_id),
            records.member_record(group_id, member),
            records.target_assignment_record(group_id, member_id, group.target_of(known.member_id)),
            records.current_assignment_record(group_id, member),
        ),
        abandons_holdings=member_id in group.members and member_id != known.member_id,
    )


def session_timer(group_id: str, member_id: str) -> TimerKey:
    """Return the key of a member's session timer."""
    return TimerKey(kind="session", group_id=group_id, member_id=member_id)


def rebalance_timer(group_id: str, member_id: str) -> TimerKey:
    """Return the key of a member's rebalance timer."""
    return TimerKey(kind="rebalance", group_id=group_id, member_id=member_id)


def revocation_timers(
    group_id: str,
    before: ModernGroupMember,
    after: ModernGroupMember,
    *,
    is_same_demand: bool,
    rebalance_timeout_ms: int,
    now_ms: int,
) -> list[SetTimer | CancelTimer]:
    """Return the changes of the rebalance timer from one heartbeat to the next.

    `is_same_demand`: the member had to revoke the same before. The timer then runs on: a member must not gain time by
    sending more heartbeats.
    """
    # KIP-848: the rebalance timeout is the time to revoke. It starts with a demand and not with each heartbeat; a new
    # demand (another set, or another epoch) starts it anew, because the member has new work to finish before it can let
    # go.
    key = rebalance_timer(group_id, after.member_id)
    if after.is_revoking:
        runs_on = before.is_revoking and before.member_epoch == after.member_epoch and is_same_demand
        return [] if runs_on else [SetTimer(key=key, deadline_ms=now_ms + rebalance_timeout_ms)]
    return [CancelTimer(key=key)] if before.is_revoking else []


def cancel_replaced_member_timers(group_id: str, replaced_id: str | None, member_id: str) -> list[CancelTimer]:
    """Cancel the session of a replaced static member and the rebalance timer of its replacement.

    The replaced id is not a member any more, and what its place had to revoke is revoked. `replaced_id` None: no member
    was replaced.
    """
    if replaced_id is None:
        return []
    return [
        CancelTimer(key=session_timer(group_id, replaced_id)),
        CancelTimer(key=rebalance_timer(group_id, member_id)),
    ]


def heartbeat_events(
    group_id: str,
    member_id: str,
    *,
    joined: bool,
    replaced_id: str | None,
    bumped_to: tuple[int, str] | None,
    computed_for: int | None,
) -> tuple[CoordinatorEvent, ...]:
    """`replaced_id`: whose place a static member took. `bumped_to`: the new group epoch and its reason,
    `computed_for`: the epoch of a new target assignment; None: there is none."""
    events = []
    # In the order in which they happened.
    if joined:
        events.append(_event("MemberJoined", group_id, member_id=member_id))
    if replaced_id is not None:
        events.append(_event("StaticMemberReplaced", group_id, member_id=member_id, replaced_id=replaced_id))
    if bumped_to is not None:
        events.append(_event("GroupEpochBumped", group_id, epoch=bumped_to[0], reason=bumped_to[1]))
    if computed_for is not None:
        events.append(_event("TargetAssignmentComputed", group_id, epoch=computed_for))
    return tuple(events)


def _event(name: str, group_id: str, **details: object) -> CoordinatorEvent:
    return CoordinatorEvent(
        name=name, group_id=group_id, details=tuple((key, str(value)) for key, value in sorted(details.items()))
    )
