"""The broker's view of the disk: which partition is which log, appends and reads with Kafka's error codes.

A partition's log is opened or created when first needed; until then its view is an empty log, so the fifty partitions
of `__consumer_offsets` cost nothing before a group uses them. Bytes pass through: nothing here looks into a batch.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Collection, Iterator
from dataclasses import replace
from typing import Protocol

from headrace.broker.config.broker_configuration import BrokerConfiguration
from headrace.broker.config.topic_configuration import TOPIC_SETTINGS, broker_default
from headrace.broker.logs.delayed_fetch import DelayedFetches
from headrace.broker.logs.flusher import Flusher, FlushFailed
from headrace.broker.logs.log_cleaner import LogCleaner
from headrace.broker.metadata.cluster_metadata import TopicDescription
from headrace.broker.monitoring.server_metrics import LogSize
from headrace.protocol.error_codes import ErrorCode
from headrace.protocol.record_batches import iter_batch_headers
from headrace.settings import render_value
from headrace.storage.batch_validation import Origin
from headrace.storage.errors import OffsetOutOfRange, StorageError, StorageFull
from headrace.storage.file_system import FileSpan
from headrace.storage.log_config import LogConfig
from headrace.storage.log_directory import LogDirectory
from headrace.storage.partition_log import AppendResult, PartitionLog, ValidatedBatches
from headrace.storage.record_validation import DecompressionBudget

__all__ = [
    "AppendRefused",
    "LogView",
    "PartitionLogs",
    "ReadRefused",
    "default_log_config",
    "end_of",
    "end_of_epoch",
    "leader_epoch_error",
]

logger = logging.getLogger("headrace.broker")


class AppendRefused(Exception):
    """An append was refused as a whole."""

    def __init__(
        self,
        code: ErrorCode,
        message: str,
        log_start_offset: int = -1,
        record_errors: tuple[tuple[int, str], ...] = (),
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.log_start_offset = log_start_offset
        self.record_errors = record_errors


class ReadRefused(Exception):
    """A read was refused: the partition has no records at that offset."""

    def __init__(self, code: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.code = code


def default_log_config(configuration: BrokerConfiguration) -> LogConfig:
    """Return the log settings of a topic that has none of its own. The fsync policy is the broker's, in Kafka's words
    for logs."""
    # flush.messages and flush.ms are left out: the policy below replaces them.
    values = {
        name: render_value(broker_default(name, configuration))
        for name in TOPIC_SETTINGS
        if name not in ("flush.messages", "flush.ms")
    }
    config = LogConfig.from_kafka({name: value for name, value in values.items() if value is not None})
    config = replace(
        config,
        producer_id_expiration_ms=configuration.integer("producer.id.expiration.ms"),
        max_producers=configuration.integer("headrace.max.producers.per.partition"),
    )
    return config.with_fsync(configuration.flush_policy, flush_ms=configuration.flush_interval_ms())


class LogView(Protocol):
    """The view of a partition that reads need. Offsets; bytes are whole batches."""

    @property
    def log_start_offset(self) -> int: ...
    @property
    def high_watermark(self) -> int: ...
    @property
    def last_stable_offset(self) -> int: ...
    def read(
        self, offset: int, max_bytes: int, *, min_one_batch: bool = True, end_offset: int | None = None
    ) -> bytes: ...
    def span(
        self, offset: int, max_bytes: int, *, min_one_batch: bool = True, end_offset: int | None = None
    ) -> FileSpan | bytes: ...
    def aborted_transactions(self, offset: int, size_bytes: int, end_offset: int) -> list[tuple[int, int]]: ...
    def offset_for_timestamp(self, timestamp_ms: int) -> tuple[int, int] | None: ...
    def max_timestamp_offset(self) -> tuple[int, int] | None: ...
    def leader_epoch_for(self, offset: int) -> int: ...
    def end_offset_for_epoch(self, leader_epoch: int) -> tuple[int, int]: ...


class PartitionLogs:
    """Mutable: the open logs of this broker."""

    def __init__(
        self,
        directory: LogDirectory,
        *,
        flusher: Flusher,
        delayed_fetches: DelayedFetches,
        clock_ms: Callable[[], int],
        cleaner: LogCleaner | None = None,
    ) -> None:
        self._directory = directory
        # A live view, looked at without a call: on the path of every append the directory's own method costs as much as
        # the look-up.
        self._open_logs = directory.open_logs()
        self._leader_epoch = directory.leader_epoch
        self._cleaner = cleaner
        self._flusher = flusher
        self._delayed_fetches = delayed_fetches
        self._noted: dict[tuple[str, int], tuple[int, int]] = {}
        self.now_ms = clock_ms
        self.some_require_flush = False  # whether there was an append whose answer had to wait for the disk
        self.no_room: str | None = None  # what the disk had no room for, until an append succeeds again

    def topic_removed(self, topic: TopicDescription) -> None:
        """Complete the delayed fetches that wait for records of the topic."""
        for partition in range(topic.partitions):
            self._delayed_fetches.partition_removed(topic.name, partition)

    def exists(self, topic: TopicDescription, partition: int) -> bool:
        return self._directory.is_on_disk(topic.name, partition)

    def log(self, topic: TopicDescription, partition: int) -> PartitionLog | None:
        """Return the log of a partition; None for one that is not on the disk yet."""
        return self._directory.existing_log(topic.name, partition)

    def view(self, topic: TopicDescription, partition: int) -> LogView:
        """Return the view of a log for reads.

        A log that is not on the disk yet is an empty one. Raises ReadRefused when it cannot be opened.
        """
        try:
            log = self._directory.existing_log(topic.name, partition)
        except StorageError as error:
            raise ReadRefused(ErrorCode.kafka_storage_error, str(error)) from error
        return _NOTHING if log is None else _OpenLog(log)

    def append(
        self,
        topic: TopicDescription,
        partition: int,
        batches: bytes,
        *,
        origin: Origin = "client",
        transaction_version: int = 0,
        budget: DecompressionBudget | None = None,
        validated: ValidatedBatches | None = None,
    ) -> AppendResult:
        """Append whole batches to a partition.

        Args:
            topic: topic of the partition.
            partition: its number.
            batches: encoded record batches.
            origin: who wrote them; decides what is validated (see `PartitionLog.append`).
            transaction_version: transaction version of the client.
            budget: bound of what is decompressed for validation.
            validated: result of a validation that has already run in a thread.

        Raises:
            AppendRefused: the batches are invalid, or the disk refuses them.
            DecompressionTooLarge: the budget is exhausted.
        """
        try:
            log = self._directory.log(topic.name, partition)
            result = log.append(
                batches,
                leader_epoch=self._leader_epoch,
                origin=origin,
                transaction_version=transaction_version,
                # Never on the event loop: an fsync takes milliseconds, and the flusher groups those of many producers.
                flush_now=False,
                budget=budget,
                validated=validated,
            )
        except StorageError as error:
            raise self._refused(error) from error
        self._appended(log, topic.name, partition, len(batches))
        return result

    def validation(
        self, topic: TopicDescription, partition: int, batches: bytes, budget: DecompressionBudget
    ) -> Callable[[], ValidatedBatches]:
        """Validate batches before their `append`, in any thread. Both raise AppendRefused."""
        try:
            log = self._directory.log(topic.name, partition)
        except StorageError as error:
            raise self._refused(error) from error

        def validate() -> ValidatedBatches:
            try:
                return log.validate(batches, budget=budget)
            except StorageError as error:
                raise self._refused(error) from error

        return validate

    def append_fast_path(
        self, topic: TopicDescription, partition: int, frame: bytes, start: int, end: int
    ) -> AppendResult | None:
        """Append one batch that `is_candidate`, with the same result as `append`.

        Returns None, without side effects, if the batch is not eligible. Raises AppendRefused.
        """
        # Only logs that are open: making directories belongs to the general path.
        log = self._open_logs.get((topic.name, partition))
        if log is None:
            return None
        try:
            result = log.append_fast_path(frame, start, end, leader_epoch=self._leader_epoch)
        except StorageError as error:
            raise self._refused(error) from error
        if result is not None:
            self._appended(log, topic.name, partition, end - start)
        return result

    def _refused(self, error: StorageError) -> AppendRefused:
        if isinstance(error, StorageFull):
            self.no_room = str(error)
        return AppendRefused(
            ErrorCode(error.error_code), str(error), record_errors=error.facts.get("record_errors", ())
        )

    def _appended(self, log: PartitionLog, topic: str, partition: int, size: int) -> None:
        # The disk takes records again: the health page reports it.
        self.no_room = None
        if log.fsync != "never":
            self._flusher.dirty(log)
        if log.fsync == "always":
            self.some_require_flush = True
            # Readers see records once they are on the disk, so they are woken then.
            self._flusher.after_flush(log, lambda: self._delayed_fetches.appended(topic, partition, size))
        elif self._delayed_fetches.parked:
            self._delayed_fetches.appended(topic, partition, size)

    def wait_until_flushed(self, topic: TopicDescription, partition: int) -> Awaitable[None]:
        """Wait until everything appended to the partition is on the disk. Raises FlushFailed."""
        log = self._open_logs.get((topic.name, partition))
        if log is None:
            raise FlushFailed(f"The log of partition {topic.name}-{partition} is gone: the topic was deleted.")
        return self._flusher.wait_until_flushed(log)

    def requires_flush(self, topic: TopicDescription, partition: int) -> bool:
        """Whether an answer about what the partition holds now has to wait for the disk."""
        # Under `always` readers and clients see only what survives a power loss; under the other policies nothing
        # waits.
        log = self._open_logs.get((topic.name, partition))
        return log is not None and log.fsync == "always" and log.recovery_point < log.log_end_offset

    def delete_records_before(self, topic: TopicDescription, partition: int, offset: int) -> int:
        """Delete records, and return the new log start offset. Raises StorageError."""
        log = self._directory.existing_log(topic.name, partition)
        return 0 if log is None else log.delete_records_before(offset)

    def sizes(self, wanted: Collection[tuple[str, int]] | None = None) -> Iterator[tuple[str, int, int]]:
        """Return (topic, partition, bytes) of all or the given logs on the disk. Raises StorageError."""
        for topic, partition in self._directory.partitions_on_disk():
            if wanted is None or (topic, partition) in wanted:
                yield topic, partition, self._directory.size_bytes(topic, partition)

    def log_sizes(self) -> list[LogSize]:
        """Return the sizes of all open logs."""
        return [
            LogSize(
                topic=log.topic,
                partition=log.partition,
                size_bytes=log.size_bytes,
                segments=len(log.segment_base_offsets),
                log_start_offset=log.log_start_offset,
                log_end_offset=log.log_end_offset,
            )
            for log in self._open_logs.values()
        ]

    def failed_logs(self) -> list[str]:
        """Return the partitions whose log is out of service until a restart."""
        return [f"{log.topic}-{log.partition}" for log in self._open_logs.values() if not log.is_usable]

    def enforce_retention(self) -> None:
        """Delete the segments that are too old or too much."""
        for log in tuple(self._open_logs.values()):
            try:
                log.apply_retention()
            except StorageError as error:
                logger.error(
                    "Retention of %s-%d failed (%s); retrying with the next check.", log.topic, log.partition, error
                )

    async def compact(self) -> None:
        """Clean the compacted logs that are dirty enough, without delaying other work."""
        if self._cleaner is not None:
            await self._cleaner.clean_all()

    async def flush_closed_segments(self) -> None:
        """Flush rolled segments in the background, so that a crash leaves little to check; so
        does what a flush has left, for want of room."""
        # Closed segments are flushed although the policy may be `never`: recovery then has to check the active segment
        # alone.
        for log in tuple(self._open_logs.values()):
            is_due = log.config.fsync != "never" and log.recovery_point < log.log_end_offset
            if log.is_usable and (is_due or log.recovery_point < log.segment_base_offsets[-1]):
                self._flusher.dirty(log)
                self._flusher.start_round()
        await self._flusher.settle()
        self.checkpoint()

    def checkpoint(self) -> None:
        """Log start offsets and recovery points are noted; without it DeleteRecords would be undone by a crash."""
        # Written only when something moved: an idle broker writes nothing.
        reached = {key: (log.recovery_point, log.log_start_offset) for key, log in self._open_logs.items()}
        if reached != self._noted:
            self._directory.checkpoint()
            self._noted = reached

    def close(self) -> None:
        """Flush everything and leave the marker of a clean stop."""
        self._stop_cleaning()
        self._directory.close()

    def abandon(self) -> None:
        """Close the files without a flush, as a killed process would."""
        self._stop_cleaning()
        self._directory.abandon()

    def _stop_cleaning(self) -> None:
        if self._cleaner is not None:
            self._cleaner.close()


class _OpenLog:
    """A log's reads with refusals in Kafka's codes."""

    __slots__ = (
        "_log",
        "end_offset_for_epoch",
        "high_watermark",
        "last_stable_offset",
        "leader_epoch_for",
        "log_start_offset",
        "max_timestamp_offset",
        "offset_for_timestamp",
    )

    def __init__(self, log: PartitionLog) -> None:
        self._log = log
        # One snapshot of the offsets for the whole request: a fetch that compares its position, its end and the
        # response's high watermark must see them from the same moment.
        self.log_start_offset = log.log_start_offset
        self.high_watermark = log.high_watermark
        self.last_stable_offset = log.last_stable_offset
        self.offset_for_timestamp = log.offset_for_timestamp
        self.max_timestamp_offset = log.max_timestamp_offset
        self.leader_epoch_for = log.leader_epoch_for
        self.end_offset_for_epoch = log.end_offset_for_epoch

    def read(self, offset: int, max_bytes: int, *, min_one_batch: bool = True, end_offset: int | None = None) -> bytes:
        try:
            return self._log.read(offset, max_bytes, min_one_batch=min_one_batch, end_offset=end_offset)
        except OffsetOutOfRange as error:
            raise ReadRefused(ErrorCode.offset_out_of_range, str(error)) from error
        except StorageError as error:
            raise ReadRefused(ErrorCode.kafka_storage_error, str(error)) from error

    def span(
        self, offset: int, max_bytes: int, *, min_one_batch: bool = True, end_offset: int | None = None
    ) -> FileSpan | bytes:
        try:
            return self._log.read_span(offset, max_bytes, min_one_batch=min_one_batch, end_offset=end_offset)
        except OffsetOutOfRange as error:
            raise ReadRefused(ErrorCode.offset_out_of_range, str(error)) from error
        except StorageError as error:
            raise ReadRefused(ErrorCode.kafka_storage_error, str(error)) from error

    def aborted_transactions(self, offset: int, size_bytes: int, end_offset: int) -> list[tuple[int, int]]:
        try:
            return self._log.aborted_transactions(offset, size_bytes, end_offset)
        except StorageError as error:
            raise ReadRefused(ErrorCode.kafka_storage_error, str(error)) from error


class _NoLog:
    """The view of a partition that was never written."""

    log_start_offset = 0
    high_watermark = 0
    last_stable_offset = 0

    def read(self, offset: int, max_bytes: int, *, min_one_batch: bool = True, end_offset: int | None = None) -> bytes:  # noqa: ARG002 - LogView's
        # As in an empty log of Kafka: 0 is the next offset and may be waited at, anything else is out of range.
        if offset != 0:
            raise ReadRefused(ErrorCode.offset_out_of_range, f"Offset {offset} is out of range: the log is empty.")
        return b""

    span = read

    def aborted_transactions(self, offset: int, size_bytes: int, end_offset: int) -> list[tuple[int, int]]:  # noqa: ARG002 - LogView's
        return []

    def offset_for_timestamp(self, timestamp_ms: int) -> None:  # noqa: ARG002 - LogView's
        return None

    def max_timestamp_offset(self) -> None:
        return None

    def leader_epoch_for(self, offset: int) -> int:  # noqa: ARG002 - LogView's
        return -1

    def end_offset_for_epoch(self, leader_epoch: int) -> tuple[int, int]:  # noqa: ARG002 - LogView's
        return -1, -1


_NOTHING = _NoLog()


def end_of(batches: bytes) -> int:
    """Return the offset behind the last whole batch; 0 without one."""
    end = 0
    for header in iter_batch_headers(batches):
        end = header.next_offset
    return end


# --- leader epochs as clients name them (KIP-101, KIP-320) ---

UNKNOWN_EPOCH = -1


def leader_epoch_error(named: int, current: int) -> ErrorCode | None:
    """Return the error of the epoch that a client believes to be current; it may leave it out (-1).

    One broker leads all partitions, and each of its starts is an election: the epoch is 0 at the first start of a data
    directory and one more at each, for all partitions alike. Kafka counts for each partition by itself.
    """
    if named in (UNKNOWN_EPOCH, current):
        return None
    return ErrorCode.fenced_leader_epoch if named < current else ErrorCode.unknown_leader_epoch


def end_of_epoch(log: LogView, leader_epoch: int, current: int) -> tuple[int, int]:
    """(epoch, end offset): the largest epoch that is not above `leader_epoch` and where its records end; (-1, -1) when
    that cannot be known. An epoch that has written nothing since the newest one that did ends at the log's end."""
    if not 0 <= leader_epoch <= current:
        return -1, -1
    # KIP-101: the end of the largest epoch that is not above the one asked for.
    epoch, end_offset = log.end_offset_for_epoch(leader_epoch)
    return (epoch, end_offset) if epoch >= 0 else (leader_epoch, log.high_watermark)
