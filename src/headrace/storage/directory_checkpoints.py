"""Where each log of a data directory stood: Kafka's three offset checkpoints, and our note of a clean shutdown.

A checkpoint that is lost or torn costs time at the next opening (more is scanned or cleaned), never a record; the log
start offsets alone carry something that the logs do not say: what DeleteRecords took out of a segment's middle.
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

__all__ = ["DirectoryCheckpoints", "TopicPartition"]

_log = logging.getLogger("headrace.storage")
_CLEAN_SHUTDOWN = "headrace-clean-shutdown"
_RECOVERY_POINTS = "recovery-point-offset-checkpoint"
_LOG_STARTS = "log-start-offset-checkpoint"
_CLEANED_TO = "cleaner-offset-checkpoint"

TopicPartition = tuple[str, int]


class DirectoryCheckpoints:
    """Mutable: read when the directory is opened, written now and then."""

    def __init__(self, path: Path, file_system: FileSystem) -> None:
        self._path = path
        self._file_system = file_system
        self._lock = threading.Lock()  # two threads must not write beside the same file
        self.recovery_points = self._offsets(_RECOVERY_POINTS)
        self.log_starts = self._offsets(_LOG_STARTS)
        self.cleaned_to = self._offsets(_CLEANED_TO)
        self.ended = self._take_clean_shutdown()

    def forget(self, key: TopicPartition) -> bool:
        """Whether there was anything: then it must leave the files before the partition comes to life again."""
        known = [offsets.pop(key, None) for offsets in (self.recovery_points, self.log_starts, self.cleaned_to)]
        return (self.ended.pop(key, None), *known) != (None,) * 4

    def keep(self, is_there: Callable[[TopicPartition], bool]) -> None:
        """Forget partitions that are not there: another life of theirs must not inherit where the last one stood."""
        for key in {*self.recovery_points, *self.log_starts, *self.cleaned_to, *self.ended}:
            if not is_there(key):
                self.forget(key)

    def save(self, logs: Mapping[TopicPartition, PartitionLog], *, sync: bool = False) -> None:
        """Recovery points and log start offsets as they are now; with `sync` they survive a power loss. Raises
        OSError."""
        with self._lock:
            for key, log in list(logs.items()):
                self.recovery_points[key] = log.recovery_point
                if log.log_start_offset > log.segment_base_offsets[0]:
                    self.log_starts[key] = log.log_start_offset
                else:
                    self.log_starts.pop(key, None)
            self._write(_RECOVERY_POINTS, self.recovery_points, sync=sync)
            self._write(_LOG_STARTS, self.log_starts, sync=sync)

    def save_forgotten(self) -> None:
        """After `forget`: the files, too, no longer tell of it, nor would after a power loss. Raises OSError."""
        with self._lock:
            for name, offsets in (
                (_RECOVERY_POINTS, self.recovery_points),
                (_LOG_STARTS, self.log_starts),
                (_CLEANED_TO, self.cleaned_to),
            ):
                self._write(name, offsets, sync=True)

    def cleaned(self, key: TopicPartition, offset: int) -> None:
        """What lies before `offset` is compacted. Raises OSError."""
        with self._lock:
            self.cleaned_to[key] = offset
            self._write(_CLEANED_TO, self.cleaned_to)

    def save_clean_shutdown(self, closed: Iterable[tuple[TopicPartition, CleanShutdown]], *, sync: bool) -> None:
        """How each log ended, those included that were never opened since the last time. Raises OSError."""
        ended = {**self.ended, **dict(closed)}
        rows = [(t, p, c.base_offset, c.size_bytes, c.log_end_offset) for (t, p), c in ended.items()]
        write_checkpoint(self._file_system, self._path / _CLEAN_SHUTDOWN, rows, sync=sync)

    def _write(self, name: str, offsets: Mapping[TopicPartition, int], *, sync: bool = False) -> None:
        rows = [(topic, partition, offset) for (topic, partition), offset in list(offsets.items())]
        write_checkpoint(self._file_system, self._path / name, rows, sync=sync)

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
