"""Admission of the sender of a consumer heartbeat: which member it is, whether its epoch is valid, what it changed.

The rules for epochs and static members are shared, see `modern.join`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TypeAlias

from headrace.coordinator.consumer import records
from headrace.coordinator.consumer.group import ConsumerGroup
from headrace.coordinator.consumer.member import ConsumerGroupMember, Partitions
from headrace.coordinator.errors import CoordinatorError
from headrace.coordinator.modern.join import Admission, check_epoch, check_released, find_member, replace_member
from headrace.coordinator.modern.member import JOIN_EPOCH, STATIC_LEAVE_EPOCH, UNCHANGED_TIMEOUT_MS
from headrace.coordinator.records.consumer_schemas import ConsumerGroupMemberMetadataValue
from headrace.coordinator.request_context import RequestContext
from headrace.protocol.error_codes import ErrorCode
from headrace.protocol.kio_units import to_ms
from headrace.protocol.messages import consumer_group_heartbeat_request as m

__all__ = [
    "ConsumerGroupAdmission",
    "admit_member",
    "check_room",
    "update_member",
    "with_static_leave",
]

ConsumerGroupAdmission: TypeAlias = Admission[ConsumerGroup, ConsumerGroupMember]


def with_static_leave(member: ConsumerGroupMember) -> ConsumerGroupMember:
    """As it is recorded when it left with -2: what it had to revoke is revoked; what it has was assigned at epoch 0."""
    return replace(
        member,
        member_epoch=STATIC_LEAVE_EPOCH,
        assigned={topic_id: dict.fromkeys(of_topic, 0) for topic_id, of_topic in member.assigned.items()},
        pending_revocation={},
    )


def admit_member(
    group: ConsumerGroup, request: m.ConsumerGroupHeartbeatRequest, owned: Partitions | None, *, max_size: int
) -> ConsumerGroupAdmission:
    """The stored member, or a new one on a join. Raises GROUP_MAX_SIZE_REACHED, UNKNOWN_MEMBER_ID,
    FENCED_MEMBER_EPOCH; for a static member also UNRELEASED_INSTANCE_ID, FENCED_INSTANCE_ID."""
    member_id, instance_id = request.member_id, request.instance_id
    known_id = None if instance_id is None else group.static_members.get(instance_id)
    check_room(group, member_id, known_id, max_size=max_size)
    if request.member_epoch == JOIN_EPOCH:
        return _admit_joining(group, member_id, instance_id, known_id)
    member = find_member(group, member_id, instance_id)
    check_epoch(
        member,
        request.member_epoch,
        group_type="consumer",
        owns_nothing_else=lambda: owned is not None and _has_all(member, owned),
    )
    return Admission(group=group, member=member)


def check_room(group: ConsumerGroup, member_id: str, known_id: str | None, *, max_size: int) -> None:
    """Raises GROUP_MAX_SIZE_REACHED for who is new; `known_id`: the member whose instance it is."""
    if len(group.members) >= max_size and member_id not in group.members and known_id is None:
        raise CoordinatorError(
            ErrorCode.group_max_size_reached,
            f"The consumer group has reached its maximum capacity of {max_size} members.",
        )


def _admit_joining(
    group: ConsumerGroup, member_id: str, instance_id: str | None, known_id: str | None
) -> ConsumerGroupAdmission:
    if known_id is None or instance_id is None:
        member = group.members.get(member_id) or ConsumerGroupMember(member_id=member_id)
        return Admission(group=group, member=member)
    known = group.members[known_id]
    if known_id == member_id and not known.is_away:
        return Admission(group=group, member=known)
    if not known.uses_classic_protocol:  # a classic member gives way at once, as in a classic group
        check_released(known, instance_id, member_id)
    replacement = replace_member(group, known, member_id, records)
    return Admission(group=replacement.group, member=replacement.member, replacement=replacement)


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
