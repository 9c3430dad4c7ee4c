"""The answers of the classic group APIs, as the newest version says them; what older ones cannot say is left out on
the way to the wire."""

from __future__ import annotations

from kio.static.primitive import i32

from headrace.coordinator.classic.group import ClassicMembership
from headrace.coordinator.classic.member import ClassicMember
from headrace.protocol.error_codes import ErrorCode
from headrace.protocol.kio_units import from_ms
from headrace.protocol.messages import (
    heartbeat_response,
    join_group_response,
    leave_group_response,
    sync_group_response,
)

__all__ = [
    "follower_join_reply",
    "heartbeat_reply",
    "join_error_reply",
    "join_reply",
    "leave_reply",
    "sync_error_reply",
    "sync_reply",
    "sync_reply_with",
]

_NO_THROTTLE = from_ms(0)
_NO_GENERATION = i32(-1)


def join_reply(
    group: ClassicMembership, member_id: str, *, leader: str | None = None, skip_assignment: bool = False
) -> join_group_response.JoinGroupResponse:
    """Return the reply for the current generation; only the leader learns the members. `leader` overrides it."""
    members: tuple[join_group_response.JoinGroupResponseMember, ...] = ()
    named = leader if leader is not None else group.leader or ""
    if named == member_id:
        members = tuple(
            join_group_response.JoinGroupResponseMember(
                member_id=member.member_id,
                group_instance_id=member.instance_id,
                metadata=member.metadata(group.protocol),
            )
            for member in group.members.values()
        )
    return join_group_response.JoinGroupResponse(
        throttle_time=_NO_THROTTLE,
        error_code=ErrorCode.none,
        generation_id=i32(group.generation),
        protocol_type=group.protocol_type or None,
        protocol_name=group.protocol,
        leader=named,
        skip_assignment=skip_assignment,
        member_id=member_id,
        members=members,
    )


def follower_join_reply(
    member_id: str, generation: int, *, protocol_type: str, protocol_name: str
) -> join_group_response.JoinGroupResponse:
    """Return the reply to a member of a group without a leader."""
    return join_group_response.JoinGroupResponse(
        throttle_time=_NO_THROTTLE,
        error_code=ErrorCode.none,
        generation_id=i32(generation),
        protocol_type=protocol_type,
        protocol_name=protocol_name,
        leader="",
        skip_assignment=False,
        member_id=member_id,
        members=(),
    )


def join_error_reply(code: ErrorCode, member_id: str = "") -> join_group_response.JoinGroupResponse:
    """Return an error reply; with MEMBER_ID_REQUIRED, it carries the id to join with."""
    return join_group_response.JoinGroupResponse(
        throttle_time=_NO_THROTTLE,
        error_code=code,
        generation_id=_NO_GENERATION,
        protocol_type=None,
        protocol_name=None,
        leader="",
        skip_assignment=False,
        member_id=member_id,
        members=(),
    )


def sync_reply(group: ClassicMembership, member: ClassicMember) -> sync_group_response.SyncGroupResponse:
    """The member's assignment in the current generation."""
    return sync_reply_with(member.assignment, group.protocol_type or None, group.protocol)


def sync_reply_with(
    assignment: bytes, protocol_type: str | None, protocol_name: str | None
) -> sync_group_response.SyncGroupResponse:
    """Return a SyncGroup reply with this assignment."""
    return sync_group_response.SyncGroupResponse(
        throttle_time=_NO_THROTTLE,
        error_code=ErrorCode.none,
        protocol_type=protocol_type,
        protocol_name=protocol_name,
        assignment=assignment,
    )


def sync_error_reply(code: ErrorCode) -> sync_group_response.SyncGroupResponse:
    """Return a SyncGroup reply with an error code."""
    return sync_group_response.SyncGroupResponse(
        throttle_time=_NO_THROTTLE, error_code=code, protocol_type=None, protocol_name=None, assignment=b""
    )


def heartbeat_reply(code: ErrorCode = ErrorCode.none) -> heartbeat_response.HeartbeatResponse:
    """Return a Heartbeat reply."""
    return heartbeat_response.HeartbeatResponse(throttle_time=_NO_THROTTLE, error_code=code)


def leave_reply(
    members: tuple[leave_group_response.MemberResponse, ...], code: ErrorCode = ErrorCode.none
) -> leave_group_response.LeaveGroupResponse:
    """Return a LeaveGroup reply with one result per member."""
    return leave_group_response.LeaveGroupResponse(throttle_time=_NO_THROTTLE, error_code=code, members=members)
