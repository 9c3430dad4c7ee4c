"""OffsetCommit (API 8) and TxnOffsetCommit (API 28). In Kafka: `OffsetMetadataManager`.

OffsetCommit: version 9 brought member epochs, version 10 topic ids (KIP-848, KIP-516). A member of a streams or a
consumer group commits with its epoch, one of a classic group with its generation (`member_validation`); any client with
epoch -1 while the group has no members. A commit with epoch -1 creates a missing group, as a simple classic group.

TxnOffsetCommit: offsets as part of a transaction stay pending until its marker (KIP-98, KIP-447). Any client may commit
that names none of member, instance and generation, also while the group has members (so did all producers before
KIP-447). All or nothing: a partition that the member may not commit refuses the whole request, since half of a
transaction's offsets would be a wrong position; only metadata that is too large is refused by partition. Ownership is
checked for the member's current epoch as well, see `member_validation`.
"""

from __future__ import annotations

from typing import cast

from kio.schema.types import TopicName

from headrace.coordinator.classic.group import ClassicGroup
from headrace.coordinator.consumer.group import ConsumerGroup
from headrace.coordinator.metadata_image import MetadataImage
from headrace.coordinator.offsets.member_validation import check_classic_commit, check_consumer_commit, may_commit
from headrace.coordinator.records.schemas import (
    OffsetCommitKey,
    OffsetCommitValue,
    offset_commit_record,
    pending_offset_record,
)
from headrace.coordinator.request_context import CoordinatorError, RequestContext
from headrace.coordinator.result import CoordinatorRecord, CoordinatorResult, Reply
from headrace.coordinator.streams.group import StreamsGroup
from headrace.coordinator.streams.member import StreamsGroupMember
from headrace.protocol.error_codes import ErrorCode
from headrace.protocol.kio_units import from_ms
from headrace.protocol.messages import offset_commit_request as req
from headrace.protocol.messages import offset_commit_response as res
from headrace.protocol.messages import txn_offset_commit_request as txn_req
from headrace.protocol.messages import txn_offset_commit_response as txn_res

__all__ = ["offset_commit", "txn_offset_commit"]


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
    """Commit offsets (OffsetCommit).

    Args:
        group: None if no group has this id: a consumer without a group may commit.
        request: offsets by topic and partition.
        context: the caller.
        image: topics that exist.
        metadata_max_bytes: `offset.metadata.max.bytes`.
        now_ms: time of the commit.

    Returns:
        Records of the accepted offsets, and a response with an error code per partition.

    Raises:
        CoordinatorError: the whole request is refused.
    """
    member = _committing_member(group, request, context.api_version, image)
    epoch = int(request.generation_id_or_member_epoch)
    records: list[CoordinatorRecord] = []
    topics = []
    for topic in request.topics:
        name = _topic_name(topic, image)
        partitions = []
        for partition in topic.partitions:
            # A refused partition does not hold back the others: each is a position of its own. TxnOffsetCommit below
            # must not do that with ownership, since a transaction's offsets count together or not at all.
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
    # 1. No group: a commit without a member creates it (a simple consumer), one with an epoch has lost its group.
    if group is None:
        if epoch < 0:
            return None
        raise _unknown_group(request.group_id, api_version)
    # 2. Classic and consumer groups have their own checks, which look at all partitions at once.
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
    # 3. A streams group without members: an administrator sets offsets.
    if epoch < 0 and not group.members:
        return None
    return _streams_member(group, request.member_id, epoch, api_version)


def _streams_member(group: StreamsGroup, member_id: str, epoch: int, api_version: int) -> StreamsGroupMember:
    member = group.members.get(member_id)
    if member is None:
        raise CoordinatorError(
            ErrorCode.unknown_member_id, f"Member {member_id} is not a member of group {group.group_id}."
        )
    # Before version 9 the field was a generation. A number from such a client would be compared with member epochs
    # although it counts something else, and could match by chance.
    if api_version < _MEMBER_EPOCHS_SINCE:
        raise CoordinatorError(
            ErrorCode.unsupported_version,
            "OffsetCommit version 9 or above must be used by members using the streams group protocol.",
        )
    # A smaller epoch may still be valid: it is compared partition by partition with the epoch at which the task was
    # assigned (`may_commit`). A larger one is from a coordinator that lost records.
    if epoch > member.member_epoch or epoch < 0:
        relation = "newer than" if epoch > member.member_epoch else "no epoch of a member, unlike"
        raise CoordinatorError(
            ErrorCode.stale_member_epoch,
            f"Received member epoch {epoch} is {relation} current member epoch {member.member_epoch}.",
        )
    return member


def _unknown_group(group_id: str, api_version: int) -> CoordinatorError:
    # Clients before version 9 have no handling of GROUP_ID_NOT_FOUND here; ILLEGAL_GENERATION makes them rejoin (Kafka:
    # OffsetMetadataManager.validateOffsetCommit).
    code = ErrorCode.group_id_not_found if api_version >= _MEMBER_EPOCHS_SINCE else ErrorCode.illegal_generation
    return CoordinatorError(code, f"Group {group_id} not found.")


def _topic_name(topic: req.OffsetCommitRequestTopic, image: MetadataImage) -> str:
    """Return the topic, by name, or by id from version 10 on; "" when the id is unknown."""
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
    # Order of the checks: an unknown id first, since nothing can be said about ownership without a name.
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
        # Kept for the client, which compares it with the log after a truncation (KIP-320).
        leader_epoch=int(partition.committed_leader_epoch),
        metadata=partition.committed_metadata or "",
        commit_timestamp=now_ms,
        topic_id=topic.topic_id,
    )


def txn_offset_commit(
    group: StreamsGroup | ClassicGroup | ConsumerGroup | None,
    request: txn_req.TxnOffsetCommitRequest,
    context: RequestContext,
    *,
    image: MetadataImage,
    metadata_max_bytes: int,
    now_ms: int,
) -> CoordinatorResult:
    """Commit offsets in a transaction.

    Raises CoordinatorError(ILLEGAL_GENERATION, UNKNOWN_MEMBER_ID) when the whole request is refused.
    """
    member = _member_in_transaction(group, request, context.api_version, image)
    if member is not None and isinstance(group, StreamsGroup):
        _check_ownership(group, member, request)
    records: list[CoordinatorRecord] = []
    topics = []
    for topic in request.topics:
        partitions = []
        for partition in topic.partitions:
            code = ErrorCode.none
            if len((partition.committed_metadata or "").encode()) > metadata_max_bytes:
                code = ErrorCode.offset_metadata_too_large
            else:
                records.append(_record(request, topic.name, partition, now_ms))
            partitions.append(
                txn_res.TxnOffsetCommitResponsePartition(partition_index=partition.partition_index, error_code=code)
            )
        topics.append(txn_res.TxnOffsetCommitResponseTopic(name=topic.name, partitions=tuple(partitions)))
    response = txn_res.TxnOffsetCommitResponse(throttle_time=from_ms(0), topics=tuple(topics))
    return CoordinatorResult(records=tuple(records), replies=(Reply(token=context.token, response=response),))


def _member_in_transaction(
    group: StreamsGroup | ClassicGroup | ConsumerGroup | None,
    request: txn_req.TxnOffsetCommitRequest,
    api_version: int,
    image: MetadataImage,
) -> StreamsGroupMember | None:
    """Return the member that commits; None if the sender needs to be no member."""
    epoch = int(request.generation_id)
    if group is None:
        if epoch < 0:
            return None
        raise CoordinatorError(ErrorCode.illegal_generation, f"Group {request.group_id} not found.")
    # Before KIP-447 producers sent offsets without group metadata; the transactional id alone fenced the former owner.
    # Checking for members here would end exactly once for those clients.
    if epoch < 0 and not request.member_id and request.group_instance_id is None:
        return None
    if isinstance(group, ClassicGroup):
        check_classic_commit(group.membership, request.member_id, request.group_instance_id, epoch, transactional=True)
        return None
    if isinstance(group, ConsumerGroup):
        check_consumer_commit(
            group,
            request.member_id,
            request.group_instance_id,
            epoch,
            ((topic.name, int(each.partition_index)) for topic in request.topics for each in topic.partitions),
            image=image,
            api_version=api_version,
            transactional=True,
        )
        return None
    if epoch < 0 and not group.members:
        return None
    member = group.members.get(request.member_id)
    if member is None:
        raise _unknown_member(request)
    # TxnOffsetCommit below v6 knows no STALE_MEMBER_EPOCH: ILLEGAL_GENERATION stands for it, and producers abort on it.
    if epoch > member.member_epoch or epoch < 0:
        raise CoordinatorError(
            ErrorCode.illegal_generation,
            f"The received member epoch {epoch} does not match the expected member epoch {member.member_epoch}.",
        )
    return member


def _check_ownership(group: StreamsGroup, member: StreamsGroupMember, request: txn_req.TxnOffsetCommitRequest) -> None:
    epoch = int(request.generation_id)
    for topic in request.topics:
        for partition in topic.partitions:
            index = int(partition.partition_index)
            if not may_commit(group, member, epoch, topic.name, index):
                raise CoordinatorError(
                    ErrorCode.illegal_generation,
                    f"The member epoch {epoch} does not give {topic.name}-{index} to member {member.member_id}.",
                )


def _unknown_member(request: txn_req.TxnOffsetCommitRequest) -> CoordinatorError:
    message = f"Member {request.member_id} is not a member of group {request.group_id}."
    return CoordinatorError(ErrorCode.unknown_member_id, message)


def _record(
    request: txn_req.TxnOffsetCommitRequest, topic: str, partition: txn_req.TxnOffsetCommitRequestPartition, now_ms: int
) -> CoordinatorRecord:
    value = OffsetCommitValue(
        offset=int(partition.committed_offset),
        leader_epoch=int(partition.committed_leader_epoch),
        metadata=partition.committed_metadata or "",
        commit_timestamp=now_ms,
    )
    key = OffsetCommitKey(group=request.group_id, topic=topic, partition=int(partition.partition_index))
    return pending_offset_record(key, value, int(request.producer_id), int(request.producer_epoch))
