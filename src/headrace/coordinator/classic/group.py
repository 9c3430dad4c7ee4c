"""ClassicGroup: a group whose members assign the partitions among themselves, or that only holds offsets.

The latter, a *simple* group, has no record of its own: it lives as long as it has offsets (admin clients, manual
partition assignment). Hard state is the last GroupMetadata record; `membership` is what happens between two of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from headrace.coordinator.classic.membership import ClassicMembership
from headrace.coordinator.records.schemas import GroupMetadataKey, GroupMetadataValue
from headrace.coordinator.result import CoordinatorRecord

__all__ = ["ClassicGroup"]


@dataclass(slots=True, kw_only=True, eq=False)
class ClassicGroup:
    """Mutable: replay writes `metadata`, and with it the membership that follows from it; the rule's own membership
    takes its place then."""

    group_id: str
    metadata: GroupMetadataValue | None = None
    membership: ClassicMembership = field(init=False)

    def __post_init__(self) -> None:
        self.replay(self.metadata)

    def replay(self, value: GroupMetadataValue | None) -> None:
        self.metadata = value
        if value is None:
            self.membership = ClassicMembership(group_id=self.group_id)
        else:
            self.membership = ClassicMembership.of_record(self.group_id, value)

    @property
    def is_empty(self) -> bool:
        return self.membership.is_empty

    @property
    def is_forsaken(self) -> bool:
        """Neither members nor somebody who is about to become one."""
        return self.membership.is_empty and not self.membership.pending_joins

    @property
    def protocol_type(self) -> str:
        return self.membership.protocol_type

    def state(self) -> str:
        return self.membership.state.value

    def hard_state(self) -> Iterator[CoordinatorRecord]:
        if self.metadata is not None:
            yield CoordinatorRecord(key=GroupMetadataKey(group=self.group_id), value=self.metadata)
