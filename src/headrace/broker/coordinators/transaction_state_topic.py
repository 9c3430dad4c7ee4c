"""The topic `__transaction_state`: made when it is needed, and what its coordinator goes by.

It comes into being with the first request for a transactional id, as in Kafka, and a partition of it comes to
the disk with its first record. The partition count holds for the life of the directory: ids are found by it.
"""

from __future__ import annotations

from collections.abc import Callable

from headrace.broker.config.broker_configuration import BrokerConfiguration
from headrace.broker.metadata.cluster_metadata import ClusterMetadata, TopicDescription
from headrace.coordinator.configuration import TransactionConfiguration

__all__ = ["TRANSACTION_STATE_TOPIC", "TransactionStateTopic", "transaction_configuration"]

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
