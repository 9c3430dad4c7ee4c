"""OffsetForLeaderEpoch (API 23): where the records of a leader epoch end, which is how clients see that a log was cut.

Version notes: v2 throttle time; v3 replica id, of which nothing depends here; v4 flexible. An epoch that nothing is
known of has the answer (-1, -1) (KIP-101, KIP-320).
"""

from __future__ import annotations

from kio.static.primitive import i32, i64

from headrace.broker.logs.leader_epochs import end_of_epoch, leader_epoch_error
from headrace.broker.logs.partition_logs import ReadRefused
from headrace.broker.requests.request_context import RequestContext
from headrace.broker.services import NO_THROTTLE, Services
from headrace.protocol import messages as m
from headrace.protocol.error_codes import ErrorCode


def handle(
    request: m.offset_for_leader_epoch_request.OffsetForLeaderEpochRequest, _call: RequestContext, broker: Services
) -> m.offset_for_leader_epoch_response.OffsetForLeaderEpochResponse:
    """Answer one OffsetForLeaderEpoch request."""
    r = m.offset_for_leader_epoch_response
    return r.OffsetForLeaderEpochResponse(
        throttle_time=NO_THROTTLE,
        topics=tuple(
            r.OffsetForLeaderTopicResult(
                topic=asked.topic, partitions=tuple(_partition(asked.topic, part, broker) for part in asked.partitions)
            )
            for asked in request.topics
        ),
    )


def _partition(
    name: str, part: m.offset_for_leader_epoch_request.OffsetForLeaderPartition, broker: Services
) -> m.offset_for_leader_epoch_response.EpochEndOffset:
    r = m.offset_for_leader_epoch_response
    topic = broker.metadata.topic(name)
    if topic is None or not 0 <= part.partition < topic.partitions:
        return r.EpochEndOffset(error_code=ErrorCode.unknown_topic_or_partition, partition=part.partition)
    if (code := leader_epoch_error(part.current_leader_epoch, broker)) is not None:
        return r.EpochEndOffset(error_code=code, partition=part.partition)
    try:
        log = broker.logs.view(topic, part.partition)
    except ReadRefused as refused:
        return r.EpochEndOffset(error_code=refused.code, partition=part.partition)
    epoch, end_offset = end_of_epoch(log, part.leader_epoch, broker.metadata.leader_epoch)
    return r.EpochEndOffset(
        error_code=ErrorCode.none, partition=part.partition, leader_epoch=i32(epoch), end_offset=i64(end_offset)
    )
