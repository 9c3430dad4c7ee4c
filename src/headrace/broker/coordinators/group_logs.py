"""The partitions of `__consumer_offsets`: which are on the disk, and the log of each for its shard."""

from __future__ import annotations

from collections.abc import Awaitable

from headrace.broker.coordinators.shard_runner import RecordLog
from headrace.broker.logs.partition_logs import PartitionLogs
from headrace.broker.metadata.cluster_metadata import TopicDescription

__all__ = ["GroupMetadataLogs"]


class GroupMetadataLogs:
    """Opens the logs of the shards; a partition comes to the disk with its first record."""

    def __init__(self, logs: PartitionLogs, topic: TopicDescription) -> None:
        self._logs = logs
        self._topic = topic

    def existing(self) -> list[int]:
        return [partition for partition in range(self._topic.partitions) if self._logs.exists(self._topic, partition)]

    def open(self, partition: int) -> RecordLog:
        from headrace.broker.coordinators.group_metadata_log import GroupMetadataLog

        return GroupMetadataLog(self._logs, self._topic, partition)

    def wait_for_flush(self, partition: int) -> bool:
        return self._logs.wait_for_flush(self._topic, partition)

    def flushed(self, partition: int) -> Awaitable[None]:
        return self._logs.flushed(self._topic, partition)
