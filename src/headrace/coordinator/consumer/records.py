"""The records of a consumer group from its own terms. Lists are sorted, so that the same state has the same bytes."""

from __future__ import annotations

from collections.abc import Iterable

from headrace.coordinator.consumer.member import ConsumerGroupMember, PartitionEpochs, Partitions, partitions_to_records
from headrace.coordinator.records import schemas as s
from headrace.coordinator.result import CoordinatorRecord

__all__ = [
    "current_assignment_record",
    "group_metadata_record",
    "group_tombstones",
    "member_record",
    "member_tombstones",
    "partition_metadata_tombstone",
    "regular_expression_record",
    "regular_expression_tombstone",
    "target_assignment_metadata_record",
    "target_assignment_record",
]


def group_metadata_record(group_id: str, value: s.ConsumerGroupMetadataValue) -> CoordinatorRecord:
    """Return the record of the group epoch and metadata hash."""
    return CoordinatorRecord(key=s.ConsumerGroupMetadataKey(group_id=group_id), value=value)


def partition_metadata_tombstone(group_id: str) -> CoordinatorRecord:
    """Return the tombstone of the record that brokers before 4.1 wrote."""
    return CoordinatorRecord(key=s.ConsumerGroupPartitionMetadataKey(group_id=group_id), value=None)


def member_record(group_id: str, member: ConsumerGroupMember) -> CoordinatorRecord:
    """Return the record of a member's metadata."""
    key = s.ConsumerGroupMemberMetadataKey(group_id=group_id, member_id=member.member_id)
    return CoordinatorRecord(key=key, value=member.metadata)


def target_assignment_metadata_record(group_id: str, *, epoch: int, timestamp_ms: int) -> CoordinatorRecord:
    """Return the record of the epoch and time (ms) of the target assignment."""
    value = s.ConsumerGroupTargetAssignmentMetadataValue(assignment_epoch=epoch, assignment_timestamp=timestamp_ms)
    return CoordinatorRecord(key=s.ConsumerGroupTargetAssignmentMetadataKey(group_id=group_id), value=value)


def target_assignment_record(group_id: str, member_id: str, target: Partitions) -> CoordinatorRecord:
    """Return the record of a member's target."""
    key = s.ConsumerGroupTargetAssignmentMemberKey(group_id=group_id, member_id=member_id)
    value = s.ConsumerGroupTargetAssignmentMemberValue(topic_partitions=partitions_to_records(target))
    return CoordinatorRecord(key=key, value=value)


def current_assignment_record(group_id: str, member: ConsumerGroupMember) -> CoordinatorRecord:
    """Return the record of a member's epoch, state and current assignment."""
    key = s.ConsumerGroupCurrentMemberAssignmentKey(group_id=group_id, member_id=member.member_id)
    value = s.ConsumerGroupCurrentMemberAssignmentValue(
        member_epoch=member.member_epoch,
        previous_member_epoch=member.previous_member_epoch,
        state=int(member.state),
        assigned_partitions=_current(member.assigned),
        partitions_pending_revocation=_current(member.pending_revocation),
    )
    return CoordinatorRecord(key=key, value=value)


def regular_expression_record(
    group_id: str, regex: str, value: s.ConsumerGroupRegularExpressionValue
) -> CoordinatorRecord:
    """Return the record of the topics that match a regular expression."""
    key = s.ConsumerGroupRegularExpressionKey(group_id=group_id, regular_expression=regex)
    return CoordinatorRecord(key=key, value=value)


def regular_expression_tombstone(group_id: str, regex: str) -> CoordinatorRecord:
    """Return the tombstone of a regular expression."""
    key = s.ConsumerGroupRegularExpressionKey(group_id=group_id, regular_expression=regex)
    return CoordinatorRecord(key=key, value=None)


def member_tombstones(group_id: str, member_id: str) -> tuple[CoordinatorRecord, ...]:
    """Return the tombstones of a member: current assignment, target, metadata, in this order."""
    # In this order: Kafka's replay refuses a member's tombstone while its current assignment or target is there, and
    # then fails to load the partition.
    keys = (
        s.ConsumerGroupCurrentMemberAssignmentKey(group_id=group_id, member_id=member_id),
        s.ConsumerGroupTargetAssignmentMemberKey(group_id=group_id, member_id=member_id),
        s.ConsumerGroupMemberMetadataKey(group_id=group_id, member_id=member_id),
    )
    return tuple(CoordinatorRecord(key=key, value=None) for key in keys)


def group_tombstones(
    group_id: str, member_ids: Iterable[str] = (), regexes: Iterable[str] = ()
) -> tuple[CoordinatorRecord, ...]:
    """Return the tombstones of a group and its members, in Kafka's order."""
    member_ids = tuple(member_ids)
    current = s.ConsumerGroupCurrentMemberAssignmentKey
    target = s.ConsumerGroupTargetAssignmentMemberKey
    metadata = s.ConsumerGroupMemberMetadataKey
    # Kafka's order (`GroupCoordinatorRecordHelpers`), which its replay relies on: members before the group, and of a
    # member its metadata last.
    keys: list[object] = [current(group_id=group_id, member_id=each) for each in member_ids]
    keys.extend(target(group_id=group_id, member_id=each) for each in member_ids)
    keys.append(s.ConsumerGroupTargetAssignmentMetadataKey(group_id=group_id))
    keys.extend(metadata(group_id=group_id, member_id=each) for each in member_ids)
    keys.extend(s.ConsumerGroupRegularExpressionKey(group_id=group_id, regular_expression=each) for each in regexes)
    keys.append(s.ConsumerGroupPartitionMetadataKey(group_id=group_id))
    keys.append(s.ConsumerGroupMetadataKey(group_id=group_id))
    return tuple(CoordinatorRecord(key=key, value=None) for key in keys)


def _current(assigned: PartitionEpochs) -> tuple[s.CurrentTopicPartitions, ...]:
    # Epochs beside partitions, not in pairs: records before Kafka 4.3 had partitions alone, epochs are a tagged field
    # (KIP-1251).
    return tuple(
        s.CurrentTopicPartitions(
            topic_id=topic_id, partitions=tuple(of_topic), assignment_epochs=tuple(of_topic.values())
        )
        for topic_id, of_topic in assigned.items()
    )
