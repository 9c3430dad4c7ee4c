"""PartitionLog: the log of one partition on disk (Kafka's `UnifiedLog`). Batches go in and come out as bytes.

An append validates everything (batches, then producer sequences), rolls the segment if due, writes with one system
call, updates the indexes and then the producer state. A failure at any step leaves the log as it was. If even that
cannot be guaranteed (a torn write that cannot be undone, a failed fsync), the log refuses further work until it is
opened again (LogFailed).

One thread appends, reads and truncates; `flush` may run in another one, so that an fsync does not block an event loop.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from headrace.protocol.record_batches import BatchHeader
from headrace.storage import record_checks
from headrace.storage.batch_validation import Origin, assign_batch_offsets, validate_batches
from headrace.storage.cleanup_policy import (
    CleaningPlan,
    Compactable,
    SegmentFacts,
    SegmentSwap,
    count_deletable_segments,
    find_compactable,
)
from headrace.storage.file_system import REAL, Buffer, FileSpan, FileSystem
from headrace.storage.leader_epoch_cache import LeaderEpochCache
from headrace.storage.local_log import LocalLog
from headrace.storage.log_config import LogConfig
from headrace.storage.log_indexes import IndexCorrupt
from headrace.storage.log_recovery import CleanShutdown, open_log
from headrace.storage.log_segment import LogSegment
from headrace.storage.producer_snapshots import (
    load_producer_state,
    rebuild_transaction_indexes,
    save_snapshot,
    update_with_marker,
)
from headrace.storage.producer_state import LARGEST_SEQUENCE, ProducerBudget, ProducerState, WrittenBatch
from headrace.storage.record_validation import DecompressionBudget
from headrace.storage.segment_list import TimestampOffset

__all__ = ["AppendResult", "PartitionLog", "TimestampOffset", "ValidatedBatches"]

MIN_SPAN_BYTES = 32 * 1024
"""Smaller reads are copied: that is faster than a `sendfile` call."""

_log = logging.getLogger("headrace.storage")


class AppendResult(NamedTuple):
    """Offsets of an append, or of the earlier append that it repeats. `log_append_time_ms` is -1 under CreateTime."""

    base_offset: int
    last_offset: int
    log_append_time_ms: int
    log_start_offset: int
    duplicate: bool = False


class ValidatedBatches(NamedTuple):
    """Result of `PartitionLog.validate`: the batches to write, their headers, and the settings they were checked by."""

    config: LogConfig
    batches: Buffer
    headers: list[BatchHeader]


class PartitionLog:
    """The log of one partition. Mutable; made by `open`.

    Offsets: log start <= last stable offset <= high watermark <= log end, which is the next one to be assigned.

    Attributes:
        directory: Directory of the partition.
        topic: Name of the topic.
        partition: Number of the partition.
        recovered: Whether the opening had to scan segments.
        bytes_cut: What the opening cut because a crash had torn it.
    """

    def __init__(
        self,
        directory: Path,
        *,
        topic: str,
        partition: int,
        config: LogConfig,
        clock_ms: Callable[[], int],
        file_system: FileSystem,
    ) -> None:
        self.directory = directory
        self.topic = topic
        self.partition = partition
        self.recovered = False
        self.bytes_cut = 0
        self.fsync = config.fsync
        self._local = LocalLog(
            directory, topic=topic, partition=partition, config=config, clock_ms=clock_ms, file_system=file_system
        )
        self._health = self._local.health
        self._epochs = LeaderEpochCache(directory, file_system)
        self._producers = ProducerState(topic, partition, config.max_producers)
        self._fast_path_limits = record_checks.fast_path_limits(config)
        self._log_start_offset = 0
        self._written_since_open = False

    @classmethod
    def open(
        cls,
        directory: Path,
        *,
        topic: str,
        partition: int,
        config: LogConfig,
        clock_ms: Callable[[], int],
        file_system: FileSystem = REAL,
        log_start_offset: int = 0,
        recovery_point: int = 0,
        gaps_until: int | None = None,
        clean: CleanShutdown | None = None,
    ) -> PartitionLog:
        """Open the log in `directory`, which is created if it is missing.

        Args:
            directory: Directory of the partition.
            topic: Name of the topic.
            partition: Number of the partition.
            config: Settings of the topic.
            clock_ms: Wall clock.
            file_system: File system of the directory.
            log_start_offset: As checkpointed.
            recovery_point: Without a clean shutdown everything from this offset on is checked, and what a crash tore is
                cut.
            gaps_until: Compaction may have left gaps before this offset. A gap after it is a hole that a power loss
                tore; it is cut with everything after it. None: a gap may be anywhere.
            clean: What `close` returned the last time.

        Raises:
            StorageFull, LogFailed: The log could not be opened.
        """
        log = cls(
            directory, topic=topic, partition=partition, config=config, clock_ms=clock_ms, file_system=file_system
        )
        now_ms = clock_ms()
        try:
            if not file_system.exists(directory):
                file_system.make_directory(directory)
            opened = open_log(
                directory,
                config=config,
                file_system=file_system,
                epochs=log._epochs,
                producers=log._producers,
                log_start_offset=log_start_offset,
                recovery_point=recovery_point,
                gaps_until=gaps_until,
                clean=clean,
                now_ms=now_ms,
            )
        except OSError as error:
            log._health.refuse(error, "could not be opened")
        log._local.start(
            opened.segments, log_end_offset=opened.log_end_offset, recovery_point=recovery_point, now_ms=now_ms
        )
        log._log_start_offset = opened.log_start_offset
        log.recovered, log.bytes_cut = opened.recovered, opened.bytes_cut
        if config.fsync == "always":
            log.flush()
        return log

    # -- state -----------------------------------------------------------------------------------------------

    @property
    def config(self) -> LogConfig:
        """The current settings."""
        return self._local.config

    def reconfigure(self, config: LogConfig) -> None:
        """Apply new settings. They take effect at once, those of indexes with the next segment."""
        self._local.config, self.fsync = config, config.fsync
        self._fast_path_limits = record_checks.fast_path_limits(config)
        self._producers.most = config.max_producers

    def bound_producers(self, budget: ProducerBudget) -> None:
        """Count the producers of this partition against a bound for all partitions."""
        self._producers.budget = budget
        budget.add_partition(self._producers)

    @property
    def is_usable(self) -> bool:
        """False once the log was closed or its disk has failed."""
        return self._health.failure is None

    @property
    def log_start_offset(self) -> int:
        """The first offset that may be read."""
        return self._log_start_offset

    @property
    def log_end_offset(self) -> int:
        """The next offset to be assigned."""
        return self._local.log_end_offset

    @property
    def high_watermark(self) -> int:
        """End of what readers see: the log end offset, or under fsync "always" what has been flushed."""
        return self._local.high_watermark

    @property
    def last_stable_offset(self) -> int:
        """End of what read_committed readers see: the first open transaction, else the high watermark."""
        unstable, high_watermark = self._producers.first_unstable_offset, self._local.high_watermark
        return high_watermark if unstable is None else min(unstable, high_watermark)

    @property
    def recovery_point(self) -> int:
        """Everything before this offset has been flushed to the disk."""
        return self._local.recovery_point

    @property
    def size_bytes(self) -> int:
        """Total size of the batches."""
        return self._local.segments.size_bytes

    @property
    def segment_base_offsets(self) -> tuple[int, ...]:
        """The base offset of each segment, ascending."""
        return tuple(self._local.segments.base_offsets)

    @property
    def producers(self) -> ProducerState:
        """The producers of this partition; read only, appends change it."""
        return self._producers

    @property
    def leader_epoch(self) -> int:
        """The newest leader epoch that wrote; -1 if none did."""
        return self._epochs.latest

    def leader_epoch_for(self, offset: int) -> int:
        """Return the leader epoch that wrote `offset`; -1 if unknown."""
        return self._epochs.epoch_for(offset)

    def end_offset_for_epoch(self, leader_epoch: int) -> tuple[int, int]:
        """Return (epoch, end offset) for OffsetForLeaderEpoch (KIP-101); (-1, -1) if unknown."""
        return self._epochs.end_offset_for(leader_epoch, self._local.log_end_offset)

    # -- append ----------------------------------------------------------------------------------------------

    def append(
        self,
        batches: Buffer,
        *,
        leader_epoch: int,
        origin: Origin = "client",
        transaction_version: int = 0,
        flush_now: bool = True,
        budget: DecompressionBudget | None = None,
        validated: ValidatedBatches | None = None,
    ) -> AppendResult:
        """Append whole record batches (format v2), one after another, as one write.

        A repeat of an idempotent producer's batch is not written; the result has the offsets of the first append.

        Args:
            batches: The bytes of the batches.
            leader_epoch: Epoch of this leader, written into the batches.
            origin: Who appends; coordinators may write control batches, and their sequences are not checked.
            transaction_version: Of the producer of a transaction, or of the coordinator that writes a marker.
            flush_now: Whether to fsync at once if the settings require it. If False, the caller calls `flush` later,
                for many appends together.
            budget: What the request may decompress to.
            validated: Result of an earlier `validate` of these batches; ignored if the settings changed since.

        Raises:
            CorruptRecordBatch, InvalidRecord, InvalidTimestamp, MessageTooLarge, RecordListTooLarge: A batch is
                invalid.
            OutOfOrderSequence, InvalidProducerEpoch, InvalidTransactionState, TransactionCoordinatorFenced: A batch
                does not fit the state of its producer.
            DecompressionTooLarge: A batch must be decompressed in a thread, by `validate`.
            StorageFull, LogFailed: The disk refused the write.

            Nothing is appended in any of these cases.
        """
        self._health.check_usable()
        now_ms = self._local.clock_ms()
        # 1. Validate.
        if validated is None or validated.config is not self._local.config:
            validated = self.validate(batches, origin=origin, budget=budget)
        batches, headers = validated.batches, validated.headers
        append_time_ms = now_ms if self._local.config.message_timestamp_type == "LogAppendTime" else None
        # 2. Check producer epochs and sequences. A repeat ends here.
        earlier = self._check_producers(batches, headers, origin, transaction_version)
        if earlier is not None:
            return AppendResult(
                base_offset=earlier.base_offset,
                last_offset=earlier.last_offset,
                log_append_time_ms=-1 if append_time_ms is None else earlier.timestamp_ms,
                log_start_offset=self._log_start_offset,
                duplicate=True,
            )
        # 3. Assign offsets in a copy, and write it.
        data = bytearray(batches)
        base_offset = self._local.log_end_offset
        headers = assign_batch_offsets(data, headers, base_offset, leader_epoch, append_time_ms)
        self._write(data, headers, leader_epoch, now_ms)
        if flush_now and self.flush_is_due(now_ms):
            self.flush()
        return AppendResult(
            base_offset=base_offset,
            last_offset=headers[-1].last_offset,
            log_append_time_ms=-1 if append_time_ms is None else append_time_ms,
            log_start_offset=self._log_start_offset,
        )

    def validate(
        self, batches: Buffer, *, origin: Origin = "client", budget: DecompressionBudget | None = None
    ) -> ValidatedBatches:
        """Do the first and costly step of `append`. Changes nothing and may run in any thread; raises as `append`."""
        config = self._local.config
        data, headers = validate_batches(
            batches,
            topic=self.topic,
            partition=self.partition,
            config=config,
            origin=origin,
            now_ms=self._local.clock_ms(),
            budget=budget,
        )
        return ValidatedBatches(config, data, headers)

    def append_fast_path(self, frame: bytes, start: int, end: int, *, leader_epoch: int) -> AppendResult | None:
        """Append one batch for which `record_checks.is_candidate` holds, without a flush.

        The steps are those of `append`, without a BatchHeader and with one copy of the batch.

        Args:
            frame: The request.
            start: Where the batch begins.
            end: Where it ends.
            leader_epoch: Epoch of this leader.

        Returns:
            None, without side effects, if `append` has to decide.

        Raises:
            StorageFull, LogFailed: The disk refused the write; nothing is appended.
        """
        local, producers, limits = self._local, self._producers, self._fast_path_limits
        if limits is None or self._health.failure is not None:
            return None
        # 1. Validate; the producer's batch must follow its last one. Anything else is decided by `append`.
        now_ms = local.clock_ms()
        checked = record_checks.check_batch(frame, start, end, limits, now_ms)
        if checked is None:
            return None
        fields, in_crc_range = checked
        _, _, _, _, _, _, delta, _, max_timestamp, producer_id, producer_epoch, sequence, _ = fields
        # A repeat, a gap and a new epoch are rare and need the whole check; only the next batch in sequence goes on
        # here.
        if producer_id >= 0 and not producers.is_next_in_sequence(producer_id, producer_epoch, sequence):
            return None
        # 2. Write with the assigned offset. The CRC does not cover it, so the rest of the batch is written as it came.
        base_offset = local.log_end_offset
        last_offset = base_offset + delta
        if leader_epoch > self._epochs.latest and self._epochs.assign(leader_epoch, base_offset):
            self._save_new_epoch()
        try:
            segment = local.segments.all[-1]
            if segment.should_roll(local.config, end - start, max_timestamp, last_offset):
                segment = self._roll()
            header_start = record_checks.pack_header_start(fields, base_offset, leader_epoch)
            segment.append_one(header_start + in_crc_range, last_offset, max_timestamp)
        except OSError as error:
            self._health.refuse(error, "did not take an append")
        # 3. Remember the batch, then advance the end, as in `_write`.
        if producer_id >= 0:
            last_sequence = (sequence + delta) & LARGEST_SEQUENCE
            batch = WrittenBatch(sequence, last_sequence, base_offset, last_offset, max_timestamp)
            producers.record_next(producer_id, producer_epoch, batch, seen_ms=now_ms)
        local.log_end_offset = last_offset + 1
        self._written_since_open = True
        return AppendResult(base_offset, last_offset, -1, self._log_start_offset)

    def _check_producers(
        self, batches: Buffer, headers: list[BatchHeader], origin: Origin, transaction_version: int
    ) -> WrittenBatch | None:
        """Return the remembered batch if a client's append repeats it. Raises as ProducerState's checks."""
        if origin == "client":
            return self._producers.check(headers, transaction_version)
        self._producers.check_coordinators(batches, headers, transaction_version)
        return None

    def _write(self, data: Buffer, headers: list[BatchHeader], leader_epoch: int, now_ms: int) -> None:
        """Write validated batches with assigned offsets. Raises StorageFull, LogFailed."""
        local = self._local
        # 1. The epoch is saved before its first batch is written: a batch whose epoch has no entry could not be found
        #    by OffsetForLeaderEpoch (KIP-101).
        if self._epochs.assign(leader_epoch, local.log_end_offset):
            self._save_new_epoch()
        try:
            # 2. One write for all batches, into one segment: roll first if they do not fit.
            segment = local.segments.active
            max_timestamp = max([header.max_timestamp for header in headers])
            if segment.should_roll(local.config, len(data), max_timestamp, headers[-1].last_offset):
                segment = self._roll()
            segment.append(data, headers)
        except OSError as error:
            self._health.refuse(error, "did not take an append")
        # 3. Only after the write: a refused write must leave producers at the batch before, or the retry would count as
        #    a repeat of a batch that no log holds.
        for header in headers:
            if header.producer_id < 0:
                continue
            if not header.is_control:
                self._producers.update(header, seen_ms=now_ms)
            elif update_with_marker(self._producers, segment, data, header, now_ms):
                local.mark_directory_changed()  # the transaction index may be a new file
        # Last: a flush in another thread takes this offset as what it has to make durable, with the transaction
        # indexes of everything before it.
        local.log_end_offset = headers[-1].next_offset
        self._written_since_open = True

    def _save_new_epoch(self) -> None:
        try:
            self._epochs.save()
        except OSError as error:
            self._epochs.undo_assign()
            self._health.refuse(error, "did not take a new leader epoch")

    def _roll(self) -> LogSegment:
        segment = self._local.roll()
        self._save_producers()
        return segment

    def _save_producers(self) -> None:
        local = self._local
        self._producers.expire(local.clock_ms() - local.config.producer_id_expiration_ms)
        save_snapshot(self.directory, local.log_end_offset, self._producers, local.file_system)

    # -- read ------------------------------------------------------------------------------------------------

    def read(self, offset: int, max_bytes: int, *, min_one_batch: bool = True, end_offset: int | None = None) -> bytes:
        """Return whole batches from the one that holds `offset` on, as many as fit in `max_bytes`.

        Args:
            offset: First offset wanted.
            max_bytes: Limit of the result.
            min_one_batch: Whether the first batch is returned even if it alone exceeds `max_bytes` (KIP-74).
            end_offset: Exclusive end of the read; None for the high watermark.

        Returns:
            Batches of one segment; empty at the end.

        Raises:
            OffsetOutOfRange: `offset` is not between log start and log end.
            LogFailed: The file could not be read.
        """
        found = self._locate(offset, max_bytes, min_one_batch, end_offset)
        if found is None:
            return b""
        segment, start, end = found
        try:
            return segment.read(start, end)
        except OSError as error:
            self._health.refuse(error, "could not be read")

    def read_span(
        self, offset: int, max_bytes: int, *, min_one_batch: bool = True, end_offset: int | None = None
    ) -> FileSpan | bytes:
        """Return what `read` would as a span of a file, to be sent without being read; small reads as bytes."""
        found = self._locate(offset, max_bytes, min_one_batch, end_offset)
        if found is None:
            return b""
        segment, start, end = found
        try:
            return segment.read(start, end) if end - start < MIN_SPAN_BYTES else segment.read_span(start, end)
        except OSError as error:
            self._health.refuse(error, "could not be read")

    def _locate(
        self, offset: int, max_bytes: int, min_one_batch: bool, end_offset: int | None
    ) -> tuple[LogSegment, int, int] | None:
        local = self._local
        if not self._log_start_offset <= offset <= local.log_end_offset:
            self._health.raise_out_of_range(offset, self._log_start_offset, local.log_end_offset)
        end_offset = local.high_watermark if end_offset is None else min(end_offset, local.log_end_offset)
        if offset >= end_offset:
            return None
        # The end is searched in the index only if it lies inside the log; most reads end at the end of the log.
        stop = end_offset if end_offset < local.log_end_offset else None
        try:
            return local.segments.locate(offset, max_bytes, min_one_batch=min_one_batch, end_offset=stop)
        except OSError as error:
            self._health.refuse(error, "could not be read")

    def aborted_transactions(self, offset: int, size_bytes: int, end_offset: int) -> list[tuple[int, int]]:
        """Return the aborted transactions that a read_committed consumer must leave out of a read.

        Args:
            offset: Where the read began.
            size_bytes: How much it returned.
            end_offset: Where it had to end, at most the last stable offset.

        Returns:
            (producer id, first offset) of each. May include a few that begin after the read.

        Raises:
            LogFailed: A file could not be read.
        """
        if not size_bytes:
            return []
        segments = self._local.segments
        try:
            try:
                # 1. Candidates between the start of the read and the last stable offset, from the transaction indexes.
                #    A damaged index is rebuilt from the log: it holds nothing that the log does not.
                found = segments.find_aborted(offset, end_offset)
            except IndexCorrupt as corrupt:
                _log.error("Rebuilding the transaction indexes of %s: %s", self.directory, corrupt)
                rebuild_transaction_indexes(segments.all)
                found = segments.find_aborted(offset, end_offset)
            # 2. Only those that begin before the end of what was read. That end is looked up only if there are
            #    candidates.
            read_end = segments.offset_after(offset, size_bytes) if found else None
        except OSError as error:
            self._health.refuse(error, "could not be read")
        return found if read_end is None else [each for each in found if each[1] < read_end]

    def offset_for_timestamp(self, timestamp_ms: int) -> TimestampOffset | None:
        """Return the first record whose timestamp is at least `timestamp_ms`; None if there is none."""
        found = self._local.segments.find_timestamp(timestamp_ms, start_offset=self._log_start_offset)
        # Under fsync "always" the record may lie behind the high watermark: ListOffsets must not name what no reader
        # sees.
        return found if found is not None and found.offset < self.high_watermark else None

    def max_timestamp_offset(self) -> TimestampOffset | None:
        """Return the first record with the largest timestamp (ListOffsets -3, KIP-734); None in an empty log."""
        return self._local.segments.find_max_timestamp(start_offset=self._log_start_offset)

    # -- delete and truncate ---------------------------------------------------------------------------------

    def delete_records_before(self, offset: int) -> int:
        """Move the log start offset forward (DeleteRecords) and return it; -1 stands for the high watermark.

        Closed segments that lie wholly before it are deleted at once, the active one by the next `apply_retention`.

        Raises:
            OffsetOutOfRange: `offset` is after the high watermark.
        """
        # -1 (DeleteRecordsRequest.HIGH_WATERMARK) deletes everything that readers see; records after the high watermark
        # are not acknowledged yet and stay.
        if offset == -1:
            offset = self.high_watermark
        if not 0 <= offset <= self.high_watermark:
            self._health.raise_out_of_range(offset, self._log_start_offset, self._local.log_end_offset)
        if offset > self._log_start_offset:
            # Files go by whole segments. Records before the offset in the segment that holds it are hidden, not
            # removed.
            self._log_start_offset = offset
            self._delete_oldest(self._local.segments.index_of(offset))
        return self._log_start_offset

    def apply_retention(self, now_ms: int | None = None) -> int:
        """Delete the segments that the retention settings permit to delete; return how many.

        If all segments go, a new one is begun.
        """
        self._health.check_usable()
        local = self._local
        count = count_deletable_segments(
            local.segment_facts(),
            log_start_offset=self._log_start_offset,
            high_watermark=local.high_watermark,
            config=local.config,
            now_ms=local.clock_ms() if now_ms is None else now_ms,
        )
        # A log has an active segment at all times: the next offset would be lost with the last one.
        if count == len(local.segments.all) and count:
            self._roll()
        if count:
            self._log_start_offset = max(self._log_start_offset, local.segments.base_offsets[count])
            self._delete_oldest(count)
        return count

    def _delete_oldest(self, count: int) -> None:
        try:
            self._local.remove_oldest(count)
            if self._epochs.truncate_from_start(self._log_start_offset):
                self._epochs.save()
        except OSError as error:
            _log.warning("Failed to delete segments of %s; the next opening removes them: %s", self.directory, error)

    def truncate_to(self, offset: int) -> None:
        """Cut the log before the batch that holds `offset`, durably.

        Raises:
            OffsetOutOfRange: `offset` is before the log start.
            LogFailed: A file could not be truncated or removed.
        """
        self._health.check_usable()
        local = self._local
        if offset < self._log_start_offset:
            self._health.raise_out_of_range(offset, self._log_start_offset, local.log_end_offset)
        if offset >= local.log_end_offset:
            return
        try:
            end = local.truncate_to(offset)
            # The batch that holds `offset` may begin before the log start, where DeleteRecords reached into it.
            self._log_start_offset = min(self._log_start_offset, end)
            if self._epochs.truncate_from_end(end):
                self._epochs.save()
            load_producer_state(
                self.directory, local.file_system, self._producers, local.segments.all, end, local.clock_ms()
            )
        except OSError as error:
            self._health.fail(error, "could not be truncated")

    # -- compaction ------------------------------------------------------------------------------------------

    def compactable(self, first_dirty_offset: int, now_ms: int) -> Compactable:
        """Return what a cleaning would have to do, if everything before `first_dirty_offset` is clean."""
        return self._find_compactable(self._local.closed_segment_facts(), first_dirty_offset, now_ms)

    def _find_compactable(self, closed: tuple[SegmentFacts, ...], first_dirty_offset: int, now_ms: int) -> Compactable:
        # A checkpoint outside of the log is of an earlier life of it: everything counts as dirty then, as in Kafka.
        is_inside = self._log_start_offset <= first_dirty_offset <= self._local.segments.active.base_offset
        return find_compactable(
            closed,
            first_dirty_offset=first_dirty_offset if is_inside else self._log_start_offset,
            last_stable_offset=self.last_stable_offset,
            config=self._local.config,
            now_ms=now_ms,
        )

    def plan_cleaning(self, first_dirty_offset: int, now_ms: int, *, flushed_offset: int | None = None) -> CleaningPlan:
        """Return a plan for `LogCleaning`, whatever the dirty ratio.

        Args:
            first_dirty_offset: Everything before it was cleaned by an earlier pass.
            now_ms: Wall-clock time.
            flushed_offset: Only segments that lie wholly before it are cleaned: cleaning leaves gaps, and a recovery
                takes gaps after the checkpointed recovery point for holes. Pass what `flush` returned, once a
                checkpoint has recorded it. None for all closed segments, if the log will never be recovered.
        """
        self._health.check_usable()
        local = self._local
        closed = local.closed_segment_facts()
        if flushed_offset is not None:
            closed = tuple(segment for segment in closed if segment.end_offset <= flushed_offset)
        part = self._find_compactable(closed, first_dirty_offset, now_ms)
        return CleaningPlan(
            directory=self.directory,
            config=local.config,
            file_system=local.file_system,
            closed=tuple(segment for segment in closed if segment.base_offset < part.end_offset),
            scanned=tuple((segment.base_offset, segment.size_bytes) for segment in local.segments.all),
            flushed_offset=local.recovery_point if flushed_offset is None else flushed_offset,
            first_dirty_offset=part.first_dirty_offset,
            end_offset=part.end_offset,
            last_batches=self._producers.last_batches(),
            now_ms=now_ms,
        )

    def swap_segments(self, swap: SegmentSwap) -> bool:
        """Put a cleaned segment in the place of those it was made from.

        Returns:
            False if the log changed meanwhile or the disk refused; nothing was done then.

        Raises:
            LogFailed: The swap was begun. The next opening completes it.
        """
        self._health.check_usable()
        return self._local.swap_segments(swap)

    # -- durability ------------------------------------------------------------------------------------------

    def flush_is_due(self, now_ms: int) -> bool:
        """Whether `flush.messages` or `flush.ms` require an fsync."""
        return self._local.flush_is_due(now_ms)

    def flush(self) -> int:
        """Fsync everything appended so far; return the offset up to which the log now survives a power loss.

        May run in another thread than the one that appends.

        Raises:
            StorageFull: `flush` may be called again when there is space.
            LogFailed: The log refuses work from now on: what a disk keeps after a failed fsync is unknown.
        """
        self._health.check_usable()
        end_offset = self._local.log_end_offset  # before the segments are read: they hold at least everything before it
        try:
            # 1. What makes records usable is synced before the records: an epoch without its entry, or an aborted
            #    transaction without its index entry, would be served wrongly after a power loss. The other way round
            #    costs nothing.
            self._epochs.flush()
            self._local.write_transaction_indexes()
        except OSError as error:  # small files that can be written again: a full disk loses nothing
            self._health.refuse(error, "could not be flushed")
        # 2. The segments, up to the end that was read above. Appends that came meanwhile belong to the next flush.
        return self._local.flush(end_offset)

    def close(self, *, flush: bool = True) -> CleanShutdown | None:
        """Write what makes the next opening fast, fsync, and close.

        Args:
            flush: Whether everything must survive a power loss.

        Returns:
            The state for the next `open`; None if the log had failed.
        """
        clean = None
        active = self._local.segments.active
        if self._health.failure is None:
            # An opening that recovered nothing has read files that are still as they were.
            changed = self._written_since_open or self.recovered
            if changed:
                active.close_time_index()
                self._save_producers()
            if flush:
                self.flush()
                if changed:
                    self._sync_indexes(active)
            else:
                self._local.write_transaction_indexes()
            # The size is recorded together with the offset: a file of another size, restored from a backup or written
            # by Kafka, is scanned in spite of a clean shutdown.
            clean = CleanShutdown(
                base_offset=active.base_offset, size_bytes=active.size_bytes, log_end_offset=self._local.log_end_offset
            )
        self.abandon()
        return clean

    def _sync_indexes(self, active: LogSegment) -> None:
        """Sync the indexes of the active segment: after a clean shutdown no recovery rebuilds them."""
        try:
            active.sync()
        except OSError as error:
            self._health.refuse(error, "could not be flushed")

    def abandon(self) -> None:
        """Close the files without a flush, as a killed process would."""
        self._local.abandon()
