"""The shards of the transaction coordinator, one for each partition of `__transaction_state` that is on the disk.

All are loaded at the start, since a client with an open transaction may never ask again. One that the disk does not
give is tried again by itself until it does; one whose records make no sense stays out of service, and takes no other
along.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, TypeAlias

from headrace.broker.clock import Clock
from headrace.broker.coordinators.shard_runner import LogUnreadable, ShardRunner
from headrace.broker.coordinators.transaction_state_topic import TransactionStateTopic
from headrace.broker.logs.partition_logs import PartitionLogs
from headrace.broker.metadata.cluster_metadata import TopicDescription
from headrace.coordinator.configuration import TransactionConfiguration
from headrace.coordinator.request_context import CoordinatorError, CorruptRecord
from headrace.protocol.error_codes import ErrorCode
from headrace.protocol.framing import CorruptBatch
from headrace.protocol.partitioner import partition_for_group

if TYPE_CHECKING:
    from headrace.coordinator.transactions.shard import TransactionCoordinatorShard
    from headrace.coordinator.transactions.transitions import TransactionLogValue

__all__ = ["LoadedShard", "TransactionShards", "partition_of"]

logger = logging.getLogger("headrace.broker")

RETRY_MS = 500
LoadedShard: TypeAlias = "tuple[TransactionCoordinatorShard, ShardRunner]"


class TransactionShards:
    """Mutable: those that are loaded, those that wait for the disk, those that are out of service."""

    def __init__(
        self,
        *,
        configuration: TransactionConfiguration,
        topic: TransactionStateTopic,
        logs: PartitionLogs,
        transaction_version: Callable[[], int],
        new_producer_id: Callable[[], int],
        clock: Clock,
        loaded: Callable[[LoadedShard], None],
    ) -> None:
        """`loaded` is called with each shard that came into service."""
        self._configuration = configuration
        self._topic = topic
        self._logs = logs
        self._transaction_version = transaction_version
        self._new_producer_id = new_producer_id
        self._clock = clock
        self._loaded = loaded
        self._shards: dict[int, LoadedShard] = {}
        self._unreadable: dict[int, None] = {}
        self._failed: dict[int, str] = {}
        self._retrying = False
        self._stopped = False

    def load(self) -> None:
        """All that are on the disk."""
        topic = self._topic.existing()
        if topic is None:
            return
        for partition in range(topic.partitions):
            if self._logs.exists(topic, partition):
                self._try(topic, partition)
        self._retry_later()

    def stop(self) -> None:
        self._stopped = True

    def __iter__(self) -> Iterator[LoadedShard]:
        """Those in service, in the order of partitions."""
        return iter([self._shards[partition] for partition in sorted(self._shards)])

    def of(self, transactional_id: str) -> LoadedShard | None:
        """None while there is no `__transaction_state`. Raises CoordinatorError."""
        topic = self._topic.existing()
        if topic is None:
            return None
        partition = partition_of(transactional_id, topic)
        return self._shards.get(partition) or self._start(topic, partition)

    def check_complete(self) -> None:
        """Raises CoordinatorError while what is not loaded is missing: COORDINATOR_LOAD_IN_PROGRESS, which passes, or
        NOT_COORDINATOR."""
        if self._unreadable:
            raise CoordinatorError(
                ErrorCode.coordinator_load_in_progress, f"Partitions {sorted(self._unreadable)} cannot be read now."
            )
        if self._failed:
            raise CoordinatorError(ErrorCode.not_coordinator, " ".join(self._failed.values()))

    @property
    def is_loading(self) -> bool:
        """Whether some are not read yet."""
        return bool(self._unreadable)

    def holder(self, producer_id: int) -> tuple[str, TransactionLogValue] | None:
        """Return the transactional id that has this producer id, or had it until its epochs ran out."""
        former = None
        for shard, _ in self:
            for transactional_id, value in shard.transactions():
                if value.producer_id == producer_id:
                    return transactional_id, value
                if value.previous_producer_id == producer_id:
                    former = transactional_id, value
        return former

    def _start(self, topic: TopicDescription, partition: int) -> LoadedShard:
        if partition in self._failed:
            raise CoordinatorError(ErrorCode.not_coordinator, self._failed[partition])
        # The rules, with the first transactional id.
        from headrace.broker.coordinators.transaction_log import TransactionLog
        from headrace.coordinator.transactions.shard import TransactionCoordinatorShard

        shard = TransactionCoordinatorShard(
            self._configuration,
            transaction_version=self._transaction_version,
            new_producer_id=self._new_producer_id,
        )
        runner = ShardRunner(shard, TransactionLog(self._logs, topic, partition, self._transaction_version))
        try:
            runner.load(now_ms=self._clock.now_ms())
        except (CorruptRecord, CorruptBatch) as error:
            self._unreadable.pop(partition, None)
            self._failed[partition] = f"The transactions of {topic.name}-{partition} are out of service: {error}."
            raise CoordinatorError(ErrorCode.not_coordinator, self._failed[partition]) from error
        except LogUnreadable as error:
            message = f"The transactions of {topic.name}-{partition} cannot be read now: {error}."
            self._unreadable[partition] = None
            self._retry_later()
            raise CoordinatorError(ErrorCode.coordinator_not_available, message) from error
        self._unreadable.pop(partition, None)
        self._shards[partition] = shard, runner
        self._loaded(self._shards[partition])
        return self._shards[partition]

    def _try(self, topic: TopicDescription, partition: int) -> None:
        try:
            self._start(topic, partition)
        except CoordinatorError as error:
            logger.error("%s", error.message)

    def _retry_later(self) -> None:
        if self._unreadable and not self._retrying and not self._stopped:
            self._retrying = True
            self._clock.call_later(RETRY_MS, self._retry)

    def _retry(self) -> None:
        self._retrying = False
        topic = self._topic.existing()
        if self._stopped or topic is None:
            return
        for partition in tuple(self._unreadable):
            self._try(topic, partition)
            if partition not in self._unreadable:
                logger.info("The transactions of %s-%d are looked after again.", topic.name, partition)
        self._retry_later()


def partition_of(transactional_id: str, topic: TopicDescription) -> int:
    """Return the partition of `__transaction_state` for a transactional id."""
    return partition_for_group(transactional_id, topic.partitions)
