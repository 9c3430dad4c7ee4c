"""The end of every append: what has been judged and numbered is written and remembered.

The log's owner calls, in its own thread.
"""

from __future__ import annotations

from penstock.protocol.record_batches import BatchHeader
from penstock.storage.file_system import Buffer
from penstock.storage.log_segment import LogSegment
from penstock.storage.log_state import LogState

__all__ = ["written"]


def written(log: LogState, data: Buffer, headers: list[BatchHeader], leader_epoch: int, now_ms: int) -> int:
    """Writes whole, sound, numbered batches; the offset of the first. Raises StorageFull, LogFailed."""
    base_offset = log.log_end_offset
    _note_epoch(log, leader_epoch, base_offset)
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


def _note_epoch(log: LogState, leader_epoch: int, offset: int) -> None:
    if not log.epochs.note(leader_epoch, offset):
        return
    try:
        log.epochs.save()
    except OSError as error:
        log.epochs.forget_latest()
        log.health.refuse(error, "did not take a new leader epoch")


def _segment_for(log: LogState, size: int, headers: list[BatchHeader]) -> LogSegment:
    active = log.row.active
    if active.should_roll(
        log.config,
        incoming_bytes=size,
        max_timestamp_ms=max([header.max_timestamp for header in headers]),
        last_offset=headers[-1].last_offset,
    ):
        return log.roll()
    return active
