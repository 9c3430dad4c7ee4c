"""Errors of the storage package, one class per Kafka error code, and the effect of an `OSError` on a log.

`error_code` is Kafka's number for the response. `facts` has `topic` and `partition` where a partition is meant. An
append that raises one of them leaves the log as it was. The word before the colon is the code of the error, which has a
page in docs/reference/errors. A full disk refuses one operation, any other error of the disk fails the log
(`LogHealth`).
"""

from __future__ import annotations

import errno
import logging
from pathlib import Path
from typing import Any, ClassVar, NoReturn

from headrace.errors import StateError
from headrace.storage.file_system import FileSystem, format_free_space

__all__ = [
    "CorruptRecordBatch",
    "DirectoryLocked",
    "DirectoryUnusable",
    "InvalidProducerEpoch",
    "InvalidRecord",
    "InvalidTimestamp",
    "InvalidTopic",
    "InvalidTransactionState",
    "LogFailed",
    "LogHealth",
    "MessageTooLarge",
    "OffsetOutOfRange",
    "OutOfOrderSequence",
    "RecordListTooLarge",
    "StorageError",
    "StorageFull",
    "TransactionCoordinatorFenced",
    "UnknownTopic",
    "is_disk_full",
]


class StorageError(StateError):
    """Base class of the storage errors."""

    error_code: ClassVar[int] = -1


class OffsetOutOfRange(StorageError):
    """offset-out-of-range: the offset is before the log start offset or after the log end offset."""

    error_code = 1


class CorruptRecordBatch(StorageError):
    """record-batch-corrupt: lengths, magic byte or CRC are wrong."""

    error_code = 2


class UnknownTopic(StorageError):
    """topic-missing: there is no such topic or partition."""

    error_code = 3


class InvalidTopic(StorageError):
    """bad-value: a topic name that Kafka does not allow, or that exists."""

    error_code = 17


class MessageTooLarge(StorageError):
    """too-large: one batch exceeds `max.message.bytes`."""

    error_code = 10


class RecordListTooLarge(StorageError):
    """too-large: the batches of one append exceed `segment.bytes`."""

    error_code = 18


class InvalidTimestamp(StorageError):
    """timestamp-out-of-range: outside `message.timestamp.before.max.ms` / `message.timestamp.after.max.ms`."""

    error_code = 32


class OutOfOrderSequence(StorageError):
    """sequence-out-of-order: a batch of an idempotent producer does not follow its last one."""

    error_code = 45


class InvalidProducerEpoch(StorageError):
    """producer-epoch-old: a newer incarnation of this producer has written."""

    error_code = 47


class InvalidTransactionState(StorageError):
    """record-invalid: a non-transactional batch of a producer that has a transaction open in the partition."""

    error_code = 48


class TransactionCoordinatorFenced(StorageError):
    """coordinator-epoch-old: a newer transaction coordinator has written markers of this producer."""

    error_code = 52


class LogFailed(StorageError):
    """disk-failed: a write or fsync failed; the contents of the disk are unknown until the log is opened again."""

    error_code = 56


class StorageFull(StorageError):
    """disk-full: the disk is full; nothing was appended, and the log goes on when there is space."""

    error_code = 56


class InvalidRecord(StorageError):
    """record-invalid: a well-formed batch that must not be written (control batch, gaps between offsets, …)."""

    error_code = 87


class DirectoryLocked(StorageError):
    """state-locked: another process, or another broker in this process, uses the directory."""


class DirectoryUnusable(StorageError):
    """state-corrupt: the directory belongs to Kafka or another cluster, or has another format."""


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

    Attributes:
        failure: Why the log refuses work, as the predicate of a sentence; None as long as it accepts work.
    """

    def __init__(self, directory: Path, topic: str, partition: int, file_system: FileSystem) -> None:
        self._directory = directory
        self._file_system = file_system
        self._name = f"{topic}-{partition}"
        self._facts: dict[str, Any] = {"topic": topic, "partition": partition, "path": str(directory)}
        self.failure: str | None = None

    def mark_closed(self) -> None:
        """Refuse further work; an earlier failure stays the reason."""
        self.failure = self.failure or "is closed"

    def check_usable(self) -> None:
        """Raise LogFailed if the log was closed or has failed."""
        if self.failure is not None:
            raise LogFailed(
                "disk-failed",
                f"The log of partition {self._name} {self.failure}.",
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
        self.failure = f"{what}: {error}"
        _log.error("The log of partition %s %s; it refuses work until it is opened again", self._name, self.failure)
        raise LogFailed(
            "disk-failed",
            f"The log of partition {self._name} {self.failure}.",
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
