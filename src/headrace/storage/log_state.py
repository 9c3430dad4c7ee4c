"""What one open log is made of, shared by those that work on it: PartitionLog, log_shortening, log_exchange."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from headrace.protocol.record_batches import BatchHeader
from headrace.storage.batch_validation import Origin
from headrace.storage.file_system import Buffer, FileSystem
from headrace.storage.leader_epoch_cache import LeaderEpochCache
from headrace.storage.log_config import LogConfig
from headrace.storage.log_flush import LogFlush
from headrace.storage.log_health import LogHealth
from headrace.storage.log_segment import LogSegment
from headrace.storage.log_transactions import note_marker
from headrace.storage.producer_snapshots import save_snapshot
from headrace.storage.producer_state import ProducerState, WrittenBatch
from headrace.storage.segment_row import SegmentRow
from headrace.storage.usual_batch import UsualLimits, usual_limits

__all__ = ["LogState"]


@dataclass(slots=True, kw_only=True, eq=False)
class LogState:
    """Mutable, owned by its PartitionLog. Offsets: log start <= readable < high watermark <= log end."""

    directory: Path
    config: LogConfig
    clock_ms: Callable[[], int]
    file_system: FileSystem
    health: LogHealth
    epochs: LeaderEpochCache
    producers: ProducerState
    row: SegmentRow
    flush: LogFlush
    usual_limits: UsualLimits | None
    log_start_offset: int = 0
    log_end_offset: int = 0

    @classmethod
    def new(
        cls,
        directory: Path,
        *,
        topic: str,
        partition: int,
        config: LogConfig,
        clock_ms: Callable[[], int],
        file_system: FileSystem,
    ) -> LogState:
        health = LogHealth(directory, topic, partition, file_system)
        return cls(
            directory=directory,
            config=config,
            clock_ms=clock_ms,
            file_system=file_system,
            health=health,
            epochs=LeaderEpochCache(directory, file_system),
            producers=ProducerState(topic, partition, config.max_producers),
            row=SegmentRow(),
            flush=LogFlush(directory, file_system, health),
            usual_limits=usual_limits(config),
        )

    def reconfigure(self, config: LogConfig) -> None:
        self.config, self.usual_limits = config, usual_limits(config)
        self.producers.most = config.max_producers

    @property
    def high_watermark(self) -> int:
        """The log end offset, or under fsync "always" what has been flushed."""
        return self.flush.recovery_point if self.config.fsync == "always" else self.log_end_offset

    @property
    def last_stable_offset(self) -> int:
        """Where read_committed ends: the first open transaction, else the high watermark."""
        unstable = self.producers.first_unstable_offset
        return self.high_watermark if unstable is None else min(unstable, self.high_watermark)

    def roll(self) -> LogSegment:
        """Begin a new segment at the log end. Raises StorageFull, LogFailed."""
        try:
            segment = LogSegment.create(self.directory, self.log_end_offset, self.config, self.file_system)
        except OSError as error:
            self.health.refuse(error, "could not begin a new segment")
        closed = self.row.active
        closed.close_time_index()
        closed.close_indexes()
        self.row.set([*self.row.segments, segment])
        self.flush.files_changed()
        self.save_producers()
        return segment

    def judge_producers(
        self, batches: Buffer, headers: list[BatchHeader], origin: Origin, transaction_version: int
    ) -> WrittenBatch | None:
        """The remembered batch when a client's append repeats it. Raises as ProducerState's checks."""
        if origin == "client":
            return self.producers.check(headers, transaction_version)
        self.producers.check_coordinators(batches, headers, transaction_version)
        return None

    def note_producer(self, data: Buffer, header: BatchHeader, segment: LogSegment, now_ms: int) -> None:
        """A batch that was written, at its final offset. `data`: where the header's position counts."""
        if not header.is_control:
            self.producers.update(header, seen_ms=now_ms)
        elif note_marker(self.producers, segment, data, header, now_ms):
            self.flush.files_changed()  # a transaction index may have come to be

    def save_producers(self) -> None:
        self.producers.expire(self.clock_ms() - self.config.producer_id_expiration_ms)
        save_snapshot(self.directory, self.log_end_offset, self.producers, self.file_system)
