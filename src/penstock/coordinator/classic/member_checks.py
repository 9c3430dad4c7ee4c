"""Is the sender the member it says it is? The check that JoinGroup, SyncGroup, Heartbeat, LeaveGroup and OffsetCommit
share."""

from __future__ import annotations

from penstock.coordinator.classic.membership import ClassicMembership
from penstock.protocol.error_codes import ErrorCode

__all__ = ["member_refusal"]


def member_refusal(group: ClassicMembership, member_id: str, instance_id: str | None) -> ErrorCode:
    """UNKNOWN_MEMBER_ID; FENCED_INSTANCE_ID for a static member whose place another one took; else none."""
    if instance_id is not None:
        current = group.static_members.get(instance_id)
        if current is None:
            return ErrorCode.unknown_member_id
        if current != member_id:
            return ErrorCode.fenced_instance_id
    return ErrorCode.none if member_id in group.members else ErrorCode.unknown_member_id
