"""CoordinatorRecords from the coordinator's own terms, and back. Lists that Kafka's own builders sort are sorted."""

from __future__ import annotations

from headrace.coordinator.records.schemas import (
    GroupMetadataKey,
    GroupMetadataValue,
    OffsetCommitKey,
    OffsetCommitValue,
)
from headrace.coordinator.result import CoordinatorRecord

__all__ = [
    "group_metadata_record",
    "group_metadata_tombstone",
    "offset_commit_record",
    "offset_commit_tombstone",
    "pending_offset_record",
]


def offset_commit_record(group: str, topic: str, partition: int, value: OffsetCommitValue) -> CoordinatorRecord:
    """Return the record of a committed offset."""
    return CoordinatorRecord(key=OffsetCommitKey(group=group, topic=topic, partition=partition), value=value)


def offset_commit_tombstone(group: str, topic: str, partition: int) -> CoordinatorRecord:
    """Return the tombstone of a committed offset."""
    return CoordinatorRecord(key=OffsetCommitKey(group=group, topic=topic, partition=partition), value=None)


def pending_offset_record(
    key: OffsetCommitKey, value: OffsetCommitValue, producer_id: int, producer_epoch: int = -1
) -> CoordinatorRecord:
    """Return the record of an offset in a transaction; it counts once the transaction commits."""
    return CoordinatorRecord(key=key, value=value, producer_id=producer_id, producer_epoch=producer_epoch)


def group_metadata_record(group: str, value: GroupMetadataValue) -> CoordinatorRecord:
    """Return the record of a classic group."""
    return CoordinatorRecord(key=GroupMetadataKey(group=group), value=value)


def group_metadata_tombstone(group: str) -> CoordinatorRecord:
    """Return the tombstone of a classic group."""
    return CoordinatorRecord(key=GroupMetadataKey(group=group), value=None)
