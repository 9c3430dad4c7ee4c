"""DescribeLogDirs (API 35): the one data directory, and how many bytes each partition takes there.

Version notes: v2 flexible; v3 top-level error; v4 bytes of the file system; v5 cordoned directories, of which there are
none. Named partitions that are not on the disk are left out, and so is a partition that no client has written to yet.
"""

from __future__ import annotations

import os
import shutil
from collections import defaultdict

from kio.schema.types import TopicName
from kio.static.primitive import i32, i64

from headrace.broker.requests.request_context import RequestContext
from headrace.broker.services import NO_THROTTLE, Services
from headrace.protocol import messages as m
from headrace.protocol.error_codes import ErrorCode
from headrace.storage.errors import StorageError


def handle(
    request: m.describe_log_dirs_request.DescribeLogDirsRequest, _call: RequestContext, broker: Services
) -> m.describe_log_dirs_response.DescribeLogDirsResponse:
    """Answer one DescribeLogDirs request."""
    r = m.describe_log_dirs_response
    path = os.path.abspath(broker.configuration.data_dir)  # noqa: PTH100 - Kafka does not follow links either
    try:
        space = shutil.disk_usage(path)
        result = r.DescribeLogDirsResult(
            error_code=ErrorCode.none,
            log_dir=path,
            topics=_topics(request, broker),
            total_bytes=i64(space.total),
            usable_bytes=i64(space.free),
        )
    except (OSError, StorageError):
        result = r.DescribeLogDirsResult(error_code=ErrorCode.kafka_storage_error, log_dir=path, topics=())
    return r.DescribeLogDirsResponse(throttle_time=NO_THROTTLE, error_code=ErrorCode.none, results=(result,))


def _topics(
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
