"""Transaction index of a segment, `.txnindex`, as Kafka writes it: the transactions whose abort marker lies in it.

34 bytes per entry, big-endian: version (int16, 0), producer id, first offset of the transaction, offset of its marker,
last stable offset after that marker (int64 each). The file exists only if there is an entry. Unlike the other indexes
it is not a hint: a read_committed consumer drops the records that it names. So an entry that a full disk refuses waits
in memory, a flush promises nothing before it is written, and a recovery rebuilds the file.
"""

from __future__ import annotations

import logging
import struct
import threading
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from headrace.storage.file_system import FileSystem
from headrace.storage.log_indexes import IndexCorrupt

__all__ = ["AbortedTransaction", "TransactionIndex"]

_log = logging.getLogger("headrace.storage")
_ENTRY = struct.Struct(">hqqqq")
_VERSION = 0


class AbortedTransaction(NamedTuple):
    """One entry.

    Attributes:
        producer_id: Producer of the transaction.
        first_offset: Its first offset.
        last_offset: Offset of its marker.
        last_stable_offset: First offset of the oldest transaction that was still open after the marker, else the offset
            after the marker. Transactions aborted later begin at or after it.
    """

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


class TransactionIndex:
    """The aborted transactions of one segment. Mutable; one thread appends, another may write and sync."""

    def __init__(self, path: Path, file_system: FileSystem) -> None:
        self.path = path
        self._file_system = file_system
        self._entries: list[AbortedTransaction] | None = None
        self._written = 0
        self._is_synced = False
        self._lock = threading.Lock()

    def entries(self) -> list[AbortedTransaction]:
        """Return the entries, in the order of their markers. Raises IndexCorrupt, OSError."""
        if self._entries is None:
            found = self._read()
            self._entries, self._written = found, len(found)
        return self._entries

    def _read(self) -> list[AbortedTransaction]:
        if not self._file_system.exists(self.path):
            return []
        data = self._file_system.read_bytes(self.path)
        if len(data) % _ENTRY.size:
            raise IndexCorrupt(f"{self.path} ends within an entry")
        rows = list(_ENTRY.iter_unpack(data))
        if any(row[0] != _VERSION for row in rows):
            raise IndexCorrupt(f"{self.path} has entries of another version")
        found = [AbortedTransaction._make(row[1:]) for row in rows]
        if any(a.last_offset >= b.last_offset for a, b in pairwise(found)):
            raise IndexCorrupt(f"{self.path}: offsets do not grow")
        return found

    def append(self, aborted: AbortedTransaction) -> None:
        """Add an entry. If it cannot be written, it waits for the next `write`.

        Raises:
            IndexCorrupt, OSError: The existing entries could not be read.
        """
        self.entries().append(aborted)
        try:
            self.write()
        except OSError as error:
            _log.warning("Failed to write an entry of %s; the next flush writes it: %s", self.path, error)

    def write(self) -> None:
        """Write the entries that are not in the file yet. Raises OSError."""
        with self._lock:
            if self._entries is None or self._written == len(self._entries):
                return
            end = len(self._entries)
            # Written at a fixed position and not appended: after a torn write the next attempt overwrites the torn
            # bytes.
            data = b"".join(_ENTRY.pack(_VERSION, *each) for each in self._entries[self._written : end])
            # Aborted transactions are rare, so the file is not kept open: segments would hold a descriptor each.
            file = self._file_system.open(self.path, create=True)
            try:
                file.write_at(data, self._written * _ENTRY.size)
            finally:
                file.close()
            self._written = end
            self._is_synced = False

    def sync(self) -> None:
        """Write and fsync. Raises OSError."""
        self.write()
        with self._lock:
            if self._is_synced:
                return
            if self._file_system.exists(self.path):
                file = self._file_system.open(self.path)
                try:
                    file.sync()
                finally:
                    file.close()
            self._is_synced = True

    def truncate_to(self, offset: int) -> None:
        """Drop the transactions whose marker is at or after `offset`. Raises OSError."""
        try:
            kept = [each for each in self.entries() if each.last_offset < offset]
        except IndexCorrupt:
            kept = []  # a log is cut by a recovery, which rebuilds the index next
        self.replace(kept)

    def replace(self, entries: list[AbortedTransaction]) -> None:
        """Replace all entries. Raises OSError."""
        with self._lock:
            self._entries, self._written, self._is_synced = list(entries), 0, False
            if self._file_system.exists(self.path):
                file = self._file_system.open(self.path)
                try:
                    file.truncate(0)
                finally:
                    file.close()
        self.write()

    def remove(self) -> None:
        """Remove the file. Raises OSError."""
        self._file_system.remove(self.path)
