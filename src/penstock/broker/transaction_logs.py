"""A partition of `__transaction_state` as the log of a shard of the transaction coordinator: Kafka's keys and values.

The topic comes into being with the first request for a transactional id, as in Kafka, and a partition of it comes to
the disk with its first record. The partition count holds for the life of the directory: ids are found by it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import cast

from penstock.broker.cluster_metadata import ClusterMetadata, TopicDescription
from penstock.broker.configuration import BrokerConfiguration
from penstock.broker.group_logs import coordinator_records
from penstock.broker.partition_logs import AppendRefused, PartitionLogs, ReadRefused
from penstock.broker.shard_runner import AppendFailed, LogUnreadable
from penstock.coordinator.records import transaction_log
from penstock.coordinator.records.transaction_log import TransactionLogKey, TransactionLogValue
from penstock.coordinator.result import CoordinatorRecord
from penstock.coordinator.transactions.shard import TransactionConfiguration
from penstock.protocol.record_batches import PlainRecord, encode_batch

__all__ = ["TRANSACTION_STATE_TOPIC", "TransactionLog", "TransactionStateTopic", "transaction_configuration"]

TRANSACTION_STATE_TOPIC = "__transaction_state"


def transaction_configuration(configuration: BrokerConfiguration) -> TransactionConfiguration:
    """What the rules go by."""
    return TransactionConfiguration(
        max_timeout_ms=configuration.integer("transaction.max.timeout.ms"),
        id_expiration_ms=configuration.integer("transactional.id.expiration.ms"),
        expiry_interval_ms=configuration.integer("transaction.remove.expired.transaction.cleanup.interval.ms"),
    )


class TransactionStateTopic:
    """The topic, there or not yet."""

    def __init__(
        self, configuration: BrokerConfiguration, metadata: ClusterMetadata, changed: Callable[[], None]
    ) -> None:
        """`changed` is called when the topic was made."""
        self._configuration = configuration
        self._metadata = metadata
        self._changed = changed

    def existing(self) -> TopicDescription | None:
        return self._metadata.topic(TRANSACTION_STATE_TOPIC)

    def made(self) -> TopicDescription:
        """Creates it when it is not there. Raises StorageError, OSError."""
        topic = self.existing()
        if topic is None:
            configs = {
                "cleanup.policy": "compact",
                "compression.type": "uncompressed",
                "min.insync.replicas": str(self._configuration.integer("transaction.state.log.min.isr")),
                "segment.bytes": str(self._configuration.integer("transaction.state.log.segment.bytes")),
                "unclean.leader.election.enable": "false",
            }
            partitions = self._configuration.integer("transaction.state.log.num.partitions")
            topic = self._metadata.add_topic(TRANSACTION_STATE_TOPIC, partitions, configs, lazy=True)
            self._changed()
        return topic


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
