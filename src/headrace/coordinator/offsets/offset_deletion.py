"""Deletion of committed offsets: by request (OffsetDelete, API 47), by age (KIP-211), and with their topics.

Expiry. An offset expires when it is older than `offsets.retention.minutes` (or past its own expire timestamp, which old
clients could set) and no member of the group reads its topic. Age counts from the commit; in an empty classic group
that had members, from the time it became empty. A classic group keeps all offsets while it rebalances, and while its
subscriptions are unknown. An offset stays while a transaction is about to replace it. A group without members and
offsets is deleted by the next pass, or together with its last offset.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

from headrace.coordinator.classic.group import CONSUMER_PROTOCOL_TYPE, ClassicGroup, ClassicGroupState
from headrace.coordinator.consumer.group import ConsumerGroup
from headrace.coordinator.metadata_image import MetadataImage
from headrace.coordinator.offsets.committed_offsets import CommittedOffsets, PendingOffsets, TopicPartition
from headrace.coordinator.offsets.member_validation import subscribed_topics
from headrace.coordinator.records.schemas import OffsetCommitValue, group_metadata_tombstone, offset_commit_tombstone
from headrace.coordinator.request_context import CoordinatorError, RequestContext
from headrace.coordinator.result import CoordinatorEvent, CoordinatorRecord, CoordinatorResult, Reply, TimerKey
from headrace.coordinator.streams.group import StreamsGroup
from headrace.protocol.error_codes import ErrorCode
from headrace.protocol.kio_units import from_ms
from headrace.protocol.messages import offset_delete_request as req
from headrace.protocol.messages import offset_delete_response as res

__all__ = ["OFFSET_EXPIRY", "deleted_topic_tombstones", "expired", "expiry_results", "offset_delete"]


def offset_delete(
    offsets: CommittedOffsets,
    pending: PendingOffsets,
    group: StreamsGroup | ClassicGroup | ConsumerGroup | None,
    request: req.OffsetDeleteRequest,
    context: RequestContext,
) -> CoordinatorResult:
    """A topic the group's members read is GROUP_SUBSCRIBED_TO_TOPIC; the others are deleted, there or not, and pending
    ones of transactions with them.

    Raises CoordinatorError(GROUP_ID_NOT_FOUND), and NON_EMPTY_GROUP for a classic group with members that are no
    consumers.
    """
    if group is None:
        raise CoordinatorError(ErrorCode.group_id_not_found, f"Group {request.group_id} not found.")
    if isinstance(group, ClassicGroup) and not group.is_empty and group.protocol_type != CONSUMER_PROTOCOL_TYPE:
        raise CoordinatorError(ErrorCode.non_empty_group, f"Group {group.group_id} has members.")
    records: list[CoordinatorRecord] = []
    topics = []
    for topic in request.topics:
        code = ErrorCode.group_subscribed_to_topic if _is_read(group, topic.name) else ErrorCode.none
        partitions = []
        for partition in topic.partitions:
            index = int(partition.partition_index)
            is_there = offsets.get(request.group_id, topic.name, index) is not None
            if code is ErrorCode.none and (is_there or pending.has(request.group_id, topic.name, index)):
                records.append(offset_commit_tombstone(request.group_id, topic.name, index))
            partitions.append(
                res.OffsetDeleteResponsePartition(partition_index=partition.partition_index, error_code=code)
            )
        topics.append(res.OffsetDeleteResponseTopic(name=topic.name, partitions=tuple(partitions)))
    response = res.OffsetDeleteResponse(error_code=ErrorCode.none, throttle_time=from_ms(0), topics=tuple(topics))
    return CoordinatorResult(records=tuple(records), replies=(Reply(token=context.token, response=response),))


def _is_read(group: StreamsGroup | ClassicGroup | ConsumerGroup, topic: str) -> bool:
    if isinstance(group, ConsumerGroup):
        return topic in group.subscriptions.topics()
    if isinstance(group, ClassicGroup):
        return group.membership.is_subscribed_to(topic)
    return bool(group.members) and topic in subscribed_topics(group.topology)


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
    """Expire offsets of all groups, in portions. Nothing is yielded when nothing has expired."""
    records: list[CoordinatorRecord] = []
    events: list[CoordinatorEvent] = []
    for group in groups:
        gone = expired(group, offsets, pending, retention_ms=retention_ms, now_ms=now_ms)
        group_id = group.group_id
        records.extend(offset_commit_tombstone(group_id, topic, partition) for topic, partition in gone)
        # With its last offset an empty group goes as well, in the same batch: a simple group must not be left behind
        # without anything that could ever delete it.
        is_over = len(gone) == offsets.count(group_id) and _is_empty(group) and not pending.has_offsets(group_id)
        if is_over:
            tombstone = group_metadata_tombstone(group_id)
            records.extend((tombstone,) if isinstance(group, ClassicGroup) else group.tombstones())
        if gone:
            details = (("group", "deleted" if is_over else "kept"), ("offsets", str(len(gone))))
            events.append(CoordinatorEvent(name="OffsetsExpired", group_id=group_id, details=details))
        # The runner applies each portion before it asks for the next, so requests run in between and a pass over a
        # million offsets does not hold up the shard.
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
    """Return the expired offsets of a group, in the order of topic and partition."""
    # KIP-211, by type of group (Kafka: ModernGroup and ClassicGroup.offsetExpirationCondition):
    # - streams and consumer groups: offsets of topics that are read never expire; age counts from the commit;
    # - classic groups of consumers, stable: the same;
    # - classic groups that rebalance, or whose subscriptions cannot be read: nothing expires, because a topic may be
    #   read;
    # - classic groups that became empty: age counts from then, so a group that was stopped keeps all offsets equally
    #   long;
    # - simple groups (no protocol): age counts from the commit.
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
    # A pending offset is about to replace the committed one. If that were deleted now and the transaction aborted, the
    # group would have lost a position that it did not give up.
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
    return group.is_unused if isinstance(group, ClassicGroup) else not group.members


def deleted_topic_tombstones(
    offsets: CommittedOffsets, pending: PendingOffsets, before: MetadataImage, after: MetadataImage
) -> tuple[CoordinatorRecord, ...]:
    """Return tombstones for offsets of topics that were deleted or created again, unless the offset has the new id."""
    # A topic that was created anew has the same name and another id. Offsets of the old one would place its readers in
    # the middle of a topic that they never read.
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
