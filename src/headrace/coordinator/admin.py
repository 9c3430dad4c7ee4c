"""ListGroups (API 16), DescribeGroups (API 15) and DeleteGroups (API 42) for groups of all types.

ConsumerGroupDescribe and StreamsGroupDescribe are in `consumer.describe` and `streams.describe`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import cast

from kio.schema.types import GroupId

from headrace.coordinator.classic.group import ClassicGroup, ClassicGroupState, ClassicMembership
from headrace.coordinator.consumer.group import ConsumerGroup
from headrace.coordinator.errors import CoordinatorError
from headrace.coordinator.group_registry import Group
from headrace.coordinator.offsets.committed_offsets import CommittedOffsets, PendingOffsets
from headrace.coordinator.records.builders import group_metadata_tombstone, offset_commit_tombstone
from headrace.coordinator.result import CoordinatorRecord
from headrace.coordinator.streams.group import StreamsGroup
from headrace.protocol.error_codes import ErrorCode
from headrace.protocol.messages import describe_groups_response as describe_response
from headrace.protocol.messages import list_groups_response as list_response

__all__ = ["delete_group", "describe_group", "list_groups"]


def list_groups(
    groups: Iterable[Group], states: Collection[str], types: Collection[str]
) -> tuple[list_response.ListedGroup, ...]:
    """Return the groups whose state and type match; an empty filter matches all."""
    wanted_states, wanted_types = [_plain(state) for state in states], [_plain(kind) for kind in types]
    listed = (_listed(group) for group in groups)
    return tuple(
        group
        for group in listed
        if (not wanted_states or _plain(group.group_state) in wanted_states)
        and (not wanted_types or _plain(group.group_type) in wanted_types)
    )


def _listed(group: Group) -> list_response.ListedGroup:
    if isinstance(group, StreamsGroup):
        protocol_type, state, kind = "streams", group.state().value, "streams"
    elif isinstance(group, ConsumerGroup):
        protocol_type, state, kind = "consumer", group.state().value, "consumer"
    else:
        protocol_type, state, kind = group.protocol_type, group.state(), "classic"
    return list_response.ListedGroup(
        group_id=cast("GroupId", group.group_id), protocol_type=protocol_type, group_state=state, group_type=kind
    )


def _plain(name: str) -> str:
    return name.strip().replace("_", "").lower()


_NOT_FOUND_SINCE = 6


def describe_group(group: Group | None, group_id: str, api_version: int) -> describe_response.DescribedGroup:
    """Return the description of a classic group; state Dead, and an error code from version 6 on, for any other."""
    if isinstance(group, ClassicGroup):
        return _classic(group.membership)
    if api_version < _NOT_FOUND_SINCE:
        return _described(group_id, state="Dead")
    message = f"Group {group_id} not found." if group is None else f"Group {group_id} is not a classic group."
    return _described(group_id, state="Dead", code=ErrorCode.group_id_not_found, message=message)


def _classic(group: ClassicMembership) -> describe_response.DescribedGroup:
    """Describe a classic group; protocol and metadata only if it is stable, since members agree on them only then."""
    is_stable = group.state is ClassicGroupState.STABLE
    members = tuple(
        describe_response.DescribedGroupMember(
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
    members: tuple[describe_response.DescribedGroupMember, ...] = (),
    code: ErrorCode = ErrorCode.none,
    message: str | None = None,
) -> describe_response.DescribedGroup:
    return describe_response.DescribedGroup(
        error_code=code,
        error_message=message,
        group_id=cast("GroupId", group_id),
        group_state=state,
        protocol_type=protocol_type,
        protocol_data=protocol,
        members=members,
    )


def delete_group(
    group: Group | None, group_id: str, offsets: CommittedOffsets, pending: PendingOffsets
) -> tuple[CoordinatorRecord, ...]:
    """Raises CoordinatorError(GROUP_ID_NOT_FOUND) or (NON_EMPTY_GROUP)."""
    if group is None:
        raise CoordinatorError(ErrorCode.group_id_not_found, f"Group {group_id} not found.")
    is_empty = group.is_empty if isinstance(group, ClassicGroup) else not group.members
    if not is_empty:
        raise CoordinatorError(ErrorCode.non_empty_group, f"Group {group_id} is not empty.")
    keys = {key: None for key, _ in offsets.of_group(group_id)} | dict.fromkeys(pending.of_group(group_id))
    tombstones = [offset_commit_tombstone(group_id, topic, partition) for topic, partition in sorted(keys)]
    if isinstance(group, ClassicGroup):
        return (*tombstones, group_metadata_tombstone(group_id))
    return (*tombstones, *group.tombstones())
