"""DescribeGroups (API 15): classic groups. Another type is Dead, from version 6 on with GROUP_ID_NOT_FOUND."""

from __future__ import annotations

from typing import cast

from kio.schema.types import GroupId

from penstock.coordinator.classic.group import ClassicGroup
from penstock.coordinator.group_registry import Group
from penstock.protocol.error_codes import ErrorCode
from penstock.protocol.messages import describe_groups_response as m

__all__ = ["describe_group"]

_NOT_FOUND_SINCE = 6


def describe_group(group: Group | None, group_id: str, api_version: int) -> m.DescribedGroup:
    if isinstance(group, ClassicGroup):
        return _described(group_id, state=group.state(), protocol_type=group.protocol_type)
    if api_version < _NOT_FOUND_SINCE:
        return _described(group_id, state="Dead")
    message = f"Group {group_id} not found." if group is None else f"Group {group_id} is not a classic group."
    return _described(group_id, state="Dead", code=ErrorCode.group_id_not_found, message=message)


def _described(
    group_id: str,
    *,
    state: str,
    protocol_type: str = "",
    code: ErrorCode = ErrorCode.none,
    message: str | None = None,
) -> m.DescribedGroup:
    return m.DescribedGroup(
        error_code=code,
        error_message=message,
        group_id=cast("GroupId", group_id),
        group_state=state,
        protocol_type=protocol_type,
        protocol_data="",
        members=(),
    )
