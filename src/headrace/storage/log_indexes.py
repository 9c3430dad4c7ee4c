"""The two sparse indexes of a segment, byte for byte as Kafka writes them.

Offset index: 8 bytes per entry, big-endian (offset - base offset: int32, file position: int32); the offset is the
*last* of the batch that begins at the position. Time index: 12 bytes (largest timestamp so far: int64, offset - base
offset of the batch that brought it: int32). Both grow strictly; an index is a hint and may miss entries, never lie.
Entries are held as arrays, so a lookup is one `bisect` in C. They reach the file many at once, at the latest with the
sync or the end of their segment: what a kill leaves out is added when the segment is scanned. Files are not
preallocated; zeros behind the last entry (Kafka's preallocation) are cut off when read.
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

from headrace.storage.file_system import File, FileSystem

__all__ = ["IndexCorrupt", "OffsetIndex", "TimeIndex"]

_log = logging.getLogger("headrace.storage")
_TIME_ENTRY = struct.Struct(">qi")
_MOST_UNWRITTEN = 64


class IndexCorrupt(Exception):
    """An index file does not hold what an index holds; the segment must be scanned to rebuild it."""


class _IndexFile:
    """The file below an index: opened late, appended to, and allowed to fail, since a scan replaces it."""

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
        """Entries as the file holds them."""
        raise NotImplementedError

    def _open(self) -> File:
        if self._file is None:
            self._file = self._file_system.open(self.path, create=True)
        return self._file

    def write(self) -> None:
        """Entries reach the file here, many at once. What the disk refuses is tried again, or left out in the end."""
        with self._lock:
            count, position = len(self), self._written * self.entry_bytes
            if count <= self._written:
                return
            self._synced = False
            try:
                self._open().write_at(self._bytes(self._written, count), position)
            except OSError as error:
                _log.warning("index entries of %s left out: %s", self.path, error)
                try:
                    self._open().truncate(position)
                except OSError:
                    _log.warning("%s may end in a torn entry; it is rebuilt when next opened", self.path)
                return
            self._written = count

    def _write_when_many(self) -> None:
        if len(self) - self._written >= _MOST_UNWRITTEN:
            self.write()

    def _cut(self, count: int) -> None:
        """The file shall hold no more than so many entries, as memory does already."""
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
        """Raises OSError. Costs nothing when nothing was added since the last time."""
        self.write()
        with self._lock:
            if self._synced:
                return
            file, self._synced = self._file, True  # what is written while it syncs counts for the next time
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
        """Entries that are not written stay in memory only."""
        with self._lock:
            if self._file is not None:
                self._file.close()
                self._file = None

    def remove(self) -> None:
        self.close()
        self._file_system.remove(self.path)


class OffsetIndex(_IndexFile):
    """Offset → file position of the batch that holds it, or of an earlier one."""

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
        return len(self._offsets) >= self._max_entries

    def entries(self) -> list[tuple[int, int]]:
        return [(self._base_offset + o, p) for o, p in zip(self._offsets, self._positions, strict=True)]

    def last(self) -> tuple[int, int] | None:
        return (self._base_offset + self._offsets[-1], self._positions[-1]) if self._offsets else None

    def append(self, offset: int, position: int) -> None:
        """`offset` is the last one of the batch at `position`. Entries that do not grow are left out."""
        relative = offset - self._base_offset
        if self.is_full or (self._offsets and relative <= self._offsets[-1]):
            return
        self._positions.append(position)
        self._offsets.append(relative)  # last: it counts the entries
        self._write_when_many()

    def _bytes(self, start: int, end: int) -> bytes:
        numbers = array("i", bytes(8 * (end - start)))
        numbers[0::2], numbers[1::2] = self._offsets[start:end], self._positions[start:end]
        return _big_endian(numbers)

    def position_for(self, offset: int) -> int:
        """Where to begin looking for `offset`: at or before its batch; 0 when nothing is known."""
        i = bisect_right(self._offsets, offset - self._base_offset)
        return self._positions[i - 1] if i else 0

    def position_before(self, position: int) -> int:
        """The largest indexed batch start at or before the file position; 0 when nothing is known."""
        i = bisect_right(self._positions, position)
        return self._positions[i - 1] if i else 0

    def offset_at(self, position: int) -> int | None:
        """An offset of the first indexed batch at or behind the file position; None when there is none."""
        i = bisect_left(self._positions, position)
        return self._base_offset + self._offsets[i] if i < len(self._offsets) else None

    def truncate_to(self, offset: int) -> None:
        """Drop entries of `offset` and behind."""
        keep = bisect_left(self._offsets, offset - self._base_offset)
        if keep < len(self._offsets):
            del self._offsets[keep:], self._positions[keep:]
            self._cut(keep)

    def load(self, segment_bytes: int) -> None:
        """Read the file. Raises IndexCorrupt when it is missing or cannot be true for a segment of that size."""
        data = self._read()
        numbers = array("i", data)
        if sys.byteorder == "little":
            numbers.byteswap()
        offsets, positions = numbers[0::2], numbers[1::2]
        count = len(offsets)
        while count and not offsets[count - 1] and not positions[count - 1]:
            count -= 1  # Kafka's preallocation, and the one entry it could hide carries no news
        del offsets[count:], positions[count:]
        if any(a >= b for a, b in pairwise(offsets)) or (offsets and offsets[0] < 0):
            raise IndexCorrupt(f"{self.path}: offsets do not grow")
        if any(a >= b for a, b in pairwise(positions)):
            raise IndexCorrupt(f"{self.path}: positions do not grow")
        if positions and (positions[0] < 0 or positions[-1] >= segment_bytes):
            raise IndexCorrupt(f"{self.path} points behind the end of its segment")
        self._offsets, self._positions = offsets, positions
        self._written = len(offsets)

    def reset(self) -> None:
        del self._offsets[:], self._positions[:]
        self._cut(0)


class TimeIndex(_IndexFile):
    """Timestamp → an offset before which nothing is that young."""

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
        # One entry stays free for the last one, written when the segment is closed.
        return len(self._offsets) >= self._max_entries - 1

    def entries(self) -> list[tuple[int, int]]:
        return [(t, self._base_offset + o) for t, o in zip(self._timestamps, self._offsets, strict=True)]

    def last(self) -> tuple[int, int] | None:
        return (self._timestamps[-1], self._base_offset + self._offsets[-1]) if self._offsets else None

    def append(self, timestamp_ms: int, offset: int, *, closing: bool = False) -> None:
        """The largest timestamp so far and the last offset of its batch. An entry with no news is left out."""
        relative = offset - self._base_offset
        if (self.is_full and not closing) or len(self) >= self._max_entries or timestamp_ms < 0:
            return
        if self._offsets and (timestamp_ms <= self._timestamps[-1] or relative < self._offsets[-1]):
            return
        self._timestamps.append(timestamp_ms)
        self._offsets.append(relative)  # last: it counts the entries
        self._write_when_many()

    def _bytes(self, start: int, end: int) -> bytes:
        return b"".join(map(_TIME_ENTRY.pack, self._timestamps[start:end], self._offsets[start:end]))

    def offset_for(self, timestamp_ms: int) -> int:
        """Where to begin looking for the first record with at least this timestamp."""
        i = bisect_right(self._timestamps, timestamp_ms)
        return self._base_offset + (self._offsets[i - 1] if i else 0)

    def truncate_to(self, offset: int) -> None:
        keep = bisect_left(self._offsets, offset - self._base_offset)
        if keep < len(self._offsets):
            del self._offsets[keep:], self._timestamps[keep:]
            self._cut(keep)

    def load(self) -> None:
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
        del self._timestamps[:], self._offsets[:]
        self._cut(0)


def _big_endian(numbers: array[int]) -> bytes:
    if sys.byteorder == "little":
        numbers.byteswap()
    return numbers.tobytes()
