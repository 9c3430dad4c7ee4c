"""What a log knows of ended transactions: its transaction indexes, filled by markers and asked by readers.

Producer state says where the transaction began that a marker ends; the segment in which the marker lies gets the entry.
After a crash both are made anew from the batches behind the last segment that was flushed.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.protocol.record_batches import BatchHeader, control_record
from headrace.storage.file_system import Buffer, FileSystem
from headrace.storage.log_indexes import IndexCorrupt
from headrace.storage.log_segment import LogSegment
from headrace.storage.producer_snapshots import batches_since, load_snapshot
from headrace.storage.producer_state import ProducerState
from headrace.storage.transaction_index import AbortedTransaction

if TYPE_CHECKING:
    from headrace.storage.log_state import LogState

__all__ = ["aborted_transactions", "load_producers", "note_marker"]

_log = logging.getLogger("headrace.storage")


def note_marker(
    producers: ProducerState, segment: LogSegment | None, data: Buffer, header: BatchHeader, now_ms: int
) -> bool:
    """A control batch in the log, at its final offset: whether the segment's transaction index got an entry.

    `data` is where the header's position counts; no segment: only the producer is noted.
    """
    kind, coordinator_epoch = control_record(data, header)
    first_offset = producers.update(header, seen_ms=now_ms, coordinator_epoch=coordinator_epoch)
    if segment is None or kind != "abort" or first_offset < 0:
        return False
    first_open = producers.first_unstable_offset
    segment.transaction_index.append(
        AbortedTransaction(
            producer_id=header.producer_id,
            first_offset=first_offset,
            last_offset=header.base_offset,
            last_stable_offset=header.next_offset if first_open is None else first_open,
        )
    )
    return True


def load_producers(
    directory: Path,
    file_system: FileSystem,
    producers: ProducerState,
    segments: list[LogSegment],
    end: int,
    now_ms: int,
    *,
    index_from: int | None = None,
) -> None:
    """The newest usable snapshot, then the batches behind it.

    `index_from`: the base offset of the first segment whose transaction index, and those behind it, are made anew.
    Raises OSError.
    """
    behind = load_snapshot(directory, file_system, producers, end, end if index_from is None else index_from)
    behind = segments[0].base_offset if behind is None else behind
    if behind < end:
        _take_batches(segments, producers, behind, now_ms, index_from)


def _take_batches(
    segments: list[LogSegment], producers: ProducerState, behind: int, now_ms: int, index_from: int | None
) -> None:
    if index_from is not None:
        for segment in segments:
            if segment.base_offset >= index_from:
                segment.transaction_index.replace([])
    for segment, batch, header in batches_since(segments, behind):
        if header.is_control:
            indexed = index_from is not None and segment.base_offset >= index_from
            note_marker(producers, segment if indexed else None, batch, header._replace(position=0), now_ms)
        else:
            producers.update(header, seen_ms=now_ms)


def aborted_transactions(log: LogState, offset: int, size_bytes: int, end_offset: int) -> list[tuple[int, int]]:
    """As `PartitionLog.aborted_transactions`."""
    segments = log.row.since(offset)
    try:
        found = _indexed(segments, offset, end_offset)
    except IndexCorrupt as corrupt:
        _log.error("making transaction indexes anew: %s", corrupt)
        _take_batches(log.row.segments, ProducerState("", 0), log.row.base_offsets[0], 0, log.row.base_offsets[0])
        found = _indexed(segments, offset, end_offset)
    if not found:
        return found
    behind = _offset_behind(log, offset, size_bytes)
    return found if behind is None else [each for each in found if each[1] < behind]


def _indexed(segments: list[LogSegment], offset: int, end_offset: int) -> list[tuple[int, int]]:
    found: list[tuple[int, int]] = []
    for segment in segments:
        for each in segment.transaction_index.entries():
            if each.last_offset >= offset and each.first_offset < end_offset:
                found.append((each.producer_id, each.first_offset))
            if each.last_stable_offset >= end_offset:
                return found  # all that is behind begins behind
    return found


def _offset_behind(log: LogState, offset: int, size_bytes: int) -> int | None:
    """An offset behind what so many bytes from the batch of `offset` on hold; None at the log's end."""
    place = log.row.find(offset)
    if place is None:
        return None
    segment, span = place
    behind = segment.offset_index.offset_at(span.position + size_bytes)
    if behind is not None:
        return behind
    at = log.row.index_of(offset) + 1
    return log.row.base_offsets[at] if at < len(log.row.base_offsets) else None
