"""All groups of a shard by id, which type may replace which, and the dispatch of records: the writer of hard state.

Offline migration: an *empty* classic group gives way to the type that its next member speaks, an empty streams or
consumer group to a classic one, and the offsets stay. The tombstones of the old type come before the records of the new
one. What groups with members do is in `migration`.

Compaction may have left any subset of a group's records: each creates what it needs; a tombstone for what is not there
is nothing. Also in replay an empty group gives way to a record of the other type (KAFKA-20254 was about one that holds
offsets only): a missing tombstone must not make the whole shard unloadable. Over members it is corrupt.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeAlias

from headrace.coordinator.classic.group import ClassicGroup
from headrace.coordinator.consumer.group import ConsumerGroup
from headrace.coordinator.errors import CoordinatorError, CorruptRecord
from headrace.coordinator.offsets.committed_offsets import CommittedOffsets, PendingOffsets
from headrace.coordinator.records import consumer_schemas as c
from headrace.coordinator.records import schemas as s
from headrace.coordinator.records.builders import group_metadata_tombstone
from headrace.coordinator.result import CoordinatorRecord
from headrace.coordinator.streams.group import StreamsGroup
from headrace.protocol.error_codes import ErrorCode

__all__ = ["Group", "GroupRegistry"]

Group: TypeAlias = StreamsGroup | ClassicGroup | ConsumerGroup


class GroupRegistry:
    """Hard state of a shard: groups, their committed offsets, and those of open transactions."""

    __slots__ = ("_groups", "offsets", "pending_offsets")

    def __init__(self) -> None:
        self._groups: dict[str, Group] = {}
        self.offsets = CommittedOffsets()
        self.pending_offsets = PendingOffsets()

    def get(self, group_id: str) -> Group | None:
        return self._groups.get(group_id)

    def __len__(self) -> int:
        return len(self._groups)

    def all(self) -> list[Group]:
        """In order of group ids."""
        return [self._groups[group_id] for group_id in sorted(self._groups)]

    def streams_groups(self) -> list[StreamsGroup]:
        return [group for group in self.all() if isinstance(group, StreamsGroup)]

    def streams_group(self, group_id: str) -> StreamsGroup:
        """Raises CoordinatorError(GROUP_ID_NOT_FOUND), also for a group of another type."""
        group = self._groups.get(group_id)
        if group is None:
            raise CoordinatorError(ErrorCode.group_id_not_found, f"Group {group_id} not found.")
        if not isinstance(group, StreamsGroup):
            kind = "consumer" if isinstance(group, ConsumerGroup) else "classic"
            raise CoordinatorError(
                ErrorCode.group_id_not_found, f"Group {group_id} is not a streams group: it is a {kind} group."
            )
        return group

    def streams_group_to_join(self, group_id: str) -> tuple[StreamsGroup, tuple[CoordinatorRecord, ...]]:
        """Return the group a member may join, a new one if need be, and the records that must come before it.

        An empty classic group is converted. A consumer group is not, even an empty one: in Kafka streams and consumer
        groups never become one another directly (`GroupMetadataManager.getOrMaybeCreateStreamsGroup`).

        Raises:
            CoordinatorError: GROUP_ID_NOT_FOUND for a group of another type that is not converted.
        """
        group = self._groups.get(group_id)
        if group is None:
            return StreamsGroup.new(group_id), ()
        if isinstance(group, ClassicGroup) and group.is_empty:
            return StreamsGroup.new(group_id), (group_metadata_tombstone(group_id),)
        return self.streams_group(group_id), ()

    def consumer_groups(self) -> list[ConsumerGroup]:
        return [group for group in self.all() if isinstance(group, ConsumerGroup)]

    def consumer_group(self, group_id: str) -> ConsumerGroup:
        """Raises CoordinatorError(GROUP_ID_NOT_FOUND), also for a group of another type."""
        group = self._groups.get(group_id)
        if group is None:
            raise CoordinatorError(ErrorCode.group_id_not_found, f"Group {group_id} not found.")
        if not isinstance(group, ConsumerGroup):
            raise CoordinatorError(ErrorCode.group_id_not_found, f"Group {group_id} is not a consumer group.")
        return group

    def consumer_group_to_join(self, group_id: str) -> tuple[ConsumerGroup, tuple[CoordinatorRecord, ...]]:
        """As `streams_group_to_join`."""
        group = self._groups.get(group_id)
        if group is None:
            return ConsumerGroup(group_id=group_id), ()
        if isinstance(group, ClassicGroup) and group.is_empty:
            return ConsumerGroup(group_id=group_id), (group_metadata_tombstone(group_id),)
        return self.consumer_group(group_id), ()

    def classic_group_to_join(self, group_id: str) -> tuple[ClassicGroup, tuple[CoordinatorRecord, ...]]:
        """The other direction, for a classic member: an empty group of another type is taken out, its offsets stay.

        Raises CoordinatorError(INCONSISTENT_GROUP_PROTOCOL) while it has members.
        """
        group = self._groups.get(group_id)
        if group is None:
            return ClassicGroup(group_id=group_id), ()
        if isinstance(group, ClassicGroup):
            return group, ()
        kind = "streams" if isinstance(group, StreamsGroup) else "consumer"
        if group.members:
            raise CoordinatorError(
                ErrorCode.inconsistent_group_protocol,
                f"Group {group_id} is a {kind} group with {len(group.members)} members, not a classic group.",
            )
        return ClassicGroup(group_id=group_id), group.tombstones()

    def replay(self, record: CoordinatorRecord) -> None:
        """Raises CorruptRecord for a record that cannot follow what was replayed before."""
        key: Any = record.key
        value: Any = record.value
        if isinstance(key, s.OffsetCommitKey):
            self._replay_offset(key, value, record.producer_id)
        elif isinstance(key, s.GroupMetadataKey):
            self._replay_classic(key.group, value)
        elif value is None and key.group_id not in self._groups:
            return
        elif isinstance(key, _OF_CONSUMER_GROUPS):
            self._replay_consumer(key, value)
        elif value is None and isinstance(key, s.StreamsGroupMetadataKey):
            self._remove_streams_group(key.group_id)
        else:
            group = self._streams_group_for_replay(key.group_id, creates=value is not None)
            if group is not None:
                _replay_streams(group, key, value)
                if value is None and group.is_blank:
                    self._remove_streams_group(key.group_id)

    def end_transaction(self, producer_id: int, *, committed: bool) -> None:
        """The marker: pending offsets of the producer are committed, or go."""
        decided, group_ids = self.pending_offsets.end(producer_id, committed=committed)
        for key, value in decided:
            self.offsets.replay(key, value)
        for group_id in group_ids:
            self._remove_if_blank(group_id)

    def hard_state(self) -> Iterator[CoordinatorRecord]:
        """The records that rebuild everything, by group."""
        for group in self.all():
            yield from group.hard_state()
        yield from self.pending_offsets.hard_state(counts=False)
        yield from self.offsets.hard_state()
        yield from self.pending_offsets.hard_state(counts=True)

    def _replay_offset(self, key: s.OffsetCommitKey, value: s.OffsetCommitValue | None, producer_id: int) -> None:
        if producer_id >= 0:
            if value is not None:
                self.pending_offsets.replay(producer_id, key, value)
                self._groups.setdefault(key.group, ClassicGroup(group_id=key.group))
            return
        self.offsets.replay(key, value)
        self.pending_offsets.replay_outside(key, value)
        if value is not None:
            self._groups.setdefault(key.group, ClassicGroup(group_id=key.group))
        else:
            self._remove_if_blank(key.group)

    def _remove_if_blank(self, group_id: str) -> None:
        """A simple group lives as long as it has offsets, pending ones included."""
        group = self._groups.get(group_id)
        if isinstance(group, ClassicGroup) and group.metadata is None and not self._has_any_offsets(group_id):
            del self._groups[group_id]

    def _has_any_offsets(self, group_id: str) -> bool:
        return self.offsets.has_offsets(group_id) or self.pending_offsets.has_offsets(group_id)

    def _replay_classic(self, group_id: str, value: s.GroupMetadataValue | None) -> None:
        group = self._groups.get(group_id)
        if value is not None:
            if isinstance(group, StreamsGroup | ConsumerGroup) and group.members:
                kind = "streams" if isinstance(group, StreamsGroup) else "consumer"
                raise CorruptRecord(
                    f"a classic group's record for {group_id}, a {kind} group with {len(group.members)} members"
                )
            self._groups[group_id] = ClassicGroup(group_id=group_id, metadata=value)
        elif isinstance(group, ClassicGroup):
            del self._groups[group_id]
            if self._has_any_offsets(group_id):
                self._groups[group_id] = ClassicGroup(group_id=group_id)

    def _remove_streams_group(self, group_id: str) -> None:
        if isinstance(self._groups.get(group_id), StreamsGroup):
            del self._groups[group_id]
            if self._has_any_offsets(group_id):
                self._groups[group_id] = ClassicGroup(group_id=group_id)

    def _streams_group_for_replay(self, group_id: str, *, creates: bool) -> StreamsGroup | None:
        group = self._groups.get(group_id)
        if isinstance(group, StreamsGroup):
            return group
        if not creates:
            return None
        if isinstance(group, ClassicGroup) and not group.is_empty:
            raise CorruptRecord(f"a streams group's record for {group_id}, which is a classic group")
        if isinstance(group, ConsumerGroup) and not group.is_empty:
            raise CorruptRecord(f"a streams group's record for {group_id}, which is a consumer group")
        created = StreamsGroup.new(group_id)
        self._groups[group_id] = created
        return created

    def _replay_consumer(self, key: Any, value: Any) -> None:
        group = self._groups.get(key.group_id)
        if value is None:
            if not isinstance(group, ConsumerGroup):
                return
            if not isinstance(key, c.ConsumerGroupMetadataKey):
                _replay_consumer(group, key, None)
            if isinstance(key, c.ConsumerGroupMetadataKey) or group.is_blank:
                self._remove_consumer_group(key.group_id)
            return
        if not isinstance(group, ConsumerGroup):
            if group is not None and not (group.is_empty if isinstance(group, ClassicGroup) else not group.members):
                raise CorruptRecord(f"a consumer group's record for {key.group_id}, a group of another type")
            group = self._groups[key.group_id] = ConsumerGroup(group_id=key.group_id)
        _replay_consumer(group, key, value)

    def _remove_consumer_group(self, group_id: str) -> None:
        del self._groups[group_id]
        if self._has_any_offsets(group_id):
            self._groups[group_id] = ClassicGroup(group_id=group_id)


def _replay_streams(group: StreamsGroup, key: Any, value: Any) -> None:
    if isinstance(key, s.StreamsGroupMetadataKey):
        group.replay_metadata(value)
    elif isinstance(key, s.StreamsGroupMemberMetadataKey):
        group.replay_member(key.member_id, value)
    elif isinstance(key, s.StreamsGroupTargetAssignmentMetadataKey):
        group.replay_target_metadata(value)
    elif isinstance(key, s.StreamsGroupTargetAssignmentMemberKey):
        group.replay_target(key.member_id, value)
    elif isinstance(key, s.StreamsGroupCurrentMemberAssignmentKey):
        group.replay_current(key.member_id, value)
    elif isinstance(key, s.StreamsGroupTopologyKey):
        group.replay_topology(value)
    else:
        raise TypeError(f"{type(key).__name__} is no key of a group")


_OF_CONSUMER_GROUPS = (
    c.ConsumerGroupMetadataKey,
    c.ConsumerGroupPartitionMetadataKey,
    c.ConsumerGroupMemberMetadataKey,
    c.ConsumerGroupTargetAssignmentMetadataKey,
    c.ConsumerGroupTargetAssignmentMemberKey,
    c.ConsumerGroupCurrentMemberAssignmentKey,
    c.ConsumerGroupRegularExpressionKey,
)


def _replay_consumer(group: ConsumerGroup, key: Any, value: Any) -> None:
    if isinstance(key, c.ConsumerGroupMetadataKey):
        group.replay_metadata(value)
    elif isinstance(key, c.ConsumerGroupPartitionMetadataKey):
        group.replay_partition_metadata(value)
    elif isinstance(key, c.ConsumerGroupMemberMetadataKey):
        group.replay_member(key.member_id, value)
    elif isinstance(key, c.ConsumerGroupTargetAssignmentMetadataKey):
        group.replay_target_metadata(value)
    elif isinstance(key, c.ConsumerGroupTargetAssignmentMemberKey):
        group.replay_target(key.member_id, value)
    elif isinstance(key, c.ConsumerGroupCurrentMemberAssignmentKey):
        group.replay_current(key.member_id, value)
    else:
        group.replay_regular_expression(key.regular_expression, value)
