"""OffsetDelete (API 47): offsets of topics that the group does not read."""

from __future__ import annotations

from headrace.coordinator.classic.consumer_protocol import CONSUMER_PROTOCOL_TYPE
from headrace.coordinator.classic.group import ClassicGroup
from headrace.coordinator.consumer.group import ConsumerGroup
from headrace.coordinator.errors import CoordinatorError
from headrace.coordinator.offsets.committed_offsets import CommittedOffsets
from headrace.coordinator.offsets.member_ownership import subscribed_topics
from headrace.coordinator.offsets.pending_offsets import PendingOffsets
from headrace.coordinator.records.builders import offset_commit_tombstone
from headrace.coordinator.request_context import RequestContext
from headrace.coordinator.result import CoordinatorRecord, CoordinatorResult, Reply
from headrace.coordinator.streams.group import StreamsGroup
from headrace.protocol.error_codes import ErrorCode
from headrace.protocol.messages import offset_delete_request as req
from headrace.protocol.messages import offset_delete_response as res
from headrace.protocol.units import from_ms

__all__ = ["offset_delete"]


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
        return group.membership.reads(topic)
    return bool(group.members) and topic in subscribed_topics(group.topology)
