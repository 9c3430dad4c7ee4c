"""One segment of a log: `<base offset>.log` with its indexes (Kafka's `LogSegment`).

Batches are appended whole, with one write, and only what was written is indexed; a failed append leaves size and
indexes as they were. As in Kafka, the offset index and the time index get an entry for the first batch after every
`index.interval.bytes` of log. Files are opened when first needed. One thread appends; others may read and sync.
Producers and leader epochs are not known here.
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
from headrace.storage.file_system import Buffer, File, FileSpan, FileSystem
from headrace.storage.log_config import LogConfig
from headrace.storage.log_indexes import IndexCorrupt, OffsetIndex, TimeIndex, TransactionIndex

__all__ = ["LogSegment", "segment_name"]

_log = logging.getLogger("headrace.storage")
# Index entries hold offsets relative to the base offset as int32.
_MAX_RELATIVE_OFFSET = 2**31 - 1


def segment_name(base_offset: int) -> str:
    """Return the stem of a segment's files: its base offset in 20 digits."""
    return f"{base_offset:020d}"


class LogSegment:
    """One segment. Mutable: the active segment grows.

    Attributes:
        base_offset: First offset of the segment.
        path: Its `.log` file.
        size_bytes: Size of its batches. Bytes after them in the file are left over from a failed append.
        max_timestamp_ms: Largest record timestamp, -1 if there is none; known once the indexes are loaded.
    """

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
        self._is_index_full = False
        self._check_indexes()

    # -- opening ---------------------------------------------------------------------------------------------

    @classmethod
    def create(
        cls, directory: Path, base_offset: int, config: LogConfig, file_system: FileSystem, *, suffix: str = ""
    ) -> LogSegment:
        """Create the files of a new, empty segment. None stays open, so that idle partitions cost no descriptors.

        Args:
            directory: Directory of the partition.
            base_offset: First offset of the segment.
            config: Settings of the topic.
            file_system: File system of the directory.
            suffix: Appended to the file names, for a segment that is not part of the log yet.

        Raises:
            OSError: A file could not be created.
        """
        segment = cls(directory, base_offset, config, file_system, suffix=suffix)
        # Truncated, because a file of this name may be left over from a crash between its creation and the first write.
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
        """Return the segment of existing files; nothing is read until it is needed. Raises OSError."""
        segment = cls(directory, base_offset, config, file_system)
        segment.size_bytes = file_system.size(segment.path)
        return segment

    @property
    def file(self) -> File:
        """The `.log` file, opened on first use."""
        if self._file is None:
            self._file = self._file_system.open(self.path)
        return self._file

    def load_indexes(self) -> None:
        """Read the index files; if they are missing or wrong, scan the segment instead. Raises OSError."""
        if self._indexes_loaded:
            return
        try:
            self.offset_index.load(self.size_bytes)
            self.time_index.load()
        except IndexCorrupt as corrupt:
            _log.warning("Rebuilding the indexes of %s: %s", self.path, corrupt)
            try:
                for _ in self.rebuild():
                    pass
            except TornLog as torn:
                _log.error("%s is damaged: %s; later batches are not indexed", self.path, torn)
            return
        self._indexes_loaded = True
        self._check_indexes()
        if (last := self.time_index.last()) is not None:
            self.max_timestamp_ms, self._offset_of_max_timestamp = last
        # The last entry may be missing if the disk was full when the segment was closed.
        if self.size_bytes:
            self._update_timestamps_from(self.offset_index.position_for(self._offset_of_max_timestamp))

    def _update_timestamps_from(self, position: int) -> None:
        for span in walk(self.file, position, self.size_bytes):
            header = self.header_at(span)
            if header.max_timestamp > self.max_timestamp_ms:
                self.max_timestamp_ms, self._offset_of_max_timestamp = header.max_timestamp, header.last_offset

    def rebuild(self) -> Iterator[BatchHeader]:
        """Scan the whole segment, rebuild its indexes and yield the header of each sound batch.

        Raises:
            TornLog: Where sound batches end. The indexes hold everything before; the caller calls `cut` next.
            OSError: The file could not be read.
        """
        self.offset_index.reset()
        self.time_index.reset()
        self._indexes_loaded = True
        self.max_timestamp_ms, self._offset_of_max_timestamp = -1, self.base_offset
        self._bytes_since_index_entry = 0
        self._first_timestamp_ms = None
        self._check_indexes()
        for header in scan_batches(self.file, 0, self.size_bytes, base_offset=self.base_offset):
            self._index(header.position, header.size_bytes, header.last_offset, header.max_timestamp)
            yield header
        self.close_time_index()

    # -- writing ---------------------------------------------------------------------------------------------

    def append(self, data: Buffer, headers: Sequence[BatchHeader]) -> None:
        """Write batches after the last one.

        Args:
            data: Whole batches.
            headers: Their headers, with final offsets, and positions within `data`.

        Raises:
            OSError: The write failed. The file was truncated to its former size; if that failed too, `errno` is EIO.
        """
        position = self._write(data)
        for header in headers:
            self._index(position + header.position, header.size_bytes, header.last_offset, header.max_timestamp)

    def append_one(self, data: Buffer, last_offset: int, max_timestamp: int) -> None:
        """Write one batch after the last one, as `append`."""
        position = self._write(data)
        self._index(position, self.size_bytes - position, last_offset, max_timestamp)

    def _write(self, data: Buffer) -> int:
        """Write and return the position of the first byte. Raises OSError."""
        if not self._indexes_loaded:
            self.load_indexes()  # new entries follow the existing ones
        position = self.size_bytes
        try:
            # `_file` first: on the path of every append the property costs a call.
            (self._file or self.file).write_at(data, position)
        except OSError as error:
            self._undo_write(position, error)
            raise
        self.size_bytes = position + len(data)
        return position

    def _undo_write(self, size: int, cause: OSError) -> None:
        try:
            self.file.truncate(size)
        except OSError as error:
            raise OSError(errno.EIO, f"a partial append could not be undone: {error}", str(self.path)) from cause

    def _index(self, position: int, size: int, last_offset: int, max_timestamp: int) -> None:
        """Update timestamps and indexes with a batch that was written."""
        if position == 0 and self._first_timestamp_ms is None:
            self._first_timestamp_ms = max_timestamp
        if max_timestamp > self.max_timestamp_ms:
            self.max_timestamp_ms = max_timestamp
            self._offset_of_max_timestamp = last_offset
        # Kafka's rule: the first batch after an interval gets the entry, so the first batch of a segment has none and
        # is found from position 0. The indexes are equal byte for byte only if this order is kept.
        if self._bytes_since_index_entry > self._config.index_interval_bytes:
            self.offset_index.append(last_offset, position)
            self.time_index.append(self.max_timestamp_ms, self._offset_of_max_timestamp)
            self._check_indexes()
            self._bytes_since_index_entry = 0
        self._bytes_since_index_entry += size

    def _check_indexes(self) -> None:
        """Note whether an index is full, after its entries changed: `should_roll` asks with every append."""
        self._is_index_full = self.offset_index.is_full or self.time_index.is_full

    def should_roll(self, config: LogConfig, incoming_bytes: int, max_timestamp_ms: int, last_offset: int) -> bool:
        """Whether the next batches belong into a new segment.

        Kafka's five reasons: size, age by record time, either index full, an offset too far from the base offset.

        Args:
            config: Current settings of the log; they may have changed since the segment was created.
            incoming_bytes: Size of the batches.
            max_timestamp_ms: Their largest timestamp.
            last_offset: Their last offset.
        """
        # An empty segment takes any batch: the new segment would have the same base offset.
        if self.size_bytes == 0:
            return False
        # Age counts from the first batch's timestamp, not from the wall clock: replayed history rolls as it did.
        first = self._first_timestamp_ms
        if first is None:
            first = self.first_timestamp_ms()
        return (
            self.size_bytes > config.segment_bytes - incoming_bytes
            or (first >= 0 and max_timestamp_ms - first > config.roll_ms)
            or self._is_index_full
            or last_offset - self.base_offset > _MAX_RELATIVE_OFFSET
        )

    def first_timestamp_ms(self) -> int:
        """Return the largest timestamp of the first batch; -1 if the segment is empty. May read the file."""
        if self._first_timestamp_ms is None and self.size_bytes >= HEADER_BYTES:
            header = parse_header(self.file.read_at(HEADER_BYTES, 0), 0, 0)
            self._first_timestamp_ms = header.max_timestamp
        return -1 if self._first_timestamp_ms is None else self._first_timestamp_ms

    def facts(self, end_offset: int, *, with_first_timestamp: bool = False) -> SegmentFacts:
        """Return the facts for `cleanup_policy`. The first timestamp costs a read of the file. Raises OSError."""
        self.load_indexes()
        return SegmentFacts(
            base_offset=self.base_offset,
            end_offset=end_offset,
            size_bytes=self.size_bytes,
            max_timestamp_ms=self.max_timestamp_ms,
            first_timestamp_ms=self.first_timestamp_ms() if with_first_timestamp else -1,
        )

    def close_time_index(self) -> None:
        """Write the last entry, the largest timestamp, when nothing more will be appended."""
        # Kafka writes it, too. Without it the largest timestamp of the segment is known only after a walk over the
        # batches since the last entry.
        if self._indexes_loaded and self.max_timestamp_ms >= 0:
            self.time_index.append(self.max_timestamp_ms, self._offset_of_max_timestamp, closing=True)
            self._check_indexes()
        self.offset_index.write()
        self.time_index.write()

    def cut(self, position: int, offset: int) -> None:
        """Cut the segment at a file position, where the batch of `offset` begins. Raises OSError."""
        # The log first: an index that points behind the end of its log is recognized and rebuilt, but a log with
        # batches that no index knows would keep what was cut.
        self.load_indexes()
        self.file.truncate(position)
        self.size_bytes = position
        self.offset_index.truncate_to(offset)
        self.time_index.truncate_to(offset)
        self.transaction_index.truncate_to(offset)
        self._check_indexes()
        self._bytes_since_index_entry = 0
        if position == 0:
            self._first_timestamp_ms = None
        # The largest timestamp may have been cut. The index has it up to its last entry; walk over what follows.
        last = self.time_index.last()
        self.max_timestamp_ms, self._offset_of_max_timestamp = last or (-1, self.base_offset)
        self._update_timestamps_from(self.offset_index.position_for(self._offset_of_max_timestamp))

    # -- search ---------------------------------------------------------------------------------------------

    def find(self, offset: int) -> Span | None:
        """Return the batch that holds `offset`, or the next one if compaction left a gap; None after the last."""
        self.load_indexes()
        for span in walk(self.file, self.offset_index.position_for(offset), self.size_bytes):
            if span.last_offset >= offset:
                return span
        return None

    def spans_from(self, offset: int) -> Iterator[Span]:
        """Yield the batch that holds `offset` and all later ones."""
        span = self.find(offset)
        return iter(()) if span is None else walk(self.file, span.position, self.size_bytes)

    def spans_from_timestamp(self, timestamp_ms: int) -> Iterator[Span]:
        """Yield batches from one on before which no record has a timestamp of `timestamp_ms` or later."""
        self.load_indexes()
        position = self.offset_index.position_for(self.time_index.offset_for(timestamp_ms))
        return walk(self.file, position, self.size_bytes)

    def last_batch_end(self, start: int, limit: int) -> int:
        """Return the largest position in (start, limit] where a batch ends; `start` if there is none."""
        if limit >= self.size_bytes:
            return self.size_bytes
        end = max(start, self.offset_index.position_before(limit))  # a batch begins there
        for span in walk(self.file, end, limit):
            end = span.end
        return end

    def next_offset(self) -> int:
        """Return the offset after the last batch. Raises OSError."""
        self.load_indexes()
        last = self.offset_index.last()
        offset = self.base_offset if last is None else last[0] + 1
        for span in walk(self.file, 0 if last is None else last[1], self.size_bytes):
            offset = span.last_offset + 1
        return offset

    def header_at(self, span: Span) -> BatchHeader:
        """Read the header of a batch. Raises OSError."""
        return parse_header(self.file.read_at(HEADER_BYTES, span.position), 0, span.position)

    def read(self, start: int, end: int) -> bytes:
        """Read the bytes between two positions. Raises OSError."""
        return self.file.read_at(end - start, start)

    def read_span(self, start: int, end: int) -> FileSpan | bytes:
        """Return what `read` would as a span that is sent without being read. Raises OSError."""
        return self.file.span(end - start, start)

    # -- ending ----------------------------------------------------------------------------------------------

    def sync(self, *, with_indexes: bool = True) -> None:
        """Fsync log and indexes; a segment that was removed meanwhile is skipped.

        Args:
            with_indexes: Whether to sync the offset and time indexes, which every recovery can rebuild.

        Raises:
            OSError: The sync failed.
        """
        # Another thread may flush while retention removes segments. What was removed needs no sync.
        if self._removed:
            return
        try:
            self.file.sync()
            self.transaction_index.sync()
            if with_indexes and self._indexes_loaded:
                self.offset_index.sync()
                self.time_index.sync()
        # Removed between the test above and the sync: the flag was set before the files went (`remove`).
        except FileNotFoundError:
            if not self._removed:
                raise

    def close_indexes(self) -> None:
        """Close the index files; lookups continue from memory."""
        self.offset_index.close()
        self.time_index.close()

    def close(self) -> None:
        """Close all files; they are opened again when needed."""
        if self._file is not None:
            self._file.close()
            self._file = None
        self.offset_index.close()
        self.time_index.close()

    def retire(self) -> None:
        """Close a segment whose files are being replaced; it is no longer read or synced."""
        self._removed = True
        self.close()

    def remove(self) -> None:
        """Remove the files, the log first: an opening removes indexes without a log. Raises OSError."""
        self._removed = True
        self.close()
        self._file_system.remove(self.path)
        self.offset_index.remove()
        self.time_index.remove()
        self.transaction_index.remove()
