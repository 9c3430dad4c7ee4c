"""Opening a log: what lies in its directory, what of it can be trusted, and what a crash has torn.

Rules: an exchange of segments that was interrupted is finished first. After a clean shutdown (the log is as long as was
noted) nothing is read. Otherwise every segment from the recovery point on, and in any case the last one, is scanned
with CRCs; the log is cut before the first byte that is no sound batch, and segments behind a cut go. So do those behind
a hole: without an fsync per append a power loss may take the end of a segment and leave the next one; what is left is
what the log was at some moment. Indexes of scanned segments are built anew, those of transactions too. Leader epochs
and producer state are taken from their files and completed from the batches behind them. What is cut is logged with
its size.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from headrace.protocol.record_batches import BatchHeader
from headrace.storage.batch_scan import TornLog
from headrace.storage.checkpoint_files import CheckpointCorrupt
from headrace.storage.file_system import FileSystem
from headrace.storage.leader_epoch_cache import LeaderEpochCache
from headrace.storage.log_config import LogConfig
from headrace.storage.log_segment import LogSegment
from headrace.storage.log_transactions import load_producers
from headrace.storage.producer_snapshots import headers_since
from headrace.storage.producer_state import ProducerState
from headrace.storage.segment_swap import CLEANED, DELETED, SWAP, complete_interrupted_swaps

__all__ = ["CleanShutdown", "OpenedLog", "log_bytes", "open_log", "unchecked_bytes"]

_log = logging.getLogger("headrace.storage")
_DEBRIS = (DELETED, CLEANED, SWAP, ".tmp")
_INDEXES = (".index", ".timeindex", ".txnindex")


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanShutdown:
    """What a closed log looked like; a log that still does needs no recovery. `size_bytes` is its last segment's."""

    base_offset: int
    size_bytes: int
    log_end_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenedLog:
    """`recovered` when segments were scanned, `bytes_cut` what of them was torn."""

    segments: list[LogSegment]
    log_start_offset: int
    log_end_offset: int
    recovered: bool
    bytes_cut: int


def open_log(
    directory: Path,
    *,
    config: LogConfig,
    file_system: FileSystem,
    epochs: LeaderEpochCache,
    producers: ProducerState,
    log_start_offset: int,
    recovery_point: int,
    gaps_until: int | None,
    clean: CleanShutdown | None,
    now_ms: int,
) -> OpenedLog:
    """The segments of a directory, sound and in order, at least one. Fills `epochs` and `producers`. Raises OSError."""
    names = file_system.names(directory)
    if complete_interrupted_swaps(directory, names, file_system):
        names = file_system.names(directory)
    names = _without_debris(directory, names, file_system)
    bases = _base_offsets(names)
    segments = [LogSegment.existing(directory, base, config, file_system) for base in bases]
    note_epochs = _load_epochs(epochs)
    recovered = bool(segments) and not _is_clean(segments, clean)
    bytes_cut = 0
    index_from: int | None = None
    if recovered:
        found = len(segments)
        index_from = max((base for base in bases if base <= recovery_point), default=bases[0])
        segments, bytes_cut = _recover(segments, recovery_point, gaps_until, note_epochs)
        if len(segments) < found:
            file_system.sync_directory(directory)  # what was removed must not come back beside what is written next
    end = segments[-1].next_offset() if recovered else (clean.log_end_offset if segments and clean else 0)
    if not segments or end < log_start_offset:
        for segment in reversed(segments):
            segment.remove()
        end = max(log_start_offset, 0)
        segments = [LogSegment.create(directory, end, config, file_system)]
    start = max(log_start_offset, segments[0].base_offset)
    changed = epochs.truncate_from_end(end)
    if start < end and epochs.epoch_for(start) < 0:
        # The file is lost, or tells of a log start that a crash has undone.
        epochs.clear()
        for header in headers_since(segments, start):
            changed |= note_epochs(header)
    if epochs.truncate_from_start(start) or changed or (recovered and epochs.latest >= 0):
        epochs.save()
    load_producers(directory, file_system, producers, segments, end, now_ms, index_from=index_from)
    return OpenedLog(
        segments=segments, log_start_offset=start, log_end_offset=end, recovered=recovered, bytes_cut=bytes_cut
    )


def unchecked_bytes(directory: Path, recovery_point: int, file_system: FileSystem) -> int:
    """What a recovery of the log in this directory would read; 0 when it cannot be looked at."""
    try:
        bases = _base_offsets(file_system.names(directory))
        first = max((base for base in bases if base <= recovery_point), default=0)
        return log_bytes(directory, file_system, first)
    except OSError:
        return 0


def log_bytes(directory: Path, file_system: FileSystem, from_base_offset: int = 0) -> int:
    """The bytes of the segments in a directory that begin there or behind. Raises OSError."""
    bases = _base_offsets(file_system.names(directory))
    return sum(file_system.size(directory / f"{base:020d}.log") for base in bases if base >= from_base_offset)


def _base_offsets(names: list[str]) -> list[int]:
    return sorted(int(name[:-4]) for name in names if name.endswith(".log") and name[:-4].isdigit())


def _without_debris(directory: Path, names: list[str], file_system: FileSystem) -> list[str]:
    logs = {name[:-4] for name in names if name.endswith(".log")}
    kept = []
    for name in names:
        stem, dot, extension = name.rpartition(".")
        if name.endswith(_DEBRIS) or (dot + extension in _INDEXES and stem not in logs):
            file_system.remove(directory / name)
        else:
            kept.append(name)
    return kept


def _is_clean(segments: list[LogSegment], clean: CleanShutdown | None) -> bool:
    last = segments[-1]
    return clean is not None and (last.base_offset, last.size_bytes) == (clean.base_offset, clean.size_bytes)


def _load_epochs(epochs: LeaderEpochCache) -> Callable[[BatchHeader], bool]:
    try:
        epochs.load()
    except CheckpointCorrupt as corrupt:
        _log.warning("taking the leader epochs from the batches: %s", corrupt)
        epochs.clear()

    def note(header: BatchHeader) -> bool:
        return epochs.assign(header.leader_epoch, header.base_offset)

    return note


def _recover(
    segments: list[LogSegment], recovery_point: int, gaps_until: int | None, note: Callable[[BatchHeader], bool]
) -> tuple[list[LogSegment], int]:
    """Scan from the recovery point on; what is left, and how many bytes were cut."""
    # The one that ends at the recovery point, too: its indexes may not have been synced (`LogFlush`).
    first = max((i for i, segment in enumerate(segments) if segment.base_offset < recovery_point), default=0)
    next_offset = segments[first].base_offset
    for i in range(first, len(segments)):
        segment = segments[i]
        is_hole = gaps_until is not None and segment.base_offset > max(next_offset, gaps_until)
        if segment.base_offset < next_offset or is_hole:
            why = f"the next segment begins at {segment.base_offset}"
            return segments[:i], _cut_behind(segments[i - 1], segments[i:], why, next_offset)
        torn: TornLog | None = None
        try:
            for header in segment.rebuild():
                note(header)
                next_offset = header.next_offset
        except TornLog as error:
            torn = error
        if torn is not None:
            cut = segment.size_bytes - torn.position
            segment.cut(torn.position, next_offset)
            segment.close_time_index()
            segment.sync()  # else a second power loss could bring back what nobody would look at again
            cut += _cut_behind(segment, segments[i + 1 :], str(torn), next_offset, cut)
            return segments[: i + 1], cut
    return segments, 0


def _cut_behind(last: LogSegment, behind: list[LogSegment], why: str, end_offset: int, cut_before: int = 0) -> int:
    """Remove the segments behind the last one that counts; how many bytes they had."""
    size = sum(segment.size_bytes for segment in behind)
    _log.warning("%s: %s; cut %d bytes, the log ends at offset %d", last.path, why, cut_before + size, end_offset)
    for segment in reversed(behind):
        segment.remove()
    return size
