"""DeleteGroups (API 42): the tombstones that take an empty group out, offsets first; they take pending ones along."""

from __future__ import annotations

from headrace.coordinator.classic.group import ClassicGroup
from headrace.coordinator.errors import CoordinatorError
from headrace.coordinator.group_registry import Group
from headrace.coordinator.offsets.committed_offsets import CommittedOffsets
from headrace.coordinator.offsets.pending_offsets import PendingOffsets
from headrace.coordinator.records.builders import (
    group_metadata_tombstone,
    offset_commit_tombstone,
)
from headrace.coordinator.result import CoordinatorRecord
from headrace.protocol.error_codes import ErrorCode

__all__ = ["delete_group"]


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
