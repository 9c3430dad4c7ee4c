"""The answers to a consumer heartbeat, as wire messages."""

from __future__ import annotations

from typing import cast

from kio.static.primitive import i32

from headrace.coordinator.consumer.partitions import PartitionEpochs
from headrace.protocol.error_codes import ErrorCode
from headrace.protocol.messages import consumer_group_heartbeat_response as m
from headrace.protocol.units import from_ms

__all__ = ["heartbeat_reply"]

_NO_TIME = from_ms(0)


def heartbeat_reply(
    *,
    member_id: str,
    member_epoch: int,
    heartbeat_interval_ms: int = 0,
    assigned: PartitionEpochs | None = None,
) -> m.ConsumerGroupHeartbeatResponse:
    """`assigned` None: unchanged. To one that leaves, its epoch comes back as it was sent, and nothing else is said."""
    assignment = None
    if assigned is not None:
        assignment = m.Assignment(
            topic_partitions=tuple(
                m.TopicPartitions(topic_id=topic_id, partitions=cast("tuple[i32, ...]", tuple(sorted(of_topic))))
                for topic_id, of_topic in assigned.items()
            )
        )
    return m.ConsumerGroupHeartbeatResponse(
        throttle_time=_NO_TIME,
        error_code=ErrorCode.none,
        error_message=None,
        member_id=member_id,
        member_epoch=cast("i32", member_epoch),
        heartbeat_interval=from_ms(heartbeat_interval_ms),
        assignment=assignment,
    )
