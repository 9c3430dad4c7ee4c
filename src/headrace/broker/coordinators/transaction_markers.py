"""Ends of transactions: the control record that says commit or abort in each partition, then the Complete record.

`TransactionMarkers` writes one marker. `TransactionCompletion` brings a decided transaction to its end: a marker in
each of its partitions, then Complete, in the order that `transaction_coordinator` describes. A disk that refuses is
asked again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from headrace.broker.coordinators.group_coordinator import GroupCoordinator
from headrace.broker.logs.flusher import FlushFailed
from headrace.broker.logs.partition_logs import AppendRefused, PartitionLogs
from headrace.broker.metadata.cluster_metadata import GROUP_METADATA_TOPIC, ClusterMetadata, TopicDescription
from headrace.coordinator.request_context import CoordinatorError
from headrace.coordinator.transactions.transitions import TransactionLogValue, TransactionState, state_of
from headrace.protocol.error_codes import ErrorCode
from headrace.protocol.record_batches import control_batch

if TYPE_CHECKING:
    from headrace.coordinator.transactions.shard import TransactionCoordinatorShard

__all__ = ["Coordinator", "MarkerWriter", "TransactionCompletion", "TransactionMarker", "TransactionMarkers"]


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

    def __init__(self, logs: PartitionLogs, coordinator: GroupCoordinator) -> None:
        self._logs = logs
        self._coordinator = coordinator

    def write_marker(self, topic: TopicDescription, partition: int, marker: TransactionMarker) -> ErrorCode:
        """Write a marker.

        Returns NONE, INVALID_PRODUCER_EPOCH, TRANSACTION_COORDINATOR_FENCED, or the error of the disk.
        """
        # Only a tool's request can carry one. Storage compares epochs of producers that it knows, and would write the
        # marker of an unknown one.
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
        # A marker in `__consumer_offsets` decides about pending offsets, which the coordinator of groups holds in
        # memory.
        if topic.name == GROUP_METADATA_TOPIC:
            self._coordinator.end_transaction(partition, marker.producer_id, committed=marker.committed)
        return ErrorCode.none


logger = logging.getLogger("headrace.broker")

RETRY_MS = 500
# The marker is not needed: the partition is gone, or a later epoch has ended the transaction there.
_SETTLED = (ErrorCode.none, ErrorCode.unknown_topic_or_partition, ErrorCode.invalid_producer_epoch)

Partitions = dict[tuple[str, int], None]
Unflushed = dict[tuple[str, int], TopicDescription]


class MarkerWriter(Protocol):
    """Ends a transaction in one partition."""

    def write_marker(self, topic: TopicDescription, partition: int, marker: TransactionMarker) -> ErrorCode: ...


class Coordinator(Protocol):
    """The part of `TransactionCoordinator` that the completion of transactions uses."""

    def requires_flush(self, transactional_id: str) -> bool: ...
    def wait_until_flushed(self, transactional_id: str) -> Awaitable[None]: ...
    def complete(self, transactional_id: str) -> None:
        """Write the end. Raises CoordinatorError."""


class TransactionCompletion:
    """Mutable: the transactions whose markers are under way. Belongs to the broker's event loop."""

    def __init__(
        self, coordinator: Coordinator, *, logs: PartitionLogs, metadata: ClusterMetadata, markers: MarkerWriter
    ) -> None:
        self._coordinator = coordinator
        self._logs = logs
        self._metadata = metadata
        self._markers = markers
        self._ending: dict[str, asyncio.Task[None]] = {}

    def stop(self) -> None:
        for task in self._ending.values():
            task.cancel()

    def end_prepared(self, shard: TransactionCoordinatorShard) -> None:
        """Bring decided transactions to their end, at once where nothing has to wait for the disk."""
        for transactional_id in shard.prepared():
            # 1. A task brings it to its end already.
            if transactional_id in self._ending:
                continue
            value = shard.transaction(transactional_id)
            if value is None:
                continue
            # 2. Sorted: a set has no order, and every run shall write the markers in the same one.
            left = dict.fromkeys(sorted(value.transaction_partitions))
            unflushed: Unflushed = {}
            # 3. Nothing waits for the disk: markers and Complete in this call, so no reader meets a half-ended
            #    transaction.
            if not self._coordinator.requires_flush(transactional_id):
                self._write_markers(value, left, unflushed)
                if not left and not unflushed and self._complete(transactional_id):
                    continue
            # 4. Otherwise a task, which survives refusals of the disk.
            task = asyncio.get_running_loop().create_task(self._end(transactional_id, value, left, unflushed))
            self._ending[transactional_id] = task

    async def _end(
        self, transactional_id: str, value: TransactionLogValue, left: Partitions, unflushed: Unflushed
    ) -> None:
        """Write until all markers are there: a disk that refuses is asked again."""
        try:
            # Never given up: until Complete is written, readers of committed records stand still at this transaction.
            while True:
                try:
                    if await self._ended(transactional_id, value, left, unflushed):
                        return
                except FlushFailed as error:
                    logger.error(
                        "Transaction %r cannot end (%s); retrying in %d ms.", transactional_id, error, RETRY_MS
                    )
                await asyncio.sleep(RETRY_MS / 1000)
        finally:
            self._ending.pop(transactional_id, None)

    async def _ended(
        self, transactional_id: str, value: TransactionLogValue, left: Partitions, unflushed: Unflushed
    ) -> bool:
        # 1. The decision first: a marker that survives a power loss which the decision did not would commit for ever.
        if self._coordinator.requires_flush(transactional_id):
            await self._coordinator.wait_until_flushed(transactional_id)
        self._write_markers(value, left, unflushed)
        # 2. All markers are on the disk before Complete, since Complete is what forgets them.
        for (name, partition), topic in tuple(unflushed.items()):
            if self._logs.exists(topic, partition) and self._logs.requires_flush(topic, partition):
                await self._logs.wait_until_flushed(topic, partition)
            del unflushed[name, partition]
        return not left and self._complete(transactional_id)

    def _write_markers(self, value: TransactionLogValue, left: Partitions, unflushed: Unflushed) -> None:
        """Take out of `left` what is settled; note the partitions whose marker is not on the disk and has to be."""
        marker = TransactionMarker(
            producer_id=value.producer_id,
            producer_epoch=value.producer_epoch,
            committed=state_of(value) is TransactionState.PREPARE_COMMIT,
            coordinator_epoch=self._metadata.leader_epoch,
            transaction_version=value.client_transaction_version,
        )
        for name, partition in tuple(left):
            topic = self._metadata.topic(name)
            # The topic was deleted meanwhile: nothing is left to end.
            if topic is None or partition >= topic.partitions:
                del left[name, partition]
                continue
            code = self._markers.write_marker(topic, partition, marker)
            if code in _SETTLED:
                del left[name, partition]
            else:
                logger.warning(
                    "Transaction marker refused by %s-%d (%s); retrying in %d ms.", name, partition, code.name, RETRY_MS
                )
            if code is ErrorCode.none and self._logs.requires_flush(topic, partition):
                unflushed[name, partition] = topic

    def _complete(self, transactional_id: str) -> bool:
        """Whether the end is written."""
        try:
            self._coordinator.complete(transactional_id)
        except CoordinatorError as error:
            logger.error(
                "Transaction %r cannot end (%s); retrying in %d ms.", transactional_id, error.message, RETRY_MS
            )
            return False
        return True
