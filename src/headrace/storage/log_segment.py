"""One segment of a log: `<base offset>.log` with its indexes. Knows nothing of producers and epochs.

Rules: batches are appended whole, with one write, and only what was written is indexed; an append that fails leaves
size and indexes as they were. The offset index gets an entry for the first batch behind every `index.interval.bytes`
of log, the time index with it, as Kafka does it. Files are opened when first needed. One thread appends; others may
read and sync.
"""

from __future__ import annotations

import errno
import logging
from collections.abc import Iterator, Sequence
from pathlib import Path

from headrace.protocol.record_batches import HEADER_BYTES, BatchHeader
from headrace.storage.batch_scan import Span, TornLog, parse_header, walk
from headrace.storage.batch_scan import scan as scan_batches
from headrace.storage.cleanup_policy import SegmentFacts
from headrace.storage.file_span import FileSpan
from headrace.storage.file_system import Buffer, File, FileSystem
from headrace.storage.log_config import LogConfig
from headrace.storage.log_indexes import IndexCorrupt, OffsetIndex, TimeIndex
from headrace.storage.transaction_index import TransactionIndex

__all__ = ["FULL_ERRNOS", "LogSegment", "segment_name"]

_log = logging.getLogger("headrace.storage")
FULL_ERRNOS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_MAX_RELATIVE_OFFSET = 2**31 - 1


def segment_name(base_offset: int) -> str:
    return f"{base_offset:020d}"


class LogSegment:
    """Mutable: the active segment grows; `size_bytes` is what counts, bytes behind it in the file are debris."""

    def __init__(
        self, directory: Path, base_offset: int, config: LogConfig, file_system: FileSystem, *, suffix: str = ""
    ) -> None:
        name = segment_name(base_offset)
        self.base_offset = base_offset
        self.path = directory / f"{name}.log{suffix}"
        self.size_bytes = 0
        self.max_timestamp_ms = -1
        self._offset_of_max_timestamp = base_offset
        self._first_timestamp_ms: int | None = None
        self._config = config
        self._file_system = file_system
        self._file: File | None = None
        self._bytes_since_index_entry = 0
        self._indexes_loaded = False
        self._removed = False
        self.offset_index = OffsetIndex(
            directory / f"{name}.index{suffix}", base_offset, config.segment_index_bytes, file_system
        )
        self.time_index = TimeIndex(
            directory / f"{name}.timeindex{suffix}", base_offset, config.segment_index_bytes, file_system
        )
        self.transaction_index = TransactionIndex(directory / f"{name}.txnindex{suffix}", file_system)

    # -- opening ---------------------------------------------------------------------------------------------

    @classmethod
    def create(
        cls, directory: Path, base_offset: int, config: LogConfig, file_system: FileSystem, *, suffix: str = ""
    ) -> LogSegment:
        """A new, empty segment with its three files; none stays open, so that idle partitions cost no descriptors.

        `suffix` is added to their names: one that is not part of the log yet.
        """
        segment = cls(directory, base_offset, config, file_system, suffix=suffix)
        segment._file = file_system.open(segment.path, create=True)
        segment._file.truncate(0)
        segment.offset_index.reset()
        segment.time_index.reset()
        segment.transaction_index.remove()
        segment._indexes_loaded = True
        segment.close()
        return segment

    @classmethod
    def existing(cls, directory: Path, base_offset: int, config: LogConfig, file_system: FileSystem) -> LogSegment:
        """A segment that lies there; nothing is read until it is needed."""
        segment = cls(directory, base_offset, config, file_system)
        segment.size_bytes = file_system.size(segment.path)
        return segment

    @property
    def file(self) -> File:
        if self._file is None:
            self._file = self._file_system.open(self.path)
        return self._file

    def load_indexes(self) -> None:
        """Read the index files; scan the segment instead when they are missing or wrong."""
        if self._indexes_loaded:
            return
        try:
            self.offset_index.load(self.size_bytes)
            self.time_index.load()
        except IndexCorrupt as corrupt:
            _log.warning("rebuilding the indexes of %s: %s", self.path, corrupt)
            try:
                for _ in self.rebuild():
                    pass
            except TornLog as torn:
                _log.error("%s is damaged: %s; what lies behind is not indexed", self.path, torn)
            return
        self._indexes_loaded = True
        if (last := self.time_index.last()) is not None:
            self.max_timestamp_ms, self._offset_of_max_timestamp = last
        if (
            self.size_bytes
        ):  # the last entry may be missing: a disk that was full when the segment ended did not take it
            self._take_timestamps_behind(self.offset_index.position_for(self._offset_of_max_timestamp))

    def _take_timestamps_behind(self, position: int) -> None:
        for span in walk(self.file, position, self.size_bytes):
            header = self.header_at(span)
            if header.max_timestamp > self.max_timestamp_ms:
                self.max_timestamp_ms, self._offset_of_max_timestamp = header.max_timestamp, header.last_offset

    def rebuild(self) -> Iterator[BatchHeader]:
        """Scan the whole segment and build its indexes anew, yielding each sound batch's header.

        Raises TornLog (of batch_scan) where sound batches end, with the indexes holding all before; `cut` comes next.
        """
        self.offset_index.reset()
        self.time_index.reset()
        self._indexes_loaded = True
        self.max_timestamp_ms, self._offset_of_max_timestamp = -1, self.base_offset
        self._bytes_since_index_entry = 0
        self._first_timestamp_ms = None
        for header in scan_batches(self.file, 0, self.size_bytes, base_offset=self.base_offset):
            self._index(header.position, header.size_bytes, header.last_offset, header.max_timestamp)
            yield header
        self.close_time_index()

    # -- writing ---------------------------------------------------------------------------------------------

    def append(self, data: Buffer, headers: Sequence[BatchHeader]) -> None:
        """Write batches behind the last one. `headers` carry final offsets, and positions within `data`.

        Raises OSError; the file is then cut back to what it was (if even that fails, `errno` is EIO).
        """
        position = self._write(data)
        for header in headers:
            self._index(position + header.position, header.size_bytes, header.last_offset, header.max_timestamp)

    def append_one(self, data: Buffer, last_offset: int, max_timestamp: int) -> None:
        """`append` for one batch."""
        position = self._write(data)
        self._index(position, self.size_bytes - position, last_offset, max_timestamp)

    def _write(self, data: Buffer) -> int:
        """Where it begins."""
        if not self._indexes_loaded:
            self.load_indexes()  # entries are added behind those that are there
        position = self.size_bytes
        try:
            (self._file or self.file).write_at(data, position)
        except OSError as error:
            self._take_back(position, error)
            raise
        self.size_bytes = position + len(data)
        return position

    def _take_back(self, size: int, cause: OSError) -> None:
        try:
            self.file.truncate(size)
        except OSError as error:
            raise OSError(errno.EIO, f"a part of an append could not be taken back: {error}", str(self.path)) from cause

    def _index(self, position: int, size: int, last_offset: int, max_timestamp: int) -> None:
        """A batch that was written."""
        if position == 0 and self._first_timestamp_ms is None:
            self._first_timestamp_ms = max_timestamp
        if max_timestamp > self.max_timestamp_ms:
            self.max_timestamp_ms = max_timestamp
            self._offset_of_max_timestamp = last_offset
        if self._bytes_since_index_entry > self._config.index_interval_bytes:
            self.offset_index.append(last_offset, position)
            self.time_index.append(self.max_timestamp_ms, self._offset_of_max_timestamp)
            self._bytes_since_index_entry = 0
        self._bytes_since_index_entry += size

    def should_roll(self, config: LogConfig, incoming_bytes: int, max_timestamp_ms: int, last_offset: int) -> bool:
        """Kafka's five reasons: size, age (by record time), either index full, an offset too far from the base.

        `config` is the log's of now: it may have been altered since the segment was begun.
        """
        if self.size_bytes == 0:
            return False
        first = self._first_timestamp_ms
        if first is None:
            first = self.first_timestamp_ms()
        return (
            self.size_bytes > config.segment_bytes - incoming_bytes
            or (first >= 0 and max_timestamp_ms - first > config.roll_ms)
            or self.offset_index.is_full
            or self.time_index.is_full
            or last_offset - self.base_offset > _MAX_RELATIVE_OFFSET
        )

    def first_timestamp_ms(self) -> int:
        """The largest timestamp of the first batch; -1 while there is none."""
        if self._first_timestamp_ms is None and self.size_bytes >= HEADER_BYTES:
            header = parse_header(self.file.read_at(HEADER_BYTES, 0), 0, 0)
            self._first_timestamp_ms = header.max_timestamp
        return -1 if self._first_timestamp_ms is None else self._first_timestamp_ms

    def facts(self, end_offset: int, *, with_first_timestamp: bool = False) -> SegmentFacts:
        """For decisions about it; `end_offset` is where the next segment begins. The first timestamp costs a read."""
        self.load_indexes()
        return SegmentFacts(
            base_offset=self.base_offset,
            end_offset=end_offset,
            size_bytes=self.size_bytes,
            max_timestamp_ms=self.max_timestamp_ms,
            first_timestamp_ms=self.first_timestamp_ms() if with_first_timestamp else -1,
        )

    def close_time_index(self) -> None:
        """The last entry, written when nothing more will be appended: the segment's largest timestamp."""
        if self._indexes_loaded and self.max_timestamp_ms >= 0:
            self.time_index.append(self.max_timestamp_ms, self._offset_of_max_timestamp, closing=True)
        self.offset_index.write()
        self.time_index.write()

    def cut(self, position: int, offset: int) -> None:
        """Drop everything from the file position on, where `offset` would begin."""
        self.load_indexes()
        self.file.truncate(position)
        self.size_bytes = position
        self.offset_index.truncate_to(offset)
        self.time_index.truncate_to(offset)
        self.transaction_index.truncate_to(offset)
        self._bytes_since_index_entry = 0
        if position == 0:
            self._first_timestamp_ms = None
        last = self.time_index.last()
        self.max_timestamp_ms, self._offset_of_max_timestamp = last or (-1, self.base_offset)
        self._take_timestamps_behind(self.offset_index.position_for(self._offset_of_max_timestamp))

    # -- finding ---------------------------------------------------------------------------------------------

    def find(self, offset: int) -> Span | None:
        """The batch that holds `offset`, or the next one where compaction left a gap; None behind the end."""
        self.load_indexes()
        for span in walk(self.file, self.offset_index.position_for(offset), self.size_bytes):
            if span.last_offset >= offset:
                return span
        return None

    def spans_from(self, offset: int) -> Iterator[Span]:
        """The batch that holds `offset` and all behind it."""
        span = self.find(offset)
        return iter(()) if span is None else walk(self.file, span.position, self.size_bytes)

    def find_timestamp(self, timestamp_ms: int) -> Iterator[Span]:
        """Batches, in order, from one before which no record is as young as `timestamp_ms`."""
        self.load_indexes()
        position = self.offset_index.position_for(self.time_index.offset_for(timestamp_ms))
        return walk(self.file, position, self.size_bytes)

    def whole_batches_until(self, start: int, limit: int) -> int:
        """The largest batch end in (start, limit], else `start`: what a read of limited size may return."""
        if limit >= self.size_bytes:
            return self.size_bytes
        end = max(start, self.offset_index.position_before(limit))  # an entry is the start of a batch: whole before it
        for span in walk(self.file, end, limit):
            end = span.end
        return end

    def next_offset(self) -> int:
        """The offset behind the last batch, by index and walk."""
        self.load_indexes()
        last = self.offset_index.last()
        offset = self.base_offset if last is None else last[0] + 1
        for span in walk(self.file, 0 if last is None else last[1], self.size_bytes):
            offset = span.last_offset + 1
        return offset

    def header_at(self, span: Span) -> BatchHeader:
        return parse_header(self.file.read_at(HEADER_BYTES, span.position), 0, span.position)

    def read(self, start: int, end: int) -> bytes:
        return self.file.read_at(end - start, start)

    def span(self, start: int, end: int) -> FileSpan | bytes:
        return self.file.span(end - start, start)

    # -- ending ----------------------------------------------------------------------------------------------

    def sync(self, *, with_indexes: bool = True) -> None:
        """Make log and indexes survive a power loss. Raises OSError. A segment removed meanwhile needs it no more.

        The two that a recovery builds anew may be left out.
        """
        if self._removed:
            return
        try:
            self.file.sync()
            self.transaction_index.sync()
            if with_indexes and self._indexes_loaded:
                self.offset_index.sync()
                self.time_index.sync()
        except FileNotFoundError:
            if not self._removed:
                raise

    def close_indexes(self) -> None:
        """Give back the index files' descriptors; lookups go on from memory."""
        self.offset_index.close()
        self.time_index.close()

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None
        self.offset_index.close()
        self.time_index.close()

    def step_aside(self) -> None:
        """Another segment takes its place on the disk: it is no longer read or synced."""
        self._removed = True
        self.close()

    def remove(self) -> None:
        """The log first: indexes without a log are debris that the next opening clears away."""
        self._removed = True
        self.close()
        self._file_system.remove(self.path)
        self.offset_index.remove()
        self.time_index.remove()
        self.transaction_index.remove()
