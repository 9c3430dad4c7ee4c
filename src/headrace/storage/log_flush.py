"""fsync of one log: what of it survives a power loss, when the next fsync is due, and doing it.

A file survives by its name only: the first flush also syncs the directory and the one above it, whoever made them (a
process that was killed before may have left them to the page cache), later ones the directory when files came or went.
The indexes of the segment in which the recovery point lies, or which ends there, are synced later, when it is no longer
the active one: until then a recovery builds them anew.
`flush` may be called from another thread than the one that appends; one flush at a time.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from pathlib import Path

from headrace.storage.file_system import FileSystem
from headrace.storage.log_config import LogConfig
from headrace.storage.log_health import LogHealth
from headrace.storage.log_segment import LogSegment

__all__ = ["LogFlush"]


class LogFlush:
    """Mutable: `recovery_point` moves forward with each flush, back with a truncation."""

    def __init__(self, directory: Path, file_system: FileSystem, health: LogHealth) -> None:
        self.recovery_point = 0
        self._directory = directory
        self._file_system = file_system
        self._health = health
        self._lock = threading.Lock()
        self._last_flush_ms = 0
        self._directory_changed = True
        self._is_first = True

    def begin(self, recovery_point: int, now_ms: int) -> None:
        self.recovery_point = recovery_point
        self._last_flush_ms = now_ms

    def files_changed(self) -> None:
        """Files came or went: the directory itself wants an fsync."""
        self._directory_changed = True

    def is_due(self, log_end_offset: int, config: LogConfig, now_ms: int) -> bool:
        """Whether `flush.messages` or `flush.ms` ask for an fsync."""
        unflushed = log_end_offset - self.recovery_point
        if unflushed <= 0:
            return False
        return unflushed >= config.flush_messages or now_ms - self._last_flush_ms >= config.flush_ms

    def flush(self, segments: list[LogSegment], log_end_offset: int, now_ms: int) -> int:
        """fsync all up to `log_end_offset`; the offset up to which the log now survives. Raises LogFailed."""
        with self._lock:
            if log_end_offset <= self.recovery_point:
                return self.recovery_point
            directory_changed, self._directory_changed = self._directory_changed, False
            bases = [segment.base_offset for segment in segments]
            try:
                for segment in segments[max(bisect_right(bases, self.recovery_point - 1) - 1, 0) :]:
                    segment.sync(with_indexes=segment is not segments[-1])
                if directory_changed:
                    self._file_system.sync_directory(self._directory)
                if self._is_first:
                    self._file_system.sync_directory(self._directory.parent)
                    self._is_first = False
            except OSError as error:
                self._health.fail(error, "could not be flushed")
            self.recovery_point = max(self.recovery_point, log_end_offset)
            self._last_flush_ms = now_ms
            return self.recovery_point

    def cut_to(self, offset: int) -> None:
        """The log now ends at `offset`."""
        with self._lock:
            self.recovery_point = min(self.recovery_point, offset)
