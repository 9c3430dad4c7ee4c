"""Reading a log: where the batches from an offset on lie, as bytes or as a span of their file.

The log's owner calls, in its own thread.
"""

from __future__ import annotations

from headrace.storage.file_span import FileSpan
from headrace.storage.log_segment import LogSegment
from headrace.storage.log_state import LogState

__all__ = ["read", "span"]

LEAST_SPAN_BYTES = 32 * 1024  # less is copied faster than the kernel is asked to send it


def read(log: LogState, offset: int, max_bytes: int, *, min_one_batch: bool, end_offset: int | None) -> bytes:
    """As `PartitionLog.read`."""
    found = _find(log, offset, max_bytes, min_one_batch, end_offset)
    if found is None:
        return b""
    segment, start, end = found
    try:
        return segment.read(start, end)
    except OSError as error:
        log.health.refuse(error, "could not be read")


def span(
    log: LogState, offset: int, max_bytes: int, *, min_one_batch: bool, end_offset: int | None
) -> FileSpan | bytes:
    """As `PartitionLog.span`."""
    found = _find(log, offset, max_bytes, min_one_batch, end_offset)
    if found is None:
        return b""
    segment, start, end = found
    try:
        return segment.read(start, end) if end - start < LEAST_SPAN_BYTES else segment.span(start, end)
    except OSError as error:
        log.health.refuse(error, "could not be read")


def _find(
    log: LogState, offset: int, max_bytes: int, min_one_batch: bool, end_offset: int | None
) -> tuple[LogSegment, int, int] | None:
    """Where in which segment that lies, None for nothing."""
    if not log.log_start_offset <= offset <= log.log_end_offset:
        log.health.out_of_range(offset, log.log_start_offset, log.log_end_offset)
    end_offset = log.high_watermark if end_offset is None else min(end_offset, log.log_end_offset)
    if offset >= end_offset:
        return None
    try:
        found = log.row.find(offset)
        if found is None:
            return None
        segment, span = found
        end = segment.whole_batches_until(span.position, span.position + max_bytes)
        if end == span.position and min_one_batch:
            end = span.end
        if end_offset < log.log_end_offset and (stop := segment.find(end_offset)) is not None:
            end = min(end, stop.position)
    except OSError as error:
        log.health.refuse(error, "could not be read")
    return (segment, span.position, end) if end > span.position else None
