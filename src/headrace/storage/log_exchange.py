"""A log's side of compaction: what a cleaning is told of it, and how a cleaned segment takes its place.

The log's owner calls, in its own thread; what lies between (`LogCleaning`) may happen anywhere.
"""

from __future__ import annotations

import logging

from headrace.storage.cleanup_policy import CleaningPlan, Compactable, SegmentFacts, SegmentSwap, find_compactable
from headrace.storage.log_config import NO_LIMIT
from headrace.storage.log_segment import LogSegment
from headrace.storage.log_state import LogState
from headrace.storage.segment_swap import SWAP, commit_swap, discard_new_segment, prepare_swap

__all__ = ["compactable_part", "plan_cleaning", "swap_segments"]

_log = logging.getLogger("headrace.storage")


def compactable_part(log: LogState, first_dirty_offset: int, now_ms: int) -> Compactable:
    """As `PartitionLog.compactable`."""
    return _compactable(log, _closed_segments(log), first_dirty_offset, now_ms)


def _compactable(log: LogState, closed: tuple[SegmentFacts, ...], first_dirty_offset: int, now_ms: int) -> Compactable:
    # A mark outside the log is of another life of it: everything counts as dirty then, as in Kafka.
    is_inside = log.log_start_offset <= first_dirty_offset <= log.row.active.base_offset
    return find_compactable(
        closed,
        first_dirty_offset=first_dirty_offset if is_inside else log.log_start_offset,
        last_stable_offset=log.last_stable_offset,
        config=log.config,
        now_ms=now_ms,
    )


def plan_cleaning(log: LogState, first_dirty_offset: int, now_ms: int, flushed_offset: int | None) -> CleaningPlan:
    """As `PartitionLog.plan_cleaning`."""
    log.health.check_usable()
    # A segment that was closed since then may not get gaps yet: a recovery would take them for holes.
    closed = _closed_segments(log)
    if flushed_offset is not None:
        closed = tuple(segment for segment in closed if segment.end_offset <= flushed_offset)
    part = _compactable(log, closed, first_dirty_offset, now_ms)
    return CleaningPlan(
        directory=log.directory,
        config=log.config,
        file_system=log.file_system,
        closed=tuple(segment for segment in closed if segment.base_offset < part.end_offset),
        scanned=tuple((segment.base_offset, segment.size_bytes) for segment in log.row.segments),
        flushed_offset=log.flush.recovery_point if flushed_offset is None else flushed_offset,
        first_dirty_offset=part.first_dirty_offset,
        end_offset=part.end_offset,
        last_batches=log.producers.last_batches(),
        now_ms=now_ms,
    )


def _closed_segments(log: LogState) -> tuple[SegmentFacts, ...]:
    ends = log.row.base_offsets[1:]
    has_deadline = log.config.max_compaction_lag_ms < NO_LIMIT
    return tuple(
        segment.facts(end, with_first_timestamp=has_deadline)
        for segment, end in zip(log.row.segments, ends, strict=False)
    )


def swap_segments(log: LogState, exchange: SegmentSwap) -> bool:
    """As `PartitionLog.exchange`."""
    log.health.check_usable()
    old = [segment for segment in log.row.segments if segment.base_offset in exchange.old]
    is_as_it_was = log.row.has_run(exchange.old) and sum(each.size_bytes for each in old) == exchange.bytes_before
    if not is_as_it_was:
        return False
    try:
        prepare_swap(log.directory, exchange.new, log.file_system)
    except OSError as error:
        _log.warning("%s: a cleaned segment is thrown away: %s", log.directory, error)
        discard_new_segment(log.directory, exchange.new, SWAP, log.file_system)
        return False
    try:
        for segment in old:
            segment.step_aside()
        commit_swap(log.directory, exchange.old, exchange.new, log.file_system)
        new = LogSegment.existing(log.directory, exchange.new, log.config, log.file_system)
    except OSError as error:
        log.health.fail(error, "could not take a cleaned segment")
    log.row.exchange(exchange.old, [new])
    return True
