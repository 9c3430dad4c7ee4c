"""The segments of one log, searched by offset and by timestamp (Kafka's `LogSegments`)."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from headrace.protocol.record_batches import BatchHeader, CorruptBatch, iter_batch_headers, records_of_batch
from headrace.storage.batch_scan import Span, walk
from headrace.storage.log_segment import LogSegment

__all__ = ["SegmentList", "TimestampOffset", "batches_since", "headers_since"]


class TimestampOffset(NamedTuple):
    """A record that ListOffsets found by its timestamp."""

    offset: int
    timestamp_ms: int


class SegmentList:
    """The segments of one log, oldest first. There is always at least one; the last one is the active segment.

    Mutable, owned by its LocalLog. The lists are replaced and never changed in place, so another thread may keep
    using those it has read.

    Attributes:
        all: The segments.
        base_offsets: Their base offsets.
    """

    def __init__(self) -> None:
        self.all: list[LogSegment] = []
        self.base_offsets: list[int] = []

    def set(self, segments: list[LogSegment]) -> None:
        """Replace all segments."""
        self.base_offsets = [segment.base_offset for segment in segments]
        self.all = segments

    @property
    def active(self) -> LogSegment:
        """The segment that is appended to."""
        return self.all[-1]

    @property
    def size_bytes(self) -> int:
        """Total size of the `.log` files."""
        return sum(segment.size_bytes for segment in self.all)

    def index_of(self, offset: int) -> int:
        """Return the index of the segment that holds `offset`, or would if the offset existed."""
        return max(bisect_right(self.base_offsets, offset) - 1, 0)

    def since(self, offset: int) -> list[LogSegment]:
        """Return the segment that holds `offset`, and all later ones."""
        return self.all[self.index_of(offset) :]

    def end_offsets(self, log_end_offset: int) -> list[int]:
        """Return the exclusive end offset of each segment."""
        return [*self.base_offsets[1:], log_end_offset]

    # -- changes ---------------------------------------------------------------------------------------------

    def remove_oldest(self, count: int) -> list[LogSegment]:
        """Take segments off the list and return them, oldest first; their files are not touched."""
        removed = self.all[:count]
        self.set(self.all[count:])
        return removed

    def replace(self, base_offsets: Sequence[int], new: LogSegment) -> None:
        """Put one segment in the place of a run of segments."""
        at = self.base_offsets.index(base_offsets[0])
        self.set([*self.all[:at], new, *self.all[at + len(base_offsets) :]])

    def contains_run(self, base_offsets: Sequence[int]) -> bool:
        """Whether these segments are still in the list, next to each other, and none of them is active."""
        at = self.index_of(base_offsets[0])
        end = at + len(base_offsets)
        return end < len(self.base_offsets) and self.base_offsets[at:end] == list(base_offsets)

    # -- by offset -------------------------------------------------------------------------------------------

    def find(self, offset: int) -> tuple[LogSegment, Span] | None:
        """Return the batch that holds `offset`, or the next one if compaction left a gap; None after the last."""
        for segment in self.since(offset):
            if (span := segment.find(offset)) is not None:
                return segment, span
        return None

    def locate(
        self, offset: int, max_bytes: int, *, min_one_batch: bool, end_offset: int | None
    ) -> tuple[LogSegment, int, int] | None:
        """Return where the whole batches lie that a read of limited size may return: segment, start and end position.

        Args:
            offset: The first batch is the one that holds this offset.
            max_bytes: Limit of the read.
            min_one_batch: Whether the first batch is returned even if it alone exceeds `max_bytes` (KIP-74).
            end_offset: Batches from the one with this offset on are left out; None for all.

        Returns:
            None if there is nothing to return. A result never spans two segments.

        Raises:
            OSError: A file could not be read.
        """
        found = self.find(offset)
        if found is None:
            return None
        segment, span = found
        end = segment.last_batch_end(span.position, span.position + max_bytes)
        # KIP-74: a consumer whose fetch size is smaller than one batch must still make progress.
        if end == span.position and min_one_batch:
            end = span.end
        # A batch is returned whole or not at all, so one that holds the end (the last stable offset, for example) is
        # left out.
        if end_offset is not None and (stop := segment.find(end_offset)) is not None:
            end = min(end, stop.position)
        return (segment, span.position, end) if end > span.position else None

    def offset_after(self, offset: int, size_bytes: int) -> int | None:
        """Return an offset after the `size_bytes` bytes from the batch of `offset` on; None at the end of the log."""
        place = self.find(offset)
        if place is None:
            return None
        segment, span = place
        after = segment.offset_index.offset_at(span.position + size_bytes)
        if after is not None:
            return after
        at = self.index_of(offset) + 1
        return self.base_offsets[at] if at < len(self.base_offsets) else None

    def find_aborted(self, offset: int, end_offset: int) -> list[tuple[int, int]]:
        """Return (producer id, first offset) of the aborted transactions with records in [offset, end_offset).

        Raises:
            IndexCorrupt: A transaction index is damaged; it can be rebuilt from the batches.
            OSError: A transaction index could not be read.
        """
        found: list[tuple[int, int]] = []
        for segment in self.since(offset):
            for entry in segment.transaction_index.entries():
                if entry.last_offset >= offset and entry.first_offset < end_offset:
                    found.append((entry.producer_id, entry.first_offset))
                # Everything before the last stable offset was decided when the marker was written, so later entries
                # are of transactions that begin at or after it.
                if entry.last_stable_offset >= end_offset:
                    return found
        return found

    # -- by timestamp ----------------------------------------------------------------------------------------

    def find_timestamp(self, timestamp_ms: int, *, start_offset: int) -> TimestampOffset | None:
        """Return the first record from `start_offset` on whose timestamp is at least `timestamp_ms` (KIP-79).

        The time index tells where to begin; the records decide.
        """
        for segment in self.since(start_offset):
            segment.load_indexes()
            # Timestamps need not grow from segment to segment, so each segment's maximum is looked at; a binary search
            # over segments would miss records that arrived late.
            if segment.max_timestamp_ms < timestamp_ms:
                continue
            for span in segment.spans_from_timestamp(timestamp_ms):
                if span.last_offset < start_offset or segment.header_at(span).max_timestamp < timestamp_ms:
                    continue
                # Only a batch whose largest timestamp is late enough is decompressed. Its first record that qualifies
                # is the answer, also when later ones have smaller timestamps.
                for record in _timestamps_of(segment.read(span.position, span.end)):
                    if record.timestamp_ms >= timestamp_ms and record.offset >= start_offset:
                        return record
        return None

    def find_max_timestamp(self, *, start_offset: int) -> TimestampOffset | None:
        """Return the first record from `start_offset` on with the largest timestamp of all (KIP-734)."""
        segments = self.since(start_offset)
        largest = max((_max_timestamp_since(segment, start_offset) for segment in segments), default=-1)
        return self.find_timestamp(largest, start_offset=start_offset) if largest >= 0 else None


def _max_timestamp_since(segment: LogSegment, start_offset: int) -> int:
    segment.load_indexes()
    if segment.base_offset >= start_offset:
        return segment.max_timestamp_ms
    # DeleteRecords moved the log start into this segment: its largest timestamp may be of a deleted record.
    largest = -1
    for span in segment.spans_from(start_offset):
        if span.base_offset >= start_offset:
            largest = max(largest, segment.header_at(span).max_timestamp)
        else:
            records = _timestamps_of(segment.read(span.position, span.end))
            largest = max(largest, max((r.timestamp_ms for r in records if r.offset >= start_offset), default=-1))
    return largest


def _timestamps_of(batch: bytes) -> Iterator[TimestampOffset]:
    """Yield offset and timestamp of each record.

    A batch that another broker or an old log left behind may have unreadable records. For it, its last offset is
    yielded with the largest timestamp of its header.
    """
    for header in iter_batch_headers(batch):
        try:
            records = list(records_of_batch(batch, header))
        except CorruptBatch:
            yield TimestampOffset(header.last_offset, header.max_timestamp)
        else:
            yield from (TimestampOffset(record.offset, record.timestamp_ms) for record in records)


def headers_since(segments: list[LogSegment], from_offset: int) -> Iterator[BatchHeader]:
    """Yield the headers of all batches that end at or after `from_offset`."""
    return (header for _, _, header in batches_since(segments, from_offset))


def batches_since(segments: list[LogSegment], from_offset: int) -> Iterator[tuple[LogSegment, bytes, BatchHeader]]:
    """Yield all batches that end at or after `from_offset`: segment, bytes (of control batches only), header."""
    for i, segment in enumerate(segments):
        if i + 1 < len(segments) and segments[i + 1].base_offset <= from_offset:
            continue
        segment.load_indexes()
        position = segment.offset_index.position_for(from_offset)
        for span in walk(segment.file, position, segment.size_bytes):
            if span.last_offset >= from_offset:
                header = segment.header_at(span)
                yield segment, segment.read(span.position, span.end) if header.is_control else b"", header
