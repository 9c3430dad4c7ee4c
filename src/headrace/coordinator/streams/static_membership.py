"""Static members: an instance id outlives the process that has it. KIP-1071, as Apache Kafka 4.4.

A static member that leaves with epoch -2 keeps its place, its tasks and its session: nobody else gets its tasks until
it is back, or its session is over. Who joins with its instance id then takes its place, under a member id of its own.

Where we differ from Kafka 4.4, on purpose:
- the member itself may join again before it left, like any other member: its last join may have been answered into the
  void, and Kafka's UNRELEASED_INSTANCE_ID is fatal to a Java client;
- an instance id that is taken over by somebody who is a member already bumps the group epoch, because the tasks that
  this member had are nobody's now.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from headrace.coordinator.errors import CoordinatorError
from headrace.coordinator.records.schemas import StreamsGroupMemberMetadataValue
from headrace.coordinator.result import CoordinatorRecord
from headrace.coordinator.streams import records
from headrace.coordinator.streams.group import StreamsGroup
from headrace.coordinator.streams.member import JOIN_EPOCH, STATIC_LEAVE_EPOCH, StreamsGroupMember
from headrace.coordinator.streams.tasks import AssignedTasks
from headrace.protocol.error_codes import ErrorCode

__all__ = [
    "Replacement",
    "check_released",
    "matters_to_assignor",
    "member_away",
    "replace_member",
    "static_member",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Replacement:
    """A static member under its new member id. `group`: a copy of the group in which that happened already, for the
    rest of the heartbeat; the records make it true."""

    group: StreamsGroup
    member: StreamsGroupMember
    replaced_id: str
    records: tuple[CoordinatorRecord, ...]
    abandons_tasks: bool


def static_member(group: StreamsGroup, instance_id: str, member_id: str) -> StreamsGroupMember:
    """The member of that instance. Raises UNKNOWN_MEMBER_ID, or FENCED_INSTANCE_ID when it has another member id."""
    known_id = group.static_members.get(instance_id)
    if known_id is None:
        raise CoordinatorError(ErrorCode.unknown_member_id, f"Instance id {instance_id} is unknown.")
    if known_id != member_id:
        raise CoordinatorError(
            ErrorCode.fenced_instance_id,
            f"Static member {member_id} with instance id {instance_id} was fenced by member {known_id}.",
        )
    return group.members[known_id]


def check_released(known: StreamsGroupMember, instance_id: str, member_id: str) -> None:
    """Raises UNRELEASED_INSTANCE_ID while the instance's member is there."""
    if not known.is_away:
        raise CoordinatorError(
            ErrorCode.unreleased_instance_id,
            f"Static member {member_id} with instance id {instance_id} cannot join the group because the instance id "
            f"is owned by {known.member_id} member.",
        )


def replace_member(group: StreamsGroup, known: StreamsGroupMember, member_id: str) -> Replacement:
    """The place of a member that is away goes to `member_id`, tasks and target included; it begins at epoch 0."""
    member = replace(known, member_id=member_id, member_epoch=JOIN_EPOCH, previous_member_epoch=JOIN_EPOCH)
    group_id = group.group_id
    return Replacement(
        group=group.replacing(known, member),
        member=member,
        replaced_id=known.member_id,
        records=(
            *records.member_tombstones(group_id, known.member_id),
            records.member_record(group_id, member),
            records.target_assignment_record(group_id, member_id, group.target_of(known.member_id)),
            records.current_assignment_record(group_id, member),
        ),
        abandons_tasks=member_id in group.members and member_id != known.member_id,
    )


def member_away(member: StreamsGroupMember) -> StreamsGroupMember:
    """As it is recorded when it left with -2: what it had to revoke is revoked; what it has was assigned at epoch 0."""
    return replace(
        member,
        member_epoch=STATIC_LEAVE_EPOCH,
        assigned=replace(member.assigned, active=dict.fromkeys(member.assigned.active, 0)),
        pending_revocation=AssignedTasks(),
    )


def matters_to_assignor(before: StreamsGroupMemberMetadataValue, after: StreamsGroupMemberMetadataValue) -> bool:
    """Whether a static member's news are a new group epoch; those of other members always are."""

    def relevant(metadata: StreamsGroupMemberMetadataValue) -> tuple[object, ...]:
        return (metadata.topology_epoch, metadata.rack_id, metadata.client_tags, metadata.process_id)

    return relevant(before) != relevant(after)
