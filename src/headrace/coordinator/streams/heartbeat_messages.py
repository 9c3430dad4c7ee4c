"""StreamsGroupHeartbeat on the wire: validation of requests, conversion to the coordinator's types, replies. KIP-1071.

The first violated rule determines the error, as in Kafka 4.4 for both versions of the request: instance ids, task
offsets and warm-up tasks are accepted, which Kafka 4.2 and 4.3 refuse before any other check. The last rules are not
Kafka's, which fails with UNKNOWN_SERVER_ERROR instead: a name listed twice where names must be distinct, and a topology
epoch below 0.

A reply carries statuses besides its error code: what is wrong or pending without being an error.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import NoReturn, cast

from kio.static.primitive import i8, i32, i64

from headrace.coordinator.assignors.task_assignor import Task, TasksTuple, by_subtopology, sorted_tasks
from headrace.coordinator.configuration import StreamsGroupConfiguration
from headrace.coordinator.modern import JOIN_EPOCH, STATIC_LEAVE_EPOCH, UNCHANGED_TIMEOUT_MS
from headrace.coordinator.records.schemas import (
    CopartitionGroup,
    StreamsGroupMemberMetadataValue,
    StreamsGroupTopologyValue,
    Subtopology,
    TopicInfo,
)
from headrace.coordinator.request_context import CoordinatorError
from headrace.coordinator.streams.configured_topology import ConfiguredTopology
from headrace.coordinator.streams.internal_topics import StatusCode, TopicStatus
from headrace.protocol.error_codes import ErrorCode
from headrace.protocol.kio_units import from_ms, to_ms
from headrace.protocol.messages import streams_group_heartbeat_request as m
from headrace.protocol.messages import streams_group_heartbeat_response as replies

__all__ = [
    "heartbeat_reply",
    "is_same_topology",
    "leave_reply",
    "missing_client_tags",
    "owned_tasks",
    "shutdown_requested",
    "statuses",
    "topology_of",
    "validate_request",
]


def validate_request(request: m.StreamsGroupHeartbeatRequest) -> None:
    """Validate a heartbeat.

    Raises CoordinatorError: INVALID_REQUEST, or STREAMS_INVALID_TOPOLOGY for a changelog with a partition count.
    """
    # The order decides which error a client sees, and is Kafka's
    # (`GroupCoordinatorService.throwIfStreamsGroupHeartbeatRequestIsInvalid`); the last two rules are ours.
    _check_regular_expressions(request)
    _check_identity(request)
    if request.member_epoch == JOIN_EPOCH:
        _check_join(request)
    elif request.member_epoch == STATIC_LEAVE_EPOCH and request.instance_id is None:
        _refuse("InstanceId can't be null.")
    elif request.member_epoch < STATIC_LEAVE_EPOCH:
        _refuse(f"MemberEpoch is {request.member_epoch}, but must be greater than or equal to -2.")
    lists = (request.active_tasks, request.standby_tasks, request.warmup_tasks)
    if any(tasks is None for tasks in lists) and any(tasks is not None for tasks in lists):
        _refuse("If one task-type is non-null, all must be non-null.")
    if request.member_epoch != JOIN_EPOCH and request.topology is not None:
        _refuse("Topology can only be provided when (re-)joining.")
    _check_distinct("client tag", [tag.key for tag in request.client_tags or ()], ErrorCode.invalid_request)
    if request.topology is not None:
        _check_topology(request.topology)


def _check_identity(request: m.StreamsGroupHeartbeatRequest) -> None:
    for name, value in (("MemberId", request.member_id), ("GroupId", request.group_id)):
        # Blank counts as empty (Java's `trim`).
        if not value.strip():
            _refuse(f"{name} can't be empty.")
    for name, given in (("InstanceId", request.instance_id), ("RackId", request.rack_id)):
        if given is not None and not given.strip():
            _refuse(f"{name} can't be empty.")


def _check_join(request: m.StreamsGroupHeartbeatRequest) -> None:
    if to_ms(request.rebalance_timeout) == UNCHANGED_TIMEOUT_MS:
        _refuse("RebalanceTimeoutMs must be provided in first request.")
    lists = (("Active", request.active_tasks), ("Standby", request.standby_tasks), ("Warmup", request.warmup_tasks))
    for name, tasks in lists:
        # A joiner owns nothing: with tasks in its hands it would be a member, and would go on with its epoch.
        if tasks is None or tasks:
            _refuse(f"{name}Tasks must be empty when (re-)joining.")
    if request.topology is None:
        _refuse("Topology must be non-null when (re-)joining.")
    for subtopology in request.topology.subtopologies:
        for topic in subtopology.state_changelog_topics:
            # The number of a changelog's partitions follows from its subtopology's sources; a fixed one could
            # contradict it.
            if topic.partitions != 0:
                raise CoordinatorError(
                    ErrorCode.streams_invalid_topology,
                    f"Changelog topic {topic.name} must have an undefined partition count, but it is set to "
                    f"{topic.partitions}.",
                )


def _check_regular_expressions(request: m.StreamsGroupHeartbeatRequest) -> None:
    subtopologies = request.topology.subtopologies if request.topology is not None else ()
    if any(subtopology.source_topic_regex for subtopology in subtopologies):
        _refuse("Regular expressions for source topics are not supported yet.")


def _check_topology(topology: m.Topology) -> None:
    invalid = ErrorCode.streams_invalid_topology
    if topology.epoch < 0:
        raise CoordinatorError(invalid, f"The topology epoch is {topology.epoch}, but must not be negative.")
    # Kafka collects these into maps and fails with IllegalStateException, so UNKNOWN_SERVER_ERROR, which its client
    # takes as fatal without a reason.
    _check_distinct("subtopology", [each.subtopology_id for each in topology.subtopologies], invalid)
    for subtopology in topology.subtopologies:
        of = f"of subtopology {subtopology.subtopology_id}"
        _check_distinct(f"changelog topic {of}", [each.name for each in subtopology.state_changelog_topics], invalid)
        repartition_topics = [each.name for each in subtopology.repartition_source_topics]
        _check_distinct(f"repartition source topic {of}", repartition_topics, invalid)
        for topic in (*subtopology.state_changelog_topics, *subtopology.repartition_source_topics):
            _check_distinct(f"config of topic {topic.name}", [each.key for each in topic.topic_configs], invalid)


def _check_distinct(what: str, names: Iterable[str], code: ErrorCode) -> None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise CoordinatorError(code, f"The {what} {name} is there twice.")
        seen.add(name)


def _refuse(message: str) -> NoReturn:
    raise CoordinatorError(ErrorCode.invalid_request, message)


def owned_tasks(request: m.StreamsGroupHeartbeatRequest) -> TasksTuple | None:
    """Return the tasks that the member reports; None if it reports none (validation: all three lists or none)."""
    # For mypy, all three: validation has refused a mixture.
    if request.active_tasks is None or request.standby_tasks is None or request.warmup_tasks is None:
        return None
    return TasksTuple(
        active=_tasks(request.active_tasks),
        standby=_tasks(request.standby_tasks),
        warmup=_tasks(request.warmup_tasks),
    )


def topology_of(topology: m.Topology) -> StreamsGroupTopologyValue:
    """Return the topology as it is recorded: everything in the order the member gave."""
    subtopologies = tuple(_subtopology(each) for each in topology.subtopologies)
    return StreamsGroupTopologyValue(epoch=int(topology.epoch), subtopologies=subtopologies)


def is_same_topology(first: StreamsGroupTopologyValue, second: StreamsGroupTopologyValue) -> bool:
    """Whether two topologies are equal, whatever the order of subtopologies; lists inside are ordered (as in Kafka)."""

    def by_id(topology: StreamsGroupTopologyValue) -> dict[str, Subtopology]:
        return {each.subtopology_id: each for each in topology.subtopologies}

    # The first comparison is the common case: a member that rejoins sends what it sent before.
    return first == second or (first.epoch == second.epoch and by_id(first) == by_id(second))


def _subtopology(subtopology: m.Subtopology) -> Subtopology:
    return Subtopology(
        subtopology_id=subtopology.subtopology_id,
        source_topics=tuple(subtopology.source_topics),
        source_topic_regex=tuple(subtopology.source_topic_regex),
        state_changelog_topics=tuple(_topic(each) for each in subtopology.state_changelog_topics),
        repartition_sink_topics=tuple(subtopology.repartition_sink_topics),
        repartition_source_topics=tuple(_topic(each) for each in subtopology.repartition_source_topics),
        copartition_groups=tuple(
            CopartitionGroup(
                source_topics=tuple(group.source_topics),
                source_topic_regex=tuple(group.source_topic_regex),
                repartition_source_topics=tuple(group.repartition_source_topics),
            )
            for group in subtopology.copartition_groups
        ),
    )


def _topic(topic: m.TopicInfo) -> TopicInfo:
    return TopicInfo(
        name=topic.name,
        partitions=int(topic.partitions),
        replication_factor=int(topic.replication_factor),
        topic_configs=tuple((config.key, config.value) for config in topic.topic_configs),
    )


def _tasks(tasks: tuple[m.TaskIds, ...]) -> tuple[Task, ...]:
    return sorted_tasks((each.subtopology_id, int(partition)) for each in tasks for partition in each.partitions)


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
    """Return the statuses for a member, in Kafka's order.

    Args:
        member: metadata of the member.
        configured: topology of the group on existing topics. It may be newer than the member's.
        delay: status of a delayed assignment; None without a delay.
        shutdown_requested_by: id of the member that requested a shutdown of the application; None without one.
        required_tags: client tags that the group's rack awareness requires.
        api_version: of the heartbeat. Missing client tags are reported from version 1 on: clients of version 0 do not
            know that status.
    """
    # Kafka's order: STALE_TOPOLOGY, ASSIGNMENT_DELAYED, one status about topics, SHUTDOWN_APPLICATION,
    # MISSING_CLIENT_TAGS. None is an error, and any number may appear together.
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
    """Return the status of a member without the tags by which standbys are spread."""
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
    endpoints: tuple[replies.EndpointToPartitions, ...] | None,
) -> replies.StreamsGroupHeartbeatResponse:
    """Build the response of a heartbeat.

    Args:
        member_id: of the member.
        member_epoch: its epoch after the request.
        configuration: settings of the group. Every response has the interval of task offsets and the recovery lag.
        statuses: conditions that the member has to know, in Kafka's order.
        tasks: the assignment; None if it is unchanged.
        endpoint_epoch: epoch of the endpoints; clients compare it with theirs.
        endpoints: partitions by endpoint (interactive queries); None if they are unchanged.
    """
    return replies.StreamsGroupHeartbeatResponse(
        throttle_time=_NO_TIME,
        error_code=ErrorCode.none,
        error_message=None,
        member_id=member_id,
        # `cast`, not `i32(…)`: kio's constructor checks each number (1.6 µs against 0.1), and a reply has one per
        # partition.
        member_epoch=cast("i32", member_epoch),
        heartbeat_interval=from_ms(configuration.heartbeat_interval_ms),
        task_offset_interval=from_ms(configuration.task_offset_interval_ms),
        acceptable_recovery_lag=cast("i64", configuration.acceptable_recovery_lag),
        status=tuple(
            replies.Status(status_code=cast("i8", int(status.code)), status_detail=status.detail) for status in statuses
        ),
        active_tasks=None if tasks is None else _task_ids(tasks.active),
        standby_tasks=None if tasks is None else _task_ids(tasks.standby),
        warmup_tasks=None if tasks is None else _task_ids(tasks.warmup),
        endpoint_information_epoch=cast("i32", endpoint_epoch),
        partitions_by_user_endpoint=endpoints,
    )


def leave_reply(member_id: str, member_epoch: int) -> replies.StreamsGroupHeartbeatResponse:
    """Build the response of a leave: the epoch of the request, and nothing else."""
    return replies.StreamsGroupHeartbeatResponse(
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


def _task_ids(tasks: Collection[Task]) -> tuple[replies.TaskIds, ...]:
    return tuple(
        replies.TaskIds(subtopology_id=subtopology_id, partitions=cast("tuple[i32, ...]", partitions))
        for subtopology_id, partitions in by_subtopology(tasks)
    )
