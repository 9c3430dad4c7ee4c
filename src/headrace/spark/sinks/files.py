"""Files that survive a crash: whole or not at all, and one owner of a directory at a time."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

__all__ = ["locked", "remove", "subdirectories", "sync_directory", "sync_file", "write_text"]

LOCK = ".lock"


@contextlib.contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Hold the directory's lock; the kernel releases the one of a process that died. Raises OSError."""
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / LOCK).open("ab") as file:
        # `flock` and not `lockf`: the latter is lost when any descriptor of the file is closed in the same process.
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def write_text(path: Path, text: str) -> None:
    """Replace the file's text in one step; durable."""
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    aside.write_text(text)
    # Without this the rename may reach the disk before the bytes, and the file is empty after a power failure.
    sync_file(aside)
    aside.replace(path)
    sync_directory(path.parent)


def remove(path: Path) -> None:
    """Remove a directory as a whole: what is left of it after a crash has another name."""
    gone = path.with_name(f".gone-{path.name.lstrip('.')}")
    with contextlib.suppress(FileNotFoundError):
        # One step takes it out of sight. Deleting file by file under the old name could be mistaken for a part with
        # fewer rows.
        path.rename(gone)
    shutil.rmtree(gone, ignore_errors=True)


def subdirectories(directory: Path) -> list[Path]:
    """Sorted by name; none where the directory is missing."""
    try:
        return sorted(path for path in directory.iterdir() if path.is_dir())
    except FileNotFoundError:
        return []


def sync_file(path: Path) -> None:
    """Wait until the file's bytes are on the disk."""
    with path.open("rb") as file:
        os.fsync(file.fileno())


def sync_directory(path: Path) -> None:
    """Wait until the names in the directory are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
