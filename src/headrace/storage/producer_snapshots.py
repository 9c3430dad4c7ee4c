"""Kafka's `.snapshot` files: producer state at a segment's begin, so that an opening need not read the whole log."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

from headrace.protocol.record_batches import BatchHeader
from headrace.storage.batch_scan import walk
from headrace.storage.file_system import FileSystem
from headrace.storage.log_segment import LogSegment, segment_name
from headrace.storage.producer_state import ProducerState, SnapshotCorrupt

__all__ = ["batches_since", "headers_since", "load_snapshot", "save_snapshot", "snapshot_offsets"]

_log = logging.getLogger("headrace.storage")
_SNAPSHOT = ".snapshot"
_KEPT_SNAPSHOTS = 2


def save_snapshot(directory: Path, offset: int, producers: ProducerState, file_system: FileSystem) -> None:
    """The state at `offset`. Only speeds up the next opening, so a failure is no failure."""
    path = directory / f"{segment_name(offset)}{_SNAPSHOT}"
    try:
        file_system.write_atomically(path, producers.snapshot(), sync=False)
        for old in snapshot_offsets(directory, file_system)[:-_KEPT_SNAPSHOTS]:
            file_system.remove(directory / f"{segment_name(old)}{_SNAPSHOT}")
    except OSError as error:
        _log.warning("%s not written: %s", path, error)


def snapshot_offsets(directory: Path, file_system: FileSystem) -> list[int]:
    """The offsets of the producer snapshots in a directory, ascending."""
    stems = (name.removesuffix(_SNAPSHOT) for name in file_system.names(directory) if name.endswith(_SNAPSHOT))
    return sorted(int(stem) for stem in stems if stem.isdigit())


def load_snapshot(
    directory: Path, file_system: FileSystem, producers: ProducerState, end: int, latest: int
) -> int | None:
    """The newest usable snapshot up to the offset `latest`; that offset, None when there is none. `end`: of the log."""
    producers.clear()
    for offset in reversed(snapshot_offsets(directory, file_system)):
        path = directory / f"{segment_name(offset)}{_SNAPSHOT}"
        if offset > end:
            file_system.remove(path)  # it tells of batches that are gone
            continue
        if offset > latest:
            continue
        try:
            producers.load(file_system.read_bytes(path))
        except SnapshotCorrupt as corrupt:
            _log.warning("%s left aside: %s", path, corrupt)
            continue
        return offset
    return None


def headers_since(segments: list[LogSegment], from_offset: int) -> Iterator[BatchHeader]:
    """The headers of all batches that end at or behind `from_offset`."""
    return (header for _, _, header in batches_since(segments, from_offset))


def batches_since(segments: list[LogSegment], from_offset: int) -> Iterator[tuple[LogSegment, bytes, BatchHeader]]:
    """All batches that end at or behind `from_offset`: headers, and the bytes of control batches."""
    for i, segment in enumerate(segments):
        if i + 1 < len(segments) and segments[i + 1].base_offset <= from_offset:
            continue
        segment.load_indexes()
        position = segment.offset_index.position_for(from_offset)
        for span in walk(segment.file, position, segment.size_bytes):
            if span.last_offset >= from_offset:
                header = segment.header_at(span)
                yield segment, segment.read(span.position, span.end) if header.is_control else b"", header
