"""Where each log of a data directory stood: Kafka's three offset checkpoints, and our note of a clean shutdown.

A checkpoint that is lost or torn costs time at the next opening (more is scanned or cleaned), never a record; the log
start offsets alone carry something that the logs do not say: what DeleteRecords took out of a segment's middle.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from pathlib import Path

from penstock.storage.checkpoints import CheckpointCorrupt, read_checkpoint, write_checkpoint
from penstock.storage.file_system import FileSystem
from penstock.storage.log_recovery import CleanShutdown
from penstock.storage.partition_log import PartitionLog

__all__ = ["DirectoryCheckpoints", "TopicPartition"]

_log = logging.getLogger("penstock.storage")
_CLEAN_SHUTDOWN = "penstock-clean-shutdown"
_RECOVERY_POINTS = "recovery-point-offset-checkpoint"
_LOG_STARTS = "log-start-offset-checkpoint"
_CLEANED_TO = "cleaner-offset-checkpoint"

TopicPartition = tuple[str, int]


class DirectoryCheckpoints:
    """Mutable: read when the directory is opened, written now and then."""

    def __init__(self, path: Path, file_system: FileSystem) -> None:
        self._path = path
        self._file_system = file_system
        self.recovery_points = self._offsets(_RECOVERY_POINTS)
        self.log_starts = self._offsets(_LOG_STARTS)
        self.cleaned_to = self._offsets(_CLEANED_TO)
        self.ended = self._take_clean_shutdown()

    def forget(self, key: TopicPartition) -> None:
        for offsets in (self.recovery_points, self.log_starts, self.cleaned_to):
            offsets.pop(key, None)
        self.ended.pop(key, None)

    def save(self, logs: Mapping[TopicPartition, PartitionLog]) -> None:
        """Recovery points and log start offsets as they are now. Raises OSError."""
        for key, log in list(logs.items()):
            self.recovery_points[key] = log.recovery_point
            if log.log_start_offset > log.segment_base_offsets[0]:
                self.log_starts[key] = log.log_start_offset
            else:
                self.log_starts.pop(key, None)
        self._write(_RECOVERY_POINTS, self.recovery_points)
        self._write(_LOG_STARTS, self.log_starts)

    def cleaned(self, key: TopicPartition, offset: int) -> None:
        """What lies before `offset` is compacted. Raises OSError."""
        self.cleaned_to[key] = offset
        self._write(_CLEANED_TO, self.cleaned_to)

    def save_clean_shutdown(self, closed: Iterable[tuple[TopicPartition, CleanShutdown]], *, sync: bool) -> None:
        """How each log ended, those included that were never opened since the last time. Raises OSError."""
        ended = {**self.ended, **dict(closed)}
        rows = [(t, p, c.base_offset, c.size_bytes, c.log_end_offset) for (t, p), c in ended.items()]
        write_checkpoint(self._file_system, self._path / _CLEAN_SHUTDOWN, rows, sync=sync)

    def _write(self, name: str, offsets: Mapping[TopicPartition, int]) -> None:
        rows = [(topic, partition, offset) for (topic, partition), offset in list(offsets.items())]
        write_checkpoint(self._file_system, self._path / name, rows)

    def _offsets(self, name: str) -> dict[TopicPartition, int]:
        try:
            rows = read_checkpoint(self._file_system, self._path / name, fields=3)
            return {(topic, int(partition)): int(offset) for topic, partition, offset in rows}
        except (CheckpointCorrupt, ValueError) as error:
            _log.warning("%s is left aside: %s", self._path / name, error)
            return {}

    def _take_clean_shutdown(self) -> dict[TopicPartition, CleanShutdown]:
        """How the logs ended, if they were closed. The file goes at once: what follows may end in a crash."""
        path = self._path / _CLEAN_SHUTDOWN
        if not self._file_system.exists(path):
            return {}
        try:
            ended = {
                (row[0], int(row[1])): CleanShutdown(
                    base_offset=int(row[2]), size_bytes=int(row[3]), log_end_offset=int(row[4])
                )
                for row in read_checkpoint(self._file_system, path, fields=5)
            }
        except (CheckpointCorrupt, ValueError) as error:
            _log.warning("all logs will be checked: %s", error)
            ended = {}
        self._file_system.remove(path)
        self._file_system.sync_directory(self._path)
        return ended
