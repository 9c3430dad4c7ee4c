"""The answers to a streams heartbeat, as wire messages."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import cast

from kio.static.primitive import i8, i32, i64

from penstock.coordinator.streams.tasks import Task, TasksTuple, by_subtopology
from penstock.coordinator.streams.topics.topic_status import TopicStatus
from penstock.protocol.error_codes import ErrorCode
from penstock.protocol.messages import streams_group_heartbeat_response as m
from penstock.protocol.units import from_ms

__all__ = ["heartbeat_reply", "leave_reply"]

_NO_TIME = from_ms(0)


def heartbeat_reply(
    *,
    member_id: str,
    member_epoch: int,
    heartbeat_interval_ms: int,
    statuses: Iterable[TopicStatus],
    tasks: TasksTuple | None,
    endpoint_epoch: int,
    endpoints: tuple[m.EndpointToPartitions, ...] | None,
) -> m.StreamsGroupHeartbeatResponse:
    """`tasks` None: unchanged. Recovery lag and task offset interval wait for warm-up tasks: 0, as Kafka 4.3."""
    return m.StreamsGroupHeartbeatResponse(
        throttle_time=_NO_TIME,
        error_code=ErrorCode.none,
        error_message=None,
        member_id=member_id,
        member_epoch=cast("i32", member_epoch),
        heartbeat_interval=from_ms(heartbeat_interval_ms),
        acceptable_recovery_lag=cast("i64", 0),
        task_offset_interval=_NO_TIME,
        status=tuple(
            m.Status(status_code=cast("i8", int(status.code)), status_detail=status.detail) for status in statuses
        ),
        active_tasks=None if tasks is None else _task_ids(tasks.active),
        standby_tasks=None if tasks is None else _task_ids(tasks.standby),
        warmup_tasks=None if tasks is None else _task_ids(tasks.warmup),
        endpoint_information_epoch=cast("i32", endpoint_epoch),
        partitions_by_user_endpoint=endpoints,
    )


def leave_reply(member_id: str, member_epoch: int) -> m.StreamsGroupHeartbeatResponse:
    """The epoch comes back as it was sent; nothing else is said."""
    return heartbeat_reply(
        member_id=member_id,
        member_epoch=member_epoch,
        heartbeat_interval_ms=0,
        statuses=(),
        tasks=None,
        endpoint_epoch=0,
        endpoints=None,
    )


def _task_ids(tasks: Collection[Task]) -> tuple[m.TaskIds, ...]:
    return tuple(
        m.TaskIds(subtopology_id=subtopology_id, partitions=cast("tuple[i32, ...]", partitions))
        for subtopology_id, partitions in by_subtopology(tasks)
    )
