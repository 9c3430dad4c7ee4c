"""OffsetCommit (API 8): v9 brought member epochs, v10 topic ids (KIP-848, KIP-516).

Who may commit: a member of a streams group with its epoch (`member_validation`), one of a classic group with its
generation (`member_validation`); anybody with epoch -1 when the group has no members. A group that does not exist comes
into being by a commit with epoch -1, as a simple classic group.
"""

from __future__ import annotations

from typing import cast

from kio.schema.types import TopicName

from headrace.coordinator.classic.group import ClassicGroup
from headrace.coordinator.consumer.group import ConsumerGroup
from headrace.coordinator.errors import CoordinatorError
from headrace.coordinator.metadata_image import MetadataImage
from headrace.coordinator.offsets.member_validation import check_classic_commit, check_consumer_commit, may_commit
from headrace.coordinator.records.builders import offset_commit_record
from headrace.coordinator.records.schemas import OffsetCommitValue
from headrace.coordinator.request_context import RequestContext
from headrace.coordinator.result import CoordinatorRecord, CoordinatorResult, Reply
from headrace.coordinator.streams.group import StreamsGroup
from headrace.coordinator.streams.member import StreamsGroupMember
from headrace.protocol.error_codes import ErrorCode
from headrace.protocol.kio_units import from_ms
from headrace.protocol.messages import offset_commit_request as req
from headrace.protocol.messages import offset_commit_response as res

__all__ = ["offset_commit"]

_MEMBER_EPOCHS_SINCE = 9


def offset_commit(
    group: StreamsGroup | ClassicGroup | ConsumerGroup | None,
    request: req.OffsetCommitRequest,
    context: RequestContext,
    *,
    image: MetadataImage,
    metadata_max_bytes: int,
    now_ms: int,
) -> CoordinatorResult:
    """Raises CoordinatorError when the whole request is refused; else an error code per partition."""
    member = _committing_member(group, request, context.api_version, image)
    epoch = int(request.generation_id_or_member_epoch)
    records: list[CoordinatorRecord] = []
    topics = []
    for topic in request.topics:
        name = _topic_name(topic, image)
        partitions = []
        for partition in topic.partitions:
            code = _refusal(group, member, epoch, name, partition, metadata_max_bytes)
            if code is ErrorCode.none:
                value = _value(partition, topic, now_ms)
                records.append(offset_commit_record(request.group_id, name, int(partition.partition_index), value))
            partitions.append(
                res.OffsetCommitResponsePartition(partition_index=partition.partition_index, error_code=code)
            )
        topics.append(
            res.OffsetCommitResponseTopic(
                name=cast("TopicName", name), topic_id=topic.topic_id, partitions=tuple(partitions)
            )
        )
    response = res.OffsetCommitResponse(throttle_time=from_ms(0), topics=tuple(topics))
    return CoordinatorResult(records=tuple(records), replies=(Reply(token=context.token, response=response),))


def _committing_member(
    group: StreamsGroup | ClassicGroup | ConsumerGroup | None,
    request: req.OffsetCommitRequest,
    api_version: int,
    image: MetadataImage,
) -> StreamsGroupMember | None:
    """Return the member that commits; None if the sender needs to be no member."""
    epoch = int(request.generation_id_or_member_epoch)
    if group is None:
        if epoch < 0:
            return None
        raise _unknown_group(request.group_id, api_version)
    if isinstance(group, ClassicGroup):
        check_classic_commit(group.membership, request.member_id, request.group_instance_id, epoch)
        return None
    if isinstance(group, ConsumerGroup):
        check_consumer_commit(
            group,
            request.member_id,
            request.group_instance_id,
            epoch,
            (
                (_topic_name(topic, image), int(each.partition_index))
                for topic in request.topics
                for each in topic.partitions
            ),
            image=image,
            api_version=api_version,
        )
        return None
    if epoch < 0 and not group.members:
        return None
    return _streams_member(group, request.member_id, epoch, api_version)


def _streams_member(group: StreamsGroup, member_id: str, epoch: int, api_version: int) -> StreamsGroupMember:
    member = group.members.get(member_id)
    if member is None:
        raise CoordinatorError(
            ErrorCode.unknown_member_id, f"Member {member_id} is not a member of group {group.group_id}."
        )
    if api_version < _MEMBER_EPOCHS_SINCE:
        raise CoordinatorError(
            ErrorCode.unsupported_version,
            "OffsetCommit version 9 or above must be used by members using the streams group protocol.",
        )
    if epoch > member.member_epoch or epoch < 0:
        relation = "newer than" if epoch > member.member_epoch else "no epoch of a member, unlike"
        raise CoordinatorError(
            ErrorCode.stale_member_epoch,
            f"Received member epoch {epoch} is {relation} current member epoch {member.member_epoch}.",
        )
    return member


def _unknown_group(group_id: str, api_version: int) -> CoordinatorError:
    code = ErrorCode.group_id_not_found if api_version >= _MEMBER_EPOCHS_SINCE else ErrorCode.illegal_generation
    return CoordinatorError(code, f"Group {group_id} not found.")


def _topic_name(topic: req.OffsetCommitRequestTopic, image: MetadataImage) -> str:
    """By name, or by id from version 10 on; "" when the id is unknown."""
    if topic.name or topic.topic_id is None:
        return topic.name
    return next((each.name for each in image.topics.values() if each.topic_id == topic.topic_id), "")


def _refusal(
    group: StreamsGroup | ClassicGroup | ConsumerGroup | None,
    member: StreamsGroupMember | None,
    epoch: int,
    topic: str,
    partition: req.OffsetCommitRequestPartition,
    metadata_max_bytes: int,
) -> ErrorCode:
    if not topic:
        return ErrorCode.unknown_topic_id
    if len((partition.committed_metadata or "").encode()) > metadata_max_bytes:
        return ErrorCode.offset_metadata_too_large
    if member is not None and isinstance(group, StreamsGroup):
        index = int(partition.partition_index)
        if not may_commit(group, member, epoch, topic, index):
            return ErrorCode.stale_member_epoch
    return ErrorCode.none


def _value(
    partition: req.OffsetCommitRequestPartition, topic: req.OffsetCommitRequestTopic, now_ms: int
) -> OffsetCommitValue:
    return OffsetCommitValue(
        offset=int(partition.committed_offset),
        leader_epoch=int(partition.committed_leader_epoch),
        metadata=partition.committed_metadata or "",
        commit_timestamp=now_ms,
        topic_id=topic.topic_id,
    )
