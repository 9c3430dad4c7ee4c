"""TxnOffsetCommit (API 28): offsets as part of a transaction. They stay pending until its marker (KIP-98, KIP-447).

Who may commit: a member with its epoch or generation; anybody who names none of member, instance and generation, also
while the group has members (so did all producers before KIP-447). All or nothing: a partition that the member may not
commit refuses the whole request, since half of a transaction's offsets is a trap; only metadata that is too large is
refused by partition. Ownership is looked at for the member's current epoch as well, see `member_validation`.
"""

from __future__ import annotations

from headrace.coordinator.classic.group import ClassicGroup
from headrace.coordinator.consumer.group import ConsumerGroup
from headrace.coordinator.errors import CoordinatorError
from headrace.coordinator.metadata_image import MetadataImage
from headrace.coordinator.offsets.member_validation import check_classic_commit, check_consumer_commit, may_commit
from headrace.coordinator.records.builders import pending_offset_record
from headrace.coordinator.records.schemas import OffsetCommitKey, OffsetCommitValue
from headrace.coordinator.request_context import RequestContext
from headrace.coordinator.result import CoordinatorRecord, CoordinatorResult, Reply
from headrace.coordinator.streams.group import StreamsGroup
from headrace.coordinator.streams.member import StreamsGroupMember
from headrace.protocol.error_codes import ErrorCode
from headrace.protocol.kio_units import from_ms
from headrace.protocol.messages import txn_offset_commit_request as req
from headrace.protocol.messages import txn_offset_commit_response as res

__all__ = ["txn_offset_commit"]


def txn_offset_commit(
    group: StreamsGroup | ClassicGroup | ConsumerGroup | None,
    request: req.TxnOffsetCommitRequest,
    context: RequestContext,
    *,
    image: MetadataImage,
    metadata_max_bytes: int,
    now_ms: int,
) -> CoordinatorResult:
    """Raises CoordinatorError(ILLEGAL_GENERATION, UNKNOWN_MEMBER_ID) when the whole request is refused."""
    member = _committing_member(group, request, context.api_version, image)
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
                res.TxnOffsetCommitResponsePartition(partition_index=partition.partition_index, error_code=code)
            )
        topics.append(res.TxnOffsetCommitResponseTopic(name=topic.name, partitions=tuple(partitions)))
    response = res.TxnOffsetCommitResponse(throttle_time=from_ms(0), topics=tuple(topics))
    return CoordinatorResult(records=tuple(records), replies=(Reply(token=context.token, response=response),))


def _committing_member(
    group: StreamsGroup | ClassicGroup | ConsumerGroup | None,
    request: req.TxnOffsetCommitRequest,
    api_version: int,
    image: MetadataImage,
) -> StreamsGroupMember | None:
    """Return the member that commits; None if the sender needs to be no member."""
    epoch = int(request.generation_id)
    if group is None:
        if epoch < 0:
            return None
        raise CoordinatorError(ErrorCode.illegal_generation, f"Group {request.group_id} not found.")
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
    if epoch > member.member_epoch or epoch < 0:
        raise CoordinatorError(
            ErrorCode.illegal_generation,
            f"The received member epoch {epoch} does not match the expected member epoch {member.member_epoch}.",
        )
    return member


def _check_ownership(group: StreamsGroup, member: StreamsGroupMember, request: req.TxnOffsetCommitRequest) -> None:
    epoch = int(request.generation_id)
    for topic in request.topics:
        for partition in topic.partitions:
            index = int(partition.partition_index)
            if not may_commit(group, member, epoch, topic.name, index):
                raise CoordinatorError(
                    ErrorCode.illegal_generation,
                    f"The member epoch {epoch} does not give {topic.name}-{index} to member {member.member_id}.",
                )


def _unknown_member(request: req.TxnOffsetCommitRequest) -> CoordinatorError:
    message = f"Member {request.member_id} is not a member of group {request.group_id}."
    return CoordinatorError(ErrorCode.unknown_member_id, message)


def _record(
    request: req.TxnOffsetCommitRequest, topic: str, partition: req.TxnOffsetCommitRequestPartition, now_ms: int
) -> CoordinatorRecord:
    value = OffsetCommitValue(
        offset=int(partition.committed_offset),
        leader_epoch=int(partition.committed_leader_epoch),
        metadata=partition.committed_metadata or "",
        commit_timestamp=now_ms,
    )
    key = OffsetCommitKey(group=request.group_id, topic=topic, partition=int(partition.partition_index))
    return pending_offset_record(key, value, int(request.producer_id), int(request.producer_epoch))
