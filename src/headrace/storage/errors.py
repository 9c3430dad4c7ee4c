"""Errors of the storage package, one class per Kafka error code.

`error_code` is Kafka's number for the response. `facts` has `topic` and `partition` where a partition is meant. An
append that raises one of them leaves the log as it was. The word before the colon is the code of the error, which has a
page in docs/reference/errors.
"""

from __future__ import annotations

from typing import ClassVar

from headrace.errors import StateError

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
    "MessageTooLarge",
    "OffsetOutOfRange",
    "OutOfOrderSequence",
    "RecordListTooLarge",
    "StorageError",
    "StorageFull",
    "TransactionCoordinatorFenced",
    "UnknownTopic",
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
