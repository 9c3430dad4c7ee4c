"""Admission of the sender of a consumer heartbeat: which member it is, whether its epoch is valid, what it changed.

Static members: an instance id outlives the process that uses it (KIP-848). A static member that leaves with epoch -2
keeps its place, its partitions and its session: no other member gets its partitions until it is back or its session
expires. A member that joins with its instance id takes its place under a new member id.

Deliberate difference from Kafka 4.3.1: the same member may rejoin without having left, like a dynamic member. The reply
to its last join may be lost, or it was fenced; Kafka's UNRELEASED_INSTANCE_ID is fatal to a consumer.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from headrace.coordinator.consumer import records
from headrace.coordinator.consumer.group import ConsumerGroup
from headrace.coordinator.consumer.member import (
    JOIN_EPOCH,
    STATIC_LEAVE_EPOCH,
    UNCHANGED_TIMEOUT_MS,
    ConsumerGroupMember,
    Partitions,
)
from headrace.coordinator.errors import CoordinatorError
from headrace.coordinator.records.consumer_schemas import ConsumerGroupMemberMetadataValue
from headrace.coordinator.request_context import RequestContext
from headrace.coordinator.result import CoordinatorRecord
from headrace.protocol.error_codes import ErrorCode
from headrace.protocol.messages import consumer_group_heartbeat_request as m
from headrace.protocol.units import to_ms

__all__ = [
    "Admission",
    "Replacement",
    "admit_member",
    "check_released",
    "check_room",
    "replace_member",
    "static_member",
    "unknown_member",
    "update_member",
    "with_static_leave",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Replacement:
    """A static member under its new member id. `group`: a copy of the group in which that happened already, for the
    rest of the heartbeat; the records make it true."""

    group: ConsumerGroup
    member: ConsumerGroupMember
    replaced_id: str
    records: tuple[CoordinatorRecord, ...]


def static_member(group: ConsumerGroup, instance_id: str, member_id: str) -> ConsumerGroupMember:
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


def check_released(known: ConsumerGroupMember, instance_id: str, member_id: str) -> None:
    """Raises UNRELEASED_INSTANCE_ID while the instance's member is there. One that speaks the classic protocol gives
    way at once."""
    if not known.is_away and not known.uses_classic_protocol:
        raise CoordinatorError(
            ErrorCode.unreleased_instance_id,
            f"Static member {member_id} with instance id {instance_id} cannot join the group because the instance id "
            f"is owned by {known.member_id} member.",
        )


def replace_member(group: ConsumerGroup, known: ConsumerGroupMember, member_id: str) -> Replacement:
    """The place of a member that is away goes to `member_id`, partitions and target included; it begins at epoch 0."""
    member = replace(known, member_id=member_id, member_epoch=JOIN_EPOCH, previous_member_epoch=JOIN_EPOCH)
    group_id = group.group_id
    return Replacement(
        group=group.with_replaced_member(known, member),
        member=member,
        replaced_id=known.member_id,
        records=(
            *records.member_tombstones(group_id, known.member_id),
            records.member_record(group_id, member),
            records.target_assignment_record(group_id, member_id, group.target_of(known.member_id)),
            records.current_assignment_record(group_id, member),
        ),
    )


def with_static_leave(member: ConsumerGroupMember) -> ConsumerGroupMember:
    """As it is recorded when it left with -2: what it had to revoke is revoked; what it has was assigned at epoch 0."""
    return replace(
        member,
        member_epoch=STATIC_LEAVE_EPOCH,
        assigned={topic_id: dict.fromkeys(of_topic, 0) for topic_id, of_topic in member.assigned.items()},
        pending_revocation={},
    )


_ABANDON = "The member must abandon all its partitions and rejoin."


@dataclass(frozen=True, slots=True, kw_only=True)
class Admission:
    """The member as it was before this heartbeat, in its group. After a static member's replacement both are as the
    replacement leaves them."""

    group: ConsumerGroup
    member: ConsumerGroupMember
    replacement: Replacement | None = None


def admit_member(
    group: ConsumerGroup, request: m.ConsumerGroupHeartbeatRequest, owned: Partitions | None, *, max_size: int
) -> Admission:
    """The stored member, or a new one on a join. Raises GROUP_MAX_SIZE_REACHED, UNKNOWN_MEMBER_ID,
    FENCED_MEMBER_EPOCH; for a static member also UNRELEASED_INSTANCE_ID, FENCED_INSTANCE_ID."""
    member_id, instance_id = request.member_id, request.instance_id
    known_id = None if instance_id is None else group.static_members.get(instance_id)
    check_room(group, member_id, known_id, max_size=max_size)
    if request.member_epoch == JOIN_EPOCH:
        return _admit_joining(group, member_id, instance_id, known_id)
    if instance_id is not None:
        member = static_member(group, instance_id, member_id)
    elif member_id in group.members:
        member = group.members[member_id]
    else:
        raise unknown_member(group, member_id)
    _check_epoch(member, request.member_epoch, owned)
    return Admission(group=group, member=member)


def check_room(group: ConsumerGroup, member_id: str, known_id: str | None, *, max_size: int) -> None:
    """Raises GROUP_MAX_SIZE_REACHED for who is new; `known_id`: the member whose instance it is."""
    if len(group.members) >= max_size and member_id not in group.members and known_id is None:
        raise CoordinatorError(
            ErrorCode.group_max_size_reached,
            f"The consumer group has reached its maximum capacity of {max_size} members.",
        )


def unknown_member(group: ConsumerGroup, member_id: str) -> CoordinatorError:
    message = f"Member {member_id} is not a member of group {group.group_id}."
    return CoordinatorError(ErrorCode.unknown_member_id, message)


def _admit_joining(group: ConsumerGroup, member_id: str, instance_id: str | None, known_id: str | None) -> Admission:
    if known_id is None or instance_id is None:
        member = group.members.get(member_id) or ConsumerGroupMember(member_id=member_id)
        return Admission(group=group, member=member)
    known = group.members[known_id]
    if known_id == member_id and not known.is_away:
        return Admission(group=group, member=known)
    check_released(known, instance_id, member_id)
    replacement = replace_member(group, known, member_id)
    return Admission(group=replacement.group, member=replacement.member, replacement=replacement)


def _check_epoch(member: ConsumerGroupMember, received: int, owned: Partitions | None) -> None:
    """The current epoch passes; the previous one does when the member owns nothing that is not its own: it has not
    heard the last reply."""
    if received == member.member_epoch:
        return
    if received > member.member_epoch:
        relation = "greater"
    elif received == member.previous_member_epoch and owned is not None and _has_all(member, owned):
        return
    else:
        relation = "smaller"
    raise CoordinatorError(
        ErrorCode.fenced_member_epoch,
        f"The consumer group member has a {relation} member epoch ({received}) than the one known by the group "
        f"coordinator ({member.member_epoch}). {_ABANDON}",
    )


def _has_all(member: ConsumerGroupMember, owned: Partitions) -> bool:
    return all(
        topic_id in member.assigned and member.assigned[topic_id].keys() >= set(partitions)
        for topic_id, partitions in owned.items()
    )


def update_member(
    member: ConsumerGroupMember, request: m.ConsumerGroupHeartbeatRequest, context: RequestContext
) -> ConsumerGroupMember:
    """Null means unchanged; client id and host are always those of the request. The same object if nothing differs.

    A member that spoke the classic protocol no longer does. A join says all of what is read: who takes a static
    member's place does not read what that one did.
    """
    known = member.metadata
    timeout_ms = to_ms(request.rebalance_timeout)
    names, regex = request.subscribed_topic_names, request.subscribed_topic_regex
    if request.member_epoch == JOIN_EPOCH:
        names, regex = names or (), regex or ""
    metadata = ConsumerGroupMemberMetadataValue(
        instance_id=known.instance_id if request.instance_id is None else request.instance_id,
        rack_id=known.rack_id if request.rack_id is None else request.rack_id,
        client_id=context.client_id,
        client_host=context.client_host,
        subscribed_topic_names=known.subscribed_topic_names if names is None else tuple(sorted(set(names))),
        subscribed_topic_regex=known.subscribed_topic_regex if regex is None else regex,
        rebalance_timeout_ms=known.rebalance_timeout_ms if timeout_ms == UNCHANGED_TIMEOUT_MS else timeout_ms,
        server_assignor=known.server_assignor if request.server_assignor is None else request.server_assignor,
    )
    return member if metadata == known else replace(member, metadata=metadata)
