"""Replica placement: elections, reassignments, log directories.

There is one broker with one data directory, so nothing is ever elected or moved.
"""

from __future__ import annotations

import os
import shutil
from collections import defaultdict

from kio.schema.types import TopicName
from kio.static.primitive import i32, i64

from headrace.broker.requests.partial_response import (
    Api,
    GuardedRequest,
    require_cluster,
)
from headrace.broker.requests.request_context import RequestContext
from headrace.broker.security.acls import Operation
from headrace.broker.services import NO_THROTTLE, Services
from headrace.protocol import messages as m
from headrace.protocol.api_keys import ApiKey
from headrace.protocol.error_codes import ErrorCode
from headrace.storage.errors import StorageError

__all__ = [
    "APIS",
    "handle_alter_partition_reassignments",
    "handle_alter_replica_log_dirs",
    "handle_describe_log_dirs",
    "handle_elect_leaders",
    "handle_list_partition_reassignments",
]

_NONE_TO_CANCEL = "No partition reassignment is in progress."


def handle_elect_leaders(
    request: m.elect_leaders_request.ElectLeadersRequest, _context: RequestContext, broker: Services
) -> m.elect_leaders_response.ElectLeadersResponse:
    """ElectLeaders (API 43): the only replica of a partition is its leader already.

    Version notes: v1 election type; v2 flexible. Without topics all are meant, and those that need no election are
    left out of the answer, as in Kafka.
    """
    r = m.elect_leaders_response
    # Null asks for all partitions. None of them needs an election, and Kafka leaves those out of the response.
    if request.topic_partitions is None:
        results = tuple(
            r.ReplicaElectionResult(topic=TopicName(topic.name), partition_result=())
            for topic in broker.metadata.topics()
        )
    else:
        results = tuple(
            r.ReplicaElectionResult(
                topic=asked.topic,
                partition_result=tuple(_elect_leader(asked.topic, partition, broker) for partition in asked.partitions),
            )
            for asked in request.topic_partitions
        )
    return r.ElectLeadersResponse(
        throttle_time=NO_THROTTLE, error_code=ErrorCode.none, replica_election_results=results
    )


def _elect_leader(name: str, partition: i32, broker: Services) -> m.elect_leaders_response.PartitionResult:
    topic = broker.metadata.topic(name)
    code, message = ErrorCode.election_not_needed, "Leader election not needed for topic partition."
    # In Kafka's order: the topic, the partition, then whether an election is needed; here it never is.
    if topic is None:
        code, message = ErrorCode.unknown_topic_or_partition, f"No such topic as {name}"
    elif not 0 <= partition < topic.partitions:
        code, message = ErrorCode.unknown_topic_or_partition, f"No such partition as {name}-{partition}"
    return m.elect_leaders_response.PartitionResult(partition_id=partition, error_code=code, error_message=message)


def handle_alter_partition_reassignments(
    request: m.alter_partition_reassignments_request.AlterPartitionReassignmentsRequest,
    _context: RequestContext,
    broker: Services,
) -> m.alter_partition_reassignments_response.AlterPartitionReassignmentsResponse:
    """AlterPartitionReassignments (API 45): a partition stays where it is, on this one broker.

    Version notes: v1 `allow_replication_factor_change`. To ask for what is there already is fine, anything else names
    a broker that does not exist; there is never a reassignment that could be cancelled. Words are Kafka's.
    """
    r = m.alter_partition_reassignments_response
    return r.AlterPartitionReassignmentsResponse(
        throttle_time=NO_THROTTLE,
        allow_replication_factor_change=request.allow_replication_factor_change,
        error_code=ErrorCode.none,
        error_message=None,
        responses=tuple(
            r.ReassignableTopicResponse(
                name=topic.name,
                partitions=tuple(_reassign_partition(topic.name, part, broker) for part in topic.partitions),
            )
            for topic in request.topics
        ),
    )


def _reassign_partition(
    name: str, part: m.alter_partition_reassignments_request.ReassignablePartition, broker: Services
) -> m.alter_partition_reassignments_response.ReassignablePartitionResponse:
    code, message = _reassignment_error(name, part, broker)
    return m.alter_partition_reassignments_response.ReassignablePartitionResponse(
        partition_index=part.partition_index, error_code=code, error_message=message
    )


def _reassignment_error(
    name: str, part: m.alter_partition_reassignments_request.ReassignablePartition, broker: Services
) -> tuple[ErrorCode, str | None]:
    # In Kafka's order (ReplicationControlManager.alterPartitionReassignment): the partition, then the cancellation,
    # then the replicas one by one.
    topic = broker.metadata.topic(name)
    if topic is None:
        return ErrorCode.unknown_topic_or_partition, f"Unable to find a topic named {name}."
    if not 0 <= part.partition_index < topic.partitions:
        return ErrorCode.unknown_topic_or_partition, f"Unable to find partition {name}:{part.partition_index}."
    if part.replicas is None:
        return ErrorCode.no_reassignment_in_progress, _NONE_TO_CANCEL
    if not part.replicas:
        return (
            ErrorCode.invalid_replica_assignment,
            "The manual partition assignment includes an empty replica list.",
        )
    if len(set(part.replicas)) < len(part.replicas):
        twice = next(replica for replica in part.replicas if part.replicas.count(replica) > 1)
        return (
            ErrorCode.invalid_replica_assignment,
            f"The manual partition assignment includes the broker {twice} more than once.",
        )
    for replica in part.replicas:
        if replica != broker.node_id:
            return (
                ErrorCode.invalid_replica_assignment,
                f"The manual partition assignment includes broker {replica}, but no such broker is registered.",
            )
    return ErrorCode.none, None


def handle_list_partition_reassignments(
    _request: m.list_partition_reassignments_request.ListPartitionReassignmentsRequest,
    _context: RequestContext,
    broker: Services,  # noqa: ARG001 - a handler's
) -> m.list_partition_reassignments_response.ListPartitionReassignmentsResponse:
    """ListPartitionReassignments (API 46): none. With one broker no replica ever moves."""
    return m.list_partition_reassignments_response.ListPartitionReassignmentsResponse(
        throttle_time=NO_THROTTLE, error_code=ErrorCode.none, error_message=None, topics=()
    )


def handle_describe_log_dirs(
    request: m.describe_log_dirs_request.DescribeLogDirsRequest, _context: RequestContext, broker: Services
) -> m.describe_log_dirs_response.DescribeLogDirsResponse:
    """DescribeLogDirs (API 35): the one data directory, and how many bytes each partition takes there.

    Version notes: v2 flexible; v3 top-level error; v4 bytes of the file system; v5 cordoned directories, of which
    there are none. Named partitions that are not on the disk are left out, and so is a partition that no client has
    written to yet.
    """
    r = m.describe_log_dirs_response
    path = os.path.abspath(broker.configuration.data_dir)  # noqa: PTH100 - Kafka does not follow links either
    # A disk that does not answer is reported in the response of its directory: tools show it beside the others.
    try:
        space = shutil.disk_usage(path)
        result = r.DescribeLogDirsResult(
            error_code=ErrorCode.none,
            log_dir=path,
            topics=_topic_sizes(request, broker),
            total_bytes=i64(space.total),
            usable_bytes=i64(space.free),
        )
    except (OSError, StorageError):
        result = r.DescribeLogDirsResult(error_code=ErrorCode.kafka_storage_error, log_dir=path, topics=())
    return r.DescribeLogDirsResponse(throttle_time=NO_THROTTLE, error_code=ErrorCode.none, results=(result,))


def _topic_sizes(
    request: m.describe_log_dirs_request.DescribeLogDirsRequest, broker: Services
) -> tuple[m.describe_log_dirs_response.DescribeLogDirsTopic, ...]:
    r = m.describe_log_dirs_response
    wanted = None
    if request.topics is not None:
        wanted = {(asked.topic, partition) for asked in request.topics for partition in asked.partitions}
    found: dict[str, list[m.describe_log_dirs_response.DescribeLogDirsPartition]] = defaultdict(list)
    for name, partition, size in broker.logs.sizes(wanted):
        found[name].append(
            r.DescribeLogDirsPartition(
                partition_index=i32(partition), partition_size=i64(size), offset_lag=i64(0), is_future_key=False
            )
        )
    return tuple(
        r.DescribeLogDirsTopic(name=TopicName(name), partitions=tuple(partitions)) for name, partitions in found.items()
    )


def handle_alter_replica_log_dirs(
    request: m.alter_replica_log_dirs_request.AlterReplicaLogDirsRequest, _context: RequestContext, broker: Services
) -> m.alter_replica_log_dirs_response.AlterReplicaLogDirsResponse:
    """AlterReplicaLogDirs (API 34): there is one data directory, so nothing can be moved to another.

    Version notes: v2 flexible. A partition that already lies in the named directory is fine; a partition that does not
    exist is UNKNOWN_TOPIC_OR_PARTITION; another directory is LOG_DIR_NOT_FOUND.
    """
    r = m.alter_replica_log_dirs_response
    results: dict[TopicName, list[m.alter_replica_log_dirs_response.AlterReplicaLogDirPartitionResult]] = defaultdict(
        list
    )
    for directory in request.dirs:
        for asked in directory.topics:
            for partition in asked.partitions:
                code = _move_error(directory.path, asked.name, partition, broker)
                results[asked.name].append(
                    r.AlterReplicaLogDirPartitionResult(partition_index=i32(partition), error_code=code)
                )
    return r.AlterReplicaLogDirsResponse(
        throttle_time=NO_THROTTLE,
        results=tuple(
            r.AlterReplicaLogDirTopicResult(topic_name=name, partitions=tuple(partitions))
            for name, partitions in results.items()
        ),
    )


def _move_error(path: str, name: str, partition: int, broker: Services) -> ErrorCode:
    # Kafka compares absolute paths without following links, so two names of one directory are two directories.
    if os.path.abspath(path) != os.path.abspath(broker.configuration.data_dir):  # noqa: PTH100 - as DescribeLogDirs
        return ErrorCode.log_dir_not_found
    topic = broker.metadata.topic(name)
    if topic is None or not 0 <= partition < topic.partitions:
        return ErrorCode.unknown_topic_or_partition
    return ErrorCode.none


# --- access rules ---


def authorize_alter_replica_log_dirs(guarded: GuardedRequest) -> object:
    """Check ALTER of the cluster; without it each partition is refused."""
    if guarded.allow.on_cluster(guarded.context, Operation.ALTER):
        return guarded.handle()
    r, code = m.alter_replica_log_dirs_response, ErrorCode.cluster_authorization_failed
    results = tuple(
        r.AlterReplicaLogDirTopicResult(
            topic_name=topic.name,
            partitions=tuple(
                r.AlterReplicaLogDirPartitionResult(partition_index=each, error_code=code) for each in topic.partitions
            ),
        )
        for directory in guarded.request.dirs
        for topic in directory.topics
    )
    return r.AlterReplicaLogDirsResponse(throttle_time=NO_THROTTLE, results=results)


APIS = {
    ApiKey.ELECT_LEADERS: Api(handle_elect_leaders, require_cluster(Operation.ALTER)),
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: Api(handle_alter_partition_reassignments, require_cluster(Operation.ALTER)),
    ApiKey.LIST_PARTITION_REASSIGNMENTS: Api(handle_list_partition_reassignments, require_cluster(Operation.DESCRIBE)),
    ApiKey.DESCRIBE_LOG_DIRS: Api(handle_describe_log_dirs, require_cluster(Operation.DESCRIBE)),
    ApiKey.ALTER_REPLICA_LOG_DIRS: Api(handle_alter_replica_log_dirs, authorize_alter_replica_log_dirs),
}
