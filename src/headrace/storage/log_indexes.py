"""Offset, time and transaction index of a segment, byte for byte as Kafka writes them.

Offset index, 8 bytes per entry, big-endian: offset - base offset (int32), file position (int32). The offset is the
*last* one of the batch that begins at the position. Time index, 12 bytes per entry: largest timestamp so far (int64),
offset - base offset of the batch that brought it (int32). Both grow strictly. An index is a hint: it may lack entries,
but those it has are right.

Entries are held in arrays, so that a lookup is one `bisect` in C. They are written to the file many at a time, at the
latest when the segment is synced or closed; what a kill loses is added again when the segment is scanned. Files are not
preallocated, but zeros after the last entry, which Kafka's preallocation leaves, are dropped when a file is read.

Transaction index, 34 bytes per entry: version (int16, 0), producer id, first offset of the transaction, offset of its
abort marker, last stable offset after that marker (int64 each). The file exists only if there is an entry. Unlike the
other two it is not a hint: a read_committed consumer drops the records that it names. So an entry that a full disk
refuses waits in memory, a flush promises nothing before it is written, and a recovery rebuilds the file.
"""

from __future__ import annotations

import logging
import struct
import sys
import threading
from array import array
from bisect import bisect_left, bisect_right
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from headrace.storage.file_system import File, FileSystem

__all__ = ["AbortedTransaction", "IndexCorrupt", "OffsetIndex", "TimeIndex", "TransactionIndex"]

_log = logging.getLogger("headrace.storage")
_TIME_ENTRY = struct.Struct(">qi")
_MAX_UNWRITTEN = 64
"""Entries per write: an append is then one system call, not three."""


class IndexCorrupt(Exception):
    """The contents of an index file are impossible; the segment must be scanned to rebuild it."""


class _IndexFile:
    """The file of an index. Failed writes are only logged, since a scan can rebuild it."""

    entry_bytes: int

    def __init__(self, path: Path, file_system: FileSystem) -> None:
        self.path = path
        self._file_system = file_system
        self._file: File | None = None
        self._written = 0  # entries that the file holds
        self._synced = False
        self._lock = threading.Lock()  # one thread appends, another may write and sync

    def __len__(self) -> int:
        raise NotImplementedError

    def _bytes(self, start: int, end: int) -> bytes:
        """Return entries in the format of the file."""
        raise NotImplementedError

    def _open(self) -> File:
        if self._file is None:
            self._file = self._file_system.open(self.path, create=True)
        return self._file

    def write(self) -> None:
        """Write the entries that are not in the file yet. If the disk refuses, the next call tries again."""
        with self._lock:
            # 1. Entries are counted once: a thread that appends may add more meanwhile, and they count for the next
            #    write.
            count, position = len(self), self._written * self.entry_bytes
            if count <= self._written:
                return
            self._synced = False
            try:
                self._open().write_at(self._bytes(self._written, count), position)
            except OSError as error:
                _log.warning("Failed to write index entries of %s; the next write tries again: %s", self.path, error)
                # 2. A partial write would leave an entry that is shorter than the others; cut the file back to whole
                #    entries. The append itself succeeded and stays, since an index can be rebuilt from its segment.
                try:
                    self._open().truncate(position)
                except OSError:
                    _log.warning("%s may end in a torn entry; the next opening rebuilds it", self.path)
                return
            self._written = count

    def _write_if_many(self) -> None:
        if len(self) - self._written >= _MAX_UNWRITTEN:
            self.write()

    def _cut(self, count: int) -> None:
        """Truncate the file to so many entries, as memory already is. Raises OSError."""
        with self._lock:
            self._written = min(self._written, count)
            self._synced = False
            self._open().truncate(self._written * self.entry_bytes)

    def _read(self) -> bytes:
        if self._file is None and not self._file_system.exists(self.path):
            raise IndexCorrupt(f"{self.path} is missing")
        data = self._file_system.read_bytes(self.path)
        if len(data) % self.entry_bytes:
            raise IndexCorrupt(f"{self.path} ends within an entry")
        return data

    def sync(self) -> None:
        """Write and fsync; nothing is done if no entry was added since the last time. Raises OSError."""
        self.write()
        with self._lock:
            if self._synced:
                return
            file, self._synced = self._file, True  # entries written during the sync count for the next one
        try:
            if file is not None:
                file.sync()
            else:
                file = self._file_system.open(self.path)
                file.sync()
                file.close()
        except OSError:
            self._synced = False
            raise

    def close(self) -> None:
        """Close the file. Entries that were not written stay in memory."""
        with self._lock:
            if self._file is not None:
                self._file.close()
                self._file = None

    def remove(self) -> None:
        """Close and remove the file. Raises OSError."""
        self.close()
        self._file_system.remove(self.path)


class OffsetIndex(_IndexFile):
    """Offset → file position of its batch, or of an earlier batch. Mutable."""

    entry_bytes = 8

    def __init__(self, path: Path, base_offset: int, max_bytes: int, file_system: FileSystem) -> None:
        super().__init__(path, file_system)
        self._base_offset = base_offset
        self._max_entries = max_bytes // self.entry_bytes
        self._offsets = array("i")
        self._positions = array("i")

    def __len__(self) -> int:
        return len(self._offsets)

    @property
    def is_full(self) -> bool:
        """Whether `segment.index.bytes` is used up; the segment is rolled then."""
        return len(self._offsets) >= self._max_entries

    def entries(self) -> list[tuple[int, int]]:
        """Return (offset, position) of each entry."""
        return [(self._base_offset + o, p) for o, p in zip(self._offsets, self._positions, strict=True)]

    def last(self) -> tuple[int, int] | None:
        """Return the last entry; None if there is none."""
        return (self._base_offset + self._offsets[-1], self._positions[-1]) if self._offsets else None

    def append(self, offset: int, position: int) -> None:
        """Add an entry: `offset` is the last one of the batch at `position`. One that does not grow is ignored."""
        relative = offset - self._base_offset
        # A full index is no error: `should_roll` begins a new segment with the next append. Kafka throws here, since
        # its mapped file has no room.
        if self.is_full or (self._offsets and relative <= self._offsets[-1]):
            return
        # Both arrays are read by a thread that writes entries to the file.
        self._positions.append(position)
        self._offsets.append(relative)  # last, since its length is the number of entries for a thread that writes
        self._write_if_many()

    def _bytes(self, start: int, end: int) -> bytes:
        numbers = array("i", bytes(8 * (end - start)))
        numbers[0::2], numbers[1::2] = self._offsets[start:end], self._positions[start:end]
        return _big_endian(numbers)

    def position_for(self, offset: int) -> int:
        """Return a position at or before the batch of `offset`; 0 if no entry helps."""
        # The index is sparse (`index.interval.bytes`): take the last entry at or before the offset; the caller scans on
        # from there.
        i = bisect_right(self._offsets, offset - self._base_offset)
        return self._positions[i - 1] if i else 0

    def position_before(self, position: int) -> int:
        """Return the last indexed start of a batch at or before a file position; 0 if there is none."""
        i = bisect_right(self._positions, position)
        return self._positions[i - 1] if i else 0

    def offset_at(self, position: int) -> int | None:
        """Return an offset of the first indexed batch at or after a file position; None if there is none."""
        i = bisect_left(self._positions, position)
        return self._base_offset + self._offsets[i] if i < len(self._offsets) else None

    def truncate_to(self, offset: int) -> None:
        """Drop the entries of `offset` and later offsets. Raises OSError."""
        keep = bisect_left(self._offsets, offset - self._base_offset)
        if keep < len(self._offsets):
            del self._offsets[keep:], self._positions[keep:]
            self._cut(keep)

    def load(self, segment_bytes: int) -> None:
        """Replace the entries by those of the file.

        Raises:
            IndexCorrupt: The file is missing, or its entries are impossible for a segment of this size.
            OSError: The file could not be read.
        """
        data = self._read()
        numbers = array("i", data)
        if sys.byteorder == "little":
            numbers.byteswap()
        offsets, positions = numbers[0::2], numbers[1::2]
        # Zeros at the end are dropped, not refused: Kafka truncates its preallocated files only when it stops cleanly.
        count = len(offsets)
        while count and not offsets[count - 1] and not positions[count - 1]:
            count -= 1  # Kafka's preallocation; a real entry (base offset, position 0) adds nothing to the default
        del offsets[count:], positions[count:]
        # Strict growth is what `bisect` relies on. The file has no checksum, in Kafka neither.
        if any(a >= b for a, b in pairwise(offsets)) or (offsets and offsets[0] < 0):
            raise IndexCorrupt(f"{self.path}: offsets do not grow")
        if any(a >= b for a, b in pairwise(positions)):
            raise IndexCorrupt(f"{self.path}: positions do not grow")
        if positions and (positions[0] < 0 or positions[-1] >= segment_bytes):
            raise IndexCorrupt(f"{self.path} points after the end of its segment")
        self._offsets, self._positions = offsets, positions
        self._written = len(offsets)

    def reset(self) -> None:
        """Drop all entries. Raises OSError."""
        del self._offsets[:], self._positions[:]
        self._cut(0)


class TimeIndex(_IndexFile):
    """Timestamp → an offset before which no record has this timestamp or a later one. Mutable."""

    entry_bytes = _TIME_ENTRY.size

    def __init__(self, path: Path, base_offset: int, max_bytes: int, file_system: FileSystem) -> None:
        super().__init__(path, file_system)
        self._base_offset = base_offset
        self._max_entries = max_bytes // self.entry_bytes
        self._timestamps = array("q")
        self._offsets = array("i")

    def __len__(self) -> int:
        return len(self._offsets)

    @property
    def is_full(self) -> bool:
        """Whether only the entry is left that is reserved for `close_time_index`."""
        return len(self._offsets) >= self._max_entries - 1

    def entries(self) -> list[tuple[int, int]]:
        """Return (timestamp, offset) of each entry."""
        return [(t, self._base_offset + o) for t, o in zip(self._timestamps, self._offsets, strict=True)]

    def last(self) -> tuple[int, int] | None:
        """Return the last entry, which has the largest timestamp; None if there is none."""
        return (self._timestamps[-1], self._base_offset + self._offsets[-1]) if self._offsets else None

    def append(self, timestamp_ms: int, offset: int, *, closing: bool = False) -> None:
        """Add an entry: the largest timestamp so far, and the last offset of its batch.

        Ignored if the timestamp is not larger than the last one, or if the index is full; `closing` uses the reserved
        entry.
        """
        relative = offset - self._base_offset
        if (self.is_full and not closing) or len(self) >= self._max_entries or timestamp_ms < 0:
            return
        # Records may arrive out of order: the index holds the largest timestamp so far, so that everything after an
        # entry's offset is searched and nothing before it has to be.
        if self._offsets and (timestamp_ms <= self._timestamps[-1] or relative < self._offsets[-1]):
            return
        self._timestamps.append(timestamp_ms)
        self._offsets.append(relative)  # last, since its length is the number of entries for a thread that writes
        self._write_if_many()

    def _bytes(self, start: int, end: int) -> bytes:
        return b"".join(map(_TIME_ENTRY.pack, self._timestamps[start:end], self._offsets[start:end]))

    def offset_for(self, timestamp_ms: int) -> int:
        """Return an offset at or before the first record with at least this timestamp."""
        # An entry with exactly this timestamp: its offset is that of the batch that brought it, and earlier records are
        # older.
        i = bisect_right(self._timestamps, timestamp_ms)
        return self._base_offset + (self._offsets[i - 1] if i else 0)

    def truncate_to(self, offset: int) -> None:
        """Drop the entries of `offset` and later offsets. Raises OSError."""
        keep = bisect_left(self._offsets, offset - self._base_offset)
        if keep < len(self._offsets):
            del self._offsets[keep:], self._timestamps[keep:]
            self._cut(keep)

    def load(self) -> None:
        """Replace the entries by those of the file. Raises IndexCorrupt, OSError."""
        data = self._read()
        entries = list(_TIME_ENTRY.iter_unpack(data))
        while entries and entries[-1] == (0, 0):
            entries.pop()
        if any(a[0] >= b[0] or a[1] > b[1] for a, b in pairwise(entries)):
            raise IndexCorrupt(f"{self.path}: entries do not grow")
        if entries and (entries[0][0] < 0 or entries[0][1] < 0):
            raise IndexCorrupt(f"{self.path} begins before its segment")
        self._timestamps = array("q", [entry[0] for entry in entries])
        self._offsets = array("i", [entry[1] for entry in entries])
        self._written = len(entries)

    def reset(self) -> None:
        """Drop all entries. Raises OSError."""
        del self._timestamps[:], self._offsets[:]
        self._cut(0)


def _big_endian(numbers: array[int]) -> bytes:
    if sys.byteorder == "little":
        numbers.byteswap()
    return numbers.tobytes()


_TRANSACTION_ENTRY = struct.Struct(">hqqqq")
_TRANSACTION_VERSION = 0


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
        if len(data) % _TRANSACTION_ENTRY.size:
            raise IndexCorrupt(f"{self.path} ends within an entry")
        rows = list(_TRANSACTION_ENTRY.iter_unpack(data))
        if any(row[0] != _TRANSACTION_VERSION for row in rows):
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
            data = b"".join(
                _TRANSACTION_ENTRY.pack(_TRANSACTION_VERSION, *each) for each in self._entries[self._written : end]
            )
            # Aborted transactions are rare, so the file is not kept open: segments would hold a descriptor each.
            file = self._file_system.open(self.path, create=True)
            try:
                file.write_at(data, self._written * _TRANSACTION_ENTRY.size)
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
