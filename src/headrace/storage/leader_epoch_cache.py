"""Leader epochs of one log (Kafka's `LeaderEpochFileCache`): which epoch wrote which offsets.

Kept in `leader-epoch-checkpoint`, in Kafka's format. The broker uses it to answer OffsetForLeaderEpoch (KIP-101), by
which a client notices that records it has read were lost in a power loss.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from pathlib import Path

from headrace.storage.checkpoint_files import CheckpointCorrupt, read_checkpoint, write_checkpoint
from headrace.storage.file_system import FileSystem

__all__ = ["LeaderEpochCache"]

LEADER_EPOCH_CHECKPOINT = "leader-epoch-checkpoint"


class LeaderEpochCache:
    """Entries (epoch, first offset), both ascending. Mutable, owned by its PartitionLog.

    The file is rewritten when an epoch begins or when the ends of the log move, and it is synced before a flush
    acknowledges records of an epoch. The sync may happen in another thread than the changes, so the entries are an
    immutable pair of tuples that is replaced as a whole.

    Args:
        directory: Directory of the partition.
        file_system: File system of the directory.

    Attributes:
        latest: The newest epoch; -1 for an empty log. Every append compares its epoch with it.
    """

    def __init__(self, directory: Path, file_system: FileSystem) -> None:
        self._path = directory / LEADER_EPOCH_CHECKPOINT
        self._file_system = file_system
        self.latest = -1
        self._table: tuple[tuple[int, ...], tuple[int, ...]] = ((), ())
        # The tables that were last written and last synced, compared by identity.
        self._saved: object = None
        self._durable: object = self._table  # an empty log needs no file
        self._write_lock = threading.Lock()

    def entries(self) -> list[tuple[int, int]]:
        """Return (epoch, first offset) of each epoch, the oldest first."""
        return list(zip(*self._table, strict=True))

    def _set(self, epochs: tuple[int, ...], starts: tuple[int, ...]) -> None:
        self._table = (epochs, starts)
        self.latest = epochs[-1] if epochs else -1

    def load(self) -> None:
        """Replace the entries by those of the file. Raises CheckpointCorrupt, OSError."""
        try:
            rows = [
                (int(epoch), int(start)) for epoch, start in read_checkpoint(self._file_system, self._path, fields=2)
            ]
        except ValueError:
            raise CheckpointCorrupt(f"{self._path} holds a field that is not a number") from None
        self._set(tuple(epoch for epoch, _ in rows), tuple(start for _, start in rows))

    def assign(self, epoch: int, start_offset: int) -> bool:
        """Record that `epoch` writes from `start_offset` on; return whether the epoch is new. `save` persists it."""
        if epoch <= self.latest:
            return False
        epochs, starts = self._table
        self._set((*epochs, epoch), (*starts, start_offset))
        return True

    def undo_assign(self) -> None:
        """Remove the latest entry, after an `assign` that could not be saved."""
        epochs, starts = self._table
        self._set(epochs[:-1], starts[:-1])

    def save(self) -> None:
        """Write the file, without a sync. Raises OSError."""
        with self._write_lock:
            table = self._table
            write_checkpoint(self._file_system, self._path, zip(*table, strict=True))
            self._saved, self._durable = table, None

    def flush(self) -> None:
        """Make the saved entries survive a power loss. May be called from another thread. Raises OSError."""
        # 1. Nothing to do: this very table was synced, or the log is empty and nothing was saved since.
        if self._durable is self._table or (not self._table[0] and self._durable is not None):
            return
        with self._write_lock:
            table = self._table
            if self._saved is table:
                # 2. The file on disk is current. Sync it in place instead of writing it again: a full disk must not
                #    be able to refuse a flush.
                file = self._file_system.open(self._path)
                try:
                    file.sync()
                finally:
                    file.close()
                self._file_system.sync_directory(self._path.parent)
            else:
                # 3. The table changed without a save, for example because that save failed.
                write_checkpoint(self._file_system, self._path, zip(*table, strict=True), sync=True)
            self._saved = self._durable = table

    def epoch_for(self, offset: int) -> int:
        """Return the epoch that wrote `offset`; -1 if unknown."""
        epochs, starts = self._table
        i = bisect_right(starts, offset)
        return epochs[i - 1] if i else -1

    def end_offset_for(self, epoch: int, log_end_offset: int) -> tuple[int, int]:
        """Return (the largest epoch at most `epoch`, its end offset), for OffsetForLeaderEpoch.

        As in Kafka, an epoch newer than all that wrote is unknown, (-1, -1), and one older than all that are kept ends
        where those begin.
        """
        epochs, starts = self._table
        if epoch == self.latest >= 0:
            return epoch, log_end_offset
        i = bisect_right(epochs, epoch)
        if epoch < 0 or i == len(epochs):
            return (-1, -1)
        return epochs[i - 1] if i else epoch, starts[i]

    def truncate_from_start(self, offset: int) -> bool:
        """Drop the epochs that ended before the new log start `offset`; the first one left begins there.

        Returns:
            Whether an entry changed.
        """
        epochs, starts = self._table
        i = bisect_right(starts, offset)
        if i and (i > 1 or starts[0] < offset):
            self._set(epochs[i - 1 :], (offset, *starts[i:]))
            return True
        return False

    def truncate_from_end(self, offset: int) -> bool:
        """Drop the epochs that began at or after the new log end `offset`; return whether an entry changed."""
        epochs, starts = self._table
        keep = sum(start < offset for start in starts)
        if keep == len(starts):
            return False
        self._set(epochs[:keep], starts[:keep])
        return True

    def clear(self) -> None:
        """Drop all entries."""
        self._set((), ())
