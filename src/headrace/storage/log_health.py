"""What an `OSError` means to a log: a full disk refuses one append, anything else ends the log until it is reopened."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any, NoReturn

from headrace.storage.errors import LogFailed, OffsetOutOfRange, StorageFull
from headrace.storage.file_system import FileSystem, room_in_words
from headrace.storage.log_segment import FULL_ERRNOS

__all__ = ["LogHealth"]

_log = logging.getLogger("headrace.storage")


class LogHealth:
    """Mutable: good until `fail` or `end`. Words the errors of one partition's log."""

    def __init__(self, directory: Path, topic: str, partition: int, file_system: FileSystem) -> None:
        self._directory = directory
        self._file_system = file_system
        self._name = f"{topic}-{partition}"
        self._facts: dict[str, Any] = {"topic": topic, "partition": partition, "path": str(directory)}
        self._failure: str | None = None

    @property
    def is_good(self) -> bool:
        return self._failure is None

    def end(self, why: str) -> None:
        """No further work; the first reason stands."""
        self._failure = self._failure or why

    def check_usable(self) -> None:
        if self._failure is not None:
            raise LogFailed(
                "disk-failed",
                f"The log of partition {self._name} {self._failure}.",
                "Restart the broker: it checks the log and cuts what is torn.",
                **self._facts,
            )

    def refuse(self, error: OSError, what: str) -> NoReturn:
        """A full disk leaves the log usable (StorageFull); anything else does not (LogFailed)."""
        if error.errno not in FULL_ERRNOS:
            self.fail(error, what)
        raise StorageFull(
            "disk-full",
            f"The log of partition {self._name} {what}: no room in {self._directory} ({error.strerror}"
            f"{room_in_words(self._file_system, self._directory)}).",
            "Free disk space, or lower the topic's retention; the partition goes on by itself.",
            **self._facts,
        ) from error

    def fail(self, error: OSError, what: str) -> NoReturn:
        self._failure = f"{what}: {error}"
        _log.error("partition %s %s", self._name, self._failure)
        raise LogFailed(
            "disk-failed",
            f"The log of partition {self._name} {self._failure}.",
            "Look at the disk, then restart the broker: it checks the log and cuts what is torn.",
            **self._facts,
        ) from error

    def out_of_range(self, offset: int, log_start_offset: int, log_end_offset: int) -> NoReturn:
        raise OffsetOutOfRange(
            "offset-out-of-range",
            f"Offset {offset} is out of range for partition {self._name}, which holds {log_start_offset} to "
            f"{log_end_offset}.",
            "Begin at the earliest or the latest offset.",
            **self._facts,
        )
