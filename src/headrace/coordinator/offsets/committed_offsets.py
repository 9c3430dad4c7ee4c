"""CommittedOffsets: the committed offsets of a shard's groups. Hard state, changed by `replay` only."""

from __future__ import annotations

from collections.abc import ItemsView, Iterator

from headrace.coordinator.records.builders import offset_commit_record
from headrace.coordinator.records.schemas import OffsetCommitKey, OffsetCommitValue
from headrace.coordinator.result import CoordinatorRecord

__all__ = ["CommittedOffsets", "TopicPartition"]

TopicPartition = tuple[str, int]
_NO_OFFSETS: dict[TopicPartition, OffsetCommitValue] = {}


class CommittedOffsets:
    """group id → (topic, partition) → offset."""

    __slots__ = ("_groups",)

    def __init__(self) -> None:
        self._groups: dict[str, dict[TopicPartition, OffsetCommitValue]] = {}

    def replay(self, key: OffsetCommitKey, value: OffsetCommitValue | None) -> None:
        if value is not None:
            self._groups.setdefault(key.group, {})[key.topic, key.partition] = value
            return
        offsets = self._groups.get(key.group)
        if offsets is not None:
            offsets.pop((key.topic, key.partition), None)
            if not offsets:
                del self._groups[key.group]

    def get(self, group_id: str, topic: str, partition: int) -> OffsetCommitValue | None:
        return self._groups.get(group_id, {}).get((topic, partition))

    def has_offsets(self, group_id: str) -> bool:
        return group_id in self._groups

    def of_group(self, group_id: str) -> list[tuple[TopicPartition, OffsetCommitValue]]:
        """In order of topic and partition."""
        return sorted(self._groups.get(group_id, {}).items(), key=lambda item: item[0])

    def items_of(self, group_id: str) -> ItemsView[TopicPartition, OffsetCommitValue]:
        """In the order of their first commits: for who sorts what it picks."""
        return self._groups.get(group_id, _NO_OFFSETS).items()

    def count(self, group_id: str) -> int:
        return len(self._groups.get(group_id, _NO_OFFSETS))

    def group_ids(self) -> list[str]:
        return sorted(self._groups)

    def hard_state(self) -> Iterator[CoordinatorRecord]:
        for group_id in self.group_ids():
            for (topic, partition), value in self.of_group(group_id):
                yield offset_commit_record(group_id, topic, partition, value)
