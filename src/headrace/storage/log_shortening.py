"""What makes a log shorter: DeleteRecords, retention, truncation. The log's owner calls, in its own thread."""

from __future__ import annotations

import logging

from headrace.storage.cleanup_policy import count_deletable_segments
from headrace.storage.log_state import LogState
from headrace.storage.log_transactions import load_producers

__all__ = ["apply_retention", "delete_records_before", "truncate_to"]

_log = logging.getLogger("headrace.storage")


def delete_records_before(log: LogState, offset: int) -> int:
    """As `PartitionLog.delete_records_before`."""
    if offset == -1:
        offset = log.high_watermark
    if not 0 <= offset <= log.high_watermark:
        log.health.out_of_range(offset, log.log_start_offset, log.log_end_offset)
    if offset > log.log_start_offset:
        log.log_start_offset = offset
        _drop_oldest(log, log.row.index_of(offset))
    return log.log_start_offset


def apply_retention(log: LogState, now_ms: int) -> int:
    """As `PartitionLog.apply_retention`."""
    log.health.check_usable()
    ends = log.row.end_offsets(log.log_end_offset)
    count = count_deletable_segments(
        [segment.facts(end) for segment, end in zip(log.row.segments, ends, strict=True)],
        log_start_offset=log.log_start_offset,
        high_watermark=log.high_watermark,
        config=log.config,
        now_ms=now_ms,
    )
    if count == len(log.row.segments) and count:
        log.roll()
    if count:
        log.log_start_offset = max(log.log_start_offset, log.row.base_offsets[count])
        _drop_oldest(log, count)
    return count


def _drop_oldest(log: LogState, count: int) -> None:
    try:
        for segment in log.row.drop_oldest(count):  # oldest first: a crash in between leaves a log without a hole
            segment.remove()
        if log.epochs.truncate_from_start(log.log_start_offset):
            log.epochs.save()
    except OSError as error:
        _log.warning("%s: debris is left for the next opening: %s", log.directory, error)


def truncate_to(log: LogState, offset: int) -> None:
    """As `PartitionLog.truncate_to`."""
    log.health.check_usable()
    if offset < log.log_start_offset:
        log.health.out_of_range(offset, log.log_start_offset, log.log_end_offset)
    if offset >= log.log_end_offset:
        return
    keep = log.row.index_of(offset)
    try:
        for segment in reversed(log.row.segments[keep + 1 :]):  # newest first, for the same reason
            segment.remove()
        log.row.set(log.row.segments[: keep + 1])
        active = log.row.active
        span = active.find(offset)
        end = active.next_offset() if span is None else span.base_offset
        if span is not None:
            active.cut(span.position, end)
            active.sync()  # rare, and what was cut must not come back
        log.file_system.sync_directory(log.directory)  # nor must what was removed
        log.log_end_offset = end
        log.log_start_offset = min(log.log_start_offset, end)
        log.flush.cut_to(end)
        if log.epochs.truncate_from_end(end):
            log.epochs.save()
        load_producers(log.directory, log.file_system, log.producers, log.row.segments, end, log.clock_ms())
    except OSError as error:
        log.health.fail(error, "could not be truncated")
