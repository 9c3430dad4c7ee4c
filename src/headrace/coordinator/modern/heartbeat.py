"""Steps of a heartbeat that consumer and streams groups have in common: fencing, static members, timers, events.

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
from typing import Any, Generic, Protocol, TypeVar

from headrace.coordinator.modern.group import JOIN_EPOCH, ModernGroup, ModernGroupMember
from headrace.coordinator.request_context import CoordinatorError
from headrace.coordinator.result import CancelTimer, CoordinatorEvent, CoordinatorRecord, SetTimer, TimerKey
from headrace.protocol.error_codes import ErrorCode

__all__ = [
    "Admission",
    "MemberRecords",
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


AnyGroup = TypeVar("AnyGroup", bound=ModernGroup[Any, Any])
Member = TypeVar("Member", bound=ModernGroupMember)


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
