"""StreamsGroupHeartbeat requests: validation, and conversion of topology and task lists into the coordinator's types.

The first violated rule determines the error. KIP-1071, as in Kafka 4.4 for both versions of the request: instance ids,
task offsets and warm-up tasks are accepted, which Kafka 4.2 and 4.3 refuse before any other check.

The last rules are not Kafka's, which fails with UNKNOWN_SERVER_ERROR instead: a name listed twice where names must be
distinct, and a topology epoch below 0.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NoReturn

from headrace.coordinator.errors import CoordinatorError
from headrace.coordinator.modern.member import JOIN_EPOCH, STATIC_LEAVE_EPOCH, UNCHANGED_TIMEOUT_MS
from headrace.coordinator.records.schemas import CopartitionGroup, StreamsGroupTopologyValue, Subtopology, TopicInfo
from headrace.coordinator.tasks import Task, TasksTuple, sorted_tasks
from headrace.protocol.error_codes import ErrorCode
from headrace.protocol.kio_units import to_ms
from headrace.protocol.messages import streams_group_heartbeat_request as m

__all__ = ["is_same_topology", "owned_tasks", "topology_of", "validate_request"]


def validate_request(request: m.StreamsGroupHeartbeatRequest) -> None:
    """Raises CoordinatorError: INVALID_REQUEST, or STREAMS_INVALID_TOPOLOGY for a changelog with a partition count."""
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
        if tasks is None or tasks:
            _refuse(f"{name}Tasks must be empty when (re-)joining.")
    if request.topology is None:
        _refuse("Topology must be non-null when (re-)joining.")
    for subtopology in request.topology.subtopologies:
        for topic in subtopology.state_changelog_topics:
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
    if request.active_tasks is None or request.standby_tasks is None or request.warmup_tasks is None:
        return None
    return TasksTuple(
        active=_tasks(request.active_tasks),
        standby=_tasks(request.standby_tasks),
        warmup=_tasks(request.warmup_tasks),
    )


def topology_of(topology: m.Topology) -> StreamsGroupTopologyValue:
    """As it is recorded: everything in the order the member gave."""
    subtopologies = tuple(_subtopology(each) for each in topology.subtopologies)
    return StreamsGroupTopologyValue(epoch=int(topology.epoch), subtopologies=subtopologies)


def is_same_topology(first: StreamsGroupTopologyValue, second: StreamsGroupTopologyValue) -> bool:
    """The order of subtopologies does not matter, that of the lists inside does (as in Kafka)."""

    def by_id(topology: StreamsGroupTopologyValue) -> dict[str, Subtopology]:
        return {each.subtopology_id: each for each in topology.subtopologies}

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
