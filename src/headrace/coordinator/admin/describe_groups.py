"""DescribeGroups (API 15): classic groups. Another type is Dead, from version 6 on with GROUP_ID_NOT_FOUND."""

from __future__ import annotations

from typing import cast

from kio.schema.types import GroupId

from headrace.coordinator.classic.group import ClassicGroup
from headrace.coordinator.classic.group_state import ClassicGroupState
from headrace.coordinator.classic.membership import ClassicMembership
from headrace.coordinator.group_registry import Group
from headrace.protocol.error_codes import ErrorCode
from headrace.protocol.messages import describe_groups_response as m

__all__ = ["describe_group"]

_NOT_FOUND_SINCE = 6


def describe_group(group: Group | None, group_id: str, api_version: int) -> m.DescribedGroup:
    if isinstance(group, ClassicGroup):
        return _classic(group.membership)
    if api_version < _NOT_FOUND_SINCE:
        return _described(group_id, state="Dead")
    message = f"Group {group_id} not found." if group is None else f"Group {group_id} is not a classic group."
    return _described(group_id, state="Dead", code=ErrorCode.group_id_not_found, message=message)


def _classic(group: ClassicMembership) -> m.DescribedGroup:
    """Protocol and metadata are told of a stable group only: before, the members have not agreed."""
    is_stable = group.state is ClassicGroupState.STABLE
    members = tuple(
        m.DescribedGroupMember(
            member_id=member.member_id,
            group_instance_id=member.instance_id,
            client_id=member.client_id,
            client_host=member.client_host,
            member_metadata=member.metadata(group.protocol) if is_stable else b"",
            member_assignment=member.assignment,
        )
        for member in group.members.values()
    )
    return _described(
        group.group_id,
        state=group.state.value,
        protocol_type=group.protocol_type,
        protocol=group.protocol or "" if is_stable else "",
        members=members,
    )


def _described(
    group_id: str,
    *,
    state: str,
    protocol_type: str = "",
    protocol: str = "",
    members: tuple[m.DescribedGroupMember, ...] = (),
    code: ErrorCode = ErrorCode.none,
    message: str | None = None,
) -> m.DescribedGroup:
    return m.DescribedGroup(
        error_code=code,
        error_message=message,
        group_id=cast("GroupId", group_id),
        group_state=state,
        protocol_type=protocol_type,
        protocol_data=protocol,
        members=members,
    )
