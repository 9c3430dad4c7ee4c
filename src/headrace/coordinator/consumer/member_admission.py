"""The first steps of a consumer heartbeat: which member is it, may it speak with this epoch, what does it say anew?"""

from __future__ import annotations

from dataclasses import dataclass, replace

from headrace.coordinator.consumer.group import ConsumerGroup
from headrace.coordinator.consumer.member import JOIN_EPOCH, UNCHANGED_TIMEOUT_MS, ConsumerGroupMember
from headrace.coordinator.consumer.partitions import Partitions
from headrace.coordinator.consumer.static_membership import (
    Replacement,
    check_released,
    replace_member,
    static_member,
)
from headrace.coordinator.errors import CoordinatorError
from headrace.coordinator.records.consumer_schemas import ConsumerGroupMemberMetadataValue
from headrace.coordinator.request_context import RequestContext
from headrace.protocol.error_codes import ErrorCode
from headrace.protocol.messages import consumer_group_heartbeat_request as m
from headrace.protocol.units import to_ms

__all__ = ["Admission", "admit_member", "check_room", "unknown_member", "update_member"]

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
        return _joining(group, member_id, instance_id, known_id)
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


def _joining(group: ConsumerGroup, member_id: str, instance_id: str | None, known_id: str | None) -> Admission:
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
