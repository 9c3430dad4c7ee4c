"""asyncio around the shards of the transaction coordinator: loading at start, timeouts, and the way to the markers.

The end of a transaction: the decision (Prepare) is in the log, and on the disk where the flush policy is `always`,
before the first marker is written; all markers are (and are on the disk) before Complete. So a crash at any moment
leaves a transaction open, or decided and to be completed at the next start; a marker written twice changes nothing.
While nothing has to wait for the disk all of it happens within the one call, and no reader sees a transaction in
between.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator
from typing import TYPE_CHECKING, TypeAlias

from headrace.broker.clock import Clock, WakeUpTimer
from headrace.broker.coordinators.shard_runner import AppendFailed, Outcome, ShardRunner
from headrace.broker.coordinators.transaction_shards import LoadedShard, TransactionShards, partition_of
from headrace.broker.coordinators.transaction_state_topic import TransactionStateTopic
from headrace.broker.logs.partition_logs import PartitionLogs
from headrace.broker.metadata.cluster_metadata import ClusterMetadata, TopicDescription
from headrace.coordinator.configuration import TransactionConfiguration
from headrace.coordinator.request_context import CoordinatorError
from headrace.coordinator.transactions.transitions import EPOCH_BUMP_VERSION, ProducerIdentity
from headrace.protocol.error_codes import ErrorCode
from headrace.storage.errors import StorageError

if TYPE_CHECKING:
    from headrace.broker.coordinators.transaction_completion import MarkerWriter, TransactionCompletion
    from headrace.coordinator.result import CoordinatorResult
    from headrace.coordinator.transactions.shard import TransactionCoordinatorShard, TransactionFilter
    from headrace.coordinator.transactions.transitions import Answer, TransactionLogValue

__all__ = ["TransactionRuntime"]

logger = logging.getLogger("headrace.broker")

RETRY_MS = 500
Rule: TypeAlias = "Callable[[TransactionCoordinatorShard, int], CoordinatorResult]"


class TransactionRuntime:
    """Mutable: the shards of this broker. Lives on one event loop; only that loop's thread may call it."""

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
        """`verifies`: whether partitions have to be in the transaction that their client wants to write in."""
        self._most_ids = configuration.most_ids
        self._topic = topic
        self._logs = logs
        self._metadata = metadata
        self._markers = markers
        self._clock = clock
        self._verifies = verifies
        self.transaction_version = transaction_version
        self._shards = TransactionShards(
            configuration=configuration,
            topic=topic,
            logs=logs,
            transaction_version=transaction_version,
            new_producer_id=self._new_producer_id,
            clock=clock,
            loaded=self._started,
        )
        self._endings: TransactionCompletion | None = None
        self._behind: dict[ShardRunner, None] = {}
        self._timer = WakeUpTimer(clock.call_later, clock.now_ms, self._wake)
        self._stopped = False

    def load(self) -> None:
        """Replays every shard on the disk and completes what is decided. Called once, when groups are loaded."""
        self._shards.load()

    def stop(self) -> None:
        self._stopped = True
        self._shards.stop()
        self._timer.stop()
        if self._endings is not None:
            self._endings.stop()

    # --- requests ---

    def ready(self) -> None:
        """Makes `__transaction_state` when it is not there. Raises CoordinatorError."""
        try:
            self._topic.made()
        except (StorageError, OSError) as error:
            message = f"The topic __transaction_state could not be created: {error}."
            raise CoordinatorError(ErrorCode.coordinator_not_available, message) from error

    def init_producer_id(self, transactional_id: str, *, timeout_ms: int, expected: ProducerIdentity | None) -> Answer:
        """Raises CoordinatorError."""
        self.ready()
        self._check_room(transactional_id)
        return self._run(
            transactional_id,
            lambda shard, now_ms: shard.init_producer_id(
                transactional_id, timeout_ms=timeout_ms, expected=expected, now_ms=now_ms
            ),
        )

    def _check_room(self, transactional_id: str) -> None:
        """Raises CoordinatorError for an id that would be one too many."""
        found = self._shards.of(transactional_id)
        if found is None or found[0].transaction(transactional_id) is not None:
            return
        if sum(shard.transactional_id_count for shard, _ in self._shards) >= self._most_ids:
            raise CoordinatorError(
                ErrorCode.policy_violation,
                f"There are {self._most_ids} transactional ids already: headrace.max.transactional.ids.",
            )

    def add_partitions(
        self,
        transactional_id: str,
        producer: ProducerIdentity,
        partitions: Iterable[tuple[str, int]],
        *,
        client_version: int,
    ) -> Answer:
        """Raises CoordinatorError."""
        return self._run(
            transactional_id,
            lambda shard, now_ms: shard.add_partitions(
                transactional_id, producer, partitions, client_version=client_version, now_ms=now_ms
            ),
        )

    def end_transaction(
        self, transactional_id: str, producer: ProducerIdentity, *, committed: bool, client_version: int
    ) -> Answer:
        """Raises CoordinatorError."""
        return self._run(
            transactional_id,
            lambda shard, now_ms: shard.end_transaction(
                transactional_id, producer, committed=committed, client_version=client_version, now_ms=now_ms
            ),
        )

    def missing(
        self, transactional_id: str, producer: ProducerIdentity, partitions: Iterable[tuple[str, int]]
    ) -> tuple[ErrorCode, frozenset[tuple[str, int]]]:
        """AddPartitionsToTxn that only verifies: a code for all, and the partitions that were not added."""
        found = self._shards.of(transactional_id)
        if found is None:
            return ErrorCode.invalid_producer_id_mapping, frozenset()
        return found[0].verify(transactional_id, producer, partitions)

    def verify(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        partitions: Iterable[tuple[str, int]],
        *,
        add: bool,
    ) -> ErrorCode:
        """Before records of a transaction are appended. `add`: the client speaks transaction version 2 and left it to
        the broker to add the partitions; otherwise it must have done so itself, unless verification is off
        (`transaction.partition.verification.enable`).

        NONE, or: INVALID_PRODUCER_ID_MAPPING, INVALID_PRODUCER_EPOCH (fenced), CONCURRENT_TRANSACTIONS (markers of the
        one before are under way), TRANSACTION_ABORTABLE (not added; INVALID_TXN_STATE for Produce below 11),
        COORDINATOR_NOT_AVAILABLE, NOT_COORDINATOR.
        """
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
        return ErrorCode.invalid_producer_epoch if code is ErrorCode.producer_fenced else code

    def transaction(self, transactional_id: str) -> TransactionLogValue | None:
        """None for one that is not known. Raises CoordinatorError."""
        found = self._shards.of(transactional_id)
        return None if found is None else found[0].transaction(transactional_id)

    def list_transactions(self, wanted: TransactionFilter) -> Iterator[tuple[str, TransactionLogValue]]:
        """In the order of partitions, and there in that of last creation. Raises CoordinatorError while some cannot be
        read."""
        if self._shards.is_loading:
            self._shards.check_complete()
        now_ms = self._clock.now_ms()
        for shard, _ in self._shards:
            yield from shard.list_transactions(wanted, now_ms=now_ms)

    def holder(self, producer_id: int) -> tuple[str, TransactionLogValue] | None:
        """The transactional id that has this producer id, or had it until its epochs ran out."""
        return self._shards.holder(producer_id)

    def check_complete(self) -> None:
        """Raises CoordinatorError: not every transaction can be known."""
        self._shards.check_complete()

    def log_of(self, transactional_id: str) -> tuple[TopicDescription, int] | None:
        """The partition of `__transaction_state` that says what partitions are in the transaction."""
        topic = self._topic.existing()
        return None if topic is None else (topic, partition_of(transactional_id, topic))

    def wait_for_flush(self, transactional_id: str) -> bool:
        """Whether an answer about it has to wait for the disk."""
        topic = self._topic.existing()
        return topic is not None and self._logs.wait_for_flush(topic, partition_of(transactional_id, topic))

    def flushed(self, transactional_id: str) -> Awaitable[None]:
        """Awaits that what was written about it is on the disk. Raises FlushFailed."""
        topic = self._topic.made()
        return self._logs.flushed(topic, partition_of(transactional_id, topic))

    # --- shards ---

    def _run(self, transactional_id: str, rule: Rule) -> Answer:
        found = self._shards.of(transactional_id)
        if found is None:
            from headrace.coordinator.transactions.transitions import Answer

            return Answer(code=ErrorCode.invalid_producer_id_mapping)
        shard, runner = found
        now_ms = self._clock.now_ms()
        outcome = runner.run(lambda: rule(shard, now_ms), now_ms=now_ms)
        self._timer.arm(runner.next_deadline_ms())
        self._end_prepared(shard)
        answer: Answer = outcome.replies[0].response  # type: ignore[assignment]
        return answer

    def _started(self, shard: LoadedShard) -> None:
        self._timer.arm(shard[1].next_deadline_ms())
        self._end_prepared(shard[0])

    def _new_producer_id(self) -> int:
        try:
            return self._metadata.next_producer_id()
        except (StorageError, OSError) as error:
            message = f"No producer id could be reserved: {error}."
            raise CoordinatorError(ErrorCode.coordinator_not_available, message) from error

    # --- timers ---

    def _wake(self) -> None:
        now_ms = self._clock.now_ms()
        for shard, runner in self._shards:
            if runner in self._behind:
                self._drain(runner, runner.catch_up(self._metadata.image, now_ms=now_ms))
            self._drain(runner, runner.fire_timers(now_ms=now_ms))
            self._end_prepared(shard)

    def _drain(self, runner: ShardRunner, outcomes: Iterator[Outcome]) -> None:
        try:
            for _ in outcomes:
                pass
        except AppendFailed as failure:
            logger.error("The transaction coordinator could not write its log, and tries again: %s", failure)
            self._behind[runner] = None
            self._timer.arm(self._clock.now_ms() + RETRY_MS)
            return
        self._behind.pop(runner, None)
        self._timer.arm(runner.next_deadline_ms())

    # --- markers ---

    def _end_prepared(self, shard: TransactionCoordinatorShard) -> None:
        """Brings decided transactions to their end, at once where nothing has to wait for the disk."""
        if self._stopped or not shard.prepared():
            return
        if self._endings is None:
            from headrace.broker.coordinators.transaction_completion import TransactionCompletion

            self._endings = TransactionCompletion(self, logs=self._logs, metadata=self._metadata, markers=self._markers)
        self._endings.end_prepared(shard)

    def complete(self, transactional_id: str) -> None:
        """Notes that all markers are written. Raises CoordinatorError."""
        found = self._shards.of(transactional_id)
        if found is not None:
            (shard, runner), now_ms = found, self._clock.now_ms()
            runner.run(lambda: shard.complete(transactional_id, now_ms=now_ms), now_ms=now_ms)
