"""Offset checkpoints of a data directory: Kafka's three checkpoint files, and the record of a clean shutdown.

A checkpoint that is lost or torn costs time at the next opening, since more is scanned or cleaned, but never a record.
Only the log start offsets carry something that the logs do not: how far DeleteRecords reached into a segment.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from headrace.storage.checkpoint_files import CheckpointCorrupt, read_checkpoint, write_checkpoint
from headrace.storage.file_system import FileSystem
from headrace.storage.log_recovery import CleanShutdown
from headrace.storage.partition_log import PartitionLog

__all__ = ["OffsetCheckpoints", "TopicPartition"]

_log = logging.getLogger("headrace.storage")
_CLEAN_SHUTDOWN = "headrace-clean-shutdown"
_RECOVERY_POINTS = "recovery-point-offset-checkpoint"
_LOG_STARTS = "log-start-offset-checkpoint"
_CLEANED_TO = "cleaner-offset-checkpoint"

TopicPartition = tuple[str, int]


class OffsetCheckpoints:
    """Offsets of all partitions of a data directory. Mutable; read at the opening, written now and then.

    Args:
        path: The data directory.
        file_system: File system of the directory.

    Attributes:
        recovery_points: Partition → everything before this offset was flushed.
        log_starts: Partition → log start offset, where it is not the base offset of a segment.
        cleaned_to: Partition → everything before this offset is compacted.
        clean_shutdowns: Partition → how its log was closed; an entry is taken out when the log is opened.
    """

    def __init__(self, path: Path, file_system: FileSystem) -> None:
        self._path = path
        self._file_system = file_system
        self._lock = threading.Lock()  # two threads must not write the same `.tmp` file
        self.recovery_points = self._load(_RECOVERY_POINTS)
        self.log_starts = self._load(_LOG_STARTS)
        self.cleaned_to = self._load(_CLEANED_TO)
        self.clean_shutdowns = self._take_clean_shutdowns()

    def forget(self, key: TopicPartition) -> bool:
        """Remove a partition from memory; return whether there was an entry.

        If so, `save_all` must follow before a partition of this name is created again.
        """
        # All of them are taken out, hence a list before the comparison: `any` over a generator would stop at the first.
        known = [offsets.pop(key, None) for offsets in (self.recovery_points, self.log_starts, self.cleaned_to)]
        return (self.clean_shutdowns.pop(key, None), *known) != (None,) * 4

    def retain(self, exists: Callable[[TopicPartition], bool]) -> None:
        """Forget partitions that do not exist: a new partition of the same name must not inherit their offsets."""
        for key in {*self.recovery_points, *self.log_starts, *self.cleaned_to, *self.clean_shutdowns}:
            if not exists(key):
                self.forget(key)

    def save(self, logs: Mapping[TopicPartition, PartitionLog], *, sync: bool = False) -> None:
        """Write the recovery points and log start offsets of open logs; with `sync` they survive a power loss.

        Raises:
            OSError: A file could not be written.
        """
        with self._lock:
            for key, log in list(logs.items()):
                self.recovery_points[key] = log.recovery_point
                # As in Kafka, only a start that the segments do not show is written.
                if log.log_start_offset > log.segment_base_offsets[0]:
                    self.log_starts[key] = log.log_start_offset
                else:
                    self.log_starts.pop(key, None)
            self._write(_RECOVERY_POINTS, self.recovery_points, sync=sync)
            self._write(_LOG_STARTS, self.log_starts, sync=sync)

    def save_all(self) -> None:
        """Write all three files, durably: after `forget` a power loss must not bring an entry back. Raises OSError."""
        with self._lock:
            for name, offsets in (
                (_RECOVERY_POINTS, self.recovery_points),
                (_LOG_STARTS, self.log_starts),
                (_CLEANED_TO, self.cleaned_to),
            ):
                self._write(name, offsets, sync=True)

    def save_cleaned(self, key: TopicPartition, offset: int) -> None:
        """Record that everything before `offset` is compacted. Raises OSError."""
        with self._lock:
            self.cleaned_to[key] = offset
            self._write(_CLEANED_TO, self.cleaned_to)

    def save_clean_shutdown(self, closed: Iterable[tuple[TopicPartition, CleanShutdown]], *, sync: bool) -> None:
        """Write how each log was closed, with those that were not opened since the last time. Raises OSError."""
        all_closed = {**self.clean_shutdowns, **dict(closed)}
        rows = [(t, p, c.base_offset, c.size_bytes, c.log_end_offset) for (t, p), c in all_closed.items()]
        write_checkpoint(self._file_system, self._path / _CLEAN_SHUTDOWN, rows, sync=sync)

    def _write(self, name: str, offsets: Mapping[TopicPartition, int], *, sync: bool = False) -> None:
        rows = [(topic, partition, offset) for (topic, partition), offset in list(offsets.items())]
        write_checkpoint(self._file_system, self._path / name, rows, sync=sync)

    def _load(self, name: str) -> dict[TopicPartition, int]:
        try:
            rows = read_checkpoint(self._file_system, self._path / name, fields=3)
            return {(topic, int(partition)): int(offset) for topic, partition, offset in rows}
        except (CheckpointCorrupt, ValueError) as error:
            _log.warning("Ignoring checkpoint %s: %s", self._path / name, error)
            return {}

    def _take_clean_shutdowns(self) -> dict[TopicPartition, CleanShutdown]:
        """Read and remove the record of a clean shutdown: the broker that starts now may end in a crash."""
        path = self._path / _CLEAN_SHUTDOWN
        if not self._file_system.exists(path):
            return {}
        try:
            found = {
                (row[0], int(row[1])): CleanShutdown(
                    base_offset=int(row[2]), size_bytes=int(row[3]), log_end_offset=int(row[4])
                )
                for row in read_checkpoint(self._file_system, path, fields=5)
            }
        except (CheckpointCorrupt, ValueError) as error:
            _log.warning("Ignoring the record of a clean shutdown, so all logs will be checked: %s", error)
            found = {}
        # Removed as soon as it is read, and durably: if this run crashes, the next start must not trust what the last
        # run recorded.
        self._file_system.remove(path)
        self._file_system.sync_directory(self._path)
        return found
