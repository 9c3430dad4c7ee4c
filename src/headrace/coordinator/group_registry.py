"""GroupRegistry: all groups of a shard by id, which type may replace which, and the dispatch of records.

The registry is the writer of hard state; in Kafka it is the part of `GroupMetadataManager` that holds groups and
replays records. `GroupType` is the interface between a shard and the groups of one type: each type (`streams_groups`,
`classic_groups`, `consumer_groups`) has one class with its requests and its soft state. The shard passes every group id
to every type; a type ignores groups of other types. Types share `ShardState` and nothing else.

Offline migration: an *empty* classic group gives way to the type that its next member speaks, an empty streams or
consumer group to a classic one, and the offsets stay. The tombstones of the old type come before the records of the new
one. For groups with members see `live_migration`.

Compaction may have left any subset of a group's records: each creates what it needs, and a tombstone of something
unknown has no effect. An empty group gives way to a record of the other type in replay as well (KAFKA-20254 was about
one that holds offsets only): a missing tombstone must not make the whole shard unloadable. Over members it is corrupt.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias, cast

from kio.schema.types import GroupId

from headrace.coordinator.classic.group import ClassicGroup
from headrace.coordinator.configuration import GroupCoordinatorConfiguration
from headrace.coordinator.consumer.group import ConsumerGroup
from headrace.coordinator.metadata_image import MetadataImage
from headrace.coordinator.offsets.committed_offsets import CommittedOffsets, PendingOffsets
from headrace.coordinator.records import schemas as s
from headrace.coordinator.records.schemas import group_metadata_tombstone, offset_commit_tombstone
from headrace.coordinator.request_context import CoordinatorError, CorruptRecord
from headrace.coordinator.result import (
    CancelTimer,
    CoordinatorRecord,
    CoordinatorResult,
    SetTimer,
    TimerKey,
    TimerQueue,
)
from headrace.coordinator.streams.group import StreamsGroup
from headrace.protocol.error_codes import ErrorCode
from headrace.protocol.messages import list_groups_response as list_response

__all__ = ["Group", "GroupRegistry", "GroupType", "ShardState", "delete_group", "list_groups"]


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
        """Return all groups in the order of their ids."""
        return [self._groups[group_id] for group_id in sorted(self._groups)]

    def streams_groups(self) -> list[StreamsGroup]:
        return [group for group in self.all() if isinstance(group, StreamsGroup)]

    def streams_group(self, group_id: str) -> StreamsGroup:
        """Return a streams group. Raises CoordinatorError(GROUP_ID_NOT_FOUND), also for a group of another type."""
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
        """Return a consumer group. Raises CoordinatorError(GROUP_ID_NOT_FOUND), also for a group of another type."""
        group = self._groups.get(group_id)
        if group is None:
            raise CoordinatorError(ErrorCode.group_id_not_found, f"Group {group_id} not found.")
        if not isinstance(group, ConsumerGroup):
            raise CoordinatorError(ErrorCode.group_id_not_found, f"Group {group_id} is not a consumer group.")
        return group

    def consumer_group_to_join(self, group_id: str) -> tuple[ConsumerGroup, tuple[CoordinatorRecord, ...]]:
        """Return the group to join, as `streams_group_to_join`."""
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
        """Replay a record. Raises CorruptRecord for a record that cannot follow what was replayed before."""
        # Compaction may have removed any of a group's records, so groups and members are created with whichever record
        # comes first.
        # 1. Offsets and classic groups first: they are most of the records of a log, and their keys have `group` and
        #    not `group_id`.
        key: Any = record.key
        value: Any = record.value
        if isinstance(key, s.OffsetCommitKey):
            self._replay_offset(key, value, record.producer_id)
        elif isinstance(key, s.GroupMetadataKey):
            self._replay_classic(key.group, value)
        # 2. A tombstone of a group that is gone. Compaction keeps tombstones for `delete.retention.ms`, so a load meets
        #    many.
        elif value is None and key.group_id not in self._groups:
            return
        elif isinstance(key, _OF_CONSUMER_GROUPS):
            self._replay_consumer(key, value)
        # 3. The tombstone of the metadata ends the group, whatever other records of it are left: they follow in the
        #    same batch.
        elif value is None and isinstance(key, s.StreamsGroupMetadataKey):
            self._remove_streams_group(key.group_id)
        else:
            group = self._streams_group_for_replay(key.group_id, creates=value is not None)
            if group is not None:
                _replay_streams(group, key, value)
                if value is None and group.is_blank:
                    self._remove_streams_group(key.group_id)

    def end_transaction(self, producer_id: int, *, committed: bool) -> None:
        """Apply a transaction marker: pending offsets of the producer are committed or dropped."""
        decided, group_ids = self.pending_offsets.end(producer_id, committed=committed)
        for key, value in decided:
            self.offsets.replay(key, value)
        for group_id in group_ids:
            self._remove_if_blank(group_id)

    def hard_state(self) -> Iterator[CoordinatorRecord]:
        """Yield records that rebuild all groups, by group."""
        for group in self.all():
            yield from group.hard_state()
        # Superseded pending offsets before the committed ones that superseded them, all other pending ones after:
        # replaying the records in this order gives the same state.
        yield from self.pending_offsets.hard_state(counts=False)
        yield from self.offsets.hard_state()
        yield from self.pending_offsets.hard_state(counts=True)

    def _replay_offset(self, key: s.OffsetCommitKey, value: s.OffsetCommitValue | None, producer_id: int) -> None:
        # A record of a transaction counts with its marker (`end_transaction`). Until then it only keeps the group
        # alive. Kafka: OffsetMetadataManager.replay, with `pendingTransactionalOffsets`.
        if producer_id >= 0:
            if value is not None:
                self.pending_offsets.replay(producer_id, key, value)
                self._groups.setdefault(key.group, ClassicGroup(group_id=key.group))
            return
        self.offsets.replay(key, value)
        # Order matters: a pending offset that was written before this record must not replace it when its transaction
        # commits.
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
            # Conversion writes the tombstones of the old type before the records of the new one. Records of a new type
            # over members can therefore only come from a damaged log or from two writers, and are not guessed at.
            if isinstance(group, StreamsGroup | ConsumerGroup) and group.members:
                kind = "streams" if isinstance(group, StreamsGroup) else "consumer"
                raise CorruptRecord(
                    f"a classic group's record for {group_id}, a {kind} group with {len(group.members)} members"
                )
            self._groups[group_id] = ClassicGroup(group_id=group_id, metadata=value)
        # The group's record went, its offsets may stay: it is a simple group then, and lives as long as they do.
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
        # KAFKA-20254: a simple classic group, which commits without members have created, gives way to the new type.
        # Refusing it would make the partition's load fail.
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
            # Tombstones arrive in Kafka's order, members first. Each takes its part, and the last one (metadata), or
            # the one after which nothing is left, takes the group: compaction may have removed the last one.
            if not isinstance(key, s.ConsumerGroupMetadataKey):
                _replay_consumer(group, key, None)
            if isinstance(key, s.ConsumerGroupMetadataKey) or group.is_blank:
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
    s.ConsumerGroupMetadataKey,
    s.ConsumerGroupPartitionMetadataKey,
    s.ConsumerGroupMemberMetadataKey,
    s.ConsumerGroupTargetAssignmentMetadataKey,
    s.ConsumerGroupTargetAssignmentMemberKey,
    s.ConsumerGroupCurrentMemberAssignmentKey,
    s.ConsumerGroupRegularExpressionKey,
)


def _replay_consumer(group: ConsumerGroup, key: Any, value: Any) -> None:
    if isinstance(key, s.ConsumerGroupMetadataKey):
        group.replay_metadata(value)
    elif isinstance(key, s.ConsumerGroupPartitionMetadataKey):
        group.replay_partition_metadata(value)
    elif isinstance(key, s.ConsumerGroupMemberMetadataKey):
        group.replay_member(key.member_id, value)
    elif isinstance(key, s.ConsumerGroupTargetAssignmentMetadataKey):
        group.replay_target_metadata(value)
    elif isinstance(key, s.ConsumerGroupTargetAssignmentMemberKey):
        group.replay_target(key.member_id, value)
    elif isinstance(key, s.ConsumerGroupCurrentMemberAssignmentKey):
        group.replay_current(key.member_id, value)
    else:
        group.replay_regular_expression(key.regular_expression, value)


@dataclass(slots=True, kw_only=True, eq=False)
class ShardState:
    """State that the groups of all types in a shard share. Mutable: it takes new settings and images."""

    configuration: GroupCoordinatorConfiguration
    image: MetadataImage
    registry: GroupRegistry
    timers: TimerQueue


class GroupType(Protocol):
    """The groups of one type in one shard: their soft state, and what happens to them without a request."""

    def owns(self, group: Group) -> bool:
        """Whether a group of the registry is of this kind."""

    def on_loaded(self, *, now_ms: int) -> Iterator[SetTimer | CancelTimer]:
        """Return, after a replay, the timers that the groups of this kind need."""

    def fire(self, key: TimerKey, *, now_ms: int) -> CoordinatorResult | None:
        """Fire a timer of a group of this type. Returns None if there is nothing to do."""

    def follow_changes(self, *, now_ms: int) -> Iterator[CoordinatorResult]:
        """Follow a new image or new settings of `ShardState`: yields one result per group, lazily."""

    def timers_to_cancel(self, group_id: str) -> tuple[CancelTimer, ...]:
        """Return the timers to cancel with a deleted group."""

    def invalidate(self, group_id: str) -> None:
        """Invalidate cached answers of a group: a record was replayed, or a timer set, cancelled or fired."""

    def invalidate_all(self) -> None:
        """Invalidate cached answers of all groups: settings, image, load."""

    def on_replayed(self, record: CoordinatorRecord) -> None:
        """Drop the soft state of a group that a replayed record has deleted."""


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


def delete_group(
    group: Group | None, group_id: str, offsets: CommittedOffsets, pending: PendingOffsets
) -> tuple[CoordinatorRecord, ...]:
    """Return the tombstones of a group. Raises CoordinatorError(GROUP_ID_NOT_FOUND) or (NON_EMPTY_GROUP)."""
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
