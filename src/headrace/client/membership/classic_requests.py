"""The requests of a classic group's member: JoinGroup, SyncGroup, Heartbeat, LeaveGroup."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from kio.schema.types import GroupId
from kio.static.primitive import i32

from headrace.client.membership.group_events import GroupIdentity
from headrace.protocol import messages as m
from headrace.protocol.kio_units import from_ms

__all__ = ["PROTOCOL_TYPE", "heartbeat_request", "join_request", "leave_request", "sync_request"]

PROTOCOL_TYPE = "consumer"


def join_request(
    group_id: str,
    identity: GroupIdentity,
    protocols: Iterable[tuple[str, bytes]],
    *,
    session_timeout_ms: int,
    rebalance_timeout_ms: int,
    reason: str,
) -> object:
    """`protocols`: (assignor's name, subscription) in order of preference."""
    request = m.join_group_request
    return request.JoinGroupRequest(
        group_id=GroupId(group_id),
        session_timeout=from_ms(session_timeout_ms),
        rebalance_timeout=from_ms(rebalance_timeout_ms),
        member_id=identity.member_id,
        group_instance_id=identity.instance_id,
        protocol_type=PROTOCOL_TYPE,
        protocols=tuple(request.JoinGroupRequestProtocol(name=name, metadata=data) for name, data in protocols),
        reason=reason,
    )


def sync_request(
    group_id: str, identity: GroupIdentity, protocol_name: str, assignments: Mapping[str, bytes]
) -> object:
    """`assignments`: of a leader, everybody's; of a follower, none."""
    request = m.sync_group_request
    return request.SyncGroupRequest(
        group_id=GroupId(group_id),
        generation_id=i32(identity.generation),
        member_id=identity.member_id,
        group_instance_id=identity.instance_id,
        protocol_type=PROTOCOL_TYPE,
        protocol_name=protocol_name,
        assignments=tuple(
            request.SyncGroupRequestAssignment(member_id=member_id, assignment=assignment)
            for member_id, assignment in assignments.items()
        ),
    )


def heartbeat_request(group_id: str, identity: GroupIdentity) -> object:
    """Still there, in this generation."""
    return m.heartbeat_request.HeartbeatRequest(
        group_id=GroupId(group_id),
        generation_id=i32(identity.generation),
        member_id=identity.member_id,
        group_instance_id=identity.instance_id,
    )


def leave_request(group_id: str, identity: GroupIdentity, reason: str) -> object:
    """One member, out of the group for good."""
    request = m.leave_group_request
    member = request.MemberIdentity(member_id=identity.member_id, group_instance_id=identity.instance_id, reason=reason)
    return request.LeaveGroupRequest(group_id=GroupId(group_id), members=(member,))
