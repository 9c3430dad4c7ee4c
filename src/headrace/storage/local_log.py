"""The segments of one log and its durability: begin, remove, truncate, replace and fsync segments.

Named after Kafka's `LocalLog`. It knows files and offsets; producers, leader epochs, the log start offset and the
checks of produced batches are `PartitionLog`'s.

Durability. A file survives a power loss only if its directory entry does, so the first flush also syncs the directory
and its parent (a process that was killed may have created them), later ones the directory if files came or went.
Indexes of the segment that holds the recovery point, or ends there, are synced later, when it is no longer active:
until then every recovery rebuilds them. `flush` may run in another thread than the one that appends.
"""

from __future__ import annotations

import logging
import threading
from bisect import bisect_right
from collections.abc import Callable
from pathlib import Path

from headrace.storage.cleanup_policy import SegmentFacts, SegmentSwap
from headrace.storage.errors import LogHealth
from headrace.storage.file_system import FileSystem
from headrace.storage.log_config import NO_LIMIT, LogConfig
from headrace.storage.log_segment import LogSegment
from headrace.storage.segment_list import SegmentList
from headrace.storage.segment_swap import SWAP, commit_swap, discard_new_segment, prepare_swap

__all__ = ["LocalLog"]

_log = logging.getLogger("headrace.storage")


class LocalLog:
    """The segments of one log. Mutable, owned by its PartitionLog.

    Attributes:
        segments: The segments; empty until `start`.
        log_end_offset: The next offset to be assigned. The owner advances it last, after it has updated everything
            that a flush up to this offset promises.
        recovery_point: Everything before it has been flushed; moves forward with `flush`, back with a truncation.
        health: Errors of this log.
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
        self.config = config
        self.clock_ms = clock_ms
        self.file_system = file_system
        self.health = LogHealth(directory, topic, partition, file_system)
        self.segments = SegmentList()
        self.log_end_offset = 0
        self.recovery_point = 0
        self._flush_lock = threading.Lock()
        self._last_flush_ms = 0
        self._directory_changed = True
        self._is_first_flush = True

    def start(self, segments: list[LogSegment], *, log_end_offset: int, recovery_point: int, now_ms: int) -> None:
        """Take over the segments of an opened log."""
        self.segments.set(segments)
        self.log_end_offset = log_end_offset
        self.recovery_point = min(recovery_point, log_end_offset)
        self._last_flush_ms = now_ms

    @property
    def high_watermark(self) -> int:
        """End of what readers see: the log end offset, or under fsync "always" the recovery point."""
        return self.recovery_point if self.config.fsync == "always" else self.log_end_offset

    def segment_facts(self) -> list[SegmentFacts]:
        """Return the facts that retention decides by, of all segments."""
        ends = self.segments.end_offsets(self.log_end_offset)
        return [segment.facts(end) for segment, end in zip(self.segments.all, ends, strict=True)]

    def closed_segment_facts(self) -> tuple[SegmentFacts, ...]:
        """Return the facts that compaction decides by, of all segments except the active one."""
        has_deadline = self.config.max_compaction_lag_ms < NO_LIMIT  # else the first timestamp is not worth a read
        ends = self.segments.base_offsets[1:]
        return tuple(
            segment.facts(end, with_first_timestamp=has_deadline)
            for segment, end in zip(self.segments.all, ends, strict=False)
        )

    # -- segments come and go --------------------------------------------------------------------------------

    def roll(self) -> LogSegment:
        """Begin a new segment at the log end offset and return it. Raises StorageFull, LogFailed."""
        try:
            segment = LogSegment.create(self.directory, self.log_end_offset, self.config, self.file_system)
        except OSError as error:
            self.health.refuse(error, "could not begin a new segment")
        # The new segment exists before the old one is closed: if the disk is full, the old one stays active.
        closed = self.segments.active
        closed.close_time_index()
        closed.close_indexes()
        self.segments.set([*self.segments.all, segment])
        self.mark_directory_changed()
        return segment

    def remove_oldest(self, count: int) -> None:
        """Remove segments and their files. Raises OSError; the next opening then removes the rest."""
        for segment in self.segments.remove_oldest(count):  # oldest first: a crash in between leaves no hole
            segment.remove()

    def truncate_to(self, offset: int) -> int:
        """Cut the log before the batch that holds `offset`, durably; return the new log end offset. Raises OSError."""
        keep = self.segments.index_of(offset)
        for segment in reversed(self.segments.all[keep + 1 :]):  # newest first, for the same reason
            segment.remove()
        self.segments.set(self.segments.all[: keep + 1])
        active = self.segments.active
        span = active.find(offset)
        end = active.next_offset() if span is None else span.base_offset
        # A truncation is rare, and what was cut must not come back after a power loss beside new batches.
        if span is not None:
            active.cut(span.position, end)
            active.sync()
        self.file_system.sync_directory(self.directory)
        self.log_end_offset = end
        with self._flush_lock:
            self.recovery_point = min(self.recovery_point, end)
        return end

    def swap_segments(self, swap: SegmentSwap) -> bool:
        """Put a cleaned segment in the place of those it was made from.

        Returns:
            False if the log changed meanwhile or the disk refused; nothing was done then.

        Raises:
            LogFailed: The swap was begun. The next opening completes it.
        """
        # 1. The segments must be the ones that were cleaned: a truncation or retention may have come in between.
        old = [segment for segment in self.segments.all if segment.base_offset in swap.old]
        if not self.segments.contains_run(swap.old) or sum(each.size_bytes for each in old) != swap.bytes_before:
            return False
        # 2. Up to the last rename of `prepare_swap` everything can be undone.
        try:
            prepare_swap(self.directory, swap.new, self.file_system)
        except OSError as error:
            _log.warning("Discarding a cleaned segment of %s, which is cleaned again later: %s", self.directory, error)
            discard_new_segment(self.directory, swap.new, SWAP, self.file_system)
            return False
        # 3. From here on only forward. Descriptors of the old segments are closed; spans that are being sent keep
        #    their own (`FileSpan`).
        try:
            for segment in old:
                segment.retire()
            commit_swap(self.directory, swap.old, swap.new, self.file_system)
            new = LogSegment.existing(self.directory, swap.new, self.config, self.file_system)
        except OSError as error:
            self.health.fail(error, "could not take a cleaned segment")
        self.segments.replace(swap.old, new)
        return True

    # -- durability ------------------------------------------------------------------------------------------

    def mark_directory_changed(self) -> None:
        """Note that files came or went, so that the next flush syncs the directory."""
        self._directory_changed = True

    def flush_is_due(self, now_ms: int) -> bool:
        """Whether `flush.messages` or `flush.ms` require an fsync."""
        unflushed = self.log_end_offset - self.recovery_point
        if unflushed <= 0:
            return False
        return unflushed >= self.config.flush_messages or now_ms - self._last_flush_ms >= self.config.flush_ms

    def flush(self, end_offset: int) -> int:
        """Fsync everything before `end_offset` and return the recovery point. Raises LogFailed."""
        now_ms = self.clock_ms()
        # Taken after `end_offset` was: all offsets before it are in one of these segments.
        segments = self.segments.all
        with self._flush_lock:
            if end_offset <= self.recovery_point:
                return self.recovery_point
            # 1. Cleared before the sync: a file that is created meanwhile counts for the next flush.
            directory_changed, self._directory_changed = self._directory_changed, False
            bases = [segment.base_offset for segment in segments]
            try:
                # 2. From the segment with the last flushed offset on; of the active one the log alone, since a
                #    recovery rebuilds its indexes.
                for segment in segments[max(bisect_right(bases, self.recovery_point - 1) - 1, 0) :]:
                    segment.sync(with_indexes=segment is not segments[-1])
                # 3. The names of the files.
                if directory_changed:
                    self.file_system.sync_directory(self.directory)
                if self._is_first_flush:
                    self.file_system.sync_directory(self.directory.parent)
                    self._is_first_flush = False
            except OSError as error:
                self.health.fail(error, "could not be flushed")
            self.recovery_point = max(self.recovery_point, end_offset)
            self._last_flush_ms = now_ms
            return self.recovery_point

    def write_transaction_indexes(self) -> None:
        """Write the entries that a full disk refused earlier. Raises OSError."""
        for segment in self.segments.all:
            segment.transaction_index.write()

    def abandon(self) -> None:
        """Close the files without a flush, as a killed process would."""
        self.health.mark_closed()
        for segment in self.segments.all:
            segment.close()
