"""Committed offsets that nobody needs any longer, and empty groups without offsets: what goes, and when (KIP-211).

An offset goes when it is older than `offsets.retention.minutes` (or behind its own expire timestamp, which old clients
could set) and its topic is not read by a member of the group. Age counts from the commit; in an empty classic group
that had members, from the moment it became empty. A classic group with members keeps everything while it rebalances,
and when its subscriptions are unknown. An offset stays while a transaction is about to replace it. A group with
neither members nor offsets goes with the next pass, or with its last offset.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

from headrace.coordinator.classic.group import ClassicGroup
from headrace.coordinator.classic.group_state import ClassicGroupState
from headrace.coordinator.consumer.group import ConsumerGroup
from headrace.coordinator.offsets.committed_offsets import CommittedOffsets, TopicPartition
from headrace.coordinator.offsets.member_ownership import subscribed_topics
from headrace.coordinator.offsets.pending_offsets import PendingOffsets
from headrace.coordinator.records.builders import (
    group_metadata_tombstone,
    offset_commit_tombstone,
)
from headrace.coordinator.records.schemas import OffsetCommitValue
from headrace.coordinator.result import CoordinatorEvent, CoordinatorRecord, CoordinatorResult, TimerKey
from headrace.coordinator.streams.group import StreamsGroup

__all__ = ["OFFSET_EXPIRY", "expired", "expiry_results"]

OFFSET_EXPIRY = TimerKey(kind="offset-expiry", group_id="")
_MOST_RECORDS = 1_000
"""In one result, which is one batch: tombstones are of some hundred bytes at most, a batch of a megabyte."""


def expiry_results(
    groups: Iterable[StreamsGroup | ClassicGroup | ConsumerGroup],
    offsets: CommittedOffsets,
    pending: PendingOffsets,
    *,
    retention_ms: int,
    now_ms: int,
) -> Iterator[CoordinatorResult]:
    """One pass over all groups, in portions; nothing is yielded when nothing has expired."""
    records: list[CoordinatorRecord] = []
    events: list[CoordinatorEvent] = []
    for group in groups:
        gone = expired(group, offsets, pending, retention_ms=retention_ms, now_ms=now_ms)
        group_id = group.group_id
        records.extend(offset_commit_tombstone(group_id, topic, partition) for topic, partition in gone)
        is_over = len(gone) == offsets.count(group_id) and _is_empty(group) and not pending.has_offsets(group_id)
        if is_over:
            tombstone = group_metadata_tombstone(group_id)
            records.extend((tombstone,) if isinstance(group, ClassicGroup) else group.tombstones())
        if gone:
            details = (("group", "deleted" if is_over else "kept"), ("offsets", str(len(gone))))
            events.append(CoordinatorEvent(name="OffsetsExpired", group_id=group_id, details=details))
        while len(records) >= _MOST_RECORDS:
            yield CoordinatorResult(records=tuple(records[:_MOST_RECORDS]))
            del records[:_MOST_RECORDS]
    if records or events:
        yield CoordinatorResult(records=tuple(records), events=tuple(events))


def expired(
    group: StreamsGroup | ClassicGroup | ConsumerGroup,
    offsets: CommittedOffsets,
    pending: PendingOffsets,
    *,
    retention_ms: int,
    now_ms: int,
) -> list[TopicPartition]:
    """Which offsets of the group have expired, in order of topic and partition."""
    base_ms: int | None = None
    read: Collection[str] = frozenset()
    if isinstance(group, StreamsGroup):
        read = subscribed_topics(group.topology) if group.members else read
    elif isinstance(group, ConsumerGroup):
        read = group.subscriptions.topics()
    elif group.protocol_type:
        membership = group.membership
        if membership.is_empty:
            base_ms = membership.state_since_ms if membership.state_since_ms >= 0 else None
        elif membership.state is ClassicGroupState.STABLE and membership.subscribed is not None:
            read = membership.subscribed
        else:
            return []
    return sorted(
        key
        for key, value in offsets.items_of(group.group_id)
        if key[0] not in read
        and _has_expired(value, base_ms, retention_ms, now_ms)
        and not pending.has(group.group_id, *key)
    )


def _has_expired(value: OffsetCommitValue, base_ms: int | None, retention_ms: int, now_ms: int) -> bool:
    if value.expire_timestamp >= 0:
        return now_ms >= value.expire_timestamp
    return now_ms - (value.commit_timestamp if base_ms is None else base_ms) >= retention_ms


def _is_empty(group: StreamsGroup | ClassicGroup | ConsumerGroup) -> bool:
    return group.is_forsaken if isinstance(group, ClassicGroup) else not group.members
