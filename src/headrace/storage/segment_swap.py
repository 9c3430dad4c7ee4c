"""Crash-safe replacement of segments by a cleaned one: after a crash either the old segments are there, or the new one.

File names and order are Kafka's:

1. The new segment is written and synced as `….log.cleaned`.
2. `prepare_swap` renames its indexes and then its log to `.swap`. The rename of the log is the commit point: before it
   an opening of the log discards the new files, after it an opening completes the swap.
3. `commit_swap` renames the old files to `.deleted` and the new ones to their final names.
4. `remove_old_segments` removes the `.deleted` files.

The new segment has no transaction index: no record of the aborted transactions that ended in it is left.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Sequence
from pathlib import Path

from headrace.storage.batch_scan import walk
from headrace.storage.file_system import FileSystem
from headrace.storage.log_segment import segment_name

__all__ = [
    "CLEANED",
    "DELETED",
    "SWAP",
    "commit_swap",
    "complete_interrupted_swaps",
    "discard_new_segment",
    "prepare_swap",
    "remove_old_segments",
]

_log = logging.getLogger("headrace.storage")
CLEANED, SWAP, DELETED = ".cleaned", ".swap", ".deleted"
_INDEXES = (".index", ".timeindex")
_NEW_FILES = (*_INDEXES, ".log")
_OLD_FILES = (".log", *_INDEXES, ".txnindex")


def _path(directory: Path, base_offset: int, extension: str, suffix: str = "") -> Path:
    return directory / f"{segment_name(base_offset)}{extension}{suffix}"


def prepare_swap(directory: Path, base_offset: int, file_system: FileSystem) -> None:
    """Rename `.cleaned` to `.swap`, the log last. Raises OSError; an opening of the log then undoes what was done."""
    for extension in _NEW_FILES:
        cleaned = _path(directory, base_offset, extension, CLEANED)
        file_system.rename(cleaned, _path(directory, base_offset, extension, SWAP))


def commit_swap(directory: Path, old: Sequence[int], new: int, file_system: FileSystem) -> None:
    """Rename the old segments' files to `.deleted` and give the new ones their final names. Raises OSError."""
    for base_offset in old:
        for extension in _OLD_FILES:
            path = _path(directory, base_offset, extension)
            if file_system.exists(path):
                file_system.rename(path, _path(directory, base_offset, extension, DELETED))
    _rename_swapped(directory, new, file_system)


def _rename_swapped(directory: Path, base_offset: int, file_system: FileSystem) -> None:
    # The log comes last: as long as something is left to do, there is a `.log.swap` that an opening finds.
    for extension in _NEW_FILES:
        path = _path(directory, base_offset, extension, SWAP)
        if file_system.exists(path):
            file_system.rename(path, _path(directory, base_offset, extension))


def remove_old_segments(directory: Path, old: Sequence[int], file_system: FileSystem) -> None:
    """Remove the `.deleted` files of replaced segments. After a failure the next opening removes the rest."""
    try:
        for base_offset in old:
            for extension in _OLD_FILES:
                file_system.remove(_path(directory, base_offset, extension, DELETED))
    except OSError as error:
        _log.warning("Failed to remove replaced segments in %s; the next opening removes them: %s", directory, error)


def discard_new_segment(directory: Path, base_offset: int, suffix: str, file_system: FileSystem) -> None:
    """Remove a new segment that will not be swapped in; failures are left to the next opening."""
    for extension in (".log", *_INDEXES):
        with contextlib.suppress(OSError):
            file_system.remove(_path(directory, base_offset, extension, suffix))


def complete_interrupted_swaps(directory: Path, names: Sequence[str], file_system: FileSystem) -> bool:
    """Complete the swaps that a crash interrupted after `prepare_swap`; return whether there were any.

    Args:
        directory: Directory of the partition.
        names: The files in it.
        file_system: File system of the directory.

    Raises:
        OSError: A file could not be read, renamed or removed.
    """
    swapped = sorted(int(name[:20]) for name in names if name.endswith(".log" + SWAP) and name[:20].isdigit())
    for base_offset in swapped:
        path = _path(directory, base_offset, ".log", SWAP)
        end = _read_end_offset(path, base_offset, file_system)
        # The base offsets of the replaced segments are not recorded anywhere. The new segment holds all that is kept
        # of the offsets it spans, so every old segment that starts within them goes. One that starts after its last
        # batch may stay: nothing in the new segment contradicts it.
        bases = (int(name[:20]) for name in names if name.endswith(".log") and name[:20].isdigit())
        old = [each for each in bases if base_offset <= each < max(end, base_offset + 1)]
        _log.info("Completing the interrupted swap of segment %s", path)
        for each in sorted(old):
            for extension in _OLD_FILES:
                # If the crash came between the renames of step 3, this removes an index of the new segment that has
                # its final name already. It is rebuilt from the log.
                file_system.remove(_path(directory, each, extension))
        _rename_swapped(directory, base_offset, file_system)
    return bool(swapped)


def _read_end_offset(path: Path, base_offset: int, file_system: FileSystem) -> int:
    file = file_system.open(path)
    try:
        end = base_offset
        for span in walk(file, 0, file.size()):
            end = span.last_offset + 1
        return end
    finally:
        file.close()
