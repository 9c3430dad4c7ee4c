"""Producer state of a log on disk: Kafka's `.snapshot` files, and the rebuild from snapshot and batches.

A snapshot is taken when a segment begins and when the log is closed, so that an opening does not read the whole log.
What it lacks is taken from the batches after it; the transaction indexes of recovered segments are rebuilt on the way,
since only producer state knows where an aborted transaction began.
"""

from __future__ import annotations

import logging
from pathlib import Path

from headrace.protocol.record_batches import BatchHeader, control_record
from headrace.storage.file_system import Buffer, FileSystem
from headrace.storage.log_indexes import AbortedTransaction
from headrace.storage.log_segment import LogSegment, segment_name
from headrace.storage.producer_state import ProducerState, SnapshotCorrupt
from headrace.storage.segment_list import batches_since

__all__ = ["load_producer_state", "rebuild_transaction_indexes", "save_snapshot", "update_with_marker"]

_log = logging.getLogger("headrace.storage")
_SNAPSHOT = ".snapshot"
# The newest may be torn by a crash; with the one before it the opening reads one more segment instead of the whole log.
_KEPT_SNAPSHOTS = 2


def save_snapshot(directory: Path, offset: int, producers: ProducerState, file_system: FileSystem) -> None:
    """Write the state at `offset`. A failure is logged only: without the file the next opening reads more batches."""
    path = directory / f"{segment_name(offset)}{_SNAPSHOT}"
    try:
        file_system.write_atomically(path, producers.snapshot(), sync=False)
        for old in _snapshot_offsets(directory, file_system)[:-_KEPT_SNAPSHOTS]:
            file_system.remove(directory / f"{segment_name(old)}{_SNAPSHOT}")
    except OSError as error:
        _log.warning("Failed to write producer snapshot %s; the next opening reads the batches: %s", path, error)


def load_producer_state(
    directory: Path,
    file_system: FileSystem,
    producers: ProducerState,
    segments: list[LogSegment],
    log_end_offset: int,
    now_ms: int,
    *,
    index_from: int | None = None,
) -> None:
    """Set `producers` to the newest usable snapshot plus the batches after it.

    Args:
        directory: Directory of the partition.
        file_system: File system of the directory.
        producers: The state to replace.
        segments: All segments of the log.
        log_end_offset: Snapshots after it describe batches that are gone; they are removed.
        now_ms: Wall-clock time, noted as the last activity of the producers of the batches.
        index_from: Base offset of the first segment whose transaction index is rebuilt, with all later ones. The
            snapshot is then one at or before this offset. None to rebuild no index.

    Raises:
        OSError: A file could not be read, written or removed.
    """
    # A transaction that a rebuilt index needs may have begun before the segment: the state must be from before it, too.
    latest = log_end_offset if index_from is None else index_from
    loaded_offset = _load_snapshot(directory, file_system, producers, log_end_offset, latest)
    from_offset = segments[0].base_offset if loaded_offset is None else loaded_offset
    if from_offset < log_end_offset:
        _replay_batches(segments, producers, from_offset, now_ms, index_from)


def rebuild_transaction_indexes(segments: list[LogSegment]) -> None:
    """Rebuild the transaction indexes of all segments from their batches. Raises OSError."""
    first = segments[0].base_offset
    _replay_batches(segments, ProducerState("", 0), first, 0, first)


def update_with_marker(
    producers: ProducerState, segment: LogSegment | None, data: Buffer, header: BatchHeader, now_ms: int
) -> bool:
    """Update producer state with a control batch at its final offset, and index the transaction it aborts.

    Args:
        producers: The state to update.
        segment: The segment that holds the batch; None to leave its transaction index as it is.
        data: The bytes in which the header's position counts.
        header: Header of the control batch.
        now_ms: Wall-clock time.

    Returns:
        Whether the transaction index got an entry.
    """
    kind, coordinator_epoch = control_record(data, header)
    first_offset = producers.update(header, seen_ms=now_ms, coordinator_epoch=coordinator_epoch)
    # A transaction that wrote nothing here has no first offset: consumers have nothing to leave out, so it needs no
    # entry.
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


def _snapshot_offsets(directory: Path, file_system: FileSystem) -> list[int]:
    stems = (name.removesuffix(_SNAPSHOT) for name in file_system.names(directory) if name.endswith(_SNAPSHOT))
    return sorted(int(stem) for stem in stems if stem.isdigit())


def _load_snapshot(
    directory: Path, file_system: FileSystem, producers: ProducerState, log_end_offset: int, latest: int
) -> int | None:
    """Load the newest usable snapshot at or before `latest`; return its offset, None if there is none."""
    producers.clear()
    for offset in reversed(_snapshot_offsets(directory, file_system)):
        path = directory / f"{segment_name(offset)}{_SNAPSHOT}"
        if offset > log_end_offset:
            file_system.remove(path)  # of batches that were truncated
            continue
        if offset > latest:
            continue
        try:
            producers.load(file_system.read_bytes(path))
        except SnapshotCorrupt as corrupt:
            _log.warning("Ignoring producer snapshot %s: %s", path, corrupt)
            continue
        return offset
    return None


def _replay_batches(
    segments: list[LogSegment], producers: ProducerState, from_offset: int, now_ms: int, index_from: int | None
) -> None:
    if index_from is not None:
        for segment in segments:
            if segment.base_offset >= index_from:
                segment.transaction_index.replace([])
    for segment, batch, header in batches_since(segments, from_offset):
        if header.is_control:
            is_indexed = index_from is not None and segment.base_offset >= index_from
            update_with_marker(producers, segment if is_indexed else None, batch, header._replace(position=0), now_ms)
        else:
            producers.update(header, seen_ms=now_ms)
