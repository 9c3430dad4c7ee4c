"""The transaction coordinator of this broker: requests of producers, timeouts, and the way to the markers.

A shard is a partition of `__transaction_state`. All that are on the disk are loaded at the start, since a client with
an open transaction may never ask again.

The end of a transaction (KIP-98): the decision (Prepare) is in the log, and on the disk where the flush policy is
`always`, before the first marker is written; all markers are (and are on the disk) before Complete. So a crash at any
moment leaves a transaction open, or decided and to be completed at the next start; a marker written twice changes
nothing. While nothing has to wait for the disk all of it happens within the one call, and no reader sees a transaction
in between.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator
from typing import TYPE_CHECKING, TypeAlias

from headrace.broker.clock import Clock
from headrace.broker.coordinators.coordinator_runtime import CoordinatorRuntime, RecordLog
from headrace.broker.coordinators.transaction_markers import MarkerWriter, TransactionCompletion
from headrace.broker.logs.partition_logs import PartitionLogs
from headrace.broker.metadata.cluster_metadata import ClusterMetadata, TopicDescription
from headrace.coordinator.configuration import TransactionConfiguration
from headrace.coordinator.request_context import CoordinatorError
from headrace.coordinator.transactions.transitions import (
    EPOCH_BUMP_VERSION,
    Answer,
    ProducerIdentity,
    TransactionLogValue,
)
from headrace.protocol.error_codes import ErrorCode
from headrace.protocol.partitioner import partition_for_group
from headrace.storage.errors import StorageError

if TYPE_CHECKING:
    from headrace.broker.config.broker_configuration import BrokerConfiguration
    from headrace.coordinator.result import CoordinatorResult
    from headrace.coordinator.transactions.shard import TransactionCoordinatorShard, TransactionFilter

__all__ = ["TransactionCoordinator", "TransactionStateTopic", "transaction_configuration"]

TRANSACTION_STATE_TOPIC = "__transaction_state"
Rule: TypeAlias = "Callable[[TransactionCoordinatorShard, int], CoordinatorResult]"


def transaction_configuration(configuration: BrokerConfiguration) -> TransactionConfiguration:
    """Return the configuration of the transaction coordinator's rules."""
    return TransactionConfiguration(
        max_timeout_ms=configuration.integer("transaction.max.timeout.ms"),
        id_expiration_ms=configuration.integer("transactional.id.expiration.ms"),
        most_ids=configuration.integer("headrace.max.transactional.ids"),
        expiry_interval_ms=configuration.integer("transaction.remove.expired.transaction.cleanup.interval.ms"),
    )


class TransactionStateTopic:
    """`__transaction_state`, which is created with the first request for a transactional id, as in Kafka.

    Transactional ids are found by its number of partitions, so that never changes.
    """

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


class TransactionCoordinator:
    """The transactional ids of this broker. Mutable; only the thread of the broker's event loop may call it."""

    def __init__(
        self,
        *,
        configuration: TransactionConfiguration,
        topic: TransactionStateTopic,
        logs: PartitionLogs,
        metadata: ClusterMetadata,
        markers: MarkerWriter,
        transaction_version: Callable[[], int],
        verifies: Callable[[], bool],
        clock: Clock,
    ) -> None:
        """`verifies`: whether partitions have to be in the transaction that their client writes in."""
        self._configuration = configuration
        self._topic = topic
        self._logs = logs
        self._metadata = metadata
        self._clock = clock
        self._verifies = verifies
        self.transaction_version = transaction_version
        self._runtime: CoordinatorRuntime[TransactionCoordinatorShard] = CoordinatorRuntime(
            kind="transaction",
            topic=TRANSACTION_STATE_TOPIC,
            start=self._start_shard,
            image=lambda: metadata.image,
            clock=clock,
            on_settled=self._end_prepared,
            retries_reads=True,
        )
        self._endings = TransactionCompletion(self, logs=logs, metadata=metadata, markers=markers)
        self._stopped = False

    def load(self) -> None:
        """Replay every shard on the disk and complete what is decided. Called once, when groups are loaded."""
        topic = self._topic.existing()
        if topic is not None:
            self._runtime.load(each for each in range(topic.partitions) if self._logs.exists(topic, each))

    def stop(self) -> None:
        self._stopped = True
        self._runtime.stop()
        self._endings.stop()

    # --- requests ---

    def ready(self) -> None:
        """Make `__transaction_state` when it is not there. Raises CoordinatorError."""
        try:
            self._topic.made()
        except (StorageError, OSError) as error:
            message = f"The topic __transaction_state could not be created: {error}."
            raise CoordinatorError(ErrorCode.coordinator_not_available, message) from error

    def init_producer_id(self, transactional_id: str, *, timeout_ms: int, expected: ProducerIdentity | None) -> Answer:
        """Run InitProducerId. Raises CoordinatorError."""
        self.ready()
        # Before the rule runs: a hostile client could otherwise create ids without end, each kept for
        # transactional.id.expiration.ms (7 days).
        self._check_room(transactional_id)
        return self._run(
            transactional_id,
            lambda shard, now_ms: shard.init_producer_id(
                transactional_id, timeout_ms=timeout_ms, expected=expected, now_ms=now_ms
            ),
        )

    def _check_room(self, transactional_id: str) -> None:
        """Check the bound on transactional ids. Raises CoordinatorError for an id that would be one too many."""
        shard = self._shard_of(transactional_id)
        if shard is None or shard.transaction(transactional_id) is not None:
            return
        if sum(shard.transactional_id_count for shard in self._runtime) >= self._configuration.most_ids:
            raise CoordinatorError(
                ErrorCode.policy_violation,
                f"There are {self._configuration.most_ids} transactional ids already: headrace.max.transactional.ids.",
            )

    def add_partitions(
        self,
        transactional_id: str,
        producer: ProducerIdentity,
        partitions: Iterable[tuple[str, int]],
        *,
        client_version: int,
    ) -> Answer:
        """Run AddPartitionsToTxn. Raises CoordinatorError."""
        return self._run(
            transactional_id,
            lambda shard, now_ms: shard.add_partitions(
                transactional_id, producer, partitions, client_version=client_version, now_ms=now_ms
            ),
        )

    def end_transaction(
        self, transactional_id: str, producer: ProducerIdentity, *, committed: bool, client_version: int
    ) -> Answer:
        """Run EndTxn. Raises CoordinatorError."""
        return self._run(
            transactional_id,
            lambda shard, now_ms: shard.end_transaction(
                transactional_id, producer, committed=committed, client_version=client_version, now_ms=now_ms
            ),
        )

    def missing(
        self, transactional_id: str, producer: ProducerIdentity, partitions: Iterable[tuple[str, int]]
    ) -> tuple[ErrorCode, frozenset[tuple[str, int]]]:
        """Run AddPartitionsToTxn that only verifies: return a code for all, and the missing partitions."""
        shard = self._shard_of(transactional_id)
        if shard is None:
            return ErrorCode.invalid_producer_id_mapping, frozenset()
        return shard.verify(transactional_id, producer, partitions)

    def verify(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        partitions: Iterable[tuple[str, int]],
        *,
        add: bool,
    ) -> ErrorCode:
        """Verify a transaction before its records are appended.

        `add`: the client speaks transaction version 2 and left it to the broker to add the partitions; otherwise it
        must have done so itself, unless verification is off (`transaction.partition.verification.enable`).

        NONE, or: INVALID_PRODUCER_ID_MAPPING, INVALID_PRODUCER_EPOCH (fenced), CONCURRENT_TRANSACTIONS (markers of the
        one before are under way), TRANSACTION_ABORTABLE (not added; INVALID_TXN_STATE for Produce below 11),
        COORDINATOR_NOT_AVAILABLE, NOT_COORDINATOR.
        """
        # transaction.partition.verification.enable off: older producers are trusted, as before KIP-890.
        if not add and not self._verifies():
            return ErrorCode.none
        producer = ProducerIdentity(producer_id=producer_id, producer_epoch=producer_epoch)
        try:
            if add:
                code = self.add_partitions(
                    transactional_id, producer, partitions, client_version=EPOCH_BUMP_VERSION
                ).code
            else:
                code, _ = self.missing(transactional_id, producer, partitions)
        except CoordinatorError as error:
            return error.code
        # Kafka translates here as well (AddPartitionsToTxnManager): producers of records know the older code.
        return ErrorCode.invalid_producer_epoch if code is ErrorCode.producer_fenced else code

    def transaction(self, transactional_id: str) -> TransactionLogValue | None:
        """Return a transaction; None for one that is not known. Raises CoordinatorError."""
        shard = self._shard_of(transactional_id)
        return None if shard is None else shard.transaction(transactional_id)

    def list_transactions(self, wanted: TransactionFilter) -> Iterator[tuple[str, TransactionLogValue]]:
        """Return all transactions in the order of partitions, and there in that of last creation.

        Raises CoordinatorError while some cannot be read.
        """
        # A list that leaves out what is not loaded yet would look complete.
        if self._runtime.is_loading:
            self._runtime.check_complete()
        now_ms = self._clock.now_ms()
        for shard in self._runtime:
            yield from shard.list_transactions(wanted, now_ms=now_ms)

    def holder(self, producer_id: int) -> tuple[str, TransactionLogValue] | None:
        """Return the transactional id that has this producer id, or had it until its epochs were exhausted."""
        former = None
        for shard in self._runtime:
            for transactional_id, value in shard.transactions():
                if value.producer_id == producer_id:
                    return transactional_id, value
                if value.previous_producer_id == producer_id:
                    former = transactional_id, value
        return former

    def check_complete(self) -> None:
        """Check that all shards are loaded. Raises CoordinatorError: not every transaction can be known."""
        self._runtime.check_complete()

    def log_of(self, transactional_id: str) -> tuple[TopicDescription, int] | None:
        """Return the partition of `__transaction_state` of a transactional id."""
        topic = self._topic.existing()
        return None if topic is None else (topic, _partition_of(transactional_id, topic))

    def requires_flush(self, transactional_id: str) -> bool:
        """Whether an answer about it has to wait for the disk."""
        topic = self._topic.existing()
        return topic is not None and self._logs.requires_flush(topic, _partition_of(transactional_id, topic))

    def wait_until_flushed(self, transactional_id: str) -> Awaitable[None]:
        """Wait until what was written about it is on the disk. Raises FlushFailed."""
        topic = self._topic.made()
        return self._logs.wait_until_flushed(topic, _partition_of(transactional_id, topic))

    # --- shards ---

    def _shard_of(self, transactional_id: str) -> TransactionCoordinatorShard | None:
        """Return the shard of an id; None while there is no `__transaction_state`. Raises CoordinatorError."""
        topic = self._topic.existing()
        return None if topic is None else self._runtime.shard(_partition_of(transactional_id, topic))

    def _run(self, transactional_id: str, rule: Rule) -> Answer:
        topic = self._topic.existing()
        if topic is None:
            return Answer(code=ErrorCode.invalid_producer_id_mapping)
        partition = _partition_of(transactional_id, topic)
        outcome = self._runtime.run(partition, rule)
        # The decision is in the log: the markers follow in the same call, before the answer.
        self._end_prepared(self._runtime.shard(partition))
        answer: Answer = outcome.replies[0].response  # type: ignore[assignment]
        return answer

    def _start_shard(self, partition: int) -> tuple[TransactionCoordinatorShard, RecordLog]:
        # The rules, with the first transactional id.
        from headrace.broker.coordinators.coordinator_logs import TransactionLog
        from headrace.coordinator.transactions.shard import TransactionCoordinatorShard

        shard = TransactionCoordinatorShard(
            self._configuration,
            transaction_version=self.transaction_version,
            new_producer_id=self._new_producer_id,
        )
        return shard, TransactionLog(self._logs, self._topic.made(), partition, self.transaction_version)

    def _new_producer_id(self) -> int:
        try:
            return self._metadata.next_producer_id()
        except (StorageError, OSError) as error:
            message = f"No producer id could be reserved: {error}."
            raise CoordinatorError(ErrorCode.coordinator_not_available, message) from error

    # --- markers ---

    def _end_prepared(self, shard: TransactionCoordinatorShard) -> None:
        """Bring decided transactions to their end, at once where nothing has to wait for the disk."""
        if not self._stopped and shard.prepared():
            self._endings.end_prepared(shard)

    def complete(self, transactional_id: str) -> None:
        """Note that all markers are written. Raises CoordinatorError."""
        topic = self._topic.existing()
        if topic is not None:
            self._runtime.run(
                _partition_of(transactional_id, topic),
                lambda shard, now_ms: shard.complete(transactional_id, now_ms=now_ms),
            )


def _partition_of(transactional_id: str, topic: TopicDescription) -> int:
    """Return the partition of `__transaction_state` for a transactional id."""
    return partition_for_group(transactional_id, topic.partitions)
