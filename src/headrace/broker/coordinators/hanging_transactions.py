"""Ends transactions that hang: open in a log, and unknown to the coordinator (`coordinator/transactions/hanging.py`).

Only a power loss leaves them (or a tool that writes to logs without a coordinator), so each log is looked at once,
when it is first opened: those that were open already when the coordinator is loaded, the others as they are asked for.
While a shard of the coordinator cannot be read nothing is aborted: it may be the one that knows.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from headrace.broker.clock import Clock
from headrace.broker.coordinators.transaction_coordinator import TransactionCoordinator
from headrace.broker.coordinators.transaction_markers import TransactionMarker
from headrace.broker.metadata.cluster_metadata import ClusterMetadata
from headrace.coordinator.request_context import CoordinatorError
from headrace.coordinator.transactions.transitions import EPOCH_BUMP_VERSION, MAX_EPOCH, ProducerIdentity
from headrace.protocol.error_codes import ErrorCode
from headrace.storage.partition_log import PartitionLog

if TYPE_CHECKING:
    from headrace.broker.coordinators.transaction_markers import MarkerWriter

__all__ = ["HangingTransactions"]

logger = logging.getLogger("headrace.broker")

RETRY_MS = 500


class HangingTransactions:
    """Mutable: the logs that are still to be looked at. Belongs to the broker's event loop."""

    def __init__(
        self,
        *,
        transactions: TransactionCoordinator,
        markers: MarkerWriter,
        metadata: ClusterMetadata,
        clock: Clock,
    ) -> None:
        self._transactions = transactions
        self._markers = markers
        self._metadata = metadata
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._waiting: dict[PartitionLog, None] = {}
        self._stopped = False

    def check_opened_log(self, log: PartitionLog) -> None:
        """Check a log that was opened, in a later iteration of the event loop."""
        # Called inside of an operation on the log, so only noted here.
        if not self._stopped and any(True for _ in log.producers.open_transactions()):
            # One look for all logs that are opened in this turn: a start opens many, and each look searches all
            # transactional ids.
            if not self._waiting:
                self._loop.call_soon(self._resolve_waiting)
            self._waiting[log] = None

    def stop(self) -> None:
        self._stopped = True

    def _resolve_waiting(self) -> None:
        for log in () if self._stopped else tuple(self._waiting):
            # Keep the log in the list while one of its transactions could not be resolved: the next look tries again.
            left = [each for each in tuple(log.producers.open_transactions()) if not self._resolved(log, *each)]
            if not left or not log.is_usable:
                del self._waiting[log]
        if self._waiting and not self._stopped:
            self._clock.call_later(RETRY_MS, self._resolve_waiting)

    def _resolved(self, log: PartitionLog, producer_id: int, producer_epoch: int, first_offset: int) -> bool:
        """Whether nothing is left to do about it."""
        from headrace.coordinator.transactions.transitions import outcome_of_open

        partition = log.topic, log.partition
        # 1. Who has this producer id, or had it. The pure rule decides by that.
        holder = self._transactions.holder(producer_id)
        fate = outcome_of_open(holder[1] if holder is not None else None, producer_id, producer_epoch, partition)
        # 2. An ordinary open transaction: its client or its timeout ends it.
        if fate == "known":
            return True
        # 3. The coordinator has the transaction and lost the partition: adding it brings it back under the usual end.
        if fate == "adopt" and holder is not None:
            return self._adopted(holder[0], producer_id, producer_epoch, partition)
        # 4. Aborting needs certainty. While a shard of the coordinator is not loaded, it may be the one that knows.
        try:
            self._transactions.check_complete()
        except CoordinatorError as error:
            if error.code is ErrorCode.coordinator_load_in_progress:
                return False
            logger.error(
                "The transaction of producer %d in %s-%d from offset %d on may hang, and is left alone: %s End it with "
                "`kafka-transactions.sh abort`.",
                *(producer_id, *partition, first_offset, error.message),
            )
            return True
        # 5. Either the coordinator's log has the decision, or there was none: then nothing was acknowledged as
        #    committed, and the transaction is aborted.
        committed = fate == "commit"
        logger.warning(
            "The transaction of producer %d (epoch %d) in %s-%d from offset %d on is %s: %s.",
            *(producer_id, producer_epoch, *partition, first_offset, "committed" if committed else "aborted"),
            "its marker was lost" if holder is not None else "the transaction coordinator does not know of it",
        )
        return self._ended(partition, producer_id, producer_epoch, committed=committed)

    def _adopted(
        self, transactional_id: str, producer_id: int, producer_epoch: int, partition: tuple[str, int]
    ) -> bool:
        bumps = self._transactions.transaction_version() >= EPOCH_BUMP_VERSION
        producer = ProducerIdentity(producer_id=producer_id, producer_epoch=producer_epoch)
        try:
            answer = self._transactions.add_partitions(
                transactional_id, producer, (partition,), client_version=EPOCH_BUMP_VERSION if bumps else 0
            )
        except CoordinatorError as error:
            logger.error(
                "Could not add %s-%d to transaction %r (%s); retrying.", *partition, transactional_id, error.message
            )
            return False
        if answer.code is ErrorCode.none:
            logger.warning("Added %s-%d to transaction %r, which wrote to it.", *partition, transactional_id)
        return answer.code is ErrorCode.none

    def _ended(self, partition: tuple[str, int], producer_id: int, producer_epoch: int, *, committed: bool) -> bool:
        """Write a marker with the next epoch, so that late batches are refused. Returns False on failure."""
        topic = self._metadata.topic(partition[0])
        if topic is None or partition[1] >= topic.partitions:
            return True
        # One epoch above that of the transaction, as for a fenced producer: a late batch of it is refused.
        marker = TransactionMarker(
            producer_id=producer_id,
            producer_epoch=min(producer_epoch + 1, MAX_EPOCH),
            committed=committed,
            coordinator_epoch=self._metadata.leader_epoch,
            transaction_version=0,
        )
        code = self._markers.write_marker(topic, partition[1], marker)
        if code is not ErrorCode.none:
            logger.error("Transaction marker of producer %d refused by %s-%d (%s).", producer_id, *partition, code.name)
        # A refusal by epoch means that someone else has ended it since, or that a newer instance of the producer
        # writes: nothing is left to do in both cases. Only a disk that refuses is tried again.
        return code in (ErrorCode.none, ErrorCode.invalid_producer_epoch, ErrorCode.transaction_coordinator_fenced)
