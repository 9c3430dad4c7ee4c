"""Offsets by time: the time index says where to begin, records decide (ListOffsets, KIP-79 and KIP-734)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from headrace.protocol.record_batches import CorruptBatch, iter_batch_headers, records_of_batch
from headrace.storage.log_segment import LogSegment

__all__ = ["TimestampOffset", "first_since", "youngest"]


class TimestampOffset(NamedTuple):
    """What ListOffsets answers by time."""

    offset: int
    timestamp_ms: int


def first_since(segments: Sequence[LogSegment], timestamp_ms: int, *, start_offset: int) -> TimestampOffset | None:
    """The first record from `start_offset` on whose timestamp is at least `timestamp_ms`."""
    for segment in segments:
        segment.load_indexes()
        if segment.max_timestamp_ms < timestamp_ms:
            continue
        for span in segment.find_timestamp(timestamp_ms):
            if span.last_offset < start_offset or segment.header_at(span).max_timestamp < timestamp_ms:
                continue
            found = _record_since(segment.read(span.position, span.end), timestamp_ms, start_offset)
            if found is not None:
                return found
    return None


def youngest(segments: Sequence[LogSegment], *, start_offset: int) -> TimestampOffset | None:
    """The first record from `start_offset` on with the largest timestamp of all."""
    largest = max((_max_timestamp_since(segment, start_offset) for segment in segments), default=-1)
    return first_since(segments, largest, start_offset=start_offset) if largest >= 0 else None


def _max_timestamp_since(segment: LogSegment, start_offset: int) -> int:
    segment.load_indexes()
    if segment.base_offset >= start_offset:
        return segment.max_timestamp_ms
    # What was deleted from the segment's front may hold its largest timestamp.
    largest = -1
    for span in segment.spans_from(start_offset):
        if span.base_offset >= start_offset:
            largest = max(largest, segment.header_at(span).max_timestamp)
        else:
            largest = max(largest, _max_in_batch(segment.read(span.position, span.end), start_offset))
    return largest


def _max_in_batch(batch: bytes, start_offset: int) -> int:
    return max((found.timestamp_ms for found in _records(batch) if found.offset >= start_offset), default=-1)


def _record_since(batch: bytes, timestamp_ms: int, start_offset: int) -> TimestampOffset | None:
    for found in _records(batch):
        if found.timestamp_ms >= timestamp_ms and found.offset >= start_offset:
            return found
    return None


def _records(batch: bytes) -> Iterator[TimestampOffset]:
    """Of a batch whose records cannot be read, which other brokers or old logs may hold, its end and what its header
    says is all."""
    for header in iter_batch_headers(batch):
        try:
            records = list(records_of_batch(batch, header))
        except CorruptBatch:
            yield TimestampOffset(header.last_offset, header.max_timestamp)
        else:
            yield from (TimestampOffset(record.offset, record.timestamp_ms) for record in records)
