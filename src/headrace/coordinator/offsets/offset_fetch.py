"""OffsetFetch (API 9): v8 brought several groups, v9 member epochs, v10 topic ids. One group's part at a time."""

from __future__ import annotations

from typing import cast

from kio.schema.types import TopicName
from kio.static.primitive import i32, i64

from headrace.coordinator.consumer.group import ConsumerGroup
from headrace.coordinator.errors import CoordinatorError
from headrace.coordinator.metadata_image import MetadataImage
from headrace.coordinator.offsets.committed_offsets import CommittedOffsets, PendingOffsets
from headrace.coordinator.offsets.member_validation import check_consumer_fetch
from headrace.coordinator.streams.group import StreamsGroup
from headrace.protocol.error_codes import ErrorCode
from headrace.protocol.messages import offset_fetch_request as req
from headrace.protocol.messages import offset_fetch_response as res

__all__ = ["offset_fetch"]

_NO_OFFSET = -1


def offset_fetch(
    offsets: CommittedOffsets,
    group: object | None,
    request: req.OffsetFetchRequestGroup,
    *,
    image: MetadataImage,
    unstable: PendingOffsets | None = None,
) -> res.OffsetFetchResponseGroup:
    """All offsets of the group when `topics` is null. No offset is -1, an unknown group is no error.

    `unstable`: pending offsets, whose partitions are UNSTABLE_OFFSET_COMMIT; None when the client takes what is there.

    Raises CoordinatorError(UNKNOWN_MEMBER_ID, STALE_MEMBER_EPOCH) for a member that is not current, where groups have
    such: streams and consumer groups.
    """
    if isinstance(group, StreamsGroup):
        _check_member(group, request)
    elif isinstance(group, ConsumerGroup):
        check_consumer_fetch(group, request.member_id, request.member_epoch)
    topics = (
        _all(offsets, request.group_id, image, unstable)
        if request.topics is None
        else tuple(_topic(offsets, request.group_id, topic, image, unstable) for topic in request.topics)
    )
    return res.OffsetFetchResponseGroup(group_id=request.group_id, topics=topics, error_code=ErrorCode.none)


def _check_member(group: StreamsGroup, request: req.OffsetFetchRequestGroup) -> None:
    if request.member_id is None and request.member_epoch < 0:
        return
    member = group.members.get(request.member_id or "")
    if member is None:
        raise CoordinatorError(
            ErrorCode.unknown_member_id, f"Member {request.member_id} is not a member of group {group.group_id}."
        )
    if request.member_epoch != member.member_epoch:
        raise CoordinatorError(
            ErrorCode.stale_member_epoch,
            f"The received member epoch {request.member_epoch} does not match the expected member epoch "
            f"{member.member_epoch}.",
        )


def _all(
    offsets: CommittedOffsets, group_id: str, image: MetadataImage, unstable: PendingOffsets | None
) -> tuple[res.OffsetFetchResponseTopics, ...]:
    by_topic: dict[str, list[int]] = {}
    for (topic, partition), _ in offsets.of_group(group_id):
        by_topic.setdefault(topic, []).append(partition)
    return tuple(
        _partitions(offsets, group_id, topic, tuple(partitions), image, unstable)
        for topic, partitions in by_topic.items()
    )


def _topic(
    offsets: CommittedOffsets,
    group_id: str,
    topic: req.OffsetFetchRequestTopics,
    image: MetadataImage,
    unstable: PendingOffsets | None,
) -> res.OffsetFetchResponseTopics:
    name = topic.name
    if not name and topic.topic_id is not None:
        known = next((each.name for each in image.topics.values() if each.topic_id == topic.topic_id), None)
        if known is None:
            return res.OffsetFetchResponseTopics(
                name=cast("TopicName", ""),
                topic_id=topic.topic_id,
                partitions=tuple(_no_offset(int(i), ErrorCode.unknown_topic_id) for i in topic.partition_indexes),
            )
        name = cast("TopicName", known)
    return _partitions(offsets, group_id, name, tuple(int(i) for i in topic.partition_indexes), image, unstable)


def _partitions(
    offsets: CommittedOffsets,
    group_id: str,
    topic: str,
    partitions: tuple[int, ...],
    image: MetadataImage,
    unstable: PendingOffsets | None,
) -> res.OffsetFetchResponseTopics:
    known = image.topics.get(topic)
    return res.OffsetFetchResponseTopics(
        name=cast("TopicName", topic),
        topic_id=None if known is None else known.topic_id,
        partitions=tuple(_partition(offsets, group_id, topic, partition, unstable) for partition in partitions),
    )


def _partition(
    offsets: CommittedOffsets, group_id: str, topic: str, partition: int, unstable: PendingOffsets | None
) -> res.OffsetFetchResponsePartitions:
    if unstable is not None and unstable.has(group_id, topic, partition):
        return _no_offset(partition, ErrorCode.unstable_offset_commit)
    value = offsets.get(group_id, topic, partition)
    if value is None:
        return _no_offset(partition, ErrorCode.none)
    return res.OffsetFetchResponsePartitions(
        partition_index=cast("i32", partition),
        committed_offset=cast("i64", value.offset),
        committed_leader_epoch=cast("i32", value.leader_epoch),
        metadata=value.metadata,
        error_code=ErrorCode.none,
    )


def _no_offset(partition: int, code: ErrorCode) -> res.OffsetFetchResponsePartitions:
    return res.OffsetFetchResponsePartitions(
        partition_index=cast("i32", partition),
        committed_offset=cast("i64", _NO_OFFSET),
        committed_leader_epoch=cast("i32", -1),
        metadata="",
        error_code=code,
    )
