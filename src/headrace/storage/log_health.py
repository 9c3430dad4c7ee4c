"""The effect of an `OSError` on a log: a full disk refuses one operation, any other error fails the log."""

from __future__ import annotations

import errno
import logging
from pathlib import Path
from typing import Any, NoReturn

from headrace.storage.errors import LogFailed, OffsetOutOfRange, StorageFull
from headrace.storage.file_system import FileSystem, format_free_space

__all__ = ["LogHealth", "is_disk_full"]

_log = logging.getLogger("headrace.storage")
# Quota and file size limit count as full: in all three cases nothing is wrong with the disk, and an operator can make
# room.
_FULL_ERRNOS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


def is_disk_full(error: OSError) -> bool:
    """Whether the error means that there is no space left: disk, quota or file size limit."""
    return error.errno in _FULL_ERRNOS


class LogHealth:
    """Whether a log is usable, and the errors it raises. Mutable: good until `fail` or `mark_closed`.

    A failed log refuses work until it is opened again, like a log directory that Kafka takes offline: after a failed
    fsync the kernel may have dropped the dirty pages, so a later fsync that succeeds proves nothing.
    """

    def __init__(self, directory: Path, topic: str, partition: int, file_system: FileSystem) -> None:
        self._directory = directory
        self._file_system = file_system
        self._name = f"{topic}-{partition}"
        self._facts: dict[str, Any] = {"topic": topic, "partition": partition, "path": str(directory)}
        self._failure: str | None = None

    @property
    def is_good(self) -> bool:
        """Whether the log accepts work."""
        return self._failure is None

    def mark_closed(self) -> None:
        """Refuse further work; an earlier failure stays the reason."""
        self._failure = self._failure or "is closed"

    def check_usable(self) -> None:
        """Raise LogFailed if the log was closed or has failed."""
        if self._failure is not None:
            raise LogFailed(
                "disk-failed",
                f"The log of partition {self._name} {self._failure}.",
                "Restart the broker: it checks the log and cuts what is torn.",
                **self._facts,
            )

    def refuse(self, error: OSError, what: str) -> NoReturn:
        """Raise StorageFull for a full disk; otherwise `fail`.

        Args:
            error: What the file system raised.
            what: What did not succeed, as the predicate of a sentence: "could not be read".
        """
        if not is_disk_full(error):
            self.fail(error, what)
        raise StorageFull(
            "disk-full",
            f"The log of partition {self._name} {what}: no room in {self._directory} ({error.strerror}"
            f"{format_free_space(self._file_system, self._directory)}).",
            "Free disk space, or lower the topic's retention; the partition goes on by itself.",
            **self._facts,
        ) from error

    def fail(self, error: OSError, what: str) -> NoReturn:
        """Mark the log as failed and raise LogFailed."""
        # Set before the error is raised: a flusher thread and the event loop share the log, and whichever comes next
        # must be refused.
        self._failure = f"{what}: {error}"
        _log.error("The log of partition %s %s; it refuses work until it is opened again", self._name, self._failure)
        raise LogFailed(
            "disk-failed",
            f"The log of partition {self._name} {self._failure}.",
            "Look at the disk, then restart the broker: it checks the log and cuts what is torn.",
            **self._facts,
        ) from error

    def raise_out_of_range(self, offset: int, log_start_offset: int, log_end_offset: int) -> NoReturn:
        """Raise OffsetOutOfRange."""
        raise OffsetOutOfRange(
            "offset-out-of-range",
            f"Offset {offset} is out of range for partition {self._name}, which holds {log_start_offset} to "
            f"{log_end_offset}.",
            "Begin at the earliest or the latest offset.",
            **self._facts,
        )
