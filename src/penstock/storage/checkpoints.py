"""Kafka's small text files: offset checkpoints, `leader-epoch-checkpoint`, `partition.metadata` with the topic id.

A checkpoint is a line with the version (0), a line with the number of entries, and one line of blank-separated fields
per entry. `partition.metadata` has no newline at its end. Files are replaced as a whole, never changed in place.
"""

from __future__ import annotations

import base64
import uuid
from bisect import bisect_right
from collections.abc import Iterable
from pathlib import Path

from penstock.storage.file_system import FileSystem

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
        lines = file_system.read_bytes(path).decode().splitlines()
    except FileNotFoundError:
        return []
    except UnicodeDecodeError:
        raise CheckpointCorrupt(f"{path} is no text") from None
    rows = [line.split() for line in lines[2:]]
    if len(lines) < 2 or lines[0].strip() != "0" or lines[1].strip() != str(len(rows)):
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

    Kept in `leader-epoch-checkpoint`, rewritten when an epoch begins or the log's ends move.
    """

    def __init__(self, directory: Path, file_system: FileSystem, *, sync: bool = False) -> None:
        self._path = directory / LEADER_EPOCH_CHECKPOINT
        self._file_system = file_system
        self._sync = sync
        self._epochs: list[int] = []
        self._starts: list[int] = []

    def entries(self) -> list[tuple[int, int]]:
        return list(zip(self._epochs, self._starts, strict=True))

    @property
    def latest(self) -> int:
        """The newest epoch, -1 for an empty log."""
        return self._epochs[-1] if self._epochs else -1

    def load(self) -> None:
        """Raises CheckpointCorrupt."""
        try:
            rows = [
                (int(epoch), int(start)) for epoch, start in read_checkpoint(self._file_system, self._path, fields=2)
            ]
        except ValueError:
            raise CheckpointCorrupt(f"{self._path} holds something else than numbers") from None
        self._epochs = [epoch for epoch, _ in rows]
        self._starts = [start for _, start in rows]

    def note(self, epoch: int, start: int) -> bool:
        """Remember that `epoch` writes from `start` on; whether that was news. `save` makes it last."""
        if epoch <= self.latest:
            return False
        self._epochs.append(epoch)
        self._starts.append(start)
        return True

    def forget_latest(self) -> None:
        """Take back a `note` that could not be saved."""
        del self._epochs[-1], self._starts[-1]

    def save(self) -> None:
        """Raises OSError."""
        write_checkpoint(self._file_system, self._path, self.entries(), sync=self._sync)

    def epoch_for(self, offset: int) -> int:
        """The epoch that wrote `offset`, -1 when unknown."""
        i = bisect_right(self._starts, offset)
        return self._epochs[i - 1] if i else -1

    def end_offset_for(self, epoch: int, log_end_offset: int) -> tuple[int, int]:
        """OffsetForLeaderEpoch: the largest epoch at most `epoch` and where it ends; (-1, -1) when unknown.

        As Kafka: an epoch newer than all that wrote is unknown, one older than all kept ends where those begin.
        """
        if epoch == self.latest >= 0:
            return epoch, log_end_offset
        i = bisect_right(self._epochs, epoch)
        if epoch < 0 or i == len(self._epochs):
            return (-1, -1)
        return self._epochs[i - 1] if i else epoch, self._starts[i]

    def keep_from(self, offset: int) -> bool:
        """The log now starts at `offset`: drop epochs that ended before, let the first one left begin there."""
        i = bisect_right(self._starts, offset)
        if i and (i > 1 or self._starts[0] < offset):
            self._epochs = self._epochs[i - 1 :]
            self._starts = [offset, *self._starts[i:]]
            return True
        return False

    def keep_before(self, offset: int) -> bool:
        """The log now ends at `offset`: drop epochs that began there or behind."""
        keep = sum(start < offset for start in self._starts)
        if keep == len(self._starts):
            return False
        del self._epochs[keep:], self._starts[keep:]
        return True

    def clear(self) -> None:
        self._epochs, self._starts = [], []
