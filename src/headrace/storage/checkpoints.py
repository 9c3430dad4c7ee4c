"""Kafka's small text files: offset checkpoints, `leader-epoch-checkpoint`, `partition.metadata` with the topic id.

A checkpoint is a line with the version (0), a line with the number of entries, and one line of blank-separated fields
per entry. `partition.metadata` has no newline at its end. Files are replaced as a whole, never changed in place.
"""

from __future__ import annotations

import base64
import threading
import uuid
from bisect import bisect_right
from collections.abc import Iterable
from pathlib import Path

from headrace.storage.file_system import FileSystem

__all__ = [
    "CheckpointCorrupt",
    "LeaderEpochs",
    "read_checkpoint",
    "read_partition_metadata",
    "topic_id_text",
    "write_checkpoint",
    "write_partition_metadata",
]

PARTITION_METADATA = "partition.metadata"
LEADER_EPOCH_CHECKPOINT = "leader-epoch-checkpoint"


class CheckpointCorrupt(Exception):
    """The file is not a checkpoint; what it said must be found out otherwise."""


def write_checkpoint(
    file_system: FileSystem, path: Path, rows: Iterable[tuple[object, ...]], *, sync: bool = False
) -> None:
    lines = [" ".join(str(field) for field in row) for row in rows]
    text = "\n".join(["0", str(len(lines)), *lines]) + "\n"
    file_system.write_atomically(path, text.encode(), sync=sync)


def read_checkpoint(file_system: FileSystem, path: Path, *, fields: int) -> list[list[str]]:
    """The entries; none when the file is not there. Raises CheckpointCorrupt."""
    try:
        text = file_system.read_bytes(path).decode()
    except FileNotFoundError:
        return []
    except UnicodeDecodeError:
        raise CheckpointCorrupt(f"{path} is no text") from None
    lines = text.splitlines()
    rows = [line.split() for line in lines[2:]]
    if not text.endswith("\n") or len(lines) < 2 or lines[0].strip() != "0" or lines[1].strip() != str(len(rows)):
        raise CheckpointCorrupt(f"{path} is cut off or of another version")
    if any(len(row) != fields for row in rows):
        raise CheckpointCorrupt(f"{path} has an entry without {fields} fields")
    return rows


def topic_id_text(topic_id: uuid.UUID) -> str:
    """Kafka's spelling of an id: URL-safe base64 without padding, 22 characters."""
    return base64.urlsafe_b64encode(topic_id.bytes).rstrip(b"=").decode()


def topic_id_from_text(text: str) -> uuid.UUID:
    return uuid.UUID(bytes=base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)))


def write_partition_metadata(file_system: FileSystem, directory: Path, topic_id: uuid.UUID) -> None:
    text = f"version: 0\ntopic_id: {topic_id_text(topic_id)}"
    file_system.write_atomically(directory / PARTITION_METADATA, text.encode(), sync=False)


def read_partition_metadata(file_system: FileSystem, directory: Path) -> uuid.UUID | None:
    """The topic id; None when the file is missing or unreadable."""
    try:
        text = file_system.read_bytes(directory / PARTITION_METADATA).decode()
        entries = dict(line.split(": ", 1) for line in text.splitlines())
        return topic_id_from_text(entries["topic_id"])
    except (FileNotFoundError, UnicodeDecodeError, KeyError, ValueError):
        return None


class LeaderEpochs:
    """Which leader epoch wrote which offsets: (epoch, first offset), both growing. Mutable, owned by its PartitionLog.

    Kept in `leader-epoch-checkpoint`, rewritten when an epoch begins or the log's ends move, and made durable before a
    flush promises the records of an epoch. That may happen in another thread, so the table is replaced as a whole.
    """

    def __init__(self, directory: Path, file_system: FileSystem) -> None:
        self._path = directory / LEADER_EPOCH_CHECKPOINT
        self._file_system = file_system
        self._table: tuple[tuple[int, ...], tuple[int, ...]] = ((), ())
        self._saved: object = None
        self._durable: object = self._table  # an empty log needs no file
        self._writing = threading.Lock()

    def entries(self) -> list[tuple[int, int]]:
        return list(zip(*self._table, strict=True))

    @property
    def latest(self) -> int:
        """The newest epoch, -1 for an empty log."""
        epochs = self._table[0]
        return epochs[-1] if epochs else -1

    def load(self) -> None:
        """Raises CheckpointCorrupt."""
        try:
            rows = [
                (int(epoch), int(start)) for epoch, start in read_checkpoint(self._file_system, self._path, fields=2)
            ]
        except ValueError:
            raise CheckpointCorrupt(f"{self._path} holds something else than numbers") from None
        self._table = (tuple(epoch for epoch, _ in rows), tuple(start for _, start in rows))

    def note(self, epoch: int, start: int) -> bool:
        """Remember that `epoch` writes from `start` on; whether that was news. `save` makes it last."""
        if epoch <= self.latest:
            return False
        epochs, starts = self._table
        self._table = ((*epochs, epoch), (*starts, start))
        return True

    def forget_latest(self) -> None:
        """Take back a `note` that could not be saved."""
        epochs, starts = self._table
        self._table = (epochs[:-1], starts[:-1])

    def save(self) -> None:
        """Raises OSError."""
        with self._writing:
            table = self._table
            write_checkpoint(self._file_system, self._path, zip(*table, strict=True))
            self._saved, self._durable = table, None

    def make_durable(self) -> None:
        """What was saved survives a power loss. May be called from another thread. Raises OSError."""
        if self._durable is self._table or (not self._table[0] and self._durable is not None):
            return
        with self._writing:
            table = self._table
            if self._saved is table:  # synced as it is, so that a full disk has nothing to refuse
                file = self._file_system.open(self._path)
                try:
                    file.sync()
                finally:
                    file.close()
                self._file_system.sync_directory(self._path.parent)
            else:
                write_checkpoint(self._file_system, self._path, zip(*table, strict=True), sync=True)
            self._saved = self._durable = table

    def epoch_for(self, offset: int) -> int:
        """The epoch that wrote `offset`, -1 when unknown."""
        epochs, starts = self._table
        i = bisect_right(starts, offset)
        return epochs[i - 1] if i else -1

    def end_offset_for(self, epoch: int, log_end_offset: int) -> tuple[int, int]:
        """OffsetForLeaderEpoch: the largest epoch at most `epoch` and where it ends; (-1, -1) when unknown.

        As Kafka: an epoch newer than all that wrote is unknown, one older than all kept ends where those begin.
        """
        epochs, starts = self._table
        if epoch == self.latest >= 0:
            return epoch, log_end_offset
        i = bisect_right(epochs, epoch)
        if epoch < 0 or i == len(epochs):
            return (-1, -1)
        return epochs[i - 1] if i else epoch, starts[i]

    def keep_from(self, offset: int) -> bool:
        """The log now starts at `offset`: drop epochs that ended before, let the first one left begin there."""
        epochs, starts = self._table
        i = bisect_right(starts, offset)
        if i and (i > 1 or starts[0] < offset):
            self._table = (epochs[i - 1 :], (offset, *starts[i:]))
            return True
        return False

    def keep_before(self, offset: int) -> bool:
        """The log now ends at `offset`: drop epochs that began there or behind."""
        epochs, starts = self._table
        keep = sum(start < offset for start in starts)
        if keep == len(starts):
            return False
        self._table = (epochs[:keep], starts[:keep])
        return True

    def clear(self) -> None:
        self._table = ((), ())
