"""ClassicGroup: so far what holds offsets for those who are no members (admin clients, manual partition assignment).

Such a *simple* group has no record of its own: it lives as long as it has offsets. A GroupMetadata record found in the
log (Kafka writes it for JoinGroup) is kept as it is, so that nothing of it is lost.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from penstock.coordinator.records.schemas import GroupMetadataKey, GroupMetadataValue
from penstock.coordinator.result import CoordinatorRecord

__all__ = ["ClassicGroup"]


@dataclass(slots=True, kw_only=True, eq=False)
class ClassicGroup:
    """Mutable, because replay writes it."""

    group_id: str
    metadata: GroupMetadataValue | None = None

    @property
    def is_empty(self) -> bool:
        return self.metadata is None or not self.metadata.members

    @property
    def protocol_type(self) -> str:
        return "" if self.metadata is None else self.metadata.protocol_type

    def state(self) -> str:
        return "Empty" if self.is_empty else "Stable"

    def hard_state(self) -> Iterator[CoordinatorRecord]:
        if self.metadata is not None:
            yield CoordinatorRecord(key=GroupMetadataKey(group=self.group_id), value=self.metadata)
