"""Opening of a log: list its segments, check what a crash may have torn, and load its state.

1. A segment swap that a crash interrupted is completed; leftover files are removed.
2. After a clean shutdown (the last segment is as long as was noted) no batch is read.
3. Otherwise every segment from the recovery point on, and always the last one, is scanned with CRCs. The log is cut
   before the first byte that is not a sound batch, and later segments are removed. Indexes of scanned segments are
   rebuilt, transaction indexes included.
4. The log is also cut at a hole: without an fsync per append a power loss may take the end of a segment and leave the
   next one. What remains is what the log was at some moment. Kafka does not look for holes; it replicates.
5. Leader epochs and producer state are loaded from their files and completed from the batches after them.

What is cut is logged with its size.
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
from headrace.storage.producer_snapshots import load_producer_state
from headrace.storage.producer_state import ProducerState
from headrace.storage.segment_list import headers_since
from headrace.storage.segment_swap import CLEANED, DELETED, SWAP, complete_interrupted_swaps

__all__ = ["CleanShutdown", "OpenedLog", "log_bytes", "open_log", "unchecked_bytes"]

_log = logging.getLogger("headrace.storage")
_LEFTOVERS = (DELETED, CLEANED, SWAP, ".tmp")
_INDEXES = (".index", ".timeindex", ".txnindex")


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanShutdown:
    """State of a log when it was closed; a log that still looks like this needs no recovery.

    Attributes:
        base_offset: Of the last segment.
        size_bytes: Of the last segment.
        log_end_offset: End of the log.
    """

    base_offset: int
    size_bytes: int
    log_end_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenedLog:
    """Result of `open_log`.

    Attributes:
        segments: Sound segments in order, at least one.
        log_start_offset: First offset of the log.
        log_end_offset: Next offset of the log.
        recovered: Whether segments were scanned.
        bytes_cut: Size of what was torn and has been cut.
    """

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
    """Open the segments of a partition directory.

    Args:
        directory: Directory of the partition.
        config: Settings of the topic.
        file_system: File system of the directory.
        epochs: Filled with the leader epochs of the log.
        producers: Filled with the producer state at the end of the log.
        log_start_offset: As checkpointed; DeleteRecords may have moved it into a segment.
        recovery_point: Everything before it was flushed.
        gaps_until: Compaction may have left gaps before this offset; a gap after it is a hole. None if a gap may be
            anywhere.
        clean: How the log was closed; None after a crash.
        now_ms: Wall-clock time.

    Raises:
        OSError: A file could not be read, written or removed.
    """
    # 1. Complete swaps, remove leftovers, list the segments.
    names = file_system.names(directory)
    if complete_interrupted_swaps(directory, names, file_system):
        names = file_system.names(directory)
    names = _remove_leftovers(directory, names, file_system)
    bases = _base_offsets(names)
    segments = [LogSegment.existing(directory, base, config, file_system) for base in bases]
    assign_epoch = _load_epochs(epochs)
    # 2. Scan what may be torn.
    recovered = bool(segments) and not _is_clean(segments, clean)
    bytes_cut = 0
    index_from: int | None = None
    if recovered:
        found = len(segments)
        index_from = max((base for base in bases if base <= recovery_point), default=bases[0])
        segments, bytes_cut = _recover(segments, recovery_point, gaps_until, assign_epoch)
        if len(segments) < found:
            file_system.sync_directory(directory)  # removed segments must not come back beside new batches
    # 3. A log without segments, or one that ends before its start, begins anew at the log start offset.
    end = segments[-1].next_offset() if recovered else (clean.log_end_offset if segments and clean else 0)
    if not segments or end < log_start_offset:
        for segment in reversed(segments):
            segment.remove()
        end = max(log_start_offset, 0)
        segments = [LogSegment.create(directory, end, config, file_system)]
    # 4. Bring the leader epochs in line with what is left.
    start = max(log_start_offset, segments[0].base_offset)
    changed = epochs.truncate_from_end(end)
    if start < end and epochs.epoch_for(start) < 0:
        # The file is lost, or it has a later log start that the crash has undone.
        epochs.clear()
        for header in headers_since(segments, start):
            changed |= assign_epoch(header)
    if epochs.truncate_from_start(start) or changed or (recovered and epochs.latest >= 0):
        epochs.save()
    # 5. Producer state, and the transaction indexes of the scanned segments.
    load_producer_state(directory, file_system, producers, segments, end, now_ms, index_from=index_from)
    return OpenedLog(
        segments=segments, log_start_offset=start, log_end_offset=end, recovered=recovered, bytes_cut=bytes_cut
    )


def unchecked_bytes(directory: Path, recovery_point: int, file_system: FileSystem) -> int:
    """Return how many bytes a recovery of this log would read; 0 if the directory cannot be read."""
    try:
        bases = _base_offsets(file_system.names(directory))
        first = max((base for base in bases if base <= recovery_point), default=0)
        return log_bytes(directory, file_system, first)
    except OSError:
        return 0


def log_bytes(directory: Path, file_system: FileSystem, from_base_offset: int = 0) -> int:
    """Return the size of all segments in a directory with at least this base offset. Raises OSError."""
    bases = _base_offsets(file_system.names(directory))
    return sum(file_system.size(directory / f"{base:020d}.log") for base in bases if base >= from_base_offset)


def _base_offsets(names: list[str]) -> list[int]:
    return sorted(int(name[:-4]) for name in names if name.endswith(".log") and name[:-4].isdigit())


def _remove_leftovers(directory: Path, names: list[str], file_system: FileSystem) -> list[str]:
    logs = {name[:-4] for name in names if name.endswith(".log")}
    kept = []
    for name in names:
        stem, dot, extension = name.rpartition(".")
        if name.endswith(_LEFTOVERS) or (dot + extension in _INDEXES and stem not in logs):
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
        _log.warning("Rebuilding leader epochs from the batches: %s", corrupt)
        epochs.clear()

    def assign(header: BatchHeader) -> bool:
        return epochs.assign(header.leader_epoch, header.base_offset)

    return assign


def _recover(
    segments: list[LogSegment],
    recovery_point: int,
    gaps_until: int | None,
    assign_epoch: Callable[[BatchHeader], bool],
) -> tuple[list[LogSegment], int]:
    """Scan the segments from the recovery point on; return those that are left, and how many bytes were cut."""
    # 1. Begin with the segment that holds the offset before the recovery point: if a segment ends exactly there, its
    #    indexes may not have been synced (`LocalLog.flush`).
    first = max((i for i, segment in enumerate(segments) if segment.base_offset < recovery_point), default=0)
    next_offset = segments[first].base_offset
    for i in range(first, len(segments)):
        segment = segments[i]
        # 2. A segment that overlaps the one before it, or leaves a hole after it, cannot follow it.
        is_hole = gaps_until is not None and segment.base_offset > max(next_offset, gaps_until)
        if segment.base_offset < next_offset or is_hole:
            why = f"the next segment begins at {segment.base_offset}"
            return segments[:i], _remove_after(segments[i - 1], segments[i:], why, next_offset)
        # 3. Scan it and rebuild its indexes.
        torn: TornLog | None = None
        try:
            for header in segment.rebuild():
                assign_epoch(header)
                next_offset = header.next_offset
        except TornLog as error:
            torn = error
        # 4. Cut what is torn, durably: a second power loss must not bring it back, since the next recovery would
        #    begin after it.
        if torn is not None:
            cut = segment.size_bytes - torn.position
            segment.cut(torn.position, next_offset)
            segment.close_time_index()
            segment.sync()
            cut += _remove_after(segment, segments[i + 1 :], str(torn), next_offset, cut)
            return segments[: i + 1], cut
    return segments, 0


def _remove_after(last: LogSegment, later: list[LogSegment], why: str, end_offset: int, cut_before: int = 0) -> int:
    """Remove the segments after the last sound one; return their size in bytes."""
    size = sum(segment.size_bytes for segment in later)
    _log.warning("%s: %s; cut %d bytes, the log ends at offset %d", last.path, why, cut_before + size, end_offset)
    for segment in reversed(later):
        segment.remove()
    return size
