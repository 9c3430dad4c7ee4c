"""Exchanging segments on the disk so that a crash at any moment leaves either the old ones or the new one, never a mix.

Kafka's names and order. A new segment is written and synced as `….log.cleaned` (`commit` begins here): its indexes
and then its log are renamed to `.swap`; from that last rename on it counts, and an opening of the log finishes what is
left to do. Then the old files become `.deleted`, the new ones get their names, the old ones are removed. The new
segment has no transaction index: of the aborted transactions that end in it no record is left.
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
    "announce_exchange",
    "commit_exchange",
    "finish_exchanges",
    "remove_deleted",
    "remove_suffixed",
]

_log = logging.getLogger("headrace.storage")
CLEANED, SWAP, DELETED = ".cleaned", ".swap", ".deleted"
_INDEXES = (".index", ".timeindex")
_FILES = (".log", *_INDEXES)
_OLD_FILES = (*_FILES, ".txnindex")


def _path(directory: Path, base_offset: int, extension: str, suffix: str = "") -> Path:
    return directory / f"{segment_name(base_offset)}{extension}{suffix}"


def announce_exchange(directory: Path, base_offset: int, file_system: FileSystem) -> None:
    """`.cleaned` → `.swap`, the log last. Raises OSError: then nothing has happened that an opening would not undo."""
    for extension in (*_INDEXES, ".log"):
        file_system.rename(
            _path(directory, base_offset, extension, CLEANED), _path(directory, base_offset, extension, SWAP)
        )


def commit_exchange(directory: Path, old: Sequence[int], new: int, file_system: FileSystem) -> None:
    """After `announce_exchange`: the old segments' files step aside, the new one's take their place. Raises OSError."""
    for base_offset in old:
        for extension in _OLD_FILES:
            path = _path(directory, base_offset, extension)
            if file_system.exists(path):
                file_system.rename(path, _path(directory, base_offset, extension, DELETED))
    _unswap(directory, new, file_system)


def _unswap(directory: Path, base_offset: int, file_system: FileSystem) -> None:
    """The log last, so that as long as something is left to do there is a `.log.swap` that says so."""
    for extension in (*_INDEXES, ".log"):
        path = _path(directory, base_offset, extension, SWAP)
        if file_system.exists(path):
            file_system.rename(path, _path(directory, base_offset, extension))


def remove_deleted(directory: Path, old: Sequence[int], file_system: FileSystem) -> None:
    """What an exchange put aside. A failure leaves debris for the next opening, and is told."""
    try:
        for base_offset in old:
            for extension in _OLD_FILES:
                file_system.remove(_path(directory, base_offset, extension, DELETED))
    except OSError as error:
        _log.warning("%s: debris is left for the next opening: %s", directory, error)


def remove_suffixed(directory: Path, base_offset: int, suffix: str, file_system: FileSystem) -> None:
    """Throw away a new segment that did not come to be."""
    for extension in (".log", *_INDEXES):
        with contextlib.suppress(OSError):
            file_system.remove(_path(directory, base_offset, extension, suffix))


def finish_exchanges(directory: Path, names: Sequence[str], file_system: FileSystem) -> bool:
    """At an opening: completes what a crash interrupted after `announce_exchange`; whether there was anything.

    The new segment holds all that is kept of the offsets it spans, so every old segment that begins there goes; one
    that begins behind the new one's last batch may stay, since nothing in the new one contradicts it.
    """
    swapped = sorted(int(name[:20]) for name in names if name.endswith(".log" + SWAP) and name[:20].isdigit())
    for base_offset in swapped:
        path = _path(directory, base_offset, ".log", SWAP)
        end = _next_offset(path, base_offset, file_system)
        bases = (int(name[:20]) for name in names if name.endswith(".log") and name[:20].isdigit())
        old = [each for each in bases if base_offset <= each < max(end, base_offset + 1)]
        _log.info("%s: finishing an exchange of segments that was interrupted", path)
        for each in sorted(old):
            for extension in _OLD_FILES:
                # Its own new index may bear its final name already: then it is that, not the old one, that goes, and
                # is built anew from the log.
                file_system.remove(_path(directory, each, extension))
        _unswap(directory, base_offset, file_system)
    return bool(swapped)


def _next_offset(path: Path, base_offset: int, file_system: FileSystem) -> int:
    file = file_system.open(path)
    try:
        end = base_offset
        for span in walk(file, 0, file.size()):
            end = span.last_offset + 1
        return end
    finally:
        file.close()
