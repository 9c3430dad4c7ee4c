"""CommittedOffsets and PendingOffsets: offsets of a shard's groups, committed or written by open transactions.

Both are hard state, changed only by replay. Pending offsets are not returned by OffsetFetch, but make its answer
unstable (KIP-447), and a group is not deleted while it has some.
"""

from __future__ import annotations

from collections.abc import ItemsView, Iterator

from headrace.coordinator.offsets.open_transactions import OpenTransactions
from headrace.coordinator.records.builders import offset_commit_record, pending_offset_record
from headrace.coordinator.records.schemas import OffsetCommitKey, OffsetCommitValue
from headrace.coordinator.result import CoordinatorRecord

__all__ = ["CommittedOffsets", "PendingOffsets", "TopicPartition"]

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


class PendingOffsets:
    """producer id → (group, topic, partition) → offset."""

    __slots__ = ("_groups", "_open")

    def __init__(self) -> None:
        self._open: OpenTransactions[OffsetCommitKey, OffsetCommitValue] = OpenTransactions()
        self._groups: dict[str, dict[OffsetCommitKey, None]] = {}

    def replay(self, producer_id: int, key: OffsetCommitKey, value: OffsetCommitValue) -> None:
        self._open.write(producer_id, key, value)
        self._groups.setdefault(key.group, {})[key] = None

    def replay_outside(self, key: OffsetCommitKey, value: OffsetCommitValue | None) -> None:
        """A committed offset, or its tombstone, outside of transactions."""
        if not self._open:
            return
        if value is not None:
            self._open.supersede(key)
        elif key in self._open:
            self._open.drop(key)
            self._forget(key)

    def end(
        self, producer_id: int, *, committed: bool
    ) -> tuple[list[tuple[OffsetCommitKey, OffsetCommitValue]], list[str]]:
        """End a transaction. Returns the offsets committed now, and the groups that it concerned."""
        decided, keys = self._open.end(producer_id, committed=committed)
        for key in keys:
            if key not in self._open:
                self._forget(key)
        return decided, list(dict.fromkeys(key.group for key in keys))

    def has(self, group_id: str, topic: str, partition: int) -> bool:
        if not self._open:
            return False
        return OffsetCommitKey(group=group_id, topic=topic, partition=partition) in self._open

    def has_offsets(self, group_id: str) -> bool:
        return group_id in self._groups

    def of_group(self, group_id: str) -> list[TopicPartition]:
        """In order of topic and partition."""
        return sorted((key.topic, key.partition) for key in self._groups.get(group_id, ()))

    def group_ids(self) -> list[str]:
        return sorted(self._groups)

    def hard_state(self, *, counts: bool) -> Iterator[CoordinatorRecord]:
        """Those that a commit would make the group's offsets, to be replayed after the committed ones; or those that
        a later record has supersede, to be replayed before.

        In the order of keys, those of one key in the order of the log: a shard that was loaded says it in the same way
        as the one that wrote the log.
        """
        undecided = self._open.undecided(counts=counts)
        for producer_id, key, value in sorted(undecided, key=lambda each: _place(each[1])):
            yield pending_offset_record(key, value, producer_id)

    def _forget(self, key: OffsetCommitKey) -> None:
        keys = self._groups[key.group]
        del keys[key]
        if not keys:
            del self._groups[key.group]


def _place(key: OffsetCommitKey) -> tuple[str, str, int]:
    return key.group, key.topic, key.partition
