"""AlterReplicaLogDirs (API 34): there is one data directory, so nothing can be moved to another.

Version notes: v2 flexible. A partition that already lies in the named directory is fine; a partition that does not
exist is UNKNOWN_TOPIC_OR_PARTITION; another directory is LOG_DIR_NOT_FOUND.
"""

from __future__ import annotations

import os
from collections import defaultdict

from kio.schema.types import TopicName
from kio.static.primitive import i32

from headrace.broker.requests.request_context import RequestContext
from headrace.broker.services import NO_THROTTLE, Services
from headrace.protocol import messages as m
from headrace.protocol.error_codes import ErrorCode


def handle(
    request: m.alter_replica_log_dirs_request.AlterReplicaLogDirsRequest, _call: RequestContext, broker: Services
) -> m.alter_replica_log_dirs_response.AlterReplicaLogDirsResponse:
    """Answer one AlterReplicaLogDirs request."""
    r = m.alter_replica_log_dirs_response
    results: dict[TopicName, list[m.alter_replica_log_dirs_response.AlterReplicaLogDirPartitionResult]] = defaultdict(
        list
    )
    for directory in request.dirs:
        for asked in directory.topics:
            for partition in asked.partitions:
                code = _outcome(directory.path, asked.name, partition, broker)
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


def _outcome(path: str, name: str, partition: int, broker: Services) -> ErrorCode:
    if os.path.abspath(path) != os.path.abspath(broker.configuration.data_dir):  # noqa: PTH100 - as DescribeLogDirs
        return ErrorCode.log_dir_not_found
    topic = broker.metadata.topic(name)
    if topic is None or not 0 <= partition < topic.partitions:
        return ErrorCode.unknown_topic_or_partition
    return ErrorCode.none
