"""StreamsGroupHeartbeat responses and their statuses: what is wrong or pending without being an error. KIP-1071."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import cast

from kio.static.primitive import i8, i32, i64

from headrace.coordinator.configuration import StreamsGroupConfiguration
from headrace.coordinator.records.schemas import StreamsGroupMemberMetadataValue
from headrace.coordinator.streams.topics.configured_topology import ConfiguredTopology
from headrace.coordinator.streams.topics.topic_status import StatusCode, TopicStatus
from headrace.coordinator.tasks import Task, TasksTuple, by_subtopology
from headrace.protocol.error_codes import ErrorCode
from headrace.protocol.kio_units import from_ms
from headrace.protocol.messages import streams_group_heartbeat_response as m

__all__ = ["heartbeat_reply", "leave_reply", "missing_client_tags", "shutdown_requested", "statuses"]

FIRST_VERSION_WITH_TAGS = 1


def statuses(
    member: StreamsGroupMemberMetadataValue,
    configured: ConfiguredTopology,
    *,
    delay: TopicStatus | None,
    shutdown_requested_by: str | None,
    required_tags: tuple[str, ...],
    api_version: int,
) -> list[TopicStatus]:
    """Return the statuses in Kafka's order.

    `configured` may be of a newer topology than the member's. Missing client tags are reported from heartbeat version 1
    on: clients of version 0 do not know that status.
    """
    found = []
    if member.topology_epoch < configured.epoch:
        detail = (
            f"The member's topology epoch {member.topology_epoch} is behind the group's topology epoch "
            f"{configured.epoch}."
        )
        found.append(TopicStatus(code=StatusCode.STALE_TOPOLOGY, detail=detail))
    found.extend(status for status in (configured.unread, delay, configured.status) if status is not None)
    if shutdown_requested_by is not None:
        found.append(shutdown_requested(shutdown_requested_by))
    if api_version >= FIRST_VERSION_WITH_TAGS:
        found.extend(missing_client_tags(member, required_tags))
    return found


def shutdown_requested(member_id: str) -> TopicStatus:
    """Return the status that tells every member to shut down."""
    detail = (
        f"Streams group member {member_id} encountered a fatal error and requested a shutdown for the entire "
        "application."
    )
    return TopicStatus(code=StatusCode.SHUTDOWN_APPLICATION, detail=detail)


def missing_client_tags(
    member: StreamsGroupMemberMetadataValue, required_tags: tuple[str, ...]
) -> tuple[TopicStatus, ...]:
    """Standbys are spread by these tags; a member without them cannot be taken into account."""
    tags = dict(member.client_tags)
    missing = [tag for tag in required_tags if tag not in tags]
    if not missing:
        return ()
    detail = (
        f"Missing required client tags for rack-aware standby assignment: [{', '.join(missing)}]. Configure them via "
        "'client.tag.<tagKey>' in your Streams config."
    )
    return (TopicStatus(code=StatusCode.MISSING_CLIENT_TAGS, detail=detail),)


_NO_TIME = from_ms(0)


def heartbeat_reply(
    *,
    member_id: str,
    member_epoch: int,
    configuration: StreamsGroupConfiguration,
    statuses: Iterable[TopicStatus],
    tasks: TasksTuple | None,
    endpoint_epoch: int,
    endpoints: tuple[m.EndpointToPartitions, ...] | None,
) -> m.StreamsGroupHeartbeatResponse:
    """Return a reply. `tasks` None: unchanged. Every reply carries the task offset interval and the recovery lag."""
    return m.StreamsGroupHeartbeatResponse(
        throttle_time=_NO_TIME,
        error_code=ErrorCode.none,
        error_message=None,
        member_id=member_id,
        member_epoch=cast("i32", member_epoch),
        heartbeat_interval=from_ms(configuration.heartbeat_interval_ms),
        task_offset_interval=from_ms(configuration.task_offset_interval_ms),
        acceptable_recovery_lag=cast("i64", configuration.acceptable_recovery_lag),
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
    return m.StreamsGroupHeartbeatResponse(
        throttle_time=_NO_TIME,
        error_code=ErrorCode.none,
        member_id=member_id,
        member_epoch=cast("i32", member_epoch),
        heartbeat_interval=_NO_TIME,
        task_offset_interval=_NO_TIME,
        status=(),
        active_tasks=None,
        standby_tasks=None,
        warmup_tasks=None,
        endpoint_information_epoch=cast("i32", 0),
        partitions_by_user_endpoint=None,
    )


def _task_ids(tasks: Collection[Task]) -> tuple[m.TaskIds, ...]:
    return tuple(
        m.TaskIds(subtopology_id=subtopology_id, partitions=cast("tuple[i32, ...]", partitions))
        for subtopology_id, partitions in by_subtopology(tasks)
    )
