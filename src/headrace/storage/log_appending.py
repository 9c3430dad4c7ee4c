"""The end of every append: what has been judged and numbered is written and remembered.

`append_usual` is all of it for one usual batch, which has nothing more to be judged than `usual_batch` and its
producer's last batch say: the same steps, and no header is made. The log's owner calls, in its own thread.
"""

from __future__ import annotations

from headrace.protocol.record_batches import BatchHeader
from headrace.storage.file_system import Buffer
from headrace.storage.log_segment import LogSegment
from headrace.storage.log_state import LogState
from headrace.storage.producer_state import LARGEST_SEQUENCE, WrittenBatch
from headrace.storage.usual_batch import head, usual_batch

__all__ = ["append_usual", "written"]


def written(log: LogState, data: Buffer, headers: list[BatchHeader], leader_epoch: int, now_ms: int) -> int:
    """Writes whole, sound, numbered batches; the offset of the first. Raises StorageFull, LogFailed."""
    base_offset = log.log_end_offset
    if log.epochs.assign(leader_epoch, base_offset):
        _save_epoch(log)
    try:
        segment = _segment_for(log, len(data), headers)
        segment.append(data, headers)
    except OSError as error:
        log.health.refuse(error, "did not take an append")
    for header in headers:
        if header.producer_id >= 0:
            log.note_producer(data, header, segment, now_ms)
    log.log_end_offset = headers[-1].next_offset  # last: what a flush promises is all there
    return base_offset


def append_usual(log: LogState, frame: bytes, start: int, end: int, leader_epoch: int) -> tuple[int, int] | None:
    """The first and the last offset of one batch of a client, which `looks_usual`; None as in PartitionLog, whose
    append of the same name this is. Raises StorageFull, LogFailed."""
    now_ms = log.clock_ms()
    limits = log.usual_limits
    found = None if limits is None else usual_batch(frame, start, end, limits, now_ms)
    if found is None:
        return None
    fields, checked = found
    _, _, _, _, _, _, delta, _, max_timestamp, producer_id, producer_epoch, sequence, _ = fields
    if producer_id >= 0 and not log.producers.surely_next(producer_id, producer_epoch, sequence):
        return None
    base_offset = log.log_end_offset
    last_offset = base_offset + delta
    if log.epochs.assign(leader_epoch, base_offset):
        _save_epoch(log)
    try:
        segment = log.row.segments[-1]
        if segment.should_roll(log.config, end - start, max_timestamp, last_offset):
            segment = log.roll()
        segment.append_one(head(fields, base_offset, leader_epoch) + checked, last_offset, max_timestamp)
    except OSError as error:
        log.health.refuse(error, "did not take an append")
    if producer_id >= 0:
        last_sequence = (sequence + delta) & LARGEST_SEQUENCE
        batch = WrittenBatch(sequence, last_sequence, base_offset, last_offset, max_timestamp)
        log.producers.note_next(producer_id, producer_epoch, batch, seen_ms=now_ms)
    log.log_end_offset = last_offset + 1  # last, as above
    return base_offset, last_offset


def _save_epoch(log: LogState) -> None:
    try:
        log.epochs.save()
    except OSError as error:
        log.epochs.undo_assign()
        log.health.refuse(error, "did not take a new leader epoch")


def _segment_for(log: LogState, size: int, headers: list[BatchHeader]) -> LogSegment:
    active = log.row.active
    if active.should_roll(log.config, size, max([header.max_timestamp for header in headers]), headers[-1].last_offset):
        return log.roll()
    return active
