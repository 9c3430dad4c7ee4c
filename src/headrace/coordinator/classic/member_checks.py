"""Is the sender the member it says it is? The check that JoinGroup, SyncGroup, Heartbeat, LeaveGroup and OffsetCommit
share; of classic members of a consumer group, too."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from headrace.protocol.error_codes import ErrorCode

__all__ = ["HasMembers", "member_refusal"]


class HasMembers(Protocol):
    """`members` by member id; `static_members`: instance id → member id."""

    @property
    def members(self) -> Mapping[str, object]: ...
    @property
    def static_members(self) -> Mapping[str, str]: ...


def member_refusal(group: HasMembers, member_id: str, instance_id: str | None) -> ErrorCode:
    """UNKNOWN_MEMBER_ID; FENCED_INSTANCE_ID for a static member whose place another one took; else none."""
    if instance_id is not None:
        current = group.static_members.get(instance_id)
        if current is None:
            return ErrorCode.unknown_member_id
        if current != member_id:
            return ErrorCode.fenced_instance_id
    return ErrorCode.none if member_id in group.members else ErrorCode.unknown_member_id
