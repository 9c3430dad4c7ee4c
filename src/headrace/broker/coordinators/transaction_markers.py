"""Ends a transaction in one partition: the control record that says commit or abort."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.broker.coordinators.group_runtime import GroupRuntime
from headrace.broker.logs.partition_logs import AppendRefused, PartitionLogs
from headrace.broker.metadata.cluster_metadata import GROUP_METADATA_TOPIC, TopicDescription
from headrace.protocol.error_codes import ErrorCode
from headrace.protocol.record_batches import control_batch

__all__ = ["TransactionMarker", "TransactionMarkers"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionMarker:
    """The decision of a transaction coordinator. `transaction_version`: that of the client that wrote the
    transaction."""

    producer_id: int
    producer_epoch: int
    committed: bool
    coordinator_epoch: int
    transaction_version: int


class TransactionMarkers:
    """Writes them to this broker's logs, and tells the coordinator of the groups whose offsets they decide."""

    def __init__(self, logs: PartitionLogs, coordinator: GroupRuntime) -> None:
        self._logs = logs
        self._coordinator = coordinator

    def write_marker(self, topic: TopicDescription, partition: int, marker: TransactionMarker) -> ErrorCode:
        """NONE, or why the log refused it: INVALID_PRODUCER_EPOCH, TRANSACTION_COORDINATOR_FENCED, or the disk."""
        if marker.producer_epoch < 0:
            return ErrorCode.invalid_producer_epoch
        batch = control_batch(
            "commit" if marker.committed else "abort",
            producer_id=marker.producer_id,
            producer_epoch=marker.producer_epoch,
            timestamp_ms=self._logs.now_ms(),
            coordinator_epoch=marker.coordinator_epoch,
        )
        try:
            version = marker.transaction_version
            self._logs.append(topic, partition, batch, origin="coordinator", transaction_version=version)
        except AppendRefused as refused:
            return refused.code
        if topic.name == GROUP_METADATA_TOPIC:
            self._coordinator.end_transaction(partition, marker.producer_id, committed=marker.committed)
        return ErrorCode.none
