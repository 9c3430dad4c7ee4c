"""PartitionLog: one partition's log on disk. Batches go in and come out as bytes, never one Python object per record.

Order of an append: judge everything (batches, sequences) → roll if due → write with one call → index → remember. A
failure at any step leaves the log as it was; only when even that cannot be said (a torn write that will not be taken
back, a failed fsync) the log refuses further work until it is opened again (LogFailed).
One thread appends, reads, cuts and deletes; `flush` may come from another, so fsync need not hold up an event loop.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from headrace.protocol.record_batches import BatchHeader
from headrace.storage.batch_validation import Origin, numbered, validated_batches
from headrace.storage.file_span import FileSpan
from headrace.storage.file_system import REAL, Buffer, FileSystem
from headrace.storage.log_appending import append_usual, written
from headrace.storage.log_config import LogConfig
from headrace.storage.log_lookup import TimestampOffset, first_since, youngest
from headrace.storage.log_reading import read, span
from headrace.storage.log_recovery import CleanShutdown, open_log
from headrace.storage.log_segment import LogSegment
from headrace.storage.log_shortening import apply_retention, delete_records_before, truncate_to
from headrace.storage.log_state import LogState
from headrace.storage.log_transactions import aborted_transactions
from headrace.storage.producer_state import ProducerState
from headrace.storage.record_validation import Unpacking

if TYPE_CHECKING:
    from headrace.storage.cleanup_policy import CleaningPlan, Compactable, SegmentSwap

__all__ = ["AppendResult", "PartitionLog", "TimestampOffset", "Validated"]


class AppendResult(NamedTuple):
    """Offsets of an append, or of the earlier one that it repeats. `log_append_time_ms` is -1 under CreateTime."""

    base_offset: int
    last_offset: int
    log_append_time_ms: int
    log_start_offset: int
    duplicate: bool = False


class Validated(NamedTuple):
    """Batches as they shall be written, their headers, and the settings that they were looked at under."""

    config: LogConfig
    batches: Buffer
    headers: list[BatchHeader]


class PartitionLog:
    """Mutable. Offsets: log start <= readable < high watermark <= log end; the last one is the next to be given out.

    The high watermark is the log end offset, or under fsync "always" what has been flushed.
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
        self._state = LogState.new(
            directory,
            topic=topic,
            partition=partition,
            config=config,
            clock_ms=clock_ms,
            file_system=file_system,
        )
        self.fsync = config.fsync
        self._written_since_open = False
        self.recovered = False
        self.bytes_cut = 0

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
        """Open the log in `directory`, making it when it is new.

        `clean` is what `close` returned the last time; without it everything from `recovery_point` on is checked and
        what a crash tore is cut off. `gaps_until`: where compaction may have left gaps; one behind it is a hole that a
        power loss tore, and what follows is cut, too. None: a gap may be anywhere. Raises StorageFull, LogFailed.
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
                epochs=log._state.epochs,
                producers=log._state.producers,
                log_start_offset=log_start_offset,
                recovery_point=recovery_point,
                gaps_until=gaps_until,
                clean=clean,
                now_ms=now_ms,
            )
        except OSError as error:
            log._state.health.refuse(error, "could not be opened")
        log._state.row.set(opened.segments)
        log._state.log_start_offset = opened.log_start_offset
        log._state.log_end_offset = opened.log_end_offset
        log.recovered, log.bytes_cut = opened.recovered, opened.bytes_cut
        log._state.flush.begin(min(recovery_point, opened.log_end_offset), now_ms)
        if config.fsync == "always":
            log.flush()
        return log

    # -- what it holds ---------------------------------------------------------------------------------------

    @property
    def config(self) -> LogConfig:
        return self._state.config

    def reconfigure(self, config: LogConfig) -> None:
        """New settings for the open log. They count at once, but for those of indexes: with the next segment."""
        self._state.reconfigure(config)
        self.fsync = config.fsync

    @property
    def is_usable(self) -> bool:
        """False once it was closed or the disk has failed it."""
        return self._state.health.is_good

    @property
    def log_start_offset(self) -> int:
        return self._state.log_start_offset

    @property
    def log_end_offset(self) -> int:
        return self._state.log_end_offset

    @property
    def high_watermark(self) -> int:
        return self._state.high_watermark

    @property
    def last_stable_offset(self) -> int:
        """Where read_committed ends: the first open transaction, else the high watermark."""
        return self._state.last_stable_offset

    @property
    def recovery_point(self) -> int:
        """What lies before this offset has been flushed to the disk."""
        return self._state.flush.recovery_point

    @property
    def size_bytes(self) -> int:
        return self._state.row.size_bytes

    @property
    def segment_base_offsets(self) -> tuple[int, ...]:
        return tuple(self._state.row.base_offsets)

    @property
    def producers(self) -> ProducerState:
        """To be looked at; appends change it."""
        return self._state.producers

    @property
    def leader_epoch(self) -> int:
        """The newest leader epoch that wrote, -1 for none."""
        return self._state.epochs.latest

    def leader_epoch_for(self, offset: int) -> int:
        return self._state.epochs.epoch_for(offset)

    def end_offset_for_epoch(self, leader_epoch: int) -> tuple[int, int]:
        """OffsetForLeaderEpoch (KIP-101): (epoch, end offset), (-1, -1) when unknown."""
        return self._state.epochs.end_offset_for(leader_epoch, self._state.log_end_offset)

    # -- append ----------------------------------------------------------------------------------------------

    def append(
        self,
        batches: Buffer,
        *,
        leader_epoch: int,
        origin: Origin = "client",
        transaction_version: int = 0,
        flush_now: bool = True,
        unpacking: Unpacking | None = None,
        validated: Validated | None = None,
    ) -> AppendResult:
        """Append whole record batches (format v2), one after another, as one write.

        `flush_now=False` leaves the fsync that the configuration asks for to the caller (`flush`, in a thread: group
        commit). A repeat of an idempotent producer's batch is answered with its offsets and not written.
        `transaction_version`: what the producer of a transaction, or the coordinator of a marker, goes by.
        `validated`: what `validate` found; it counts while the log's settings are those it went by.
        Raises UnpacksLarge beyond what `unpacking` allows at once; nothing is appended then.
        Raises CorruptRecordBatch, InvalidRecord, InvalidTimestamp, MessageTooLarge, RecordListTooLarge,
        OutOfOrderSequence, InvalidProducerEpoch, InvalidTransactionState, TransactionCoordinatorFenced, StorageFull,
        LogFailed; nothing is appended then.
        """
        self._state.health.check_usable()
        now_ms = self._state.clock_ms()
        if validated is None or validated.config is not self._state.config:
            validated = self.validate(batches, origin=origin, unpacking=unpacking)
        batches, headers = validated.batches, validated.headers
        append_time_ms = now_ms if self._state.config.message_timestamp_type == "LogAppendTime" else None
        earlier = self._state.judge_producers(batches, headers, origin, transaction_version)
        if earlier is not None:
            return AppendResult(
                base_offset=earlier.base_offset,
                last_offset=earlier.last_offset,
                log_append_time_ms=-1 if append_time_ms is None else earlier.timestamp_ms,
                log_start_offset=self._state.log_start_offset,
                duplicate=True,
            )
        data = bytearray(batches)
        base_offset = self._state.log_end_offset
        headers = numbered(data, headers, base_offset, leader_epoch, append_time_ms)
        base_offset = written(self._state, data, headers, leader_epoch, now_ms)
        self._written_since_open = True
        if flush_now and self.flush_is_due(now_ms):
            self.flush()
        return AppendResult(
            base_offset=base_offset,
            last_offset=headers[-1].last_offset,
            log_append_time_ms=-1 if append_time_ms is None else append_time_ms,
            log_start_offset=self._state.log_start_offset,
        )

    def validate(self, batches: Buffer, *, origin: Origin = "client", unpacking: Unpacking | None = None) -> Validated:
        """What `append` looks at first, and the costly part of it. Changes nothing; any thread may call it.

        Raises as `append`.
        """
        config = self._state.config
        found, headers = validated_batches(
            batches,
            topic=self.topic,
            partition=self.partition,
            config=config,
            origin=origin,
            now_ms=self._state.clock_ms(),
            unpacking=unpacking,
        )
        return Validated(config, found, headers)

    def append_usual(self, frame: bytes, start: int, end: int, *, leader_epoch: int) -> AppendResult | None:
        """As `append` without a flush for one batch of a client, which `looks_usual`, in `frame[start:end]`.

        None when it is not certain that nothing speaks against it: nothing was done, and `append` has the word.
        Raises StorageFull, LogFailed.
        """
        state = self._state
        offsets = append_usual(state, frame, start, end, leader_epoch) if state.health.is_good else None
        if offsets is None:
            return None
        self._written_since_open = True
        return AppendResult(*offsets, -1, state.log_start_offset)

    # -- read ------------------------------------------------------------------------------------------------

    def read(self, offset: int, max_bytes: int, *, min_one_batch: bool = True, end_offset: int | None = None) -> bytes:
        """Whole batches from the one that holds `offset`, as many as fit in `max_bytes`, out of one segment.

        Ends before `end_offset` (the high watermark when None). The first batch comes even when it alone is larger,
        unless `min_one_batch` is false. Empty at the end. Raises OffsetOutOfRange, LogFailed.
        """
        return read(self._state, offset, max_bytes, min_one_batch=min_one_batch, end_offset=end_offset)

    def span(
        self, offset: int, max_bytes: int, *, min_one_batch: bool = True, end_offset: int | None = None
    ) -> FileSpan | bytes:
        """What `read` would give, as a span of its file that can be sent without being read; little comes as bytes."""
        return span(self._state, offset, max_bytes, min_one_batch=min_one_batch, end_offset=end_offset)

    def aborted_transactions(self, offset: int, size_bytes: int, end_offset: int) -> list[tuple[int, int]]:
        """(producer id, first offset) of the aborted transactions in what a read of committed records gave.

        It began at `offset`, gave `size_bytes` and ended before `end_offset`, at most the last stable offset. May name
        a few that begin behind. Raises LogFailed.
        """
        try:
            return aborted_transactions(self._state, offset, size_bytes, end_offset) if size_bytes else []
        except OSError as error:
            self._state.health.refuse(error, "could not be read")

    def offset_for_timestamp(self, timestamp_ms: int) -> TimestampOffset | None:
        """The first record whose timestamp is at least `timestamp_ms`; None when there is none."""
        segments = self._state.row.since(self._state.log_start_offset)
        found = first_since(segments, timestamp_ms, start_offset=self._state.log_start_offset)
        return found if found is not None and found.offset < self.high_watermark else None

    def max_timestamp_offset(self) -> TimestampOffset | None:
        """The first record with the largest timestamp (ListOffsets -3, KIP-734); None in an empty log."""
        segments = self._state.row.since(self._state.log_start_offset)
        return youngest(segments, start_offset=self._state.log_start_offset)

    # -- shorten ---------------------------------------------------------------------------------------------

    def delete_records_before(self, offset: int) -> int:
        """Move the log start offset forward (DeleteRecords; -1 means the high watermark) and answer it.

        Closed segments that lie wholly before it are deleted at once, the active one when retention next runs.
        Raises OffsetOutOfRange.
        """
        return delete_records_before(self._state, offset)

    def apply_retention(self, now_ms: int | None = None) -> int:
        """Delete the segments that `log_retention` lets go; how many went. When all may go, a new one is begun."""
        return apply_retention(self._state, self._state.clock_ms() if now_ms is None else now_ms)

    def truncate_to(self, offset: int) -> None:
        """Cut the log before the batch that holds `offset`, so that it ends there at the latest.

        Raises OffsetOutOfRange before the log start, LogFailed.
        """
        truncate_to(self._state, offset)

    # -- compaction ------------------------------------------------------------------------------------------

    def compactable(self, first_dirty_offset: int, now_ms: int) -> Compactable:
        """What a cleaning would have to do, if what lies before `first_dirty_offset` is clean already."""
        from headrace.storage.log_exchange import compactable_part  # with the first log that is compacted

        return compactable_part(self._state, first_dirty_offset, now_ms)

    def plan_cleaning(self, first_dirty_offset: int, now_ms: int, *, flushed_offset: int | None = None) -> CleaningPlan:
        """For `LogCleaning`, whatever the dirty ratio: of the segments that lie wholly before `flushed_offset`.

        That is what a flush has answered and a checkpoint has noted since: compaction leaves gaps, and a recovery
        takes gaps behind the noted offset for holes. None: all that is closed, if nobody will have to recover it.
        """
        from headrace.storage.log_exchange import plan_cleaning

        return plan_cleaning(self._state, first_dirty_offset, now_ms, flushed_offset)

    def swap_segments(self, exchange: SegmentSwap) -> bool:
        """Put a cleaned segment in place; False when the log is not as it was or the disk refused: nothing was done.

        Raises LogFailed when it was begun and the next opening has to finish it.
        """
        from headrace.storage.log_exchange import swap_segments

        return swap_segments(self._state, exchange)

    # -- durability ------------------------------------------------------------------------------------------

    def flush_is_due(self, now_ms: int) -> bool:
        """Whether `flush.messages` or `flush.ms` ask for an fsync."""
        return self._state.flush.is_due(self._state.log_end_offset, self._state.config, now_ms)

    def flush(self) -> int:
        """fsync everything appended so far; the offset up to which the log now survives a power loss.

        May be called from another thread than the one that appends. Raises StorageFull, and may be called again;
        LogFailed, and the log then refuses work: what a disk keeps after a failed fsync cannot be known.
        """
        self._state.health.check_usable()
        end = self._state.log_end_offset  # before the segments: what it promises must be in one of them
        try:
            self._state.epochs.flush()
            self._write_transaction_indexes()
        except OSError as error:  # small files: for want of room nothing is lost, it is tried again
            self._state.health.refuse(error, "could not be flushed")
        return self._state.flush.flush(self._state.row.segments, end, self._state.clock_ms())

    def _write_transaction_indexes(self) -> None:
        for segment in self._state.row.segments:
            segment.transaction_index.write()

    def close(self, *, flush: bool = True) -> CleanShutdown | None:
        """Write what speeds up the next opening, fsync, and close; None when the log had failed."""
        clean = None
        active = self._state.row.active
        if self._state.health.is_good:
            if self._written_since_open or self.recovered:  # else the next opening reads all that this one has
                active.close_time_index()
                self._state.save_producers()
            if flush:
                self.flush()
                self._sync_indexes(active)
            else:
                self._write_transaction_indexes()
            clean = CleanShutdown(
                base_offset=active.base_offset, size_bytes=active.size_bytes, log_end_offset=self._state.log_end_offset
            )
        self.abandon()
        return clean

    def _sync_indexes(self, active: LogSegment) -> None:
        """After a clean stop nobody builds them anew."""
        try:
            if self._written_since_open or self.recovered:
                active.sync()
        except OSError as error:
            self._state.health.refuse(error, "could not be flushed")

    def abandon(self) -> None:
        """Let go of the files as a killed process would: nothing is flushed or noted."""
        self._state.health.end("is closed")
        for segment in self._state.row.segments:
            segment.close()
