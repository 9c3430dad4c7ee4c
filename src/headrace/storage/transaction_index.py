"""`.txnindex`, one beside each segment: the transactions whose abort marker lies in it, as Kafka writes them.

34 bytes per entry, big-endian: version (int16, 0), producer id, first offset of the transaction, offset of its marker,
last stable offset behind that marker (int64 each). There is a file only where there is an entry. Unlike the other
indexes it is no hint: a reader of committed records leaves out what stands in it. So an entry that the disk has no room
for waits in memory, a flush promises nothing before it is written, and a recovery makes the file anew.
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
    """`last_offset` is the marker's. Nothing that begins behind it lies before `last_stable_offset`."""

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


class TransactionIndex:
    """Mutable. One thread appends, another may write and sync what was appended."""

    def __init__(self, path: Path, file_system: FileSystem) -> None:
        self.path = path
        self._file_system = file_system
        self._entries: list[AbortedTransaction] | None = None
        self._written = 0
        self._is_synced = False
        self._lock = threading.Lock()

    def entries(self) -> list[AbortedTransaction]:
        """In the order of markers. Raises IndexCorrupt, OSError."""
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
        """Raises IndexCorrupt, OSError when what is there cannot be read; what cannot be written waits."""
        self.entries().append(aborted)
        try:
            self.write()
        except OSError as error:
            _log.warning("an entry of %s waits to be written: %s", self.path, error)

    def write(self) -> None:
        """What waits. Raises OSError."""
        with self._lock:
            if self._entries is None or self._written == len(self._entries):
                return
            end = len(self._entries)
            data = b"".join(_ENTRY.pack(_VERSION, *each) for each in self._entries[self._written : end])
            file = self._file_system.open(self.path, create=True)
            try:
                file.write_at(data, self._written * _ENTRY.size)
            finally:
                file.close()
            self._written = end
            self._is_synced = False

    def sync(self) -> None:
        """Raises OSError."""
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
        """Drop the transactions whose marker is `offset` or lies behind. Raises OSError."""
        try:
            kept = [each for each in self.entries() if each.last_offset < offset]
        except IndexCorrupt:
            kept = []  # whoever cuts a log after a crash makes it anew
        self.replace(kept)

    def replace(self, entries: list[AbortedTransaction]) -> None:
        """Raises OSError."""
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
        self._file_system.remove(self.path)
