"""Rules of joining that consumer and streams groups have in common: fencing by epoch, and static members.

Static members: an instance id outlives the process that uses it (KIP-848; KIP-1071, as in Kafka 4.4). A static member
that leaves with epoch -2 keeps its place, its partitions or tasks, and its session: no other member gets them until it
is back or its session expires. A member that joins with its instance id takes its place under a new member id.

Deliberate difference from Kafka 4.3.1 and 4.4: the same member may rejoin without having left, like a dynamic member.
The reply to its last join may be lost, or it was fenced; Kafka's UNRELEASED_INSTANCE_ID is fatal to its clients.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Generic, Protocol, TypeVar

from headrace.coordinator.errors import CoordinatorError
from headrace.coordinator.modern.group import ModernGroup
from headrace.coordinator.modern.member import JOIN_EPOCH, ModernGroupMember
from headrace.coordinator.result import CoordinatorRecord
from headrace.protocol.error_codes import ErrorCode

__all__ = [
    "Admission",
    "MemberRecords",
    "Replacement",
    "check_epoch",
    "check_released",
    "find_member",
    "find_static_member",
    "replace_member",
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
    if received == member.member_epoch:
        return
    if received == member.previous_member_epoch < member.member_epoch and owns_nothing_else():
        return
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
