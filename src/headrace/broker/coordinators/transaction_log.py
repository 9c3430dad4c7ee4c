"""A partition of `__transaction_state` as the log of a shard of the transaction coordinator: Kafka's keys and values.

Imported with the first transactional id, as the rules are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import cast

from headrace.broker.coordinators.group_metadata_log import coordinator_records
from headrace.broker.coordinators.shard_runner import AppendFailed, LogUnreadable
from headrace.broker.logs.partition_logs import AppendRefused, PartitionLogs, ReadRefused
from headrace.broker.metadata.cluster_metadata import TopicDescription
from headrace.coordinator.result import CoordinatorRecord
from headrace.coordinator.transactions import transaction_log
from headrace.coordinator.transactions.transitions import TransactionLogKey, TransactionLogValue
from headrace.protocol.record_batches import PlainRecord, encode_batch

__all__ = ["TransactionLog"]


class TransactionLog:
    """One shard's log. `transaction_version` decides the version of the values."""

    def __init__(
        self, logs: PartitionLogs, topic: TopicDescription, partition: int, transaction_version: Callable[[], int]
    ) -> None:
        self._logs = logs
        self._topic = topic
        self._partition = partition
        self._transaction_version = transaction_version

    def append(self, records: Sequence[CoordinatorRecord], *, now_ms: int) -> None:
        version = transaction_log.value_version(self._transaction_version())
        plain = [
            PlainRecord(
                key=transaction_log.encode_key(cast("TransactionLogKey", record.key)),
                value=None
                if record.value is None
                else transaction_log.encode_value(cast("TransactionLogValue", record.value), version),
                timestamp_ms=now_ms,
            )
            for record in records
        ]
        try:
            self._logs.append(self._topic, self._partition, encode_batch(plain), origin="coordinator")
        except AppendRefused as refused:
            raise AppendFailed(refused.message) from refused

    def read_all(self) -> Iterator[CoordinatorRecord]:
        try:
            view = self._logs.view(self._topic, self._partition)
            yield from coordinator_records(
                view.read, view.log_start_offset, view.high_watermark, transaction_log.decode
            )
        except ReadRefused as refused:
            raise LogUnreadable(str(refused)) from refused
