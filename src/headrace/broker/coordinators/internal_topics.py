"""The coordinators' internal topics: `__consumer_offsets` and `__transaction_state`.

Both partition counts hold for the life of the directory: groups and transactional ids are found by them. A partition
comes to the disk with its first record. `__transaction_state` comes into being with the first request for a
transactional id, as in Kafka.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from headrace.broker.config.broker_configuration import BrokerConfiguration
from headrace.broker.coordinators.coordinator_runtime import RecordLog
from headrace.broker.logs.partition_logs import PartitionLogs
from headrace.broker.metadata.cluster_metadata import GROUP_METADATA_TOPIC, ClusterMetadata, TopicDescription
from headrace.coordinator.configuration import TransactionConfiguration

__all__ = [
    "TRANSACTION_STATE_TOPIC",
    "GroupMetadataLogs",
    "TransactionStateTopic",
    "add_group_metadata_topic",
    "transaction_configuration",
]


class GroupMetadataLogs:
    """Opens the logs of the shards; a partition comes to the disk with its first record."""

    def __init__(self, logs: PartitionLogs, topic: TopicDescription) -> None:
        self._logs = logs
        self._topic = topic

    def existing(self) -> list[int]:
        return [partition for partition in range(self._topic.partitions) if self._logs.exists(self._topic, partition)]

    def open(self, partition: int) -> RecordLog:
        # Imported with the first group: the record formats of all kinds of groups are a large part of a start
        # (`tests/broker/test_lazy_imports.py`).
        from headrace.broker.coordinators.coordinator_logs import GroupMetadataLog

        return GroupMetadataLog(self._logs, self._topic, partition)

    def requires_flush(self, partition: int) -> bool:
        return self._logs.requires_flush(self._topic, partition)

    def wait_until_flushed(self, partition: int) -> Awaitable[None]:
        return self._logs.wait_until_flushed(self._topic, partition)


TRANSACTION_STATE_TOPIC = "__transaction_state"


def transaction_configuration(configuration: BrokerConfiguration) -> TransactionConfiguration:
    """Return the configuration of the transaction coordinator's rules."""
    return TransactionConfiguration(
        max_timeout_ms=configuration.integer("transaction.max.timeout.ms"),
        id_expiration_ms=configuration.integer("transactional.id.expiration.ms"),
        most_ids=configuration.integer("headrace.max.transactional.ids"),
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
        """Create it when it is not there. Raises StorageError, OSError."""
        topic = self.existing()
        if topic is None:
            # Kafka's own settings for it (TransactionLog): compacted, because only the last state of an id matters.
            configs = {
                "cleanup.policy": "compact",
                "compression.type": "uncompressed",
                "min.insync.replicas": str(self._configuration.integer("transaction.state.log.min.isr")),
                "segment.bytes": str(self._configuration.integer("transaction.state.log.segment.bytes")),
                "unclean.leader.election.enable": "false",
            }
            partitions = self._configuration.integer("transaction.state.log.num.partitions")
            # Lazy: a partition gets its directory with its first record, so 50 partitions cost nothing.
            topic = self._metadata.add_topic(TRANSACTION_STATE_TOPIC, partitions, configs, lazy=True)
            self._changed()
        return topic


def add_group_metadata_topic(configuration: BrokerConfiguration, metadata: ClusterMetadata) -> TopicDescription:
    """Create `__consumer_offsets`."""
    configs = {
        "cleanup.policy": "compact",
        # As in Kafka (`GroupCoordinator.groupMetadataTopicConfigs`): records of groups are stored as the coordinator
        # wrote them.
        "compression.type": "producer",
        "segment.bytes": str(configuration.integer("offsets.topic.segment.bytes")),
    }
    partitions = configuration.integer("offsets.topic.num.partitions")
    return metadata.add_topic(GROUP_METADATA_TOPIC, partitions, configs, lazy=True)
