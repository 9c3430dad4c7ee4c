"""Offsets of deleted topics go with them, pending ones of transactions too."""

from __future__ import annotations

from headrace.coordinator.metadata_image import MetadataImage
from headrace.coordinator.offsets.committed_offsets import CommittedOffsets
from headrace.coordinator.offsets.pending_offsets import PendingOffsets
from headrace.coordinator.records.builders import offset_commit_tombstone
from headrace.coordinator.result import CoordinatorRecord

__all__ = ["deleted_topic_tombstones"]


def deleted_topic_tombstones(
    offsets: CommittedOffsets, pending: PendingOffsets, before: MetadataImage, after: MetadataImage
) -> tuple[CoordinatorRecord, ...]:
    """Tombstones for offsets of topics that are gone or were created anew, unless the offset names the new id."""
    gone = {
        name: topic.topic_id
        for name, topic in before.topics.items()
        if name not in after.topics or after.topics[name].topic_id != topic.topic_id
    }
    if not gone:
        return ()
    committed = {
        (group_id, topic, partition): None
        for group_id in offsets.group_ids()
        for (topic, partition), value in offsets.of_group(group_id)
        if topic in gone and value.topic_id in (None, gone[topic])
    }
    undecided = {
        (group_id, topic, partition): None
        for group_id in pending.group_ids()
        for topic, partition in pending.of_group(group_id)
        if topic in gone
    }
    return tuple(offset_commit_tombstone(*key) for key in sorted(committed | undecided))
