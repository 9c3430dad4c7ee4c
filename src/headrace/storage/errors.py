"""What the disk refuses, one class per Kafka error code.

`error_code` is Kafka's number for the answer on the wire; `facts` always carries `topic` and `partition` where a
partition is meant. The refusals of an append leave the log as it was.
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
    """The root of this room's errors."""

    error_code: ClassVar[int] = -1


class OffsetOutOfRange(StorageError):
    """offset-out-of-range: the offset lies before the log start offset or behind the log end offset."""

    error_code = 1


class CorruptRecordBatch(StorageError):
    """record-batch-corrupt: lengths, magic byte or CRC do not fit."""

    error_code = 2


class UnknownTopic(StorageError):
    """topic-missing."""

    error_code = 3


class InvalidTopic(StorageError):
    """bad-value: a name that Kafka does not allow for a topic, or one that is taken."""

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
    """record-invalid: a record outside of the transaction that its producer has open in the partition."""

    error_code = 48


class TransactionCoordinatorFenced(StorageError):
    """coordinator-epoch-old: a newer transaction coordinator has ended transactions of this producer here."""

    error_code = 52


class LogFailed(StorageError):
    """disk-failed: the disk refused a write or fsync, what is on it is unknown until the log is opened again."""

    error_code = 56


class StorageFull(StorageError):
    """disk-full: nothing of the append was kept; the log goes on when there is room again."""

    error_code = 56


class InvalidRecord(StorageError):
    """record-invalid: a well-formed batch that may not be written here (control batch, offsets with gaps, …)."""

    error_code = 87


class DirectoryLocked(StorageError):
    """state-locked: another process, or another broker of this one, works in the directory."""


class DirectoryUnusable(StorageError):
    """state-corrupt: the directory belongs to somebody else, or its format is not ours."""
